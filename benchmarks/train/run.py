"""Measures training steps of our model and its peers in turns, and prints the table and the bar.

Each contender is a process of its own with its model loaded; in every round each trains for a
while, all on the same batches. A ratio is the median over the rounds of what both reached in that
round, since the same figure moves between two runs.

Run: `make bench-train`, or `python -m benchmarks.train.run --bar-only --seconds 1` for a look.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks import results_file
from benchmarks.table import crew, environments, machine
from benchmarks.train import workload

DIRECTORY = crew.REPOSITORY / "build" / "bench"
OURS = "ours"
BAR = 1.5
# Contender, environment, users it has rows for, and whether it counts for the bar.
PEERS = [
    ("Keras 2, sparse", environments.TFRA, workload.USERS, True),
    ("TFRA", environments.TFRA, workload.USERS, True),
    ("Keras 3", environments.OURS, 10_000, False),
    ("Keras 3", environments.OURS, 100_000, False),
    ("Keras 3", environments.OURS, workload.USERS, False),
]


def make_batches() -> workload.Batches:
    from monolith.data import movies

    config = movies.WorldConfig(
        num_users=workload.USERS,
        num_movies=workload.MOVIES,
        num_examples=workload.BATCHES * workload.BATCH,
    )
    world = movies.World(config)
    stream = world.examples(0, config.num_examples)
    shape = (workload.BATCHES, workload.BATCH)
    return workload.Batches(
        users=stream.user.reshape(shape),
        movies=stream.movie.reshape(shape),
        user_ids=world.user_ids[stream.user].reshape(shape),
        movie_ids=world.movie_ids[stream.movie].reshape(shape),
        labels=stream.label.reshape(shape).astype(np.float32),
    )


class Contender:
    """A process, and what it reached."""

    def __init__(self, name: str, environment: str, users: int) -> None:
        self.title = f"{name}, {users:,} users" if name == "Keras 3" else name
        python = environments.python_of(environment, DIRECTORY)
        threads = len(os.sched_getaffinity(0))
        self._member = crew.Member(
            name,
            threads,
            python,
            DIRECTORY / "logs",
            dict(os.environ),
            module="benchmarks.train.worker",
            log_name=f"train-{self.title}",
        )
        self._users = users
        self.speeds: dict[str, list[float]] = {}
        self.last: dict[str, dict[str, Any]] = {}

    def create(self, path: str) -> None:
        for way in self._member.ask("create", path=path, users=self._users):
            self.speeds[way] = []
            self._member.ask("run", way=way, seconds=0.5)  # Warms up.

    def run(self, seconds: float) -> None:
        for way, speeds in self.speeds.items():
            self.last[way] = self._member.ask("run", way=way, seconds=seconds)
            speeds.append(self.last[way]["examples_per_sec"])

    @property
    def best_way(self) -> str:
        return max(self.speeds, key=lambda way: statistics.median(self.speeds[way]))

    def close(self) -> None:
        self._member.close()


def measure(args: argparse.Namespace) -> list[tuple[Contender, bool]]:
    path = DIRECTORY / "train_batches.npz"
    workload.save(make_batches(), path)
    contenders: list[tuple[Contender, bool]] = []
    with ExitStack() as stack:
        for name, environment, users, counts in [(OURS, environments.OURS, 0, True), *PEERS]:
            if args.bar_only and not counts:
                continue
            try:
                contender = Contender(name, environment, users)
                stack.callback(contender.close)
                contender.create(str(path))
            except (environments.Unavailable, crew.WorkerFailed) as error:
                print(f"left out {name}: {error}", flush=True)
                continue
            contenders.append((contender, counts))
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds} ...", flush=True)
            for contender, _ in contenders:
                contender.run(args.seconds)
    return contenders


def report(contenders: list[tuple[Contender, bool]]) -> Iterator[str]:
    """Yields the lines; the last says whether the bar is reached."""
    ours = contenders[0][0]
    ours_speeds = ours.speeds[ours.best_way]
    yield (
        f"{machine.cpu_model()}, {len(os.sched_getaffinity(0))} cores; {workload.USERS:,} users, "
        f"{workload.MOVIES:,} movies, dim {workload.DIM}, layers {workload.HIDDEN}, batch "
        f"{workload.BATCH}"
    )
    yield ""
    yield "| contender | way | examples/s | CPU ms/step | loss | ours is |"
    yield "| --- | --- | --- | --- | --- | --- |"
    ratios = {}
    for contender, counts in contenders:
        for way, speeds in contender.speeds.items():
            pairs = zip(ours_speeds, speeds, strict=True)
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            last = contender.last[way]
            if counts and contender is not ours:
                ratios[f"{contender.title}, {way}"] = ratio
            yield (
                f"| {contender.title} | {way} | {statistics.median(speeds):,.0f} | "
                f"{last['cpu_ms_per_step']:.2f} | {last['loss']:.3f} | {ratio:.2f}x |"
            )
    if ratios:
        best = min(ratios, key=ratios.__getitem__)
        verdict = "PASS" if ratios[best] >= BAR else "MISS"
        yield ""
        yield f"{verdict}: ours is {ratios[best]:.2f}x the best peer ({best}), the bar is {BAR}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way in each round")
    parser.add_argument(
        "--bar-only", action="store_true", help="leave out peers that do not count for the bar"
    )
    results_file.add_argument(parser)
    args = parser.parse_args()
    start = time.monotonic()
    contenders = measure(args)
    if not contenders or contenders[0][0].title != OURS:
        sys.exit("Our own model could not be trained; see above.")
    head = results_file.begin_section("Training steps", "benchmarks.train.run", start)
    text = "\n".join([*head, *report(contenders)])
    results_file.publish(text, "bench-train", write=args.write)


if __name__ == "__main__":
    main()
