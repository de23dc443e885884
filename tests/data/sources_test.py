"""Files one after the other, from any place on, as long as they are the same files."""

import dataclasses
import os

import numpy as np
import pytest

from monolith import errors
from monolith.data import sources
from monolith.data.schema import Ids


@dataclasses.dataclass(frozen=True)
class Bytes(sources.FileSource):
    """A row is a byte."""

    factor: int = 1

    def read_file(self, number, offset, line):
        with open(self.paths[number], "rb") as file:
            file.seek(offset)
            while byte := file.read(1):
                offset += 1
                yield {"byte": np.array([byte[0] * self.factor])}, offset, line + offset

    def make_layout(self, rows):
        raise NotImplementedError


@pytest.fixture
def source(tmp_path):
    for name, content in (("a", b"12"), ("b", b""), ("c", b"345")):
        (tmp_path / name).write_bytes(content)
    return Bytes(tuple(f"{tmp_path}/{name}" for name in "abc"), (Ids("byte"),))


def read(source, place=None):
    chunks = list(source.read(source.start if place is None else place))
    return bytes(chunk["byte"][0] for chunk, _ in chunks), [place for _, place in chunks]


def test_every_place_is_gone_on_from(source):
    content, places = read(source)
    assert content == b"12345"
    for i, place in enumerate(places):
        assert read(source, place)[0] == content[i + 1 :]
        assert len(place) == len(source.start)


class TestChanges:
    def test_a_place_in_a_file_that_was_written_anew_is_refused(self, source):
        _, places = read(source)
        os.utime(source.paths[2], (1, 1))
        for place in places[2:]:
            with pytest.raises(
                errors.DataError, match="c' has changed since the position was saved"
            ):
                read(source, place)
        assert read(source, places[0])[0] == b"2345"  # It is read from its beginning then.

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda path: path.open("ab").write(b"6"), id="grown"),
            pytest.param(lambda path: path.write_bytes(b"9"), id="written_anew"),
            pytest.param(lambda path: os.truncate(path, 1), id="cut"),
        ],
    )
    def test_a_file_that_changes_while_it_is_read_is_named(self, source, tmp_path, change):
        chunks = source.read(source.start)
        for _ in range(3):
            next(chunks)
        change(tmp_path / "c")
        message = "c' has changed while it was read, .* rename them when they are whole"
        with pytest.raises(errors.DataError, match=message):
            list(chunks)

    def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(self, source, tmp_path):
        chunks = source.read(source.start)
        for _ in range(3):
            next(chunks)
        (tmp_path / "new").write_bytes(b"7777")
        (tmp_path / "new").rename(tmp_path / "c")
        assert [chunk["byte"][0] for chunk, _ in chunks] == [ord("4"), ord("5")]
        assert read(source)[0] == b"127777"

    def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(self, source, tmp_path):
        chunks = source.read(source.start)
        for _ in range(3):
            next(chunks)
        (tmp_path / "c").unlink()
        assert len(list(chunks)) == 2
        with pytest.raises(errors.DataError, match="c' does not exist"):
            read(source)


class TestDescription:
    def test_is_the_same_for_the_same_files(self, source):
        assert source.describe() == dataclasses.replace(source).describe()

    @pytest.mark.parametrize(
        "changes",
        [
            {"features": (Ids("other"),)},
            {"features": (Ids("byte", optional=True),)},
            {"factor": 2},
        ],
    )
    def test_tells_settings(self, source, changes):
        assert source.describe() != dataclasses.replace(source, **changes).describe()

    def test_tells_files(self, source, tmp_path):
        before = source.describe()
        assert before != dataclasses.replace(source, paths=source.paths[:2]).describe()
        assert before != dataclasses.replace(source, paths=source.paths[::-1]).describe()
        (tmp_path / "b").write_bytes(b"x")
        assert before != source.describe()

    def test_of_a_file_that_is_gone(self, source, tmp_path):
        (tmp_path / "b").unlink()
        with pytest.raises(errors.DataError, match="b' does not exist; check the path"):
            source.describe()


def test_first_rows_are_checked(source, tmp_path):
    source.check_first_rows()
    with pytest.raises(errors.DataError, match=r"There are no rows in '.*b'; check"):
        Bytes((f"{tmp_path}/b",), ()).check_first_rows()
