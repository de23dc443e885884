"""Measures our table and its peers in turns, and prints the tables and the bars.

Each contender is a process of its own with its tables loaded. Ours stays; the peers come in groups,
so that the tables of all fit into memory, and in every round each member of the group runs each
case once. A ratio is the median over the rounds of what both reached in that round, since the same
figure moves by up to 1.6 times between two runs.

Run: `make bench-table`, or `python -m benchmarks.table.run --quick` for tables of a tenth the size.
"""

import argparse
import contextlib
import dataclasses
import datetime
import os
import platform
import time
from collections.abc import Iterator, Sequence

from benchmarks import results_file
from benchmarks.table import crew, environments, machine, report, time_split, workload
from benchmarks.table.figures import OURS, Figures, Fill, Setting

DIRECTORY = crew.REPOSITORY / "build" / "bench"

ENVIRONMENTS = {
    OURS: environments.OURS,
    "TFRA": environments.TFRA,
    "DenseHashTable": environments.OURS,
    "tf.Variable": environments.OURS,
    "tf.Variable by hand": environments.OURS,
    "fbgemm": environments.TORCH,
    "EmbeddingBag": environments.TORCH,
}
# Peers that are loaded at the same time, beside ours.
GROUPS = [
    ["TFRA"],
    ["DenseHashTable", "tf.Variable", "tf.Variable by hand"],
    ["fbgemm", "EmbeddingBag"],
]
SECONDS_PER_CASE = 0.2


@dataclasses.dataclass(frozen=True)
class Phase:
    """A table to measure on.

    Attributes:
        batches: The sizes of batches.
        rounds: How often each case is measured, repeated inside the graph.
        call_rounds: How often with one call per step.
        thread_rounds: How often two threads are measured against one, in turns.
        in_detail: Whether to measure where the time goes.
    """

    setting: Setting
    batches: tuple[int, ...] = (workload.BATCH,)
    rounds: int = 2
    call_rounds: int = 0
    thread_rounds: int = 0
    in_detail: bool = False

    def cases(self) -> list[workload.Case]:
        return [
            workload.Case(operation, ids, batch)
            for batch in self.batches
            for operation in workload.OPERATIONS
            for ids in workload.DISTRIBUTIONS
        ]


BOTH_BATCHES = (workload.BATCH, workload.LARGE_BATCH)
FULL = [
    Phase(Setting(10_000_000, 16, 1), rounds=24, call_rounds=1, thread_rounds=21, in_detail=True),
    Phase(Setting(10_000_000, 32, 1)),
    Phase(Setting(1_000_000, 16, 1), call_rounds=1),
    Phase(Setting(1_000_000, 32, 1)),
    Phase(Setting(1_000_000, 16, 2), batches=BOTH_BATCHES),
]
QUICK = [Phase(Setting(1_000_000, 16, 1), rounds=3, call_rounds=1, thread_rounds=3, in_detail=True)]


