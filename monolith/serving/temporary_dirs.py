"""Directories that a model is written to before it has its place, and those of dead exports.

An export that is killed cannot clean up after itself, and its rows may fill a disk; the next export
to the same place does. The name of a directory says who writes to it: one of a process that lives
stays, whatever its age. Of a process elsewhere nobody here knows whether it lives, so its directory
goes only after nothing was written to it for a day.

Example:
    >>> name = make_name("7")
    >>> name.startswith("temp-7.")
    True
"""

import logging
import os
import re
import socket
import time
from collections.abc import Callable

import tensorflow as tf

logger = logging.getLogger(__name__)

_PREFIX = "temp-"
_NAME = re.compile(re.escape(_PREFIX) + r"[^.]+\.(?P<machine>.+)\.(?P<process>\d+)", re.ASCII)
_ABANDONED_SEC = 24 * 60 * 60


def make_name(version: str) -> str:
    """Returns the name of this process's directory for a version."""
    return f"{_PREFIX}{version}.{_name_machine()}.{os.getpid()}"


def remove_dead(base: str, clock: Callable[[], float] = time.time) -> None:
    """Removes what exports that have died left in the directory of all versions.

    Args:
        base: The directory.
        clock: Returns seconds since 1970.
    """
    try:
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    except tf.errors.NotFoundError:
        return
    for name in names:
        path = os.path.join(base, name)
        if not name.startswith(_PREFIX) or not _is_dead(name, path, clock()):
            continue
        try:
            tf.io.gfile.rmtree(path)
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as e:
            # Another export was faster, or it is not ours to remove; ours is written either way.
            logger.warning("%s, of an export that has died, is not removed: %s", path, e.message)
        else:
            logger.info("removed %s, which an export that has died left", path)


def _is_dead(name: str, path: str, now_sec: float) -> bool:
    owner = _NAME.fullmatch(name)
    if owner is not None and owner["machine"] == _name_machine():
        return not _lives(int(owner["process"]))
    newest_sec = max(map(_get_change_sec, (path, *_list_below(path))), default=now_sec)
    return now_sec - newest_sec > _ABANDONED_SEC


def _name_machine() -> str:
    """Names where numbers of processes mean what they mean here; containers have their own."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return f"{socket.gethostname()}-{space}"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # It is somebody else's.
        pass
    return True


def _list_below(path: str) -> list[str]:
    return [
        os.path.join(directory, file)
        for directory, _, files in tf.io.gfile.walk(path)
        for file in files
    ]


def _get_change_sec(path: str) -> float:
    try:
        return float(tf.io.gfile.stat(path).mtime_nsec) / 1e9
    except tf.errors.NotFoundError:  # Its export goes on, or somebody else removes it.
        return time.time()
