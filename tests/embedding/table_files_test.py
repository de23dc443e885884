"""The directory of a table: whole at every moment, and clear about what is wrong with it."""

import os
import pathlib
import signal

import pytest
from support import warm

from monolith import errors
from monolith.embedding import table_files


def make_writer(text, files=1):
    def write(basename):
        for i in range(files):
            pathlib.Path(f"{basename}-{i:05}-of-{files:05}").write_text(text)

    return write


def read_rows(path):
    return pathlib.Path(table_files.read(path).basenames["rows"] + "-00000-of-00001").read_text()


def test_the_new_files_replace_the_old_ones(tmp_path):
    path = str(tmp_path / "a" / "b")
    table_files.write(path, {"n": 1}, {"rows": make_writer("old"), "counts": make_writer("c", 2)})
    assert len(os.listdir(path)) == 4
    pathlib.Path(path, "notes.txt").write_text("mine")
    table_files.write(path, {"n": 2}, {"rows": make_writer("new")})
    assert read_rows(path) == "new"
    assert table_files.read(path).settings == {"n": 2}
    names = sorted(os.listdir(path))
    assert len(names) == 3  # Rows, table.json, and what is not ours.
    assert "notes.txt" in names


def test_a_failed_save_leaves_the_old_one(tmp_path):
    path = str(tmp_path)
    table_files.write(path, {}, {"rows": make_writer("old")})
    before = sorted(os.listdir(path))

    def fail(basename):
        make_writer("half")(basename)
        raise OSError("disk is full")

    with pytest.raises(errors.DataError, match=f"cannot be saved to '{path}': disk is full"):
        table_files.write(path, {}, {"rows": fail})
    assert sorted(os.listdir(path)) == before
    assert read_rows(path) == "old"


KILLED = """
import os, pathlib, signal
from monolith.checkpoint import failpoints
from monolith.embedding import table_files
failpoints.on_reach = lambda point: os.kill(os.getpid(), signal.SIGKILL)
def write(basename):
    pathlib.Path(basename + "-00000-of-00001").write_text("new")
table_files.write({path!r}, {{}}, {{"rows": write}})
"""


def test_a_killed_save_leaves_the_old_one(tmp_path):
    path = str(tmp_path / "table")
    table_files.write(path, {}, {"rows": make_writer("old")})
    done = warm.run(["-c", KILLED.format(path=path)])
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(path)) == 4  # Two files of rows, the list, and an unfinished one.
    assert read_rows(path) == "old"
    table_files.write(path, {}, {"rows": make_writer("newer")})
    assert read_rows(path) == "newer"
    assert len(os.listdir(path)) == 2  # What the killed one left is gone, too.


def test_no_table(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(errors.DataError, match=f"'{path}' holds no table: table.json"):
            table_files.read(str(path))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"format": 1}', '{"format": 1, "parts": 3, "settings": {}}']
)
def test_damaged_list(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(errors.DataError, match=r"table.json' is damaged"):
        table_files.read(str(tmp_path))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "table.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(errors.DataError, match=r"table.json' is damaged"):
        table_files.read(str(tmp_path))


def test_format_of_the_future(tmp_path):
    (tmp_path / "table.json").write_text('{"format": 9, "parts": {}, "settings": {}}')
    with pytest.raises(errors.DataError, match="has format 9, where this version of Monolith"):
        table_files.read(str(tmp_path))


def test_path_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(errors.DataError, match=f"cannot be saved to '{path}'"):
        table_files.write(str(path), {}, {"rows": make_writer("x")})
