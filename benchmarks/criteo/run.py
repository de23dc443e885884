"""Measures a Criteo-shaped training step of ours and of other libraries, and prints the bars.

Each contender is a process of its own. Ours stays, the peers come one after the other, so that
large tables fit into memory; in every round ours and the peer train for a while, another one first.
A ratio is the median over the rounds of what both reached in that round. All start with the same
rows, weights and batches, and their losses after some steps must agree.

Run: `make bench-criteo`, or `python -m benchmarks.criteo.run --quick` for small tables and a look.
"""

import argparse
import contextlib
import datetime
import os
import statistics
import sys
import time
from collections.abc import Iterator

from benchmarks import results_file
from benchmarks.criteo import workload
from benchmarks.table import crew, environments, machine
from benchmarks.table import run as table_run
from benchmarks.table.report import table

DIRECTORY = table_run.DIRECTORY
OURS = "ours"
FBGEMM = "torch, fbgemm"
# Contender and environment; the bar of fbgemm is its own, the others share one for their best.
PEERS = {
    FBGEMM: environments.TORCH,
    "torch, Embedding": environments.TORCH,
    "Keras 2, sparse": environments.TFRA,
    "TFRA": environments.TFRA,
}
FBGEMM_BAR, BEST_BAR = 1.6, 2.5
MOST = (1_000_000, 10_000_000)
QUICK_MOST = 100_000
THREADS = 2
# PyTorch's threads spin while they wait for each other, which is fast on a quiet machine, and on a
# busy one can take ten times as long as the step; "passive" has them sleep.
WAIT_POLICY = "OMP_WAIT_POLICY"
# Of the loss: an optimizer that did less, or other examples, would differ by more.
LOSS_TOLERANCE = 0.01


class Contender:
    """A process with its model loaded, and what it reached."""

    def __init__(self, name: str, most: int, network: str) -> None:
        environment = environments.OURS if name == OURS else PEERS[name]
        self.name = name
        self._member = crew.Member(
            name,
            THREADS,
            environments.python_of(environment, DIRECTORY),
            DIRECTORY / "logs",
            dict(os.environ),
            module="benchmarks.criteo.worker",
            log_name=f"criteo-{name}-{network}-{most}",
        )
        self._setting = {"most": most, "network": network}
        self.loss = 0.0

    def create(self) -> None:
        directory = DIRECTORY / f"criteo_{self._setting['most']}"
        self.loss = self._member.ask("create", directory=str(directory), **self._setting)
        self.run(0.5)  # Warms up.

    def run(self, seconds: float) -> tuple[float, float]:
        """Trains for a while; returns examples per second and CPU milliseconds of a step."""
        done = self._member.ask("run", seconds=seconds)
        return done["examples_per_sec"], done["cpu_ms_per_step"]

    def close(self) -> None:
        self._member.close()


class Figures:
    """What one peer and ours reached in turns on one setting; or why there is nothing.

    Attributes:
        rounds: For each round examples per second and CPU milliseconds of a step: ours, the peer's.
        losses: After the same steps: ours, the peer's.
        missing: Why the peer could not be measured; None if it was.
    """

    def __init__(self) -> None:
        self.rounds: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self.losses = (0.0, 0.0)
        self.missing: str | None = None

    def ratios(self) -> list[float]:
        return [ours[0] / peer[0] for ours, peer in self.rounds]

    def median(self, which: int, what: int) -> float:
        return statistics.median(sides[which][what] for sides in self.rounds)


Setting = tuple[int, str]
Results = dict[Setting, dict[str, Figures]]


def measure(setting: Setting, peers: list[str], rounds: int, seconds: float) -> dict[str, Figures]:
    """Returns the figures of each peer beside ours."""
    most, network = setting
    workload.write(DIRECTORY / f"criteo_{most}", most)
    results = {}
    with contextlib.closing(Contender(OURS, most, network)) as ours:
        ours.create()
        for name in peers:
            print(f"{network}, at most {most:,} ids: {name} ...", flush=True)
            results[name] = figures = Figures()
            try:
                with contextlib.closing(Contender(name, most, network)) as peer:
                    peer.create()
                    figures.losses = ours.loss, peer.loss
                    for number in range(rounds):
                        pair = [ours, peer][:: -1 if number % 2 else 1]
                        done = {one.name: one.run(seconds) for one in pair}
                        figures.rounds.append((done[OURS], done[name]))
            except (environments.Unavailable, crew.WorkerFailed) as error:
                figures.missing = str(error)
                print(f"left out {name}: {error}", flush=True)
    return results


