"""Records in files and streams: which words stand before each, and how long it is.

A record is a header, its size, and its bytes; sizes are 64 bits, little-endian. Which header there
is, nothing in the file says:

| setting | words before the size |
| --- | --- |
| `lagrangex_header` | one, with the kind and the source of the data; the others do not count then |
| `kafka_dump_prefix` | one; if it is zero, one more, otherwise it is the size of the sort id |
| `has_sort_id` | the size of a sort id, and the sort id |
| `kafka_dump` | one |

Example:
    >>> import io
    >>> framing = Framing(has_sort_id=True)
    >>> content = b"".join(framing.make_record(text) for text in (b"one", b"two"))
    >>> [record for record, _ in framing.read_records(io.BytesIO(content), "a file")]
    [b'one', b'two']
"""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Protocol

from monolith import errors

_WORD_BYTES = 8
_WORD = struct.Struct("<Q")
# What writers put into memory that was freed.
_DEAD = 0xFEFEFEFE
# No protobuf message is longer; a damaged size must not ask for all memory.
_MAX_BYTES = 1 << 31


class BinaryFile(Protocol):
    """Something to read bytes from; fewer than asked for are the end."""

    def read(self, n: int, /) -> bytes: ...


class _Truncated(Exception):
    """The end, in the middle of a record."""


@dataclasses.dataclass(frozen=True)
class Framing:
    """Which words stand before a record; the module's page says which.

    Attributes:
        has_sort_id: Whether there is a sort id.
        kafka_dump: Whether there is the word of a dump from Kafka.
        kafka_dump_prefix: Whether there is the prefix of one.
        lagrangex_header: Whether there is one word alone.
    """

    has_sort_id: bool = True
    kafka_dump: bool = False
    kafka_dump_prefix: bool = False
    lagrangex_header: bool = False

    def make_record(self, payload: bytes) -> bytes:
        """Returns a record; the words of the header are zero, as other writers have them."""
        num_words = 1 if self.lagrangex_header else self._count_words()
        return bytes(_WORD_BYTES * num_words) + _WORD.pack(len(payload)) + payload

    def read_records(
        self, file: BinaryFile, name: str, offset: int = 0
    ) -> Iterator[tuple[bytes, int]]:
        """Yields the records from where a file stands, each with the offset behind it.

        Args:
            file: Where to read.
            name: What it is called in messages.
            offset: Where it stands.

        Raises:
            errors.DataError: The bytes are no such records. Nothing behind them can be found.
        """
        while True:
            try:
                found = self.read_record(file, offset)
            except _Truncated:
                raise errors.DataError(
                    f"{name} has a truncated record at byte {offset}; write it again, or check "
                    f"which header its records have ({self})."
                ) from None
            except errors.DataError as e:
                raise errors.DataError(
                    f"{name}, byte {offset}: {e}; check which header its records have ({self})."
                ) from None
            if found is None:
                return
            payload, offset = found
            yield payload, offset

    def read_record(self, file: BinaryFile, offset: int) -> tuple[bytes, int] | None:
        """Returns the next record and the offset behind it, None at the end."""
        first = file.read(_WORD_BYTES)
        if not first:
            return None
        reader = _Words(file, first)
        if self.lagrangex_header:
            reader.read_word()
        else:
            self._skip_header(reader)
        payload = reader.read(reader.read_word())
        return payload, offset + reader.num_bytes

    def read_tail(self, content: bytes, start: int) -> tuple[bytes, int] | None:
        """Returns the record at a place in bytes and the place behind it; None if it is not whole.

        Raises:
            errors.DataError: That is no record, however many bytes follow.
        """
        try:
            return self.read_record(_Bytes(content, start), start)
        except _Truncated:
            return None

    def _skip_header(self, reader: "_Words") -> None:
        sort_id_bytes = None
        if self.kafka_dump_prefix:
            sort_id_bytes = reader.read_word() or None
            if sort_id_bytes is None:
                reader.read_word()
        if self.has_sort_id:
            reader.read(reader.read_word() if sort_id_bytes is None else sort_id_bytes)
        if self.kafka_dump:
            reader.read_word()

    def _count_words(self) -> int:
        return 2 * self.kafka_dump_prefix + self.has_sort_id + self.kafka_dump


class _Words:
    """Reads words and bytes behind the first word, which somebody has read already."""

    def __init__(self, file: BinaryFile, first: bytes) -> None:
        self._file = file
        self._first = first
        self.num_bytes = 0

    def read_word(self) -> int:
        if self._first:
            content, self._first = self._first, b""
            self.num_bytes += len(content)
            if len(content) < _WORD_BYTES:
                raise _Truncated
        else:
            content = self.read(_WORD_BYTES)
        return int(_WORD.unpack(content)[0])

    def read(self, size: int) -> bytes:
        if size == _DEAD:
            raise errors.DataError("DEADBEEF value found")
        if size > _MAX_BYTES:
            raise errors.DataError(f"a size of {size} bytes is no size of a record")
        content = self._file.read(size) if size else b""
        if len(content) < size:
            raise _Truncated
        self.num_bytes += size
        return content


class _Bytes:
    """Reads from bytes, without a copy of all of them."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._start = start

    def read(self, n: int, /) -> bytes:
        found = self._content[self._start : self._start + n]
        self._start += len(found)
        return found
