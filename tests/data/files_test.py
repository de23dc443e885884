"""Finding and opening files."""

import gzip

import pytest

from monolith import errors
from monolith.data import files


def test_patterns_are_expanded_in_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    found = files.list_files([tmp_path / "c.txt", f"{tmp_path}/*.csv"])
    assert found == [f"{tmp_path}/{name}" for name in ("c.txt", "a.csv", "b.csv")]


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
