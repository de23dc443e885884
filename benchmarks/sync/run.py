"""Measures synchronous training over ranks, in turns, and prints the tables and the bars.

In every group a job of ours and one of Keras 2 under `MultiWorkerMirroredStrategy` are alive at
the same time, and train in turns on the same batches. A ratio is the median over the rounds of
what both reached in that round, since the same figure moves between two runs.

Run: `make bench-sync`, or `python -m benchmarks.sync.run --quick` for a look.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks import results_file
from benchmarks.distributed import run as distributed_run
from benchmarks.distributed import workload
from benchmarks.distributed.jobs import KERAS, OURS
from benchmarks.sync import parts, report
from benchmarks.sync.jobs import Job, Turn
from benchmarks.table import crew, environments


class Group(NamedTuple):
    """What the contenders reached, in turns, and the bytes that ours sends in a step."""

    model: workload.Model
    num_ranks: int
    ours: list[Turn]
    keras: list[Turn]
    sent: dict[str, float]
    least: float


def start(contender: str, num_ranks: int, model: workload.Model) -> Job:
    return Job(
        contender,
        num_ranks,
        model,
        batches=distributed_run.BATCHES,
        directory=distributed_run.DIRECTORY,
        environment=distributed_run.make_environment(contender),
        cores=distributed_run.CORES,
    )


def measure(
    batches: workload.Batches, model: workload.Model, num_ranks: int, rounds: int, seconds: float
) -> Group:
    print(f"{model}, {num_ranks} ranks ...", flush=True)
    ours: list[Turn] = []
    keras: list[Turn] = []
    sent: dict[str, float] = {}
    with ExitStack() as stack:
        own = stack.enter_context(start(OURS, num_ranks, model))
        jobs = [(own, ours)]
        try:
            jobs.append((stack.enter_context(start(KERAS, num_ranks, model)), keras))
        except (crew.WorkerFailed, environments.Unavailable) as error:
            print(f"left out {KERAS}: {error}", flush=True)
        for _ in range(rounds):
            for job, turns in jobs:
                turns.append(job.run(seconds))
        if num_ranks > 1:
            # So many steps in a row have each batch once.
            sent = own.count_bytes(model.count_batches())
    taken = workload.Batches(*(array[: model.count_batches()] for array in batches))
    least = parts.count_least_bytes(taken, model, num_ranks)
    return Group(model, num_ranks, ours, keras, sent, least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each job in each round")
    parser.add_argument("--ranks", type=int, action="append", help="only with so many")
    parser.add_argument(
        "--model", choices=distributed_run.NAMES, action="append", help="only these"
    )
    parser.add_argument("--quick", action="store_true", help="the first model, 1 short round")
    results_file.add_argument(parser)
    args = parser.parse_args()
    began = time.monotonic()
    batches = distributed_run.make_batches()
    workload.save(batches, distributed_run.BATCHES)
    rounds, seconds = (1, 1.0) if args.quick else (args.rounds, args.seconds)
    models = distributed_run.choose_models(args.model, args.quick)
    try:
        groups = [
            measure(batches, model, num_ranks, rounds, seconds)
            for model in models
            for num_ranks in args.ranks or parts.RANKS
        ]
    except crew.WorkerFailed as error:
        sys.exit(str(error))
    lines = report.make_report(groups, distributed_run.CORES)
    head = results_file.begin_section(
        "Synchronous training over ranks", "benchmarks.sync.run", began
    )
    text = "\n".join([*head, *lines])
    results_file.publish(text, "bench-sync", write=args.write)


if __name__ == "__main__":
    main()
