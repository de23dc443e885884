"""The figures as Markdown tables, with the bars."""

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.distributed import workload
from benchmarks.distributed.report import compare
from benchmarks.sync import ours
from benchmarks.table import machine
from benchmarks.table.report import table

# How many times as fast as TensorFlow's strategy, and how many times the least bytes.
SPEED_BAR = 3.0
BYTES_BAR = 1.1


def make_report(groups: Iterable[Any], cores: int) -> Iterator[str]:
    """Yields the parts of the report."""
    groups = list(groups)
    yield (
        f"{machine.cpu_model()}, {cores} cores, which all ranks share; a table for each feature, "
        f"{workload.USERS:,} users and {workload.OTHERS:,} of everything else, layers "
        f"{workload.HIDDEN}, Adagrad, batch {workload.BATCH:,} of all ranks together. CPU: seconds "
        "of all ranks per million examples. The peer is Keras 2's `fit` under TensorFlow's "
        "`MultiWorkerMirroredStrategy`, with plain variables, on as many processes, in turns."
    )
    yield ""
    yield table(
        ["model", "ranks", "", "examples/s", "CPU", "loss"],
        [row for group in groups for row in _speed_rows(group)],
    )
    yield ""
    yield table(
        ["model", "ranks", "what", "bar", "measured", "rounds", ""],
        [row for group in groups for row in _judge_speed(group)],
    )
    yield ""
    yield "### Bytes that all ranks send in a step"
    yield ""
    yield (
        "Counted where they are handed to TensorFlow's collectives, with padding and counts, on "
        "average over all batches. The least is each distinct id of a rank whose row another rank "
        "has, the row, and its gradient. Gradients of the dense network, which travel as they "
        "are, are on neither side."
    )
    yield ""
    yield table(
        ["model", "ranks", "sent", "least", "bar", "measured", "", "dense gradients"],
        [_judge_bytes(group) for group in groups if group.sent],
    )


def _speed_rows(group: Any) -> Iterator[list[str]]:
    for name, turns in (("ours", group.ours), ("Keras fit", group.keras)):
        if not turns:
            continue
        speed, cpu, loss = (statistics.median(column) for column in zip(*turns, strict=True))
        yield [
            str(group.model),
            str(group.num_ranks),
            name,
            f"{speed:,.0f}",
            f"{cpu:.2f}",
            f"{loss:.3f}",
        ]


def _judge_speed(group: Any) -> Iterator[list[str]]:
    # Without the peer there is nothing to be faster than, and no verdict.
    ratios = compare(group.ours, group.keras, "examples_per_sec")
    if not ratios:
        return
    ratio = statistics.median(ratios)
    yield [
        str(group.model),
        str(group.num_ranks),
        "examples/s against Keras fit",
        f">= {SPEED_BAR:g}x",
        f"{ratio:.2f}x",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        "PASS" if ratio >= SPEED_BAR else "MISS",
    ]


def _judge_bytes(group: Any) -> list[str]:
    sent = group.sent[ours.EXCHANGES]
    ratio = sent / group.least
    return [
        str(group.model),
        str(group.num_ranks),
        f"{sent:,.0f}",
        f"{group.least:,.0f}",
        f"<= {BYTES_BAR:g}x",
        f"{ratio:.3f}x",
        "PASS" if ratio <= BYTES_BAR else "MISS",
        f"{group.sent[ours.DENSE]:,.0f}",
    ]
