"""Measures saves and restores of our table, a plain file and TFRA in turns, and prints the bars.

In every round everybody saves once and restores once; a ratio is the median over the rounds of what
both reached in that round.

Run: `make bench-checkpoint`, or `python -m benchmarks.checkpoint.run --quick` for a tenth the size.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks import results_file
from benchmarks.checkpoint import disk, report
from benchmarks.table import crew, environments, machine
from benchmarks.table import run as table_run

ROWS = 5_000_000
QUICK_ROWS = 500_000
ROUNDS = 5
THREADS = 2
LOOKUP_SECONDS = 1.0


class Run:
    """Starts the contenders and collects their figures."""

    def __init__(self, rows: int, rounds: int, directory: pathlib.Path) -> None:
        self.figures = report.Figures(rows)
        self.missing: dict[str, str] = {}
        self._rounds = rounds
        self._directory = directory

    def measure(self) -> None:
        rows = self.figures.rows
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(self._member("ours", environments.OURS))
            ours_kinds = self._fill(ours, rows)
            members = [(ours, kind) for kind in ours_kinds]
            with self._unless_missing("TFRA"):
                peer = stack.enter_context(self._member("TFRA", environments.TFRA))
                members += [(peer, kind) for kind in self._fill(peer, rows)]
            for _ in range(self._rounds):
                self._measure_round(members)
            for _ in range(self._rounds):
                self._measure_lookups(ours)
        with self._member("ours", environments.OURS) as larger:
            (kind,) = self._fill(larger, 2 * rows)
            self._note_memory("save", 2 * rows, larger.ask("save", kind=kind))
            self._note_memory("restore", 2 * rows, larger.ask("restore", kind=kind))
        self.figures.add_fastest()

    def _measure_round(self, members: list[tuple[crew.Member, str]]) -> None:
        figures, plain = self.figures, self._directory / "plain"
        for member, kind in members:
            saved = member.ask("save", kind=kind)
            figures.save.setdefault(kind, []).append(saved["seconds"])
            figures.bytes[kind] = saved["bytes"]
            if kind == report.OURS:
                self._note_memory("save", figures.rows, saved)
                size = int(saved["bytes"])
                figures.bytes[report.PLAIN] = size
                figures.save.setdefault(report.PLAIN, []).append(disk.write(plain, size))
        for member, kind in members:
            restored = member.ask("restore", kind=kind)
            figures.restore.setdefault(kind, []).append(restored["seconds"])
            if kind == report.OURS:
                self._note_memory("restore", figures.rows, restored)
                again = member.ask("restore_again", kind=kind)
                figures.again_seconds.append(again["seconds"])
                figures.again_peak.append(again["peak"])
                figures.restore.setdefault(report.PLAIN, []).append(disk.read(plain))

    def _measure_lookups(self, ours: crew.Member) -> None:
        before = ours.ask("look_up", seconds=LOOKUP_SECONDS)
        during = ours.ask("look_up_during_save")
        after = ours.ask("look_up", seconds=LOOKUP_SECONDS)
        alone = (before + after) / 2
        self.figures.lookup_alone.append(alone)
        self.figures.lookup_kept.append(during / alone)

    def _note_memory(self, what: str, rows: int, answer: dict[str, float]) -> None:
        self.figures.extra.setdefault((what, rows), []).append(answer["extra_bytes"])

    @contextlib.contextmanager
    def _member(self, name: str, environment: str) -> Iterator[crew.Member]:
        python = environments.python_of(environment, table_run.DIRECTORY)
        logs = table_run.DIRECTORY / "logs"
        member = crew.Member(
            name,
            THREADS,
            python,
            logs,
            dict(os.environ),
            module="benchmarks.checkpoint.worker",
            log_name=f"checkpoint {name}",
        )
        with contextlib.closing(member):
            yield member

    @contextlib.contextmanager
    def _unless_missing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (environments.Unavailable, crew.WorkerFailed) as error:
            self.missing[name] = str(error)
            print(f"  {name} is left out: {error}", flush=True)

    def _fill(self, member: crew.Member, rows: int) -> list[str]:
        start = time.monotonic()
        kinds = member.ask("fill", rows=rows, directory=str(self._directory))
        took = time.monotonic() - start
        print(f"  {member.name}: {rows:,} rows loaded in {took:.0f} s", flush=True)
        return kinds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK_ROWS:,} rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often all are measured")
    results_file.add_argument(parser)
    parser.add_argument(
        "--directory",
        type=pathlib.Path,
        default=table_run.DIRECTORY,
        help="on the disk to be measured; a directory is made below it and removed at the end",
    )
    args = parser.parse_args(argv)

    args.directory.mkdir(parents=True, exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="checkpoint-", dir=args.directory))
    start = time.monotonic()
    run = Run(QUICK_ROWS if args.quick else ROWS, args.rounds, directory)
    try:
        run.measure()
    finally:
        shutil.rmtree(directory)
    described = results_file.describe_run("benchmarks.checkpoint.run", start, argv)
    header = (
        "## Saving and restoring the table\n\n"
        f"{datetime.date.today()}, {machine.cpu_model()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {described}."
    )
    notes = [f"Left out: {name}: {why}" for name, why in run.missing.items()]
    text = "\n\n".join([header, *notes, *report.sections(run.figures)])
    results_file.publish(text, "bench-checkpoint", write=args.write)


if __name__ == "__main__":
    main()
