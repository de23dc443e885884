"""Framed records: written and read with every header, cut and damaged."""

import io
import itertools
import struct

import pytest

from monolith import errors
from monolith.data.framing import Framing

ALL = [Framing(*flags) for flags in itertools.product([False, True], repeat=4)]
RECORDS = [b"one", b"", b"x" * 300]


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


def read(framing, content):
    return [record for record, _ in framing.read_records(io.BytesIO(content), "'a'")]


@pytest.mark.parametrize("framing", ALL, ids=str)
def test_what_is_written_is_read_and_the_offsets_are_those_of_the_bytes(framing):
    content = b"".join(map(framing.make_record, RECORDS))
    assert read(framing, content) == RECORDS
    *_, (_, end) = framing.read_records(io.BytesIO(content), "'a'")
    assert end == len(content)
    # From any record on.
    first = len(framing.make_record(RECORDS[0]))
    assert read(framing, content[first:]) == RECORDS[1:]
    # As a stream sees it: a record is there when its last byte is.
    assert framing.read_tail(content, first) == (b"", first + len(framing.make_record(b"")))
    assert framing.read_tail(content[: first - 1], 0) is None


@pytest.mark.parametrize(
    ("framing", "content"),
    [
        # The headers of the specification, with words that are not zero.
        (Framing(lagrangex_header=True), word(0x0102) + word(2) + b"ab"),
        (Framing(has_sort_id=True), word(3) + b"key" + word(2) + b"ab"),
        (Framing(kafka_dump=True), word(1) + b"k" + word(77) + word(2) + b"ab"),
        (
            Framing(kafka_dump_prefix=True, kafka_dump=True),
            word(3) + b"key" + word(5) + word(2) + b"ab",
        ),
        (Framing(kafka_dump_prefix=True), word(0) + word(9) + word(1) + b"k" + word(2) + b"ab"),
        (Framing(has_sort_id=False), word(2) + b"ab"),
    ],
)
def test_headers_of_other_writers(framing, content):
    assert read(framing, content * 2) == [b"ab", b"ab"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (word(2) + b"a", "'a' has a truncated record at byte 0"),
        (word(2)[:5], "'a' has a truncated record at byte 0"),
        (word(0xFEFEFEFE), "'a', byte 0: DEADBEEF value found"),
        (word(1) + b"x" + word(1 << 60), "'a', byte 9: a size of 1152921504606846976 bytes is no"),
    ],
)
def test_damage_is_named_with_its_place(content, message):
    with pytest.raises(errors.DataError, match=message):
        read(Framing(has_sort_id=False), content)
