"""Measures training over parameter servers, in turns, and prints the tables and the bars.

In every group, one process, a job of ours and two jobs under TensorFlow's own strategy, Keras's fit
and a step by hand, are alive at the same time, and train in turns on the same batches. A ratio is
the median over the rounds of what both reached in that round, since the same figure moves between
two runs.

Run: `make bench-distributed`, or `python -m benchmarks.distributed.run --quick` for a look.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from benchmarks import results_file
from benchmarks.distributed import report, wire, workload
from benchmarks.distributed.jobs import KERAS, OURS, STRATEGY, Job, Turn
from benchmarks.table import crew, environments

DIRECTORY = crew.REPOSITORY / "build" / "bench"
BATCHES = DIRECTORY / "distributed_batches.npz"
# What `benchmarks.scaling` computes with.
MEASURED = pathlib.Path(__file__).with_name("measured.json")
CORES = len(os.sched_getaffinity(0))

NAMES = [str(model) for model in workload.MODELS]
# Features of the jobs whose tensors are counted.
COUNTED = (workload.Model(2, 32), workload.Model(20, 8), workload.Model(200, 8))
TRACED = (workload.Shape(1, 1), workload.Shape(2, 2))
_TRACED_STEPS = 15


class Group(NamedTuple):
    """What the contenders reached, in turns; nothing of one that could not be started."""

    model: workload.Model
    shape: workload.Shape
    alone: list[Turn]
    ours: list[Turn]
    keras: list[Turn]
    strategy: list[Turn]


def make_batches() -> workload.Batches:
    from monolith.data import movies

    config = movies.WorldConfig(
        num_users=workload.USERS,
        num_movies=workload.OTHERS,
        num_examples=workload.BATCHES * workload.BATCH,
    )
    stream = movies.World(config).examples(0, config.num_examples)
    shape = (workload.BATCHES, workload.BATCH)
    return workload.Batches(
        users=stream.user.reshape(shape).astype(np.int64),
        movies=stream.movie.reshape(shape).astype(np.int64),
        labels=stream.label.reshape(shape).astype(np.float32),
    )


def start(contender: str, shape: workload.Shape, model: workload.Model, queues: bool = True) -> Job:
    return Job(
        contender,
        shape,
        model,
        batches=BATCHES,
        directory=DIRECTORY,
        environment=make_environment(contender),
        cores=CORES,
        queues=queues,
    )


def make_environment(contender: str) -> dict[str, str]:
    """Returns that of a contender's processes; Keras 2 is added to the packages of its own."""
    environment = dict(os.environ)
    if contender == KERAS:
        packages = str(environments.add_packages(environments.KERAS_2, DIRECTORY))
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([packages, *([others] if others else [])])
    return environment


def measure(model: workload.Model, shape: workload.Shape, rounds: int, seconds: float) -> Group:
    print(f"{model}, {shape} ...", flush=True)
    group = Group(model, shape, [], [], [], [])
    with ExitStack() as stack:
        jobs = [
            (stack.enter_context(start(OURS, workload.ONE_PROCESS, model)), group.alone),
            (stack.enter_context(start(OURS, shape, model)), group.ours),
        ]
        for peer, turns in ((KERAS, group.keras), (STRATEGY, group.strategy)):
            try:
                jobs.append((stack.enter_context(start(peer, shape, model)), turns))
            except (crew.WorkerFailed, environments.Unavailable) as error:
                print(f"left out {peer}: {error}", flush=True)
        for _ in range(rounds):
            for job, turns in jobs:
                turns.append(job.run(seconds))
    return group


def record(model: workload.Model, shape: workload.Shape) -> list[dict[str, Any]]:
    """Returns what is known of some steps without queues, so that all of a step is in it."""
    print(f"a trace: {model}, {shape} ...", flush=True)
    with start(OURS, shape, model, queues=False) as job:
        return job.record(_TRACED_STEPS)


def summarize(groups: list[Group], traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the constants from which other sizes are predicted."""
    points = []
    for group in groups:
        middle = {
            name: statistics.median(getattr(turn, name) for turn in group.ours)
            for name in ("examples_per_sec", "cpu", "server_cpu")
        }
        points.append(
            {"model": group.model, "servers": group.shape.servers}
            | {
                "workers": group.shape.workers,
                **middle,
                "alone_cpu": statistics.median(turn.cpu for turn in group.alone),
            }
        )
    step = traces[len(traces) // 2]
    return {
        "cores": CORES,
        "batch": workload.BATCH,
        "points": points,
        "bytes_per_step": step["bytes"],
        "row_bytes_per_step": step["tensors"]["rows"][1],
        "dense_bytes_per_step": step["tensors"]["dense variables"][1],
    }


def choose_models(names: list[str] | None, is_quick: bool) -> tuple[workload.Model, ...]:
    """Returns the models with these names, if there are any; otherwise all, or the first."""
    if names is None:
        return workload.MODELS[:1] if is_quick else workload.MODELS
    return tuple(model for model in workload.MODELS if str(model) in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each job in each round")
    parser.add_argument("--model", choices=NAMES, action="append", help="only these")
    parser.add_argument("--quick", action="store_true", help="the first model, 2 short rounds")
    results_file.add_argument(parser)
    args = parser.parse_args()
    began = time.monotonic()
    workload.save(make_batches(), BATCHES)
    rounds, seconds = (2, 1.0) if args.quick else (args.rounds, args.seconds)
    models = choose_models(args.model, args.quick)
    try:
        groups = [
            measure(model, shape, rounds, seconds) for model in models for shape in workload.SHAPES
        ]
        counted = {model: record(model, TRACED[0]) for model in COUNTED}
        traced = {TRACED[0]: counted[COUNTED[0]], TRACED[1]: record(COUNTED[0], TRACED[1])}
    except crew.WorkerFailed as error:
        sys.exit(str(error))
    lines = report.make_report(groups, counted, traced, wire.measure(), CORES)
    head = results_file.begin_section(
        "Training over parameter servers", "benchmarks.distributed.run", began
    )
    text = "\n".join([*head, *lines])
    results_file.publish(text, "bench-distributed", write=args.write)
    if args.write:
        summary = summarize(groups, counted[COUNTED[0]])
        MEASURED.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
