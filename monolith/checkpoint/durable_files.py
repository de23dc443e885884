"""Files that are there as a whole or not at all, also after a power cut.

A rename decides, and what it makes visible is on disk before. On file systems other than the local
one that is their own affair; there this is what TensorFlow offers.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     write_atomically(f"{directory}/list", "model.ckpt-1")
    ...     link_or_copy(f"{directory}/list", f"{directory}/copy")
    ...     sync([f"{directory}/copy", directory])
    ...     sorted(os.listdir(directory)), open(f"{directory}/copy").read()
    (['copy', 'list'], 'model.ckpt-1')
"""

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith.checkpoint import failpoints

# How TensorFlow's functions, and those here, call a file that is not complete.
TEMPORARY_SUFFIX = re.compile(r"\.tmp[0-9a-f]{32}|\.tempstate\d+")

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_FILE_SCHEME = "file://"


def get_local(path: str) -> str | None:
    """Returns a path that `os` understands, None for one on another file system."""
    path = path.removeprefix(_FILE_SCHEME)
    return None if ":/" in path else path


def write_atomically(path: str, content: str) -> None:
    """Writes a file; a reader sees the old one or the new one, never a part."""
    if not file_io.has_atomic_move(path):
        file_io.write_string_to_file(path, content)
        return
    temporary = f"{path}.tmp{uuid.uuid4().hex}"
    try:
        file_io.write_string_to_file(temporary, content)
        sync([temporary])
        failpoints.reach(failpoints.TEMPORARY_WRITTEN)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(temporary)
        raise
    sync([os.path.dirname(path) or "."])


def link_or_copy(source: str, target: str) -> None:
    """Gives a file a second name; where that is not possible, makes a copy."""
    local_source, local_target = get_local(source), get_local(target)
    if local_source is not None and local_target is not None:
        try:
            os.link(local_source, local_target)
            return
        except OSError:
            pass  # Not on this file system, or the copy fails with a better error.
    tf.io.gfile.copy(source, target, overwrite=True)


def sync(paths: Iterable[str]) -> None:
    """Waits until files and directories are on disk.

    Raises:
        tf.errors.ResourceExhaustedError: The disk is full.
        tf.errors.UnknownError: The disk is broken.
    """
    for path in paths:
        local = get_local(path)
        if local is None:
            continue
        try:
            descriptor = os.open(local, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as e:
            if e.errno == errno.EINVAL:
                continue  # Some file systems have nothing to wait for.
            error = (
                tf.errors.ResourceExhaustedError
                if e.errno in _FULL_DISK
                else tf.errors.UnknownError
            )
            raise error(None, None, f"{path}: {e.strerror}") from e
