"""Attacks a job in each way to recover, compares what its checkpoints hold, and reports."""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import pathlib
import signal
import sys
import tempfile
import time

import tensorflow as tf
from chaos import attack, bounds, faults, member
from support import jobs

from benchmarks import results_file
from benchmarks.table import machine, report
from monolith.training.distributed import plan

RECOVERIES = {"partial": "only what was lost is restored", "full": "everything is restored"}
STEP_SEC = 0.1
# How much of the time there are steps, between one recovery and the next.
UPTIME = 0.3


@dataclasses.dataclass(frozen=True)
class Result:
    """A job that was attacked, and what was found.

    Attributes:
        recovery: How it recovers.
        outcome: What was done.
        findings: What its checkpoints hold.
    """

    recovery: str
    outcome: attack.Outcome
    findings: bounds.Findings

    @property
    def problems(self) -> list[str]:
        """All that must not be."""
        return self.outcome.problems + self.findings.problems


def make_settings(directory: pathlib.Path, recovery: str, seconds: float) -> member.Settings:
    """Returns the job: an input that lasts a little longer than the faults."""
    return member.Settings(
        model_dir=str(directory / "model"),
        ledger=str(directory / "ledger"),
        hurry=str(directory / "hurry"),
        proxies=str(directory / "proxies.json"),
        num_workers=3,
        num_batches=int(3 * seconds * UPTIME / STEP_SEC) + 100,
        step_sec=STEP_SEC,
        save_steps=150,
        delta_steps=50,
        partial_recovery=recovery == "partial",
        max_retry_times=1_000_000,
        chief_timeout_secs=300,
        begin_sec=time.time(),
        seconds=seconds,
        code=plan.describe_code(),
    )


def attack_job(
    directory: pathlib.Path, recovery: str, *, seed: int, seconds: float, mean_gap_sec: float, say
) -> Result:
    """Attacks one job and returns what was found."""
    settings = make_settings(directory, recovery, seconds)
    harness = attack.Attack(
        settings, directory, seed=seed, seconds=seconds, mean_gap_sec=mean_gap_sec, say=say
    )
    outcome = harness.run()
    return Result(recovery, outcome, bounds.check(settings, outcome))


def make_report(results: list[Result], minutes: float, seed: int) -> str:
    """Returns the section of the results file."""
    by_role = {role: collections.Counter() for role in ("chief", "worker", "ps")}
    restarts = collections.Counter()
    for result in results:
        restarts += result.outcome.restarts
        for _, fault in result.outcome.faults:
            by_role[fault.role][fault.kind] += 1
    rows = [
        [
            {"worker": "2 workers", "ps": "2 servers"}.get(role, role),
            *(str(counts[kind]) for kind in faults.Kind),
            str(counts.total()),
            str(restarts[role]),
        ]
        for role, counts in by_role.items()
    ]
    kinds = [sum((c[kind] for c in by_role.values()), 0) for kind in faults.Kind]
    rows.append(["together", *map(str, kinds), str(sum(kinds)), str(restarts.total())])
    jobs = [
        [
            RECOVERIES[r.recovery],
            str(len(r.outcome.faults)),
            str(len(r.outcome.copies)),
            f"{r.findings.num_ids}",
            f"{r.findings.num_lower:,}",
            f"{r.findings.num_upper:,}",
            f"{r.findings.num_batches:,}",
            f"{r.findings.num_sent:,}",
            f"{r.outcome.end_sec:.0f} s",
            "PASS" if not r.problems else f"MISS ({len(r.problems)})",
        ]
        for r in results
    ]
    return "\n".join(
        [
            "## Chaos",
            "",
            f"{datetime.date.today()}, {machine.cpu_model()}, `python tests/chaos/run.py --minutes "
            f"{minutes:g} --seed {seed}`. Two servers, a chief and two workers as processes; "
            "members that were killed are started again. When one worker is cut off, the others "
            "stay connected.",
            "",
            report.table(
                ["faults against", *(kind.value for kind in faults.Kind), "together", "restarts"],
                rows,
            ),
            "",
            "No count may be below that of the last checkpoint before a fault, or at the end below "
            "that of the input; none may be above what was sent. Deltas count as checkpoints. No "
            "process may be left, and each job has to end by itself.",
            "",
            report.table(
                [
                    "job",
                    "faults",
                    "checkpoints",
                    "ids",
                    "lower bounds",
                    "upper bounds",
                    "batches of the input",
                    "batches sent",
                    "ended after the last fault in",
                    "",
                ],
                jobs,
            ),
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Kills, freezes and cuts off members of a job, and sees that no update is lost."
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long faults are made")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults")
    parser.add_argument("--gap", type=float, default=8.0, help="seconds between two, on average")
    parser.add_argument("--recovery", choices=[*RECOVERIES, "both"], default="both")
    parser.add_argument("--keep", help="directory for logs, ledgers and checkpoints")
    results_file.add_argument(parser)
    args = parser.parse_args(argv)
    tf.compat.v1.disable_eager_execution()
    jobs.preload("chaos.loaded")
    # No process is left then, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    recoveries = list(RECOVERIES) if args.recovery == "both" else [args.recovery]
    start_sec = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start_sec:6.1f} s] {text}", flush=True)

    with contextlib.ExitStack() as stack:
        base = args.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        results = []
        for number, recovery in enumerate(recoveries):
            say(f"a job in which {RECOVERIES[recovery]}")
            results.append(
                attack_job(
                    pathlib.Path(base, recovery),
                    recovery,
                    seed=args.seed + number,
                    seconds=args.minutes * 60 / len(recoveries),
                    mean_gap_sec=args.gap,
                    say=say,
                )
            )
    text = make_report(results, args.minutes, args.seed)
    results_file.publish(text, "chaos", write=args.write)
    problems = [problem for result in results for problem in result.problems]
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0
