"""Finding and opening input files, on every file system that TensorFlow knows.

Example:
    >>> import pathlib
    >>> pathlib.Path("clicks").mkdir()
    >>> for day in (2, 1):
    ...     pathlib.Path(f"clicks/day-{day}.csv").touch()
    >>> list_files("clicks/*.csv")
    ['clicks/day-1.csv', 'clicks/day-2.csv']
    >>> list_files("click/*.csv")
    Traceback (most recent call last):
      ...
    monolith.errors.DataError: No file matches 'click/*.csv'; check the path.
"""

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import tensorflow as tf

from monolith import errors

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_BUFFER_BYTES = 1 << 20
_NUM_REQUESTS = 16


def list_files(paths: Paths) -> list[str]:
    """Returns the files that paths and glob patterns name: pattern after pattern, each one sorted.

    A worker of several takes its share of the list: `list_files(pattern)[worker::num_workers]`.

    Raises:
        errors.DataError: Nothing was named, a path does not exist or is a directory, or a pattern
            matches nothing.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    try:
        patterns = [os.fspath(path) for path in paths]
    except TypeError as e:
        raise errors.DataError(
            f"Input files are named by a path, a pattern, or a list of them, but got {paths!r}."
        ) from e
    if not patterns:
        raise errors.DataError("The list of input files is empty; name a file or a pattern.")
    files: list[str] = []
    for pattern in patterns:
        with describe_errors(pattern):
            # A file may be called 'a[1].csv'.
            exists = tf.io.gfile.exists(pattern)
            found = [pattern] if exists else sorted(map(_shorten, tf.io.gfile.glob(pattern)))
            if exists and tf.io.gfile.isdir(pattern):
                raise errors.DataError(_refuse_directory(pattern))
        if not found:
            raise errors.DataError(f"No file matches {pattern!r}; check the path.")
        files += found
    return files


def _shorten(path: str) -> str:
    # TensorFlow finds './a.csv' where 'a.csv' was asked for.
    return path.removeprefix("./")


class Status(NamedTuple):
    """What tells a file from the one that it was before.

    Attributes:
        size: In bytes.
        changed_ns: When its content was changed.
        number: Another one if the name was given to another file; 0 where nobody numbers files.
    """

    size: int
    changed_ns: int
    number: int

    def make_stamp(self) -> int:
        """Returns 63 bits that stand for size and time of change; never 0."""
        digest = hashlib.sha256(f"{self.size} {self.changed_ns}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1 | 1


def get_status(path: str) -> Status:
    """Returns the status of a file.

    Raises:
        errors.DataError: It does not exist, or cannot be looked at.
    """
    with describe_errors(path):
        if "://" not in path:
            local = os.stat(path)
            return Status(local.st_size, local.st_mtime_ns, local.st_ino)
        remote = tf.io.gfile.stat(path)
        return Status(remote.length, remote.mtime_nsec, 0)


def get_statuses(paths: Sequence[str]) -> list[Status]:
    """Returns the status of each file, as `get_status` does."""
    if not any("://" in path for path in paths):
        return [get_status(path) for path in paths]
    # Each one is a request to some server.
    with futures.ThreadPoolExecutor(_NUM_REQUESTS) as pool:
        return list(pool.map(get_status, paths))


def check_unchanged(path: str, before: Status) -> None:
    """Raises a `DataError` if the file has changed since its status was `before`.

    One that was removed, or replaced by another, has not: who had it open has read it to its end.
    """
    if not tf.io.gfile.exists(path):
        return
    now = get_status(path)
    if now.number == before.number and now != before:
        raise errors.DataError(
            f"{path!r} has changed while it was read, so that nobody knows what was read; write "
            "files under another name, and rename them when they are whole."
        )


@contextlib.contextmanager
def open_binary(
    path: str, *, is_gzip: bool | None = None, buffer_bytes: int = _BUFFER_BYTES
) -> Iterator["io.BufferedReader[_RawFile] | gzip.GzipFile"]:
    """Opens a file for reading.

    Args:
        path: Which.
        is_gzip: Whether to uncompress it on the way; None asks whether its name ends in `.gz`.
        buffer_bytes: How much is read at once.
    """
    if is_gzip is None:
        is_gzip = path.endswith(".gz")
    with io.BufferedReader(_RawFile(path), buffer_bytes) as file:
        yield gzip.GzipFile(fileobj=file) if is_gzip else file


def enumerate_files(paths: Sequence[str]) -> str:
    """Returns the first files' names for a message, and how many more there are."""
    more = f" and {len(paths) - 3} more files" if len(paths) > 3 else ""
    return ", ".join(map(repr, paths[:3])) + more


@contextlib.contextmanager
def describe_errors(path: str) -> Iterator[None]:
    """Turns what reading `path` may raise into a `DataError` that names it.

    An error that names a column or line already passes as it is.
    """
    try:
        yield
    except errors.DataError:
        raise
    except (tf.errors.NotFoundError, FileNotFoundError) as e:
        raise errors.DataError(f"{path!r} does not exist; check the path.") from e
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise errors.DataError(
            f"{path!r} is not a whole gzip file ({e}); write it again, or rename it if it is not "
            "compressed: `.gz` says that it is."
        ) from e
    except UnicodeDecodeError as e:
        raise errors.DataError(
            f"{path!r} is not UTF-8 text ({e}); convert it, or add `.gz` to its name if it is "
            "compressed."
        ) from e
    except (tf.errors.OpError, OSError) as e:
        if "://" not in path and os.path.isdir(path):
            raise errors.DataError(_refuse_directory(path)) from e
        raise errors.DataError(f"{path!r} cannot be read: {_reason(e)}") from e


def _refuse_directory(path: str) -> str:
    return f"{path!r} is a directory; name the files in it, as in '{path.rstrip('/')}/*'."


def _reason(error: Exception) -> str:
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # One line: whoever looks for this sentence in a longer error finds its end by that.
    message = " ".join(message.split()).rstrip(".")
    return f"{message}; check that it is a file, whole, and that you may read it."


class _RawFile(io.RawIOBase):
    """A file of TensorFlow's file systems as one of Python's."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = tf.io.gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