class Run:
    """Starts the contenders and collects their figures."""

    def __init__(self, peers: set[str]) -> None:
        self.figures = Figures()
        self.missing: dict[str, str] = {}
        self._peers = peers
        self._verified: set[str] = set()

    def measure(self, phase: Phase) -> None:
        workload.write(DIRECTORY / "workload", phase.setting.rows)
        with self._members([OURS], phase.setting) as ours:
            if not ours:
                raise SystemExit("Without ours there is nothing to compare.")
            for group in GROUPS:
                with self._members([p for p in group if p in self._peers], phase.setting) as peers:
                    if peers:
                        self._measure_in_turns(phase, ours[0], peers)
            if phase.thread_rounds:
                self._measure_threads(phase, ours[0])
            if phase.in_detail:
                self._measure_parts(phase, ours[0])

    @contextlib.contextmanager
    def _members(self, names: list[str], setting: Setting) -> Iterator[list[crew.Member]]:
        """Gives the named contenders with their tables full; without those that cannot be had."""
        with contextlib.ExitStack() as stack:
            started = []
            for name in names:
                if name not in self.missing:
                    with self._unless_missing(name):
                        member = self._start(name, setting.threads)
                        stack.callback(member.close)
                        started.append(member)
            # They load their libraries at the same time, and only then fill their tables.
            ready = []
            for member in started:
                with self._unless_missing(member.name):
                    member.ask("wait" if member.name in self._verified else "verify")
                    self._verified.add(member.name)
                    ready.append(member)
            full = []
            for member in ready:
                with self._unless_missing(member.name):
                    self.figures.fills[setting, member.name] = self._fill(member, setting)
                    full.append(member)
            yield full

    @contextlib.contextmanager
    def _unless_missing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (environments.Unavailable, crew.WorkerFailed) as error:
            self.missing[name] = str(error)
            print(f"  {name} is left out: {error}", flush=True)

    def _start(self, name: str, threads: int) -> crew.Member:
        python = environments.python_of(ENVIRONMENTS[name], DIRECTORY)
        return crew.Member(name, threads, python, DIRECTORY / "logs", dict(os.environ))

    def _fill(self, member: crew.Member, setting: Setting) -> Fill:
        start = time.monotonic()
        directory = str(DIRECTORY / "workload")
        made = member.ask("create", rows=setting.rows, dim=setting.dim, directory=directory)
        fill = Fill(None, made["bytes"] / setting.rows)
        if made["grows"]:
            answer = member.ask("fill")
            fill = Fill(
                keys_per_second=setting.rows / answer["seconds"],
                bytes_per_row=answer["bytes"] / setting.rows,
                worst_bytes_per_row=answer["worst_bytes_per_row"],
                other_bytes_per_row=answer["other_bytes"] / setting.rows,
            )
        took = time.monotonic() - start
        print(f"  {member.name}: {setting.rows:,} rows loaded in {took:.0f} s", flush=True)
        return fill

    def _measure_in_turns(self, phase: Phase, ours: crew.Member, peers: list[crew.Member]) -> None:
        cases = phase.cases()
        calls = [dataclasses.replace(c, repeated=False) for c in cases if c.batch == workload.BATCH]
        for rounds, some in ((phase.rounds, cases), (phase.call_rounds, calls)):
            for number in range(rounds):
                for case in some:
                    rates = {}
                    # Another one is the first in every round, so that no place is anyone's.
                    for member in _rotated([ours, *peers], number):
                        if member is ours:
                            rates[OURS] = ask_rate(ours, case)
                        elif member.name not in self.missing:
                            with self._unless_missing(member.name):
                                rates[member.name] = ask_rate(member, case)
                    self.figures.add_round(phase.setting, case, rates)

    def _measure_threads(self, phase: Phase, one: crew.Member) -> None:
        setting = dataclasses.replace(phase.setting, threads=2)
        with self._members([OURS], setting) as members:
            for _ in range(phase.thread_rounds if members else 0):
                for case in dataclasses.replace(phase, batches=BOTH_BATCHES).cases():
                    slow, fast = ask_rate(one, case), ask_rate(members[0], case)
                    self.figures.add_round(setting, case, {OURS: fast})
                    if case.batch == workload.LARGE_BATCH:
                        self.figures.add_scaling(case, slow, fast)

    def _measure_parts(self, phase: Phase, ours: crew.Member) -> None:
        for _ in range(phase.rounds):
            for case in time_split.CASES:
                self.figures.split[case].append(1e9 / ask_rate(ours, case))
            apart = workload.Case("adagrad apart", "zipf")
            self.figures.apart.append(ask_rate(ours, apart))


def _rotated(members: list[crew.Member], by: int) -> list[crew.Member]:
    first = by % len(members)
    return members[first:] + members[:first]


def ask_rate(member: crew.Member, case: workload.Case) -> float:
    """Returns keys per second."""
    return member.ask("measure", case=dataclasses.asdict(case), seconds=SECONDS_PER_CASE)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only tables of 1,000,000 rows")
    results_file.add_argument(parser)
    parser.add_argument("--phase", type=int, action="append", help="only these, counted from 0")
    parser.add_argument("--peer", action="append", choices=report.PEERS, help="only these peers")
    args = parser.parse_args(argv)

    phases = QUICK if args.quick else FULL
    if args.phase:
        phases = [phases[i] for i in args.phase]
    judged_on = phases[0].setting
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    limits = machine.memory_limits(DIRECTORY, judged_on.rows, judged_on.row_bytes)
    run = Run(set(args.peer or report.PEERS))
    for phase in phases:
        print(f"{(time.monotonic() - start) / 60:.1f} min: {phase.setting}", flush=True)
        run.measure(phase)
    described = results_file.describe_run("benchmarks.table.run", start, argv)
    header = (
        "## The table and its peers\n\n"
        f"{datetime.date.today()}, {machine.cpu_model()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {described}."
    )
    notes = [f"Left out: {name}: {why}" for name, why in run.missing.items()]
    text = "\n\n".join([header, *notes, *report.sections(run.figures, judged_on, limits)])
    results_file.publish(text, "bench-table", write=args.write)


if __name__ == "__main__":
    main()
