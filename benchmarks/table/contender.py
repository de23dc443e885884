"""What a library under test has to offer, and how its memory is read."""

import abc
import pathlib
from collections.abc import Callable

import numpy as np

from benchmarks.table import workload

# Runs the steps of call `i` of a workload.
Call = Callable[[int], None]


class Contender(abc.ABC):
    """One library with one table (or array) of `rows` rows, in a process of its own.

    Attributes:
        wants_places: Whether it takes positions in an array instead of 64-bit ids.
        grows_by: How much memory it may suddenly need while it grows, by what it has.
    """

    wants_places = False
    grows_by = 0.0

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        self.rows = rows
        self.dim = dim
        self.threads = threads

    def insert(self, ids: np.ndarray) -> float:
        """Adds ids that are new to the table; returns the seconds it took.

        Not for contenders that want places: those have all their rows from the start.
        """
        raise NotImplementedError(f"{type(self).__name__} does not grow.")

    def insert_other(self, ids: np.ndarray) -> None:
        """Adds the ids to the second table that some cases need."""
        raise NotImplementedError(f"{type(self).__name__} does not grow.")

    @abc.abstractmethod
    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of `ids` from the table that cases of `operation` use."""

    @abc.abstractmethod
    def prepare(self, case: workload.Case, ids: np.ndarray) -> Call:
        """Returns what runs the case on ids [calls, steps, batch]."""


def resident_bytes() -> int:
    """Returns the memory of this process that is in RAM."""
    return _status_kib("VmRSS") * 1024


def peak_resident_bytes() -> int:
    """Returns the most memory this process had in RAM since `forget_peak`."""
    return _status_kib("VmHWM") * 1024


def forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _status_kib(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux.")
