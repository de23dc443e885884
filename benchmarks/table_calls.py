"""What a call of `ml.Table` costs from Python, against `tf.gather` on a `tf.Variable`.

What it shows: microseconds of an eager lookup of one id, of a batch, and of a whole step with
gradient and update, dim 16, in one process and in turns, so that a busy machine slows both. The
table has medians over all rounds, and the ratio of our time to TensorFlow's beside its bar. The
variable knows its ids beforehand and updates with `scatter_sub`; the table has a row for any id.

Run: `make bench-calls`, or `python -m benchmarks.table_calls --rounds 5`; `--write` puts the report
into RESULTS.md.
"""

import argparse
import datetime
import os
import statistics
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import monolith as ml
from benchmarks import results_file
from benchmarks.table import report

DIM = 16
ROWS = 10_000
BATCH = 512
RATE = 0.1
BAR = 1.5  # Of one id: at most so many times the variable's time.


def make_calls() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Returns ours and theirs by what they do."""
    values = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    table = ml.Table("rows", DIM, ml.SGD(RATE))
    table.assign(np.arange(ROWS), values)
    variable = tf.Variable(values)
    one = tf.constant([7], tf.int64)
    scalar = tf.constant(7, tf.int64)
    batch = tf.constant(np.random.default_rng(1).integers(0, ROWS, BATCH))

    def train_table() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table(batch))
        table.apply_gradients(tape.gradient(loss, table))

    def train_variable() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(variable, batch))
        gradient = tape.gradient(loss, variable)
        variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))

    return {
        "lookup of 1 id": (lambda: table(one), lambda: tf.gather(variable, one)),
        "lookup of 1 id, a scalar": (lambda: table(scalar), lambda: tf.gather(variable, scalar)),
        "lookup of 1 id, from a list": (lambda: table([7]), lambda: tf.gather(variable, [7])),
        f"lookup of {BATCH} ids": (lambda: table(batch), lambda: tf.gather(variable, batch)),
        f"step of SGD with {BATCH} ids": (train_table, train_variable),
    }


def measure(function: Callable[[], object], calls: int) -> float:
    """Returns microseconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e6 * (time.perf_counter() - start) / calls


def measure_row(name: str, pair: tuple[Callable[[], object], ...], rounds: int, calls: int) -> list:
    """Returns a row of the report: both medians, their ratio, and whether it is within its bar."""
    for function in pair:
        measure(function, 20)  # Warms up.
    times = [[measure(function, calls) for function in pair] for _ in range(rounds)]
    ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(mine / other for mine, other in times)
    verdict = ""
    if name == "lookup of 1 id":
        verdict = f"{'PASS' if ratio <= BAR else 'MISS'}, bar {BAR}"
    return [name, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}", verdict]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=500)
    results_file.add_argument(parser)
    args = parser.parse_args(argv)
    rows = [measure_row(name, pair, args.rounds, args.calls) for name, pair in make_calls().items()]
    text = "\n".join(
        [
            "## Calls of ml.Table from Python",
            "",
            f"{datetime.date.today()}, `python -m benchmarks.table_calls --write`. "
            f"Microseconds per call with dim {DIM} and {ROWS:,} rows, medians of {args.rounds} "
            "rounds in turns.",
            "",
            report.table(["eager call", "ml.Table", "tf.Variable", "ours / theirs", ""], rows),
        ]
    )
    results_file.publish(text, "bench-calls", write=args.write)


if __name__ == "__main__":
    main()
