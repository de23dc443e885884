"""Finding and opening files."""

import gzip
import os

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import files


def test_patterns_are_expanded_in_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    found = files.list_files([tmp_path / "c.txt", f"{tmp_path}/*.csv"])
    assert found == [f"{tmp_path}/{name}" for name in ("c.txt", "a.csv", "b.csv")]


def test_patterns_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert files.list_files("*.csv") == ["a.csv", "b.csv"]


def test_name_with_brackets_is_no_pattern(tmp_path):
    (tmp_path / "a[1].csv").touch()
    assert files.list_files(tmp_path / "a[1].csv") == [f"{tmp_path}/a[1].csv"]


@pytest.mark.parametrize("name", ["missing.csv", "*.csv"])
def test_no_match_is_an_error(tmp_path, name):
    with pytest.raises(errors.DataError, match=f"No file matches '.*/{name.replace('*', '[*]')}'"):
        files.list_files([tmp_path / name])


def test_nothing_and_directories_are_errors(tmp_path):
    with pytest.raises(errors.DataError, match="list of input files is empty"):
        files.list_files([])
    with pytest.raises(errors.DataError, match=r"is a directory; name the files in it, .*/\*'"):
        files.list_files(tmp_path)


@pytest.mark.parametrize("paths", [7, [7], [None], [b"a.csv", 1.5]])
def test_what_is_no_path_is_refused(paths):
    with pytest.raises(errors.DataError, match="named by a path, a pattern, or a list of"):
        files.list_files(paths)


class TestChanges:
    def test_stamps_tell_files_apart(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(b"abc")
        stamps = [files.get_status(str(path)).make_stamp()]
        os.utime(path, ns=(1, 1))
        stamps.append(files.get_status(str(path)).make_stamp())
        path.write_bytes(b"abcd")
        os.utime(path, ns=(1, 1))
        stamps.append(files.get_status(str(path)).make_stamp())
        assert len(set(stamps)) == 3
        assert all(0 < stamp < 2**63 for stamp in stamps)
        path.write_bytes(b"abcd")
        os.utime(path, ns=(1, 1))
        assert files.get_status(str(path)).make_stamp() == stamps[-1]

    def test_other_file_systems_have_stamps(self, tmp_path):
        (tmp_path / "a").write_bytes(b"abc")
        status = files.get_status(f"file://{tmp_path}/a")
        assert status.size == 3
        files.check_unchanged(f"file://{tmp_path}/a", status)
        (tmp_path / "a").write_bytes(b"abcd")
        with pytest.raises(errors.DataError, match="a' has changed while it was read"):
            files.check_unchanged(f"file://{tmp_path}/a", status)

    def test_a_directory_is_named_as_one(self, tmp_path):
        with (
            pytest.raises(errors.DataError, match="is a directory; name the files in it"),
            files.describe_errors(str(tmp_path)),
            files.open_binary(str(tmp_path)) as file,
        ):
            file.read()


def test_sentences_have_no_line_breaks(tmp_path):
    with pytest.raises(errors.DataError) as caught, files.describe_errors("a.csv"):
        raise tf.errors.UnknownError(None, None, "first line\n  second line.")
    assert str(caught.value).startswith("'a.csv' cannot be read: first line second line; check")


def test_open_binary_reads_and_seeks(tmp_path):
    content = bytes(range(256)) * 10_000  # more than one buffer
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "small.gz").write_bytes(gzip.compress(content))
    for name in ("plain", "small.gz"):
        with files.open_binary(f"{tmp_path}/{name}") as file:
            assert file.read() == content
            file.seek(1000)
            assert file.read(3) == content[1000:1003]


def test_other_file_systems_of_tensorflow_work(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    with files.open_binary(f"file://{tmp_path}/a") as file:
        assert file.read() == b"abc"


def test_many_files_are_enumerated_briefly():
    assert files.enumerate_files(["a", "b"]) == "'a', 'b'"
    assert files.enumerate_files(list("abcde")) == "'a', 'b', 'c' and 2 more files"
