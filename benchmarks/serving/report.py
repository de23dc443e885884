"""The figures as tables, with the bars."""

import dataclasses
import statistics
from collections.abc import Mapping

from benchmarks.table.report import table

HERE = "in the process"
PREPARED = "in the process, prepared"
GRPC = "gRPC"
REST = "REST"
NOT_MERGED = "gRPC, not merged"
# Clients at once: as many as it takes to keep the server busy, and many.
SEVERAL = 8
MANY = 64
MERGED_ROWS = 1024
THROUGHPUT_BAR = 0.6
MANY_BAR = 2.0


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured: the way to the model, examples in a request, clients at once."""

    where: str
    batch: int
    clients: int = 1


class Figures:
    """What was measured in each round."""

    def __init__(self) -> None:
        self._rounds: dict[Case, list[dict[str, float]]] = {}

    @property
    def cases(self) -> list[Case]:
        return list(self._rounds)

    def add(self, case: Case, found: dict[str, float]) -> None:
        self._rounds.setdefault(case, []).append(found)

    def has(self, case: Case, what: str) -> bool:
        return what in self._rounds[case][0]

    def get(self, case: Case, what: str) -> float:
        """Returns the median over the rounds."""
        return statistics.median(found[what] for found in self._rounds[case])

    def ratios(self, case: Case, other: Case) -> list[float]:
        """Returns the requests per second of one by those of another, of each round."""
        pairs = zip(self._rounds[case], self._rounds[other], strict=True)
        return sorted(mine["per_sec"] / theirs["per_sec"] for mine, theirs in pairs)


def sections(figures: Figures, split: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Returns the parts of the report."""
    return [
        _bars(figures),
        "### Requests",
        _requests(figures),
        f"In the process: `tf.saved_model.load(...).signatures['serving_default'](...)`, and its "
        "result as an array; prepared: the function of the session that the server calls. CPU ms: "
        "of the client and of the server, for each request; what calls the model itself is listed "
        f"as the server. Requests are merged up to {MERGED_ROWS} rows, unless it says otherwise.",
        "### What a request costs, in microseconds",
        _costs(figures, split),
        "The last lines: of one client over gRPC, from its call to the answer; what is left are "
        "gRPC itself on both sides, the kernel, and the server's threads that take turns.",
    ]


def _bars(figures: Figures) -> str:
    rows = []
    large = max(case.batch for case in figures.cases)
    for what, mine, theirs, bar in (
        (
            f"{large} examples, {SEVERAL} clients over gRPC",
            Case(GRPC, large, SEVERAL),
            Case(HERE, large),
            THROUGHPUT_BAR,
        ),
        (f"{large} examples, 1 client over gRPC", Case(GRPC, large), Case(HERE, large), None),
        (
            f"{large} examples, {SEVERAL} clients over gRPC",
            Case(GRPC, large, SEVERAL),
            Case(PREPARED, large),
            THROUGHPUT_BAR,
        ),
        (f"1 example, {MANY} clients over gRPC", Case(GRPC, 1, MANY), Case(GRPC, 1), MANY_BAR),
        (
            f"1 example, {MANY} clients, not merged",
            Case(NOT_MERGED, 1, MANY),
            Case(GRPC, 1),
            None,
        ),
    ):
        ratios = figures.ratios(mine, theirs)
        ratio = statistics.median(ratios)
        against = "1 client" if theirs.where == GRPC else f"calls {theirs.where}"
        word = "" if bar is None else "PASS" if ratio >= bar else "MISS"
        rows.append(
            [
                what,
                against,
                "-" if bar is None else f">= {bar:g}x",
                f"{ratio:.2f}x",
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                word,
            ]
        )
    return table(["requests per second of", "against", "bar", "measured", "rounds", ""], rows)


def _requests(figures: Figures) -> str:
    rows = []
    for case in sorted(figures.cases, key=lambda c: (c.batch, c.clients)):
        is_here = not figures.has(case, "server_cpu")
        cpu = figures.get(case, "cpu")
        rows.append(
            [
                str(case.batch),
                case.where,
                str(case.clients),
                f"{figures.get(case, 'per_sec'):,.0f}",
                f"{figures.get(case, 'per_sec') * case.batch:,.0f}",
                f"{figures.get(case, 'p50'):.2f}",
                f"{figures.get(case, 'p99'):.2f}",
                "-" if is_here else f"{cpu:.2f}",
                f"{cpu if is_here else figures.get(case, 'server_cpu'):.2f}",
            ]
        )
    header = ["examples", "way", "clients", "requests/s", "examples/s", "p50 ms", "p99 ms"]
    return table([*header, "client CPU ms", "server CPU ms"], rows)


def _costs(figures: Figures, split: Mapping[int, Mapping[str, float]]) -> str:
    batches = sorted(split)
    steps = list(split[batches[0]])
    rows = [[step, *(f"{split[batch][step]:.0f}" for batch in batches)] for step in steps]
    totals = {batch: 1e3 * figures.get(Case(GRPC, batch), "p50") for batch in batches}
    rest = {batch: totals[batch] - sum(split[batch].values()) for batch in batches}
    rows.append(["the way between (what is left)", *(f"{rest[batch]:.0f}" for batch in batches)])
    rows.append(["a request over gRPC, p50", *(f"{totals[batch]:.0f}" for batch in batches)])
    return table(["step", *(f"{b} example{'s' if b > 1 else ''}" for b in batches)], rows)
