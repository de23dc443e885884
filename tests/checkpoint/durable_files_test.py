"""Files that are there as a whole or not at all."""

import errno
import os

import pytest
import tensorflow as tf

from monolith.checkpoint import durable_files, failpoints

REMOTE = "ram://durable_files_test"


@pytest.fixture
def remote():
    """A directory on another file system, which TensorFlow knows and `os` does not."""
    tf.io.gfile.makedirs(REMOTE)
    yield REMOTE
    tf.io.gfile.rmtree(REMOTE)


class TestWriteAtomically:
    def test_new_content_replaces_the_old(self, tmp_path):
        path = tmp_path / "list"
        durable_files.write_atomically(str(path), "old, and longer")
        durable_files.write_atomically(str(path), "new")
        assert path.read_text() == "new"
        assert os.listdir(tmp_path) == ["list"]

    def test_reader_sees_the_old_file_until_the_new_one_is_complete(self, tmp_path, monkeypatch):
        path = tmp_path / "list"
        path.write_text("old")
        seen = []

        def look(point):
            (temporary,) = (p for p in tmp_path.iterdir() if p != path)
            assert durable_files.TEMPORARY_SUFFIX.fullmatch(temporary.name.removeprefix("list"))
            seen.append((point, path.read_text(), temporary.read_text()))

        monkeypatch.setattr(failpoints, "on_reach", look)
        durable_files.write_atomically(str(path), "new")
        assert seen == [(failpoints.TEMPORARY_WRITTEN, "old", "new")]

    def test_interrupted_write_leaves_the_old_file_alone(self, tmp_path, monkeypatch):
        path = tmp_path / "list"
        path.write_text("old")

        def interrupt(point):
            raise KeyboardInterrupt

        monkeypatch.setattr(failpoints, "on_reach", interrupt)
        with pytest.raises(KeyboardInterrupt):
            durable_files.write_atomically(str(path), "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["list"]

    def test_missing_directory_is_named(self, tmp_path):
        with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
            durable_files.write_atomically(str(tmp_path / "nowhere" / "list"), "new")

    def test_in_the_working_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        durable_files.write_atomically("list", "new")
        assert (tmp_path / "list").read_text() == "new"

    def test_on_another_file_system(self, remote):
        durable_files.write_atomically(f"{remote}/list", "new")
        assert tf.io.gfile.GFile(f"{remote}/list").read() == "new"
        assert tf.io.gfile.listdir(remote) == ["list"]


class TestLinkOrCopy:
    def test_second_name_costs_no_space(self, tmp_path):
        (tmp_path / "a").write_text("content")
        durable_files.link_or_copy(str(tmp_path / "a"), f"file://{tmp_path}/b")
        assert (tmp_path / "b").samefile(tmp_path / "a")

    def test_existing_target_is_replaced(self, tmp_path):
        (tmp_path / "a").write_text("new")
        (tmp_path / "b").write_text("old")
        durable_files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
        assert (tmp_path / "b").read_text() == "new"

    def test_copy_between_file_systems(self, tmp_path, remote):
        (tmp_path / "a").write_text("content")
        durable_files.link_or_copy(str(tmp_path / "a"), f"{remote}/b")
        assert tf.io.gfile.GFile(f"{remote}/b").read() == "content"

    def test_missing_source_is_named(self, tmp_path):
        with pytest.raises(tf.errors.NotFoundError, match="missing"):
            durable_files.link_or_copy(str(tmp_path / "missing"), str(tmp_path / "b"))


class TestSync:
    def test_files_and_directories(self, tmp_path, remote):
        (tmp_path / "a").write_text("content")
        durable_files.sync([str(tmp_path / "a"), f"file://{tmp_path}", f"{remote}/anything"])

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (errno.ENOSPC, tf.errors.ResourceExhaustedError),
            (errno.EDQUOT, tf.errors.ResourceExhaustedError),
            (errno.EIO, tf.errors.UnknownError),
        ],
    )
    def test_disk_that_fails_is_an_error_that_names_the_file(
        self, tmp_path, monkeypatch, number, expected
    ):
        def fail(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(expected, match=f"{tmp_path}: {os.strerror(number)}"):
            durable_files.sync([str(tmp_path)])

    def test_file_system_that_has_nothing_to_wait_for(self, tmp_path, monkeypatch):
        def refuse(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(os, "fsync", refuse)
        durable_files.sync([str(tmp_path)])


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/data/model", "/data/model"),
        ("file:///data/model", "/data/model"),
        ("model", "model"),
        ("hdfs://host/model", None),
        ("hdfs:/model", None),
    ],
)
def test_paths_that_the_system_understands(path, local):
    assert durable_files.get_local(path) == local
