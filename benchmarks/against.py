"""Measures this checkout against another one, in turns: is anything slower than before?

Both must be set up (`make setup` in each). Every figure is the median over the rounds of the ratio
that both reached in one round, above 1 where this checkout is faster; each goes first in every
other round. A ratio below the bar is called a miss.

Run: `python -m benchmarks.against ../before`, about 10 minutes; `--only train` for a part of it.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks.table import crew, workload
from benchmarks.table import run as table_run
from benchmarks.train import run as train_run
from benchmarks.train import workload as train_workload

BAR = 0.95
ROWS = 10_000_000
DIM = 16
INSERTED_ROWS = 3_000_000
SAVED_ROWS = 2_000_000

# By what was measured, what each of the two reached in each round; more is better.
Rates = dict[str, list[tuple[float, float]]]
Pair = tuple[crew.Member, crew.Member]


@contextlib.contextmanager
def members(other: pathlib.Path, module: str, threads: int) -> Iterator[Pair]:
    """Gives a process of this checkout and one of the other."""
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(
                contextlib.closing(
                    crew.Member(
                        "ours",
                        threads,
                        python,
                        table_run.DIRECTORY / "logs",
                        dict(os.environ),
                        module=module,
                        log_name=f"against {module} {which}",
                        checkout=checkout,
                    )
                )
            )
            for which, checkout, python in (
                ("this", crew.REPOSITORY, sys.executable),
                ("other", other, str(other / ".venv" / "bin" / "python")),
            )
        )


def in_turns(pair: Pair, number: int, ask: Callable[[crew.Member], float]) -> tuple[float, float]:
    """Asks both, another one first in every round; returns this one's answer, then the other's."""
    if number % 2:
        answers = [ask(member) for member in pair[::-1]][::-1]
    else:
        answers = [ask(member) for member in pair]
    return answers[0], answers[1]


def measure_table(other: pathlib.Path, rounds: int, threads: int) -> Rates:
    """Million keys per second of lookups and updates, 10^7 ids, dim 16, as phase 0 has them."""
    directory = table_run.DIRECTORY / "workload"
    workload.write(directory, ROWS)
    batch = workload.BATCH if threads == 1 else workload.LARGE_BATCH
    cases = [
        workload.Case(operation, ids, batch)
        for operation in workload.OPERATIONS
        for ids in workload.DISTRIBUTIONS
    ]
    rates: Rates = {}
    with members(other, "benchmarks.table.worker", threads) as pair:
        for member in pair:
            member.ask("create", rows=ROWS, dim=DIM, directory=str(directory))
            member.ask("fill")
        for number in range(rounds):
            for case in cases:
                name = f"table, {threads} threads: {case.operation}, {case.ids}"
                answers = in_turns(pair, number, lambda m, c=case: table_run.ask_rate(m, c) / 1e6)
                rates.setdefault(name, []).append(answers)
    return rates


def measure_insert(other: pathlib.Path, rounds: int) -> Rates:
    """Million new keys per second, into tables of new processes.

    The first to fill memory that nobody has used lately is the slower one, so both are in turn.
    """
    directory = table_run.DIRECTORY / "workload_insert"
    workload.write(directory, INSERTED_ROWS)

    def fill(member: crew.Member) -> float:
        member.ask("create", rows=INSERTED_ROWS, dim=DIM, directory=str(directory))
        return INSERTED_ROWS / member.ask("fill")["seconds"] / 1e6

    rates: Rates = {"table: insert": []}
    for number in range(rounds):
        with members(other, "benchmarks.table.worker", 1) as pair:
            rates["table: insert"].append(in_turns(pair, number, fill))
    return rates


def measure_train(other: pathlib.Path, rounds: int) -> Rates:
    """Thousand examples per second of the demo's model."""
    path = table_run.DIRECTORY / "train_batches.npz"
    train_workload.save(train_run.make_batches(), path)
    rates: Rates = {}
    threads = len(os.sched_getaffinity(0))
    with members(other, "benchmarks.train.worker", threads) as pair:
        for member in pair:
            ways = member.ask("create", path=str(path), users=0)
            for way in ways:
                member.ask("run", way=way, seconds=0.5)  # Warms up.
        for number in range(rounds):
            for way in ways:
                answers = in_turns(
                    pair,
                    number,
                    lambda m, w=way: m.ask("run", way=w, seconds=1.0)["examples_per_sec"] / 1e3,
                )
                rates.setdefault(f"train: {way}", []).append(answers)
    return rates


def measure_checkpoint(other: pathlib.Path, rounds: int) -> Rates:
    """Saves and restores of a table with Adagrad per second."""
    rates: Rates = {}
    directory = pathlib.Path(tempfile.mkdtemp(prefix="against-", dir=table_run.DIRECTORY))
    try:
        with members(other, "benchmarks.checkpoint.worker", 2) as pair:
            for place, member in enumerate(pair):
                home = directory / str(place)
                home.mkdir()
                (kind,) = member.ask("fill", rows=SAVED_ROWS, directory=str(home))
            for number in range(rounds):
                for what in ("save", "restore"):
                    answers = in_turns(
                        pair, number, lambda m, w=what: 1 / m.ask(w, kind=kind)["seconds"]
                    )
                    rates.setdefault(f"checkpoint: {what}", []).append(answers)
    finally:
        shutil.rmtree(directory)
    return rates


def report(rates: Rates) -> Iterator[str]:
    """Yields the table, and what was missed."""
    yield "| what | this | other | this is | |"
    yield "| --- | --- | --- | --- | --- |"
    for name, pairs in rates.items():
        ratio = statistics.median(this / other for this, other in pairs)
        this, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        verdict = "" if ratio >= BAR else "MISS"
        yield f"| {name} | {this:.2f} | {other:.2f} | {ratio:.2f}x | {verdict} |"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the comparison, and how often it is repeated."""

    rounds: int
    measure: Callable[[pathlib.Path, int], Rates]


PARTS = {
    "table": Part(24, lambda other, rounds: measure_table(other, rounds, threads=1)),
    "threads": Part(15, lambda other, rounds: measure_table(other, rounds, threads=2)),
    "insert": Part(12, measure_insert),
    "train": Part(21, measure_train),
    "checkpoint": Part(31, measure_checkpoint),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=pathlib.Path, help="the checkout to compare with")
    parser.add_argument("--only", action="append", choices=PARTS, help="only these parts")
    parser.add_argument("--rounds", type=int, help="instead of each part's own number")
    args = parser.parse_args()
    if not (args.other / ".venv" / "bin" / "python").exists():
        sys.exit(f"{args.other} has no .venv; run `make setup` there.")
    table_run.DIRECTORY.mkdir(parents=True, exist_ok=True)
    rates: Rates = {}
    for name in args.only or PARTS:
        print(f"measuring {name} ...", flush=True)
        part = PARTS[name]
        rates |= part.measure(args.other.resolve(), args.rounds or part.rounds)
    print("\n".join(report(rates)))


if __name__ == "__main__":
    main()
