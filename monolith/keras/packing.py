"""The files of a table as arrays, since a weights file of Keras holds arrays and nothing else.

Each file is cut into pieces, so that none is larger than a shard of `save_weights` may be.

Example:
    >>> from monolith.embedding import optimizers
    >>> table = Table("scores", 1, optimizers.SGD(1.0))
    >>> table.assign([7], [[1.5]])
    >>> arrays = pack(table)
    >>> copy = Table("copy", 1, optimizers.SGD(1.0))
    >>> unpack(arrays, copy)
    >>> copy([7]).numpy().tolist()
    [[1.5]]
"""

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from monolith import errors
from monolith.embedding.table import Table

_LIST = "files"
_PIECE_BYTES = 1 << 26


def pack(table: Table) -> dict[str, np.ndarray]:
    """Returns all that `Table.save` writes, in arrays of bytes."""
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "table")
        table.save(path)
        for number, name in enumerate(sorted(os.listdir(path))):
            content = np.fromfile(os.path.join(path, name), np.uint8)
            sizes[name] = content.size
            for piece, start in enumerate(range(0, content.size, _PIECE_BYTES)):
                arrays[f"{number}_{piece}"] = content[start : start + _PIECE_BYTES]
    return {_LIST: np.frombuffer(json.dumps(sizes).encode(), np.uint8), **arrays}


def unpack(arrays: Mapping[str, Any], table: Table) -> None:
    """Replaces the rows of `table` by those that `pack` has put into arrays.

    Raises:
        DataError: They are not such arrays, or do not fit the table.
    """
    try:
        sizes = json.loads(np.asarray(arrays[_LIST]).tobytes())
    except (KeyError, TypeError, ValueError) as e:
        raise errors.DataError(
            f"The file has no rows for table '{table.name}': it was not saved with this layer."
        ) from e
    with tempfile.TemporaryDirectory() as directory:
        for number, (name, size) in enumerate(sizes.items()):
            with open(os.path.join(directory, os.path.basename(name)), "wb") as file:
                for piece in range(-(-size // _PIECE_BYTES)):
                    file.write(np.asarray(arrays[f"{number}_{piece}"]).tobytes())
        table.restore(directory)
