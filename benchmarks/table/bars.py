"""What the table has to reach, and whether it does."""

import dataclasses

from benchmarks.table import workload
from benchmarks.table.figures import OURS, Figures, Setting, Spread

TFRA = "TFRA"
GATHER = "tf.Variable"
BAG = "EmbeddingBag"
# An array with gather, arithmetic and scatter that we wrote for it, instead of the library's
# optimizers: not something that people use, but the most that TensorFlow's ops can do.
BY_HAND = "tf.Variable by hand"
OTHERS = ("DenseHashTable", GATHER, "fbgemm", BAG)
INSERT_BAR = 10.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One bar.

    Attributes:
        value: What was measured, over the rounds; None where the peer was missing.
        bar: What it has to be, at least or at most; None where it is only shown.
    """

    what: str
    against: str
    value: Spread | None
    bar: float | None
    at_most: bool = False

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        if self.bar is None:
            return ""
        reached = self.value.median <= self.bar if self.at_most else self.value.median >= self.bar
        return "PASS" if reached else "MISS"


def judge(figures: Figures, setting: Setting) -> list[Verdict]:
    """Returns the verdicts for the table that the bars are about."""
    verdicts = []
    for ids in workload.DISTRIBUTIONS:
        lookup, adagrad, sgd = (workload.Case(name, ids) for name in workload.OPERATIONS)
        # Ids that come once need no sum of their gradients, which an array by hand does not make.
        by_hand_bar = 1.2 if ids == "unique" else None
        verdicts += [
            _against(figures, setting, f"lookup, {ids}", lookup, TFRA, 10.0),
            _against(figures, setting, f"lookup, {ids}", lookup, GATHER, 1.5),
            _against(figures, setting, f"lookup, {ids}", lookup, BAG, 0.9),
            _against(figures, setting, f"lookup + Adagrad, {ids}", adagrad, TFRA, 8.0),
            _against_best(
                figures, setting, f"lookup + Adagrad, {ids}", adagrad, 3.0, (*OTHERS, BY_HAND)
            ),
            _against(figures, setting, f"lookup + SGD, {ids}", sgd, TFRA, 4.0),
            _against_best(figures, setting, f"lookup + SGD, {ids}", sgd, 1.2, OTHERS),
            _against(figures, setting, f"lookup + SGD, {ids}", sgd, BY_HAND, by_hand_bar),
        ]
    verdicts += [_insert(figures, setting), *_memory(figures, setting)]
    for operation in workload.OPERATIONS:
        for ids in workload.DISTRIBUTIONS:
            case = workload.Case(operation, ids, workload.LARGE_BATCH)
            name = operation if operation == "lookup" else f"lookup + {operation}"
            verdicts.append(
                Verdict(
                    f"two threads, batches of {workload.LARGE_BATCH}: {name}, {ids}",
                    "one thread",
                    figures.scaling(case),
                    1.6,
                )
            )
    return verdicts


def _against(
    figures: Figures,
    setting: Setting,
    what: str,
    case: workload.Case,
    peer: str,
    bar: float | None,
) -> Verdict:
    return Verdict(what, peer, figures.ratio(setting, peer, case), bar)


def _against_best(
    figures: Figures,
    setting: Setting,
    what: str,
    case: workload.Case,
    bar: float,
    peers: tuple[str, ...],
) -> Verdict:
    ratios = {peer: figures.ratio(setting, peer, case) for peer in peers}
    measured = {peer: ratio for peer, ratio in ratios.items() if ratio is not None}
    if not measured:
        return Verdict(what, "best of the others", None, bar)
    best = min(measured, key=lambda peer: measured[peer].median)
    return Verdict(what, f"best of the others ({best})", measured[best], bar)


def _insert(figures: Figures, setting: Setting) -> Verdict:
    ours, tfra = (figures.fills.get((setting, name)) for name in (OURS, TFRA))
    if ours is None or tfra is None:
        return Verdict("insert of new ids", TFRA, None, INSERT_BAR)
    ratio = ours.keys_per_second / tfra.keys_per_second
    return Verdict("insert of new ids", TFRA, Spread.of([ratio]), INSERT_BAR)


def _memory(figures: Figures, setting: Setting) -> list[Verdict]:
    fill = figures.fills.get((setting, OURS))
    own = f"the row's own {setting.row_bytes} bytes"
    at_end = at_worst = None
    if fill is not None:
        at_end = Spread.of([fill.bytes_per_row / setting.row_bytes])
        if fill.worst_bytes_per_row is not None:
            at_worst = Spread.of([fill.worst_bytes_per_row / setting.row_bytes])
    return [
        Verdict("memory per row", own, at_end, 1.25, at_most=True),
        Verdict("memory per row, worst moment while growing", own, at_worst, 1.5, at_most=True),
    ]
