"""Copying of files and directory trees on any file system TensorFlow can reach.

Checkpoints and exports lie on local disks or on remote file systems, where a file that was just
written may not be visible yet; copies therefore retry when a file is reported as missing.
"""

import concurrent.futures
import logging
import os
import time

import tensorflow as tf

from monolith.core.paths import find_main, get_libops_path

logger = logging.getLogger(__name__)

__all__ = ["CopyFile", "CopyRecursively", "enable_monkey_patch", "find_main", "get_libops_path"]

_FIRST_RETRY_WAIT_SEC = 0.1


def enable_monkey_patch() -> None:
    """Makes TensorFlow's monitored sessions swallow only `AbortedError`.

    By default they also recover silently from `UnavailableError`; a lost parameter server must
    instead reach the training loop, which asks for the new cluster before it retries.
    """
    from tensorflow.python.training import monitored_session

    monitored_session._PREEMPTION_ERRORS = (tf.errors.AbortedError,)


def CopyFile(
    src: str,
    dst: str,
    overwrite: bool = True,
    skip_nonexist: bool = True,
    max_retries: int = 5,
) -> None:
    """Copies one file.

    Args:
        src: File to copy.
        dst: Path of the copy; its directory must exist.
        overwrite: Whether an existing `dst` is replaced.
        skip_nonexist: Whether a missing `src` is left out with a warning. Only the source counts:
            a missing directory of `dst` is an error, or the copy would be lost silently.
        max_retries: How often a copy is tried again after a `NotFoundError`.

    Raises:
        tf.errors.NotFoundError: `src`, or the directory of `dst`, stayed missing.
        tf.errors.AlreadyExistsError: `dst` exists and `overwrite` is false.
    """
    for retry in range(max_retries + 1):
        try:
            tf.io.gfile.copy(src, dst, overwrite)
            return
        except tf.errors.NotFoundError:
            if skip_nonexist and not tf.io.gfile.exists(src):
                logger.warning("%s does not exist, it is not copied to %s", src, dst)
                return
            if retry == max_retries:
                raise
            time.sleep(_FIRST_RETRY_WAIT_SEC * 2**retry)


def CopyRecursively(
    src: str,
    dst: str,
    max_workers: int = 1,
    skip_nonexist: bool = True,
    max_retries: int = 5,
) -> None:
    """Copies a directory tree; whatever was at `dst` is removed first.

    Args:
        src: Directory to copy.
        dst: Directory to create.
        max_workers: How many files are copied at once.
        skip_nonexist: Whether a missing `src` is left out, as in `CopyFile`.
        max_retries: Retries of each file, as in `CopyFile`.

    Raises:
        ValueError: `src` is missing and `skip_nonexist` is false, `src` is not a directory, or
            one of the two directories contains the other.
    """
    if not tf.io.gfile.exists(src):
        if skip_nonexist:
            logger.warning("%s does not exist, it is not copied to %s", src, dst)
            return
        raise ValueError(f"Cannot copy {src!r} to {dst!r}: the source does not exist.")
    if not tf.io.gfile.isdir(src):
        raise ValueError(f"Cannot copy {src!r} recursively: it is a file; use CopyFile.")
    if _contains(src, dst) or _contains(dst, src):
        raise ValueError(
            f"Cannot copy {src!r} to {dst!r}: one contains the other, and what is at the "
            f"destination is removed first; choose a destination outside."
        )

    if tf.io.gfile.isdir(dst):
        tf.io.gfile.rmtree(dst)
    elif tf.io.gfile.exists(dst):
        tf.io.gfile.remove(dst)
    copies = []
    for directory, _, file_names in tf.io.gfile.walk(src):
        target = _join(dst, os.path.relpath(directory, src))
        tf.io.gfile.makedirs(target)
        copies += [(os.path.join(directory, name), _join(target, name)) for name in file_names]

    def copy(pair: tuple[str, str]) -> None:
        CopyFile(*pair, skip_nonexist=skip_nonexist, max_retries=max_retries)

    if max_workers > 1:
        with concurrent.futures.ThreadPoolExecutor(max_workers) as executor:
            # The list takes every result, so that the first error is raised here.
            list(executor.map(copy, copies))
    else:
        for pair in copies:
            copy(pair)


def _join(directory: str, relative: str) -> str:
    return directory if relative == "." else os.path.join(directory, relative)


def _contains(outer: str, inner: str) -> bool:
    outer = outer.rstrip("/")
    inner = inner.rstrip("/")
    return inner == outer or inner.startswith(outer + "/")
