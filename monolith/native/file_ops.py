"""Files that a graph writes while it runs, such as the predictions of a worker.

A file is opened, and emptied if it exists, when the first op on it runs. In a graph without
`tf.function`s two appends of one run come in no particular order; give one of them a control
dependency on the other, or append once per run.

Example:
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory, tf.Graph().as_default():
    ...     file = WritableFile(f"{directory}/new/part-00000")
    ...     append = file.append("1234")
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[FileCloseHook([file])]) as session:
    ...         for _ in range(2):
    ...             session.run(append)
    ...     pathlib.Path(f"{directory}/new/part-00000").read_text()
    '12341234'
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith.native import ops

# Numbers for files that are opened eagerly; in a graph every op has a name of its own.
_eager_numbers = itertools.count()


class WritableFile:
    """A file that ops append to, from any number of threads; what one op appends stays together.

    In a graph the file belongs to the session: one that is created anew opens the file anew, and
    empties it. Called eagerly, the file is opened at once.

    Args:
        filename: Where to write; missing directories are created.
    """

    def __init__(self, filename: str) -> None:
        self._filename = filename
        unique_name = f"eager_{next(_eager_numbers)}" if tf.executing_eagerly() else ""
        self._handle = ops.monolith_writable_file(filename=filename, unique_name=unique_name)

    @property
    def filename(self) -> str:
        """Where the file is."""
        return self._filename

    def append(self, content: Any) -> tf.Operation | None:
        """Appends `content`, a string scalar.

        Returns:
            The op to run, None when called eagerly.
        """
        return ops.monolith_writable_file_append(self._handle, content)

    def append_entry_dump(self, item_id: Any, bias: Any, embedding: Any) -> tf.Operation | None:
        """Appends one record per row: a TFRecord, not compressed, of an `EntryDump`.

        The record of row i has the id `item_id[i]` and the floats `bias[i], *embedding[i]`.

        Args:
            item_id: Int64 `[n]`.
            bias: Float32 `[n]` or `[n, 1]`.
            embedding: Float32 `[n, dim]`.

        Returns:
            The op to run, None when called eagerly.
        """
        bias = tf.convert_to_tensor(bias, tf.float32)
        if bias.shape.rank == 2 and bias.shape[1] == 1:
            bias = tf.squeeze(bias, axis=1)
        return ops.monolith_writable_file_append_entry_dump(self._handle, item_id, bias, embedding)

    def close(self) -> tf.Operation | None:
        """Closes the file; to append then is an error, to close it once more is not.

        Returns:
            The op to run, None when called eagerly.
        """
        return ops.monolith_writable_file_close(self._handle)


class FileCloseHook(tf.compat.v1.train.SessionRunHook):
    """Closes files when a session ends.

    Args:
        files: The files, made in the graph of the session.

    Raises:
        TypeError: `files` is not a list of `WritableFile`s.
    """

    def __init__(self, files: Sequence[WritableFile]) -> None:
        if not isinstance(files, Sequence) or not all(isinstance(f, WritableFile) for f in files):
            raise TypeError(f"`files` must be a list of WritableFile, got {files!r}.")
        self._files = list(files)
        self._close_ops: list[tf.Operation | None] = []

    def begin(self) -> None:
        self._close_ops = [file.close() for file in self._files]

    def end(self, session: tf.compat.v1.Session) -> None:
        session.run(self._close_ops)
