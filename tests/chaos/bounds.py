"""What every row must hold after a job that was attacked.

An update that was in a complete checkpoint before a fault is never lost, and no update is made that
nobody has sent. Batches since the checkpoint may be trained again, so that a count may be above
that of the input; it is never below.
"""

import dataclasses
import pathlib

import numpy as np
from chaos import archive
from support import counting


@dataclasses.dataclass
class Findings:
    """What was compared.

    Attributes:
        num_ids: How many ids there are; the steps count as one more.
        num_lower: How many counts were compared with a checkpoint before.
        num_upper: How many with what was sent.
        num_sent: Batches that were sent.
        num_batches: Batches of the input.
        problems: Where a bound does not hold.
    """

    num_ids: int = 0
    num_lower: int = 0
    num_upper: int = 0
    num_sent: int = 0
    num_batches: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


class Ledger:
    """What all processes have sent, in the order of time."""

    def __init__(self, directory):
        self._times, batches = [], []
        for path in sorted(pathlib.Path(directory).iterdir()):
            for line in path.read_text().splitlines():
                sec, *numbers = line.split()
                self._times.append(float(sec))
                batches.append([int(number) for number in numbers])
        order = np.argsort(self._times, kind="stable")
        self._times = np.array(self._times)[order]
        numbers = np.array(batches, np.int64)[order]
        self._sent = {name: _add_up(name, numbers) for name in counting.NUM_IDS}
        self._sent["steps"] = np.arange(1, len(numbers) + 1)[:, None]

    def __len__(self):
        return len(self._times)

    def count(self, until_sec):
        """Returns how often each id was sent until then."""
        end = int(np.searchsorted(self._times, until_sec, side="right"))
        return {
            name: sent[end - 1] if end else np.zeros_like(sent[0])
            for name, sent in self._sent.items()
        }


def check(settings, outcome) -> Findings:
    """Compares all checkpoints of a job with each other, with the ledgers and with the input."""
    ledger = Ledger(settings.ledger)
    findings = Findings(
        num_ids=sum(counting.NUM_IDS.values()),
        num_sent=len(ledger),
        num_batches=settings.num_batches,
    )
    with archive.Counts(settings) as reader:
        found = [reader.read(copy.prefix) for copy in outcome.copies]
    if not found:
        return findings
    fault_times = [sec for sec, _ in outcome.faults]
    for copy, counts in zip(outcome.copies, found, strict=True):
        sent = ledger.count(copy.seen_sec)
        findings.num_upper += _compare(
            findings, counts, sent, f"step {copy.step} holds more than was sent"
        )
    # What the last checkpoint before each fault guarantees, all later ones have.
    for sec in fault_times:
        before = [i for i, copy in enumerate(outcome.copies) if copy.seen_sec <= sec]
        for later in range(before[-1] + 1, len(found)):
            findings.num_lower += _compare(
                findings,
                found[before[-1]],
                found[later],
                f"step {outcome.copies[later].step} has lost updates of step "
                f"{outcome.copies[before[-1]].step}, which was complete before a fault",
            )
    expected = counting.count_expected(settings.num_batches, settings.batch_size)
    expected["steps"] = np.array([settings.num_batches])
    findings.num_lower += _compare(
        findings, expected, found[-1], "the last checkpoint lacks updates of the input"
    )
    return findings


def _compare(findings, low, high, what) -> int:
    num = 0
    for name in low:
        wrong = np.flatnonzero(low[name] > high[name])
        num += len(low[name])
        if len(wrong):
            pairs = [(int(i), float(low[name][i]), float(high[name][i])) for i in wrong[:5]]
            findings.problems.append(f"{what}: {name}, {len(wrong)} counts, such as {pairs}")
    return num


def _add_up(name, numbers) -> np.ndarray:
    """Returns how often each id of a feature was sent up to each batch."""
    ids = numbers if name == "user" else np.concatenate([numbers, numbers // 2], axis=1)
    sent = np.zeros([len(ids), counting.NUM_IDS[name]], np.int64)
    rows = np.repeat(np.arange(len(ids)), ids.shape[1])
    np.add.at(sent, (rows, ids.ravel() % counting.NUM_IDS[name]), 1)
    return np.cumsum(sent, axis=0)
