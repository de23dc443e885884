"""The figures of all rounds, the bars, and both as Markdown tables."""

import dataclasses

from benchmarks.table import report
from benchmarks.table.bars import Verdict
from benchmarks.table.figures import Spread

OURS = "ours"
PLAIN = "plain file"
TFRA = "TFRA"
FASTEST_TFRA = "fastest way of TFRA"

MAX_EXTRA_BYTES = 256 * 10**6
# Of a table with rows and whoever restores it, by the table before.
MAX_PEAK = 1.3


@dataclasses.dataclass
class Figures:
    """What was measured; every list has an element per round.

    Attributes:
        rows: How many the table has.
        bytes: The size of the files by contender.
        save: Seconds by contender.
        restore: Seconds by contender.
        again_seconds: Of restores into a table that has the rows already.
        again_peak: The most memory meanwhile, by that of the table.
        lookup_kept: Rate of lookups during a save, by that of lookups alone.
        extra: The most extra memory by what was done and the number of rows.
    """

    rows: int
    bytes: dict[str, float] = dataclasses.field(default_factory=dict)
    save: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    restore: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    again_seconds: list[float] = dataclasses.field(default_factory=list)
    again_peak: list[float] = dataclasses.field(default_factory=list)
    lookup_alone: list[float] = dataclasses.field(default_factory=list)
    lookup_kept: list[float] = dataclasses.field(default_factory=list)
    extra: dict[tuple[str, int], list[float]] = dataclasses.field(default_factory=dict)

    def ratio(self, seconds: dict[str, list[float]], peer: str) -> Spread | None:
        """Returns how many times as fast as a peer we were, None if it was not measured."""
        if peer not in seconds:
            return None
        return Spread.of([b / a for a, b in zip(seconds[OURS], seconds[peer], strict=True)])

    def add_fastest(self) -> None:
        """Adds what the fastest way of TFRA took, by its median, as a contender of its own."""
        for seconds in (self.save, self.restore):
            kinds = [name for name in seconds if name.startswith(TFRA)]
            if kinds:
                fastest = min(kinds, key=lambda name: Spread.of(seconds[name]).median)
                seconds[FASTEST_TFRA] = seconds[fastest]


def judge(figures: Figures) -> list[Verdict]:
    save, restore = figures.save, figures.restore
    return [
        Verdict("save", PLAIN, figures.ratio(save, PLAIN), 0.5),
        Verdict("save", TFRA, figures.ratio(save, TFRA), 1.5),
        Verdict("save", FASTEST_TFRA, figures.ratio(save, FASTEST_TFRA), 1.5),
        Verdict("restore", PLAIN, figures.ratio(restore, PLAIN), 0.8),
        Verdict("restore", TFRA, figures.ratio(restore, TFRA), 3.0),
        Verdict("restore", FASTEST_TFRA, figures.ratio(restore, FASTEST_TFRA), 3.0),
        Verdict("lookups during a save", "alone", Spread.of(figures.lookup_kept), 0.5),
    ]


def memory(figures: Figures) -> str:
    lines = []
    for (what, rows), values in figures.extra.items():
        most = max(values)
        word = "PASS" if most < MAX_EXTRA_BYTES else "MISS"
        bar = f"< {MAX_EXTRA_BYTES / 1e6:.0f}"
        lines.append([what, f"{rows:,}", bar, f"{most / 1e6:.0f}", word])
    most = max(figures.again_peak)
    word = "PASS" if most <= MAX_PEAK else "MISS"
    seconds = Spread.of(figures.again_seconds).median
    return (
        report.table(["extra memory", "rows", "bar, MB", "most, MB", ""], lines)
        + f"\n\n- {word}: a restore into a table that has rows already takes at most {most:.2f}x "
        f"the table's memory, the bar is {MAX_PEAK}x. It reads the files twice, first to check "
        f"them: {seconds:.2f} s, {figures.rows / seconds / 1e6:.2f} million rows/s."
    )


def speeds(figures: Figures) -> str:
    lines = []
    for name, size in figures.bytes.items():
        cells = []
        for seconds in (figures.save, figures.restore):
            median = Spread.of(seconds[name]).median
            rate = "-" if name == PLAIN else f"{figures.rows / median / 1e6:.2f}"
            cells += [f"{size / median / 1e6:.0f}", rate]
        lines.append([name, f"{size / 1e6:.0f}", *cells])
    header = ["", "MB", "save, MB/s", "million rows/s", "restore, MB/s", "million rows/s"]
    return report.table(header, lines)


def sections(figures: Figures) -> list[str]:
    """Returns the parts of the report, each a Markdown text."""
    alone = Spread.of(figures.lookup_alone).median / 1e6
    return [
        f"### Bars: {figures.rows:,} rows, dim 16, Adagrad, 2 threads\n\n"
        + report.verdicts(judge(figures)),
        "### Memory beyond the table\n\n" + memory(figures),
        "### Speeds\n\nWritten means on the disk (fsync), for everybody; read means from the disk. "
        f"Lookups alone: {alone:.1f} million keys/s on one thread.\n\n" + speeds(figures),
    ]