def report(results: Results) -> Iterator[str]:
    """Yields the lines of the report."""
    yield (
        f"{machine.cpu_model()}, {len(os.sched_getaffinity(0))} cores, {THREADS} threads; "
        f"{workload.SLOTS} slots with as many ids as in the Criteo Kaggle data, at most the limit, "
        f"all of which have rows of {workload.DIM}; {workload.NUMBERS} numbers; batch "
        f"{workload.BATCH}, Zipf 1.05; Adagrad for everything. DCN-v2: {workload.CROSSES} crosses "
        f"of rank {workload.CROSS_RANK} beside layers of 256 and 64. Loss: after "
        f"{workload.COMPARED_STEPS} steps from the same start."
    )
    for setting, by_peer in results.items():
        most, network = setting
        yield ""
        yield f"### {network}, at most {most:,} ids of a slot"
        yield ""
        yield _table_of(by_peer)
        yield ""
        yield from (f"- {line}" for line in verdicts(by_peer))


def _table_of(by_peer: dict[str, Figures]) -> str:
    rows = []
    measured = {name: figures for name, figures in by_peer.items() if figures.rounds}
    if measured:
        together = [sides[0] for figures in measured.values() for sides in figures.rounds]
        speed, cpu = (statistics.median(values) for values in zip(*together, strict=True))
        loss = next(iter(measured.values())).losses[0]
        rows.append([OURS, f"{speed:,.0f}", _ms(speed), f"{cpu:.1f}", f"{loss:.4f}", "", "", ""])
    for name, figures in by_peer.items():
        if name not in measured:
            rows.append([name, "-", "-", "-", "-", "-", "-", f"left out: {figures.missing}"])
            continue
        speed, cpu = figures.median(1, 0), figures.median(1, 1)
        ratios = figures.ratios()
        rows.append(
            [
                name,
                f"{speed:,.0f}",
                _ms(speed),
                f"{cpu:.1f}",
                f"{figures.losses[1]:.4f}",
                f"{statistics.median(ratios):.2f}x",
                f"{figures.median(1, 1) / figures.median(0, 1):.2f}x",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    header = ["", "examples/s", "ms/step", "CPU ms/step", "loss", "ours is", "by CPU", "rounds"]
    return table(header, rows)


def _ms(examples_per_sec: float) -> str:
    return f"{1000 * workload.BATCH / examples_per_sec:.1f}"


def verdicts(by_peer: dict[str, Figures]) -> Iterator[str]:
    """Yields whether the bars are reached, and whether all have trained the same."""
    ratios = {
        name: statistics.median(figures.ratios())
        for name, figures in by_peer.items()
        if figures.rounds
    }
    if FBGEMM in ratios:
        yield _verdict(ratios.pop(FBGEMM), FBGEMM_BAR, FBGEMM)
    if ratios:
        best = min(ratios, key=ratios.__getitem__)
        yield _verdict(ratios[best], BEST_BAR, f"the best of the others ({best})")
    for name, figures in by_peer.items():
        mine, theirs = figures.losses
        if figures.rounds and abs(mine - theirs) > LOSS_TOLERANCE * theirs:
            yield f"MISS: another training: the loss of {name} is {theirs:.4f}, ours {mine:.4f}"


def _verdict(ratio: float, bar: float, against: str) -> str:
    word = "PASS" if ratio >= bar else "MISS"
    return f"{word}: ours is {ratio:.2f}x {against}, the bar is {bar}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each in each round")
    parser.add_argument("--most", type=int, action="append", help="only slots of so many ids")
    parser.add_argument("--network", choices=workload.NETWORKS, action="append", help="only these")
    parser.add_argument("--peer", choices=PEERS, action="append", help="only these")
    parser.add_argument(
        "--quick", action="store_true", help="slots of at most 100,000 ids, 2 short rounds"
    )
    results_file.add_argument(parser)
    args = parser.parse_args()
    if args.quick:
        args.most, args.rounds, args.seconds = args.most or [QUICK_MOST], 2, 0.5
    start = time.monotonic()
    results: Results = {}
    for most in args.most or MOST:
        for network in args.network or workload.NETWORKS:
            results[most, network] = measure(
                (most, network), args.peer or list(PEERS), args.rounds, args.seconds
            )
    policy = os.environ.get(WAIT_POLICY)
    waiting = [f"{WAIT_POLICY}={policy}"] if policy else []
    command = " ".join([*waiting, "python -m benchmarks.criteo.run", *sys.argv[1:]])
    minutes = (time.monotonic() - start) / 60
    header = f"{datetime.date.today()}, `{command}`, {minutes:.0f} minutes."
    text = "\n".join(["## A step as a whole: Criteo-shaped", "", header, "", *report(results)])
    results_file.publish(text, "bench-criteo", write=args.write)


if __name__ == "__main__":
    main()
