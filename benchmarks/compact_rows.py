"""What rows in fewer bits cost: the AUC of the demo's model, and the memory of a row.

The same model is trained on the same stream with the values of its rows as float32, as float16 and
as 8-bit steps (`storage` of `ml.Embedding`), the optimizer's state in float32 each time, and
evaluated on the same examples after the stream, for three seeds. Memory is what `Table.memory()`
says of a table of 1,000,000 rows.

Run: `make bench-rows`, or `python -m benchmarks.compact_rows --examples 200000 --seeds 1`.
"""

import argparse
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import monolith as ml
from benchmarks import results_file
from benchmarks.table import report
from monolith.data import movies
from monolith.embedding.config import STORAGES

HELD_OUT = 102_400
ROWS = 1_000_000
BATCH = 100_000
# AUC on so many examples moves by about 0.001 by chance.
LARGEST_LOSS = {"float16": 0.001, "int8": 0.003}


class Ranking(ml.Model):
    """Embeddings of user, movie and genres, side by side, into a network."""

    def __init__(self, storage: str) -> None:
        super().__init__()
        self.embed = ml.Embedding(
            ["user", "movie", "genres"], dim=32, optimizer=ml.Adagrad(0.1), storage=storage
        )
        self.mlp = ml.MLP([256, 64, 1])

    def call(self, batch):
        return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("label"))


def measure_auc(world: movies.World, storage: str) -> float:
    """Returns the AUC after the stream."""
    with tempfile.TemporaryDirectory() as model_dir:
        ranking = ml.Estimator(
            Ranking(storage), model_dir, optimizer=ml.Adagrad(0.02), progress=False
        )
        ranking.train(lambda: movies.dataset(world))
        metrics = ranking.evaluate(lambda: movies.dataset(world, held_out=HELD_OUT))
    return float(metrics["click_auc"])


def measure_bytes(dim: int, optimizer: Any, storage: str) -> float:
    """Returns the bytes of a row, with its share of the index."""
    table = ml.Table("rows", dim, optimizer, storage=storage)
    values = np.ones([BATCH, dim], np.float32)
    for first in range(0, ROWS, BATCH):
        table.assign(np.arange(first, first + BATCH), values)
    return table.memory().bytes_per_row


def make_auc_report(aucs: dict[int, dict[str, float]], best: dict[int, float]) -> str:
    """Returns the AUC of each seed, and what the compact forms lose."""
    rows = [
        [str(seed), *(f"{auc:.4f}" for auc in (best[seed], *of_seed.values()))]
        for seed, of_seed in aucs.items()
    ]
    lines = [report.table(["seed", "best reachable", *STORAGES], rows), ""]
    for storage, bar in LARGEST_LOSS.items():
        mean = statistics.mean(auc["float32"] - auc[storage] for auc in aucs.values())
        verdict = "PASS" if mean <= bar else "MISS"
        lines.append(f"- {verdict}: {storage} loses {mean:.4f} on average, the bar is {bar}")
    return "\n".join(lines)


def make_bytes_report() -> str:
    rows = [
        [
            str(dim),
            type(optimizer).__name__,
            *(f"{measure_bytes(dim, optimizer, storage):.1f}" for storage in STORAGES),
        ]
        for dim in (16, 64)
        for optimizer in (ml.SGD(0.1), ml.Adagrad(0.1))
    ]
    return report.table(["dim", "optimizer", *STORAGES], rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=movies.WorldConfig().num_examples)
    results_file.add_argument(parser)
    args = parser.parse_args(argv)
    start = time.monotonic()
    aucs: dict[int, dict[str, float]] = {}
    best: dict[int, float] = {}
    for seed in range(1, args.seeds + 1):
        world = movies.World(movies.WorldConfig(seed=seed, num_examples=args.examples))
        best[seed] = movies.best_auc(world.held_out(HELD_OUT).probability)
        aucs[seed] = {storage: measure_auc(world, storage) for storage in STORAGES}
        print(f"seed {seed} done after {time.monotonic() - start:.0f} s", flush=True)
    text = "\n".join(
        [
            "## Rows in fewer bits",
            "",
            f"{datetime.date.today()}, `python -m benchmarks.compact_rows`. AUC of the demo's "
            f"model on {HELD_OUT:,} examples after {args.examples:,} others, with the values of "
            "its rows stored in three ways, and optimizer states in float32.",
            "",
            make_auc_report(aucs, best),
            "",
            f"Bytes per row of {ROWS:,}, with its share of the index:",
            "",
            make_bytes_report(),
        ]
    )
    results_file.publish(text, "bench-rows", write=args.write)


if __name__ == "__main__":
    main()
