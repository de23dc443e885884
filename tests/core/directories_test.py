"""The default directory of a model, and paths that are none."""

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
