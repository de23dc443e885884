"""Files on the disk under test: a plain one to compare with, and how all of them are treated.

A file counts as written when it is on the disk (fsync), and is read with nothing of it in memory:
a restore follows a restart.
"""

import os
import pathlib
import time

from benchmarks.table import machine, worker

CHUNK_BYTES = 4 << 20


def files_in(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def bytes_in(directory: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in files_in(directory))


def sync(directory: pathlib.Path) -> None:
    """Returns when everything in the directory is on the disk."""
    for path in files_in(directory):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def forget(directory: pathlib.Path) -> None:
    """Takes the directory's files, which are on the disk, out of the system's memory."""
    for path in files_in(directory):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_ready(size: int) -> None:
    """Lets nothing from before be measured: no unwritten data, no memory that has to be fetched."""
    os.sync()
    worker.touch(min(size, machine.available_bytes() // 2))


def write(directory: pathlib.Path, size: int) -> float:
    """Writes one file from front to back; returns the seconds until it is on the disk."""
    directory.mkdir(parents=True, exist_ok=True)
    chunk = os.urandom(CHUNK_BYTES)
    make_ready(size)
    start = time.perf_counter()
    with (directory / "plain").open("wb", buffering=0) as file:
        for at in range(0, size, CHUNK_BYTES):
            file.write(chunk[: size - at])
        os.fsync(file.fileno())
    return time.perf_counter() - start


def read(directory: pathlib.Path) -> float:
    """Reads what `write` wrote from front to back; returns the seconds it took."""
    buffer = bytearray(CHUNK_BYTES)
    make_ready(bytes_in(directory))
    forget(directory)
    start = time.perf_counter()
    with (directory / "plain").open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start
