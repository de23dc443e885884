"""The figures as Markdown tables, with the bars."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.distributed import crossings, wire, workload
from benchmarks.table import machine
from benchmarks.table.report import table

# How many times as fast as TensorFlow's strategy, and how much CPU time beside one process.
SPEED_BAR = 3.0
CPU_BAR = 2.0

Steps = list[dict[str, Any]]


def make_report(
    groups: list[Any],
    counted: Mapping[workload.Model, Steps],
    traced: Mapping[workload.Shape, Steps],
    plain_tcp: wire.Wire,
    cores: int,
) -> Iterator[str]:
    """Yields the parts of the report."""
    yield (
        f"{machine.cpu_model()}, {cores} cores, which all processes share; a table for each "
        f"feature, {workload.USERS:,} users and {workload.OTHERS:,} of everything else, layers "
        f"{workload.HIDDEN}, Adagrad, batch {workload.BATCH}. Servers + workers. CPU: seconds of "
        "all processes per million examples. Two peers run under TensorFlow's "
        "`ParameterServerStrategy`, with plain variables and a coordinator as one more process: "
        "Keras's `fit`, which the bar names, and a step by hand under a `ClusterCoordinator`, "
        "which is faster and has no bar."
    )
    yield ""
    yield table(
        ["model", "servers + workers", "", "examples/s", "CPU", "of it servers", "loss"],
        [row for group in groups for row in _speed_rows(group)],
    )
    yield ""
    yield table(
        ["model", "servers + workers", "what", "bar", "measured", "rounds", ""],
        [row for group in groups for row in _judge(group)],
    )
    yield ""
    yield "### Tensors that cross in a step of 1 server and 1 worker"
    yield ""
    yield (
        "Counted in the partitioned graphs of a step without queues; bytes as received. With "
        "queues the ids cross twice, with the lookup and with the update."
    )
    yield ""
    yield from _crossing_table(counted)
    yield ""
    yield "### Where the time of a step goes"
    yield ""
    yield (
        f"Milliseconds of a step without queues of the model with {next(iter(counted))}, from "
        "TensorFlow's trace, medians. Each moment counts once: a table works, else an op of the "
        "model computes, else a tensor travels, else everybody waits: for the session, for "
        "threads, for the other worker's steps. Of what travels, wire is the share that a plain "
        f"TCP connection takes for as many messages ({plain_tcp.message_us:.0f} us each, there and "
        f"back) and bytes ({1 / plain_tcp.byte_us:,.0f} MB/s), and serialisation the rest."
    )
    yield ""
    yield _time_table(traced, plain_tcp)


def _speed_rows(group: Any) -> Iterator[list[str]]:
    for name, turns in (
        ("one process", group.alone),
        ("ours", group.ours),
        ("strategy, Keras fit", group.keras),
        ("strategy, by hand", group.strategy),
    ):
        if not turns:
            continue
        speed, cpu, server_cpu, loss = (
            statistics.median(column) for column in zip(*turns, strict=True)
        )
        yield [
            str(group.model),
            str(group.shape),
            name,
            f"{speed:,.0f}",
            f"{cpu:.2f}",
            f"{server_cpu:.2f}" if server_cpu else "-",
            f"{loss:.3f}",
        ]


def _judge(group: Any) -> Iterator[list[str]]:
    speed, cpu = "examples_per_sec", "cpu"
    for what, bar, at_most, ratios in (
        (
            "examples/s against Keras fit",
            SPEED_BAR,
            False,
            compare(group.ours, group.keras, speed),
        ),
        (
            "examples/s against a step by hand",
            None,
            False,
            compare(group.ours, group.strategy, speed),
        ),
        ("one process against Keras fit", None, False, compare(group.alone, group.keras, speed)),
        (
            "CPU per example against one process",
            CPU_BAR,
            True,
            compare(group.ours, group.alone, cpu),
        ),
    ):
        # Without a peer there is nothing to be faster than, and no verdict.
        if not ratios:
            continue
        ratio = statistics.median(ratios)
        verdict = "-"
        if bar is not None:
            verdict = "PASS" if (ratio <= bar if at_most else ratio >= bar) else "MISS"
        yield [
            str(group.model),
            str(group.shape),
            what,
            "-" if bar is None else f"{'<=' if at_most else '>='} {bar:g}x",
            f"{ratio:.2f}x",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            verdict,
        ]


def compare(ours: list[Any], theirs: list[Any], figure: str) -> list[float]:
    """Returns the ratio of a figure in each round."""
    pairs = zip(ours, theirs, strict=bool(theirs))
    return [getattr(one, figure) / getattr(other, figure) for one, other in pairs]


def _crossing_table(counted: Mapping[workload.Model, Steps]) -> Iterator[str]:
    last = {model: steps[-1]["tensors"] for model, steps in counted.items()}
    rows = []
    for kind in (*crossings.KINDS, crossings.OTHER):
        cells = [tensors.get(kind, (0, 0)) for tensors in last.values()]
        rows.append([kind, *(f"{count}, {size:,} bytes" for count, size in cells)])
    totals = [
        [sum(part) for part in zip(*tensors.values(), strict=True)] for tensors in last.values()
    ]
    rows.append(["all", *(f"{count}, {size:,} bytes" for count, size in totals)])
    yield table(["tensors", *(str(model) for model in last)], rows)
    is_same = len({count for count, _ in totals}) == 1
    is_once = all(
        tensors[kind][0] == 1 for tensors in last.values() for kind in list(crossings.KINDS)[:3]
    )
    yield ""
    yield (
        f"{'PASS' if is_same and is_once else 'MISS'}: the same number for all, ids, rows and "
        "gradients once each"
    )


def _time_table(traced: Mapping[workload.Shape, Steps], plain_tcp: wire.Wire) -> str:
    columns = {}
    for shape, steps in traced.items():
        parts: dict[str, list[float]] = {}
        for step in steps:
            share = plain_tcp.predict(step["messages"], step["bytes"]) / step["travel_us"]
            travel = step["us"][crossings.TRANSFER]
            on_wire = travel * min(1.0, share)
            for name, value in (
                ("table", step["us"][crossings.TABLE]),
                ("model", step["us"][crossings.MODEL]),
                ("wire", on_wire),
                ("serialisation", travel - on_wire),
                ("waiting", step["us"][crossings.WAITING]),
                ("whole step", sum(step["us"].values())),
            ):
                parts.setdefault(name, []).append(value / 1000)
        columns[shape] = {name: statistics.median(values) for name, values in parts.items()}
    names = next(iter(columns.values()))
    rows = []
    for name in names:
        row = [name]
        for column in columns.values():
            row += [f"{column[name]:.2f}", f"{100 * column[name] / column['whole step']:.0f} %"]
        rows.append(row)
    header = ["milliseconds"]
    for shape in columns:
        header += [str(shape), ""]
    return table(header, rows)
