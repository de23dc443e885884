"""What `tf.train.Checkpoint` and `tf.saved_model.save` write of an `ml.Table`.

A checkpoint holds all files that `Table.save` writes, so that training goes on where it was. A
SavedModel holds the rows among its assets; whoever loads it gets a table of its own.

Example:
    >>> def save(basename):
    ...     tf.io.write_file(f"{basename}-00000-of-00001", "rows")
    >>> assets, first = write_assets(save)
    >>> list(assets), tf.io.read_file(first().asset_path).numpy()
    (['rows_0'], b'rows')
"""

import os
import tempfile
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.trackable import base as trackable
from tensorflow.python.trackable.asset import Asset

_FILES = "files"


class RowsInCheckpoints(trackable.Trackable):
    """The files of a table as one tensor of names and contents.

    Args:
        table: The `Table`, whose `save` and `restore` are used.
    """

    def __init__(self, table: Any) -> None:
        self._table = weakref.ref(table)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "table")
            self._get_table().save(path)
            names = sorted(os.listdir(path))
            contents = [tf.io.read_file(os.path.join(path, name)) for name in names]
            return {_FILES: tf.stack([tf.constant(names), tf.stack(contents)], axis=1)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for name, content in restored_tensors[_FILES].numpy():
                path = os.path.join(directory, os.path.basename(name.decode()))
                with open(path, "wb") as file:
                    file.write(content)
            self._get_table().restore(directory)

    def _get_table(self) -> Any:
        table = self._table()
        if table is None or not tf.executing_eagerly():
            raise RuntimeError("The rows of a table are saved eagerly, and while it exists.")
        return table


def write_assets(
    save: Callable[[str], Any],
) -> tuple[dict[str, Asset], Callable[[], Asset | None]]:
    """Writes the files of a table where a SavedModel will take them from.

    They are removed when nobody has the assets any more, after the model was written.

    Args:
        save: Writes `<basename>-00000-of-00001` and so on.

    Returns:
        The files by the names under which they are tracked, and a function that gives the first
        one, None when they are gone.
    """
    # The name is unique: the files of all tables of a model lie in one directory.
    directory = tempfile.TemporaryDirectory()
    save(os.path.join(directory.name, f"rows_{uuid.uuid4().hex}"))
    paths = [os.path.join(directory.name, name) for name in sorted(os.listdir(directory.name))]
    assets = [Asset(path) for path in paths]
    for asset in assets:
        asset._directory = directory
    first = next(asset for asset, path in zip(assets, paths, strict=True) if ".meta-" not in path)
    return {f"rows_{i}": asset for i, asset in enumerate(assets)}, weakref.ref(first)
