"""Copies on the local file system, and what they do when something is missing."""

import os
import unittest
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.framework import errors
from tensorflow.python.training import monitored_session

import monolith
from monolith import utils
from monolith.core import files


class UtilsTest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def set_tmp_path(self, tmp_path):
        self.tmp_path = tmp_path

    def testFindMain(self):
        base_dir = utils.find_main()
        package_dir = os.path.dirname(os.path.abspath(monolith.__file__))
        self.assertTrue(os.path.samefile(os.path.join(base_dir, "monolith"), package_dir))
        # In a Bazel tree it is the directory called __main__.
        home = self.tmp_path / "__main__" / "monolith" / "core"
        home.mkdir(parents=True)
        with mock.patch("monolith.path_utils.__file__", str(home / "paths.py")):
            self.assertEqual(utils.find_main().split("/")[-1], "__main__")

    def testGetLibopsPath(self):
        self.assertTrue(os.path.exists(utils.get_libops_path("monolith/core/files.py")))

    def testLoadMonitoredSession(self):
        before = monitored_session._PREEMPTION_ERRORS
        self.addCleanup(setattr, monitored_session, "_PREEMPTION_ERRORS", before)
        monitored_session._PREEMPTION_ERRORS = (errors.AbortedError, errors.UnavailableError)
        utils.enable_monkey_patch()
        self.assertEqual(monitored_session._PREEMPTION_ERRORS, (errors.AbortedError,))

    def testMultiThreadedCopy(self):
        src, dst = self.tmp_path / "src", self.tmp_path / "dst"
        names = {f"d{i}/e{j}/f{k}" for i in range(2) for j in range(2) for k in range(3)}
        contents = make_tree(src, names | {"top"})
        utils.CopyRecursively(str(src), str(dst), max_workers=2)
        self.assertEqual(read_tree(dst), contents)


