"""The default directory of a model, and paths that are none."""

import contextlib
import os
import stat
import tempfile

import pytest

from monolith import errors
from monolith.core import directories


@pytest.fixture(autouse=True)
def temporary_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    return tmp_path


def get_mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_default_directory_is_for_its_user_alone(temporary_dir, umask):
    before = os.umask(umask)
    try:
        path = directories.make_default_model_dir("movies")
    finally:
        os.umask(before)
    assert path == str(temporary_dir / "somebody" / "movies")
    assert get_mode(path) == 0o700
    assert get_mode(temporary_dir / "somebody") == 0o700
    assert directories.make_default_model_dir("movies") == path


def test_own_directory_that_others_may_write_is_closed(temporary_dir):
    (temporary_dir / "somebody").mkdir()
    (temporary_dir / "somebody").chmod(0o777)
    directories.make_default_model_dir("movies")
    assert get_mode(temporary_dir / "somebody") == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
@pytest.mark.parametrize("level", ["somebody", "somebody/movies"])
def test_directory_of_another_user_is_refused(temporary_dir, level):
    (temporary_dir / level).mkdir(parents=True)
    os.chown(temporary_dir / level, 12345, 12345)
    with pytest.raises(errors.ConfigError, match=rf"{level} .* belongs to user 12345, not to 0"):
        directories.make_default_model_dir("movies")


def test_directory_that_the_user_does_not_own_is_refused(temporary_dir, monkeypatch):
    directories.make_default_model_dir("movies")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(errors.ConfigError, match=r"belongs to user \d+, not to \d+.*set model_dir"):
        directories.make_default_model_dir("movies")


def test_link_is_refused(temporary_dir):
    (temporary_dir / "elsewhere").mkdir()
    (temporary_dir / "somebody").symlink_to(temporary_dir / "elsewhere")
    with pytest.raises(errors.ConfigError, match="is no directory; remove it, or set model_dir"):
        directories.make_default_model_dir("movies")


@pytest.mark.parametrize("name", ["", "/", "..", "a/../../b"])
def test_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(errors.ConfigError, match="set model_dir"):
        directories.make_default_model_dir(name)


def test_nul_is_refused():
    with pytest.raises(errors.ConfigError, match=r"^`restore_dir` must not have a NUL character"):
        directories.check_path("restore_dir", "a\0b")


class TestMakeWritable:
    def test_makes_what_is_missing_and_leaves_nothing_in_it(self, tmp_path):
        for _ in range(2):
            directories.make_writable("model_dir", str(tmp_path / "a" / "b"))
        assert os.listdir(tmp_path / "a" / "b") == []

    @pytest.mark.parametrize("path", ["file", "file/below", "/proc/nobody/models"])
    def test_no_place_for_a_directory(self, tmp_path, path):
        (tmp_path / "file").touch()
        path = str(tmp_path / path)
        with pytest.raises(
            errors.ConfigError,
            match=rf"^Nothing can be written to {path}: [a-z ]+; set model_dir to a directory "
            r"where you may make files\.$",
        ):
            directories.make_writable("model_dir", path)

    @pytest.mark.parametrize("path", ["mine", "mine/below"])
    def test_directory_without_the_right_to_write(self, tmp_path, path):
        (tmp_path / "mine").mkdir(mode=0o555)
        with as_user_without_rights(), pytest.raises(errors.ConfigError, match="permission denied"):
            directories.make_writable("model_dir", str(tmp_path / path))

    def test_other_file_systems_are_not_asked(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        directories.make_writable("model_dir", "hdfs://models/movies")
        assert os.listdir(tmp_path) == []

    def test_nul_is_refused(self):
        with pytest.raises(errors.ConfigError, match="NUL"):
            directories.make_writable("--model-dir", "a\0b")


@contextlib.contextmanager
def as_user_without_rights():
    """Root may write anywhere, so it acts as `nobody`; anybody else is without rights already."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
