"""Files of framed records, and standard input, as datasets of serialized messages.

Example:
    >>> import pathlib
    >>> framing = Framing()
    >>> content = framing.make_record(b"one") + framing.make_record(b"two")
    >>> _ = pathlib.Path("records").write_bytes(content)
    >>> source = RecordFiles(("records",), (), framing, "plaintext", "plaintext")
    >>> list(make_dataset(source, cycle_length=1).as_numpy_iterator())
    [b'one', b'two']
"""

import contextlib
import dataclasses
import io
import itertools
import os
import select
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, conversions, division, files, seekable, sources
from monolith.data.framing import BinaryFile, Framing

RECORD = "record"
COMPRESSIONS = ("none", "gzip", "zlib")

_BUFFER_BYTES = 1 << 20
# Rows and records that are read at once; those of batches are long.
_NUM_AT_ONCE = 64
_NUM_BATCHES_AT_ONCE = 2
_STANDARD_INPUT = 0
_PIPE_BYTES = 1 << 16
_POLL_SEC = 0.2


class StringLayout:
    """Columns of strings as tensors.

    Args:
        names: The columns.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self.signature = tuple(tf.TensorSpec([None], tf.string) for _ in names)

    def pack(self, batch: columns.Columns) -> tuple[np.ndarray, ...]:
        """Returns the columns."""
        found: Any = tuple(batch[name] for name in self._names)
        return found

    def unpack(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the columns as tensors."""
        return dict(zip(self._names, tensors, strict=True))


@dataclasses.dataclass(frozen=True)
class RecordFiles(sources.FileSource):
    """Records of files.

    Attributes:
        framing: What stands before each record.
        input_type: What a record is, as `conversions.make_converter` says it.
        output_type: What a row is.
        compression: One of `COMPRESSIONS`; "" says that the names tell it.
        buffer_bytes: How much of a file is read at once.
    """

    framing: Framing
    input_type: str
    output_type: str
    compression: str = ""
    buffer_bytes: int = _BUFFER_BYTES

    def read_file(
        self, number: int, offset: int, line: int
    ) -> Iterator[tuple[columns.Columns, int, int]]:
        path = self.paths[number]
        convert = conversions.make_converter(self.input_type, self.output_type)
        with self._open(path) as file:
            _skip(file, offset)
            records = self.framing.read_records(file, repr(path), offset)
            size = 1 if self.input_type == "examplebatch" else _NUM_AT_ONCE
            while chunk := list(itertools.islice(records, size)):
                rows = [record for record, _ in chunk]
                if convert is not None:
                    rows = _convert_all(convert, rows, f"{path!r}, before byte {chunk[-1][1]}")
                if rows:
                    yield {RECORD: np.array(rows, object)}, chunk[-1][1], 0

    def make_layout(self, rows: int | None) -> columns.Layout:
        return StringLayout(RECORD)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryFile]:
        is_gzip = None if not self.compression else self.compression == "gzip"
        with files.open_binary(path, is_gzip=is_gzip, buffer_bytes=self.buffer_bytes) as file:
            yield io.BufferedReader(_Inflated(file)) if self.compression == "zlib" else file


def make_dataset(source: RecordFiles, **interleaving: Any) -> tf.data.Dataset:
    """Returns single rows, the strings of serialized messages.

    Args:
        source: The files. A worker of several reads its part of them.
        interleaving: The settings of `tf.data.Dataset.interleave`.
    """
    at_once = _NUM_BATCHES_AT_ONCE if source.output_type == "examplebatch" else _NUM_AT_ONCE
    batching = columns.Batching(batch_size=at_once)
    return get_records(seekable.interleave_files(source, batching, **interleaving))


def get_records(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the strings of what has a column of them."""
    return dataset.map(tf.autograph.experimental.do_not_convert(lambda row: row[RECORD]))


def read_standard_input(framing: Framing, input_type: str, output_type: str) -> tf.data.Dataset:
    """Returns the rows that come through standard input; each worker of a job has its own.

    How far it was read is not saved, since nobody can go back there.
    """
    division.take_part()
    convert = conversions.make_converter(input_type, output_type)

    def read() -> Iterator[bytes]:
        name = "standard input"
        for record, end in framing.read_records(_StandardInput(), name):
            if convert is None:
                yield record
            else:
                yield from _convert_all(convert, [record], f"{name}, before byte {end}")

    return tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], tf.string))


def _convert_all(convert: Any, records: list[bytes], where: str) -> list[bytes]:
    try:
        return [row for record in records for row in convert(record)]
    except errors.DataError as e:
        raise errors.DataError(f"{where}: {e}; check what kind of records these are.") from None


def _skip(file: Any, offset: int) -> None:
    if file.seekable():
        file.seek(offset)
    while not file.seekable() and offset:
        offset -= len(file.read(min(offset, _BUFFER_BYTES)))


class _Inflated(io.RawIOBase):
    """What a file of zlib holds."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._inflater = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        found = b""
        while not found and not self._inflater.eof:
            compressed = self._inflater.unconsumed_tail or self._file.read(_BUFFER_BYTES)
            found = self._inflater.decompress(compressed, len(buffer))
            if not compressed and not found:
                raise EOFError("it ends in the middle")
        buffer[: len(found)] = found
        return len(found)


class _StandardInput:
    """Reads standard input, but gives up when Python is about to exit."""

    def __init__(self) -> None:
        self._waiting = b""

    def read(self, n: int, /) -> bytes:
        parts, missing = [], n
        while missing and (self._waiting or self._fill()):
            parts.append(self._waiting[:missing])
            self._waiting = self._waiting[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def _fill(self) -> bool:
        """Waits for more bytes; returns whether there are any."""
        while not select.select([_STANDARD_INPUT], [], [], _POLL_SEC)[0]:
            if sources.at_exit.is_set():
                raise RuntimeError("Python is about to exit.")
        self._waiting = os.read(_STANDARD_INPUT, _PIPE_BYTES)
        return bool(self._waiting)
