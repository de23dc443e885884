"""What a path may be, whether files can be made there, and where a model goes that names no place.

The temporary directory belongs to everybody: whoever makes a directory there under a name that can
be guessed decides what lies in it. So the default directory of a model is made for its user alone,
and one that somebody else made is refused.

Example:
    >>> check_path("model_dir", "/models/movies")
    >>> check_path("model_dir", "/models/mov\\0ies")
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: `model_dir` must not have a NUL character, where every path ends, \
got '/models/mov\\x00ies'; take it out.
"""

import getpass
import os
import stat
import tempfile

from monolith import errors

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_path(name: str, path: str) -> None:
    """Refuses a path with a NUL character: the file system would take what is before it.

    Args:
        name: What the path is called in the settings.
        path: The path.

    Raises:
        ConfigError: There is one.
    """
    if "\0" in path:
        raise errors.ConfigError(
            f"`{name}` must not have a NUL character, where every path ends, got {path!r}; take it "
            "out."
        )


def make_writable(name: str, path: str) -> None:
    """Makes a directory if it is not there, and refuses one in which no file can be made.

    Better before the first step than at the first save. A path with a scheme, such as
    `hdfs://models`, is left to its file system.

    Args:
        name: What the path is called in the settings.
        path: The directory.

    Raises:
        ConfigError: It cannot be made, or no file in it.
    """
    check_path(name, path)
    if "://" in path:
        return
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise errors.ConfigError(
            f"Nothing can be written to {path}: {reason}; set {name} to a directory where you may "
            "make files."
        ) from error


def make_default_model_dir(name: str) -> str:
    """Returns `<temporary directory>/<user>/<name>`, a directory of this user alone.

    What is missing is made so that nobody else may even look into it. What is there must be a
    directory of this user, not a link, and loses the permission of others to write.

    Args:
        name: Name of the model.

    Raises:
        ConfigError: One of the directories belongs to another user, or is no directory.
    """
    check_path("name", name)
    parts = [part for part in name.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise errors.ConfigError(
            f"The model {name!r} cannot have a directory of its name; set model_dir."
        )
    path = tempfile.gettempdir()
    for part in (getpass.getuser(), *parts):
        path = os.path.join(path, part)
        _make_private(path)
    return path


def _make_private(path: str) -> None:
    try:
        os.mkdir(path, mode=stat.S_IRWXU)
        return
    except FileExistsError:
        pass
    # Not `stat`: a link may lead to a directory of this user that another one has chosen.
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise errors.ConfigError(
            f"{path} is on the way to the default model directory but is no directory; remove it, "
            "or set model_dir."
        )
    if status.st_uid != os.geteuid():
        raise errors.ConfigError(
            f"{path} is on the way to the default model directory but belongs to user "
            f"{status.st_uid}, not to {os.geteuid()}, who runs this; set model_dir."
        )
    if status.st_mode & _WRITABLE_BY_OTHERS:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_WRITABLE_BY_OTHERS)