def make_tree(root, names):
    """Writes files whose content is their own name; returns names and contents."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return {name: f"content of {name}" for name in names}


def read_tree(root):
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def no_wait(monkeypatch):
    """Records the waits between retries instead of waiting."""
    waits = []
    monkeypatch.setattr(files.time, "sleep", waits.append)
    return waits


class TestCopyFile:
    def test_copies_and_overwrites(self, tmp_path):
        src, dst = tmp_path / "src", tmp_path / "dst"
        src.write_text("new")
        dst.write_text("old")
        files.CopyFile(str(src), str(dst))
        assert dst.read_text() == "new"

    def test_existing_file_is_kept_on_request(self, tmp_path):
        src, dst = tmp_path / "src", tmp_path / "dst"
        src.write_text("new")
        dst.write_text("old")
        with pytest.raises(tf.errors.AlreadyExistsError):
            files.CopyFile(str(src), str(dst), overwrite=False)
        assert dst.read_text() == "old"

    def test_missing_source_is_skipped(self, tmp_path, no_wait):
        files.CopyFile(str(tmp_path / "missing"), str(tmp_path / "dst"))
        assert list(tmp_path.iterdir()) == []
        assert no_wait == []

    def test_missing_source_is_retried_then_raised(self, tmp_path, no_wait):
        with pytest.raises(tf.errors.NotFoundError):
            files.CopyFile(
                str(tmp_path / "missing"),
                str(tmp_path / "dst"),
                skip_nonexist=False,
                max_retries=3,
            )
        assert no_wait == pytest.approx([0.1, 0.2, 0.4])

    def test_source_that_appears_late_is_copied(self, tmp_path, monkeypatch):
        src, dst = tmp_path / "src", tmp_path / "dst"
        monkeypatch.setattr(files.time, "sleep", lambda _: src.write_text("late"))
        files.CopyFile(str(src), str(dst), skip_nonexist=False)
        assert dst.read_text() == "late"

    def test_missing_destination_directory_is_not_skipped(self, tmp_path, no_wait):
        src = tmp_path / "src"
        src.write_text("x")
        with pytest.raises(tf.errors.NotFoundError):
            files.CopyFile(str(src), str(tmp_path / "missing" / "dst"), skip_nonexist=True)
        assert len(no_wait) == 5

    def test_zero_retries_still_copies_once(self, tmp_path):
        src, dst = tmp_path / "src", tmp_path / "dst"
        src.write_text("x")
        files.CopyFile(str(src), str(dst), max_retries=0)
        assert dst.read_text() == "x"


class TestCopyRecursively:
    @pytest.mark.parametrize("max_workers", [1, 4])
    def test_copies_nested_and_empty_directories(self, tmp_path, max_workers):
        contents = make_tree(tmp_path / "src", {"a/b/c", "a/d", "e"})
        (tmp_path / "src" / "empty" / "deeper").mkdir(parents=True)
        files.CopyRecursively(
            str(tmp_path / "src"), str(tmp_path / "new" / "dst"), max_workers=max_workers
        )
        assert read_tree(tmp_path / "new" / "dst") == contents
        assert (tmp_path / "new" / "dst" / "empty" / "deeper").is_dir()
        assert read_tree(tmp_path / "src") == contents

    def test_trailing_slashes_do_not_matter(self, tmp_path):
        contents = make_tree(tmp_path / "src", {"a/b"})
        files.CopyRecursively(f"{tmp_path}/src/", f"{tmp_path}/dst/")
        assert read_tree(tmp_path / "dst") == contents

    def test_destination_is_replaced(self, tmp_path):
        contents = make_tree(tmp_path / "src", {"a"})
        make_tree(tmp_path / "dst", {"a", "stale/b"})
        files.CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"))
        assert read_tree(tmp_path / "dst") == contents
        assert not (tmp_path / "dst" / "stale").exists()

    def test_destination_file_is_replaced(self, tmp_path):
        contents = make_tree(tmp_path / "src", {"a"})
        (tmp_path / "dst").write_text("a file")
        files.CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"))
        assert read_tree(tmp_path / "dst") == contents

    def test_missing_source_is_skipped_and_destination_kept(self, tmp_path):
        contents = make_tree(tmp_path / "dst", {"a"})
        files.CopyRecursively(str(tmp_path / "missing"), str(tmp_path / "dst"))
        assert read_tree(tmp_path / "dst") == contents

    def test_missing_source_is_an_error_on_request(self, tmp_path):
        with pytest.raises(ValueError, match=r"missing.*does not exist"):
            files.CopyRecursively(
                str(tmp_path / "missing"), str(tmp_path / "dst"), skip_nonexist=False
            )

    def test_file_as_source_is_refused(self, tmp_path):
        (tmp_path / "src").write_text("x")
        with pytest.raises(ValueError, match="use CopyFile"):
            files.CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"))

    @pytest.mark.parametrize(
        ("src", "dst"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/", "a/b/c")]
    )
    def test_overlapping_directories_are_refused_untouched(self, tmp_path, src, dst):
        contents = make_tree(tmp_path, {"a/b/c", "a/d"})
        with pytest.raises(ValueError, match="contains the other"):
            files.CopyRecursively(f"{tmp_path}/{src}", f"{tmp_path}/{dst}")
        assert read_tree(tmp_path) == contents

    def test_common_prefix_of_names_is_no_overlap(self, tmp_path):
        contents = make_tree(tmp_path / "model", {"a"})
        files.CopyRecursively(str(tmp_path / "model"), str(tmp_path / "model_copy"))
        assert read_tree(tmp_path / "model_copy") == contents

    @pytest.mark.parametrize("max_workers", [1, 2])
    def test_error_of_one_file_is_raised(self, tmp_path, monkeypatch, max_workers):
        make_tree(tmp_path / "src", {"a", "b"})

        def refuse(src, dst, overwrite):
            raise tf.errors.PermissionDeniedError(None, None, f"no access to {src}")

        monkeypatch.setattr(tf.io.gfile, "copy", refuse)
        with pytest.raises(tf.errors.PermissionDeniedError, match="no access"):
            files.CopyRecursively(
                str(tmp_path / "src"), str(tmp_path / "dst"), max_workers=max_workers
            )
