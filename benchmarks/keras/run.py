"""Measures `model.fit` of one Keras model with our embedding layer and with those of others.

Each contender is a process of its own; in every round each fits for a while, all to the same
batches. A ratio is the median over the rounds of what both reached in that round, since the same
figure moves between two runs. Then each fits a new model to the same examples in the same order,
for the AUC on examples that it has not seen.

Run: `make bench-keras`, or `python -m benchmarks.keras.run --rounds 3 --seconds 1` for a look.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from benchmarks import results_file
from benchmarks.keras import workload
from benchmarks.table import crew, environments, machine

DIRECTORY = crew.REPOSITORY / "build" / "bench"
OURS = "ours"
MOST = (100_000, 1_000_000)  # Ids of a kind.
AUC_BAR = 0.002
# Contender, its environment, and how many times as fast ours shall be.
PEERS = [
    ("ours, Keras' Dense", environments.OURS, None),
    ("no embedding", environments.OURS, None),
    ("Keras 2, sparse", environments.TFRA, 1.5),
    ("TFRA", environments.TFRA, 2.0),
    ("Keras 3", environments.OURS, None),
]


def make_batches(shape: str, most: int, num_batches: int) -> workload.Batches:
    features = workload.make_features(shape, most)
    if shape == workload.SLOTS:
        return workload.make_slots(features, num_batches)
    movies = next(feature.rows for feature in features if feature.kind == "movie")
    return make_movies(most, movies, num_batches, features[-1].length)


def make_movies(users: int, movies: int, num_batches: int, history: int = 0) -> workload.Batches:
    from monolith.data.movies import World, WorldConfig

    config = WorldConfig(
        num_users=users, num_movies=movies, num_examples=num_batches * workload.BATCH
    )
    world = World(config)
    stream = world.examples(0, config.num_examples)
    shape = (num_batches, workload.BATCH)
    # As popular as the movies of the examples, and otherwise without meaning.
    watched = np.random.default_rng(0).choice(stream.movie, (*shape, history))
    numbers = {
        "user": stream.user.reshape(shape),
        "movie": stream.movie.reshape(shape),
        "history": watched,
    }
    ids_of = {"user": world.user_ids, "movie": world.movie_ids, "history": world.movie_ids}
    ids = {name: ids_of[name][number] for name, number in numbers.items()}
    return workload.Batches(numbers, ids, stream.label.reshape(shape).astype(np.float32))


class Contender:
    """A process, and what it reached."""

    def __init__(
        self, name: str, environment: str, most: int, shape: str, bar: float | None
    ) -> None:
        self.name, self.most, self.shape, self.bar = name, most, shape, bar
        threads = len(os.sched_getaffinity(0))
        self._member = crew.Member(
            name,
            threads,
            environments.python_of(environment, DIRECTORY),
            DIRECTORY / "logs",
            dict(os.environ),
            module="benchmarks.keras.worker",
            log_name=f"keras-{name}-{most}-{workload.SHAPES.index(shape)}",
        )
        self.speeds: dict[str, list[float]] = {}
        self.cpus: dict[str, list[float]] = {}
        self.auc: float | None = None

    def create(self, path: pathlib.Path) -> None:
        ways = self._member.ask("create", path=str(path), most=self.most, shape=self.shape)
        for way in ways:
            self.speeds[way], self.cpus[way] = [], []
            self._member.ask("run", way=way, seconds=1.0)  # Traces, and warms up.

    def run(self, seconds: float) -> None:
        for way, speeds in self.speeds.items():
            done = self._member.ask("run", way=way, seconds=seconds)
            speeds.append(done["steps_per_sec"] * workload.BATCH)
            self.cpus[way].append(done["cpu_ms_per_step"])

    def learn(self, path: pathlib.Path) -> None:
        self.auc = self._member.ask("learn", path=str(path))

    def close(self) -> None:
        self._member.close()


def measure(args: argparse.Namespace, most: int, shape: str, stack: ExitStack) -> list[Contender]:
    """Returns all contenders that can be had on this machine, ours first."""
    path = DIRECTORY / f"keras_{workload.SHAPES.index(shape)}_{most}.npz"
    if not path.exists():
        workload.save(make_batches(shape, most, workload.SPEED_BATCHES), path)
    contenders: list[Contender] = []
    for name, environment, bar in [(OURS, environments.OURS, None), *PEERS]:
        try:
            bar = None if shape == workload.PAIR else bar
            contender = Contender(name, environment, most, shape, bar)
            stack.callback(contender.close)
            contender.create(path)
        except (environments.Unavailable, crew.WorkerFailed) as error:
            print(f"left out {name}: {error}", flush=True)
            continue
        contenders.append(contender)
    for number in range(args.rounds):
        print(f"{shape}, at most {most:,} ids: round {number + 1} ...", flush=True)
        for contender in contenders:
            contender.run(args.seconds)
    return contenders


def learn(contenders: list[Contender]) -> None:
    path = DIRECTORY / "keras_taught.npz"
    num_batches = workload.TAUGHT_BATCHES + workload.ASKED_BATCHES
    workload.save(make_movies(workload.TAUGHT_USERS, workload.TAUGHT_MOVIES, num_batches), path)
    for contender in contenders:
        print(f"{contender.name} learns ...", flush=True)
        contender.learn(path)


def report(groups: list[list[Contender]]) -> Iterator[str]:
    """Yields the lines, with the bars, which are for models of more than a user and a movie."""
    yield (
        f"{machine.cpu_model()}, {len(os.sched_getaffinity(0))} cores; dim {workload.DIM}, layers "
        f"{workload.HIDDEN}, batch {workload.BATCH}, Adagrad; {workload.MOVIES:,} movies; slots "
        "with as many ids as those of the Criteo Kaggle data, but not more than the limit"
    )
    yield ""
    yield (
        "| ids of a kind, at most | model | layer | way | examples/s | CPU ms/step | ours is | "
        "rounds | |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for contenders in groups:
        ours = contenders[0]
        for contender in contenders:
            for way, speeds in contender.speeds.items():
                ratios = [
                    mine / theirs for mine, theirs in zip(ours.speeds[way], speeds, strict=True)
                ]
                ratio = statistics.median(ratios)
                verdict = ""
                if contender.bar is not None:
                    word = "PASS" if ratio >= contender.bar else "MISS"
                    verdict = f"{word}, bar {contender.bar}x"
                yield (
                    f"| {contender.most:,} | {contender.shape} | {contender.name} | {way} | "
                    f"{statistics.median(speeds):,.0f} | "
                    f"{statistics.median(contender.cpus[way]):.2f} | {ratio:.2f}x | "
                    f"{min(ratios):.2f} to {max(ratios):.2f} | {verdict} |"
                )
    aucs = {c.name: c.auc for group in groups for c in group if c.auc is not None}
    if not aucs:
        return
    yield ""
    yield (
        f"AUC on {workload.ASKED_BATCHES * workload.BATCH:,} examples after {workload.EPOCHS} "
        f"epochs of {workload.TAUGHT_BATCHES * workload.BATCH:,}, {workload.TAUGHT_USERS:,} users "
        f"and {workload.TAUGHT_MOVIES:,} movies: "
        + ", ".join(f"{name} {auc:.4f}" for name, auc in aucs.items())
    )
    if "Keras 3" in aucs:
        difference = aucs[OURS] - aucs["Keras 3"]
        word = "PASS" if difference >= -AUC_BAR else "MISS"
        yield ""
        yield f"{word}: ours is {difference:+.4f} beside Keras 3, the bar is -{AUC_BAR}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way in each round")
    parser.add_argument("--most", type=int, choices=MOST, action="append", help="only these")
    parser.add_argument("--model", choices=workload.SHAPES, action="append", help="only these")
    parser.add_argument("--no-auc", action="store_true", help="only the speed")
    results_file.add_argument(parser)
    args = parser.parse_args()
    start = time.monotonic()
    groups: list[list[Contender]] = []
    for most in args.most or MOST:
        for shape in args.model or workload.SHAPES:
            with ExitStack() as stack:
                contenders = measure(args, most, shape, stack)
                if not contenders or contenders[0].name != OURS:
                    sys.exit("Our own layer could not be trained; see above.")
                if not groups and not args.no_auc:
                    learn(contenders)
                groups.append(contenders)
    head = results_file.begin_section("Keras", "benchmarks.keras.run", start)
    text = "\n".join([*head, *report(groups)])
    results_file.publish(text, "bench-keras", write=args.write)


if __name__ == "__main__":
    main()
