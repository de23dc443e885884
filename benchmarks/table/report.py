"""The figures as Markdown tables."""

from collections.abc import Iterable, Sequence

from benchmarks.table import bars, time_split, workload
from benchmarks.table.figures import OURS, Figures, Setting, Spread

PEERS = (bars.TFRA, *bars.OTHERS, bars.BY_HAND)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table whose columns line up.

    >>> print(table(["a", "b"], [["long", "1"]]))
    | a    | b |
    | ---- | - |
    | long | 1 |
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def verdicts(judged: list[bars.Verdict]) -> str:
    rows = []
    for verdict in judged:
        bar = (
            "-" if verdict.bar is None else f"{'<=' if verdict.at_most else '>='} {verdict.bar:g}x"
        )
        measured = "-" if verdict.value is None else f"{verdict.value.median:.2f}x"
        rows.append(
            [verdict.what, verdict.against, bar, measured, _range(verdict.value), verdict.word]
        )
    return table(["what", "against", "bar", "measured", "rounds", ""], rows)


def rates(figures: Figures, setting: Setting) -> str:
    """Returns million keys per second of everybody on one table."""
    rows = []
    for case in figures.cases(setting):
        ratios = [figures.ratio(setting, peer, case) for peer in PEERS]
        to_tfra, *to_others = ratios
        best = min((r.median for r in to_others if r is not None), default=None)
        rows.append(
            [
                _name(case),
                *(_millions(figures.rate(setting, name, case)) for name in (OURS, *PEERS)),
                "-" if to_tfra is None else f"{to_tfra.median:.1f}x",
                "-" if best is None else f"{best:.1f}x",
            ]
        )
    header = ["million keys/s", OURS, *PEERS, "ours / TFRA", "ours / best other"]
    return table(header, rows)


def fills(figures: Figures) -> str:
    rows = []
    for (setting, name), fill in figures.fills.items():
        speed = fill.keys_per_second
        rows.append(
            [
                _title(setting),
                name,
                "-" if speed is None else f"{speed / 1e6:.2f}",
                *(
                    "-" if value is None else f"{value:.0f}"
                    for value in (
                        fill.bytes_per_row,
                        fill.worst_bytes_per_row,
                        fill.other_bytes_per_row,
                    )
                ),
            ]
        )
    header = ["table", "", "insert, million/s", "bytes per row", "worst moment", "other table"]
    return table(header, rows)


def time_parts(figures: Figures) -> str:
    """Returns nanoseconds per key of the parts of a lookup and of an update."""
    nanoseconds = {case: Spread.of(values).median for case, values in figures.split.items()}
    rows = [
        [part, "-" if lookup == 0 else f"{lookup:.1f}", f"{update:.1f}"]
        for part, lookup, update in time_split.split(nanoseconds)
    ]
    return table(["nanoseconds per key", "lookup", "Adagrad update"], rows)


def sections(figures: Figures, judged_on: Setting, limits: list[str]) -> list[str]:
    """Returns the parts of the report, each a Markdown text."""
    parts = [f"### Bars: {_title(judged_on)}\n\n" + verdicts(bars.judge(figures, judged_on))]
    parts.append("### The machine's own limit\n\n" + "\n".join(f"- {line}" for line in limits))
    for setting in figures.settings():
        parts.append(f"### {_title(setting)}\n\n" + rates(figures, setting))
    parts.append(
        "### Filling a table, and its memory\n\n"
        "Ours: a row with Adagrad; other table: one with SGD. TFRA and DenseHashTable: a row of "
        "values; other table: value and accumulator.\n\n" + fills(figures)
    )
    if figures.split:
        note = (
            f"### Where the time goes: {_title(judged_on)}, batches of {workload.BATCH} unique ids"
        )
        if figures.apart:
            apart = Spread.of(figures.apart).median / 1e6
            note += (
                "\n\nLookup + Adagrad on Zipf ids with a step for each of several equal ids: "
                f"{apart:.1f} million keys/s."
            )
        parts.append(f"{note}\n\n" + time_parts(figures))
    return parts


def _title(setting: Setting) -> str:
    threads = "one thread" if setting.threads == 1 else f"{setting.threads} threads"
    return f"{setting.rows:,} ids, dim {setting.dim}, {threads}"


def _name(case: workload.Case) -> str:
    name = case.operation if case.operation == "lookup" else f"lookup + {case.operation}"
    how = "" if case.repeated else ", one call per step"
    batch = "" if case.batch == workload.BATCH else f", batch {case.batch}"
    return f"{name}, {case.ids}{batch}{how}"


def _millions(rate: Spread | None) -> str:
    return "-" if rate is None else f"{rate.median / 1e6:.2f}"


def _range(spread: Spread | None) -> str:
    if spread is None or spread.lowest == spread.highest:
        return ""
    return f"{spread.lowest:.2f} to {spread.highest:.2f}"
