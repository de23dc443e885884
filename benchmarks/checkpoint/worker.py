"""The process of one contender: takes commands as JSON lines, answers in the same way."""

import argparse
import importlib
import os
import pathlib
import shutil
import time

from benchmarks.checkpoint import disk
from benchmarks.table import contender as process
from benchmarks.table import worker

# Module and class by name; a module is imported only in the environment that has its library.
CONTENDERS = {"ours": ("ours", "Ours"), "TFRA": ("tfra", "Tfra")}


class Worker:
    """Answers the commands; each public method is one."""

    def __init__(self, name: str) -> None:
        module, cls = CONTENDERS[name]
        self._make = getattr(importlib.import_module(f"benchmarks.checkpoint.{module}"), cls)

    def fill(self, *, rows: int, directory: str) -> list[str]:
        """Makes and fills the table; returns the ways in which it can be saved."""
        self._contender = self._make(rows, pathlib.Path(directory))
        self._contender.fill()
        return list(self._contender.kinds)

    def save(self, *, kind: str) -> dict[str, float]:
        """Saves once.

        Returns:
            seconds: What it took until everything is on the disk.
            bytes: The size of the files.
            extra_bytes: The most memory of the process meanwhile, beyond what it had.
        """
        home = self._contender.home(kind)
        size = disk.bytes_in(home) if home.exists() else 200 * self._contender.rows
        self._remove(kind)
        home.mkdir(parents=True)
        disk.make_ready(size)
        process.forget_peak()
        before = process.resident_bytes()
        start = time.perf_counter()
        self._contender.save(kind)
        disk.sync(home)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "bytes": disk.bytes_in(home),
            "extra_bytes": process.peak_resident_bytes() - before,
        }

    def restore(self, *, kind: str) -> dict[str, float]:
        """Restores once, from the disk into an empty table.

        Returns:
            seconds: What it took.
            extra_bytes: The most memory of the process meanwhile, beyond what it has at the end.
        """
        home = self._contender.home(kind)
        self._contender.make_empty(kind)
        disk.make_ready(disk.bytes_in(home) + self._contender.bytes_per_row * self._contender.rows)
        disk.forget(home)
        process.forget_peak()
        start = time.perf_counter()
        self._contender.restore(kind)
        seconds = time.perf_counter() - start
        extra = process.peak_resident_bytes() - process.resident_bytes()
        self._contender.check(kind)
        return {"seconds": seconds, "extra_bytes": extra}

    def restore_again(self, *, kind: str) -> dict[str, float]:
        """Restores once more, into the table that `restore` has filled.

        Returns:
            seconds: What it took.
            peak: The most memory of table and process meanwhile, by that of the table before.
        """
        home = self._contender.home(kind)
        disk.make_ready(disk.bytes_in(home))
        disk.forget(home)
        process.forget_peak()
        before = process.resident_bytes()
        start = time.perf_counter()
        self._contender.restore(kind)
        seconds = time.perf_counter() - start
        extra = process.peak_resident_bytes() - before
        self._contender.check(kind)
        return {"seconds": seconds, "peak": 1 + extra / self._contender.restored_bytes()}

    def look_up(self, *, seconds: float) -> float:
        """Returns keys per second of lookups alone."""
        return self._contender.look_up(seconds)

    def look_up_during_save(self) -> float:
        """Returns keys per second of lookups while the table is saved."""
        self._remove("ours")
        disk.make_ready(200 * self._contender.rows)
        return self._contender.look_up_during_save()

    def _remove(self, kind: str) -> None:
        shutil.rmtree(self._contender.home(kind), ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=CONTENDERS, required=True)
    parser.add_argument("--threads", type=int, required=True)  # Given to every worker; always 2.
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker.serve(Worker(args.contender), answers)


if __name__ == "__main__":
    main()
