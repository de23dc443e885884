"""What was measured, and how figures of several rounds become one."""

import collections
import dataclasses
import statistics

from benchmarks.table import workload

OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Setting:
    """The table that cases are measured on."""

    rows: int
    dim: int
    threads: int

    @property
    def row_bytes(self) -> int:
        """The bytes of a row with Adagrad: value and accumulator, four bytes each."""
        return 8 * self.dim


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median over the rounds, with the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Fill:
    """How a table took all its rows.

    Attributes:
        keys_per_second: Of the inserts; None for arrays, which have all rows from the start.
        bytes_per_row: Memory at the end.
        worst_bytes_per_row: Memory by rows at the worst moment on the way.
        other_bytes_per_row: Memory of the second table, where there is one.
    """

    keys_per_second: float | None
    bytes_per_row: float
    worst_bytes_per_row: float | None = None
    other_bytes_per_row: float | None = None


class Figures:
    """All figures of a run."""

    def __init__(self) -> None:
        self._rates: dict[tuple[Setting, str, workload.Case], list[float]]
        self._rates = collections.defaultdict(list)
        self._ratios: dict[tuple[Setting, str, workload.Case], list[float]]
        self._ratios = collections.defaultdict(list)
        self._scaling: dict[workload.Case, list[float]] = collections.defaultdict(list)
        self.fills: dict[tuple[Setting, str], Fill] = {}
        self.split: dict[workload.Case, list[float]] = collections.defaultdict(list)
        self.apart: list[float] = []

    def add_round(self, setting: Setting, case: workload.Case, rates: dict[str, float]) -> None:
        """Adds what the contenders reached on a case, in turns, in keys per second."""
        for name, rate in rates.items():
            self._rates[setting, name, case].append(rate)
            if name != OURS:
                self._ratios[setting, name, case].append(rates[OURS] / rate)

    def add_scaling(self, case: workload.Case, one_thread: float, two_threads: float) -> None:
        self._scaling[case].append(two_threads / one_thread)

    def rate(self, setting: Setting, name: str, case: workload.Case) -> Spread | None:
        """Returns keys per second; None where the contender was not there."""
        values = self._rates.get((setting, name, case))
        return Spread.of(values) if values else None

    def ratio(self, setting: Setting, name: str, case: workload.Case) -> Spread | None:
        """Returns how many times as fast as `name` ours was, from the rounds both were in."""
        values = self._ratios.get((setting, name, case))
        return Spread.of(values) if values else None

    def scaling(self, case: workload.Case) -> Spread | None:
        """Returns how many times as fast two threads were as one."""
        values = self._scaling.get(case)
        return Spread.of(values) if values else None

    def settings(self) -> list[Setting]:
        return list(dict.fromkeys(setting for setting, _, _ in self._rates))

    def cases(self, setting: Setting) -> list[workload.Case]:
        return list(dict.fromkeys(case for s, _, case in self._rates if s == setting))
