"""What a dataset can be made of: rows that are found again, and a description that tells which.

Example:
    >>> import pathlib
    >>> import numpy as np
    >>> for name in ("a", "b"):
    ...     _ = pathlib.Path(name).write_bytes(b"xy")
    >>> class Bytes(FileSource):
    ...     def read_file(self, number, offset, line):
    ...         content = pathlib.Path(self.paths[number]).read_bytes()
    ...         for i in range(offset, len(content)):
    ...             yield {"byte": np.array([content[i]])}, i + 1, 0
    ...     def make_layout(self, rows):
    ...         raise NotImplementedError
    >>> source = Bytes(("a", "b"), ())
    >>> [rows["byte"].tobytes()[:1] for rows, _ in source.read(source.start)]
    [b'x', b'y', b'x', b'y']
    >>> _, behind_first = next(source.read(source.start))
    >>> [rows["byte"].tobytes()[:1] for rows, _ in source.read(behind_first)]
    [b'y', b'x', b'y']
"""

import abc
import dataclasses
import hashlib
import json
import threading
from collections.abc import Iterator

from monolith import errors
from monolith.data import columns, files
from monolith.data.positions import Chunk, Place
from monolith.data.schema import Feature

# Set when Python is about to exit: whoever waits for rows gives up.
at_exit = threading.Event()


class Source(abc.ABC):
    """Rows that can be read from any place on.

    Attributes:
        start: The place of the first row.
        is_stream: Whether there may be more rows later. Its chunks are batches then, since the same
            rows may come in other chunks when they are read again.
    """

    start: Place = (0,)
    is_stream: bool = False

    @abc.abstractmethod
    def read(self, place: Place) -> Iterator[Chunk]:
        """Yields the rows from `place` on, in chunks, each with the place behind it."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a text that says which rows these are, the same in every run of a program."""

    @abc.abstractmethod
    def make_layout(self, rows: int | None) -> columns.Layout:
        """Returns how batches become tensors; `rows` is their size if all have the same."""

    def end_waits(self) -> None:  # noqa: B027 - most never wait
        """Has reads that wait for rows end, as if there were no more; others are left alone."""


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Rows of files, which are read one after the other.

    A place has four parts: the number of the file; the offset in it, in bytes, rows or whatever the
    format counts, where 0 is its beginning; how many lines come before, for messages; and the
    file's stamp, since an offset means nothing in a file that was written anew.

    Attributes:
        paths: The files.
        features: Which columns to read, and as what.
    """

    paths: tuple[str, ...]
    features: tuple[Feature, ...]

    start = (0, 0, 0, 0)

    @abc.abstractmethod
    def read_file(
        self, number: int, offset: int, line: int
    ) -> Iterator[tuple[columns.Columns, int, int]]:
        """Yields chunks of a file from `offset` on, each with offset and line behind it."""

    def read(self, place: Place) -> Iterator[Chunk]:
        first, offset, line, saved_stamp = place
        for number in range(first, len(self.paths)):
            path = self.paths[number]
            with files.describe_errors(path):
                status = files.get_status(path)
                stamp = status.make_stamp()
                if offset and stamp != saved_stamp:
                    raise errors.DataError(
                        f"{path!r} has changed since the position was saved from which it is to be "
                        "read on; read it from the beginning."
                    )
                for rows, *after in self.read_file(number, offset, line):
                    yield rows, (number, *after, stamp)
                files.check_unchanged(path, status)
            offset = line = 0

    def describe(self) -> str:
        settings = [
            (field.name, repr(getattr(self, field.name)))
            for field in dataclasses.fields(self)
            if field.name != "paths"
        ]
        digest = hashlib.sha256()
        for path, status in zip(self.paths, files.get_statuses(self.paths), strict=True):
            digest.update(json.dumps([path, status.size, status.changed_ns]).encode())
        return f"{type(self).__name__} {settings} {len(self.paths)} {digest.hexdigest()}"

    def check_first_rows(self) -> None:
        """Raises a `DataError` unless there are rows, the first of which can be read."""
        if next(self.read(self.start), None) is None:
            raise errors.DataError(
                f"There are no rows in {files.enumerate_files(self.paths)}; check that they were "
                "written."
            )
