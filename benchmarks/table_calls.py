"""What a call of `ml.Table` costs from Python, against `tf.gather` on a `tf.Variable`.

What it shows: microseconds of an eager lookup of one id, of a batch, and of a whole step with
gradient and update, dim 16, in one process and in turns, so that a busy machine slows both. The
table has medians over all rounds, and the ratio of our time to TensorFlow's beside its bar. The
variable knows its ids beforehand and updates with `scatter_sub`; the table has a row for any id.

Run: `make bench-calls`, or `python -m benchmarks.table_calls --rounds 5`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import monolith as ml

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=500)
    args = parser.parse_args()
    print(f"dim {DIM}, {ROWS:,} rows; microseconds per call, medians of {args.rounds} rounds")
    print()
    print("| eager call | ml.Table | tf.Variable | ours / theirs | |")
    print("| --- | --- | --- | --- | --- |")
    for name, pair in make_calls().items():
        for function in pair:
            measure(function, 20)  # Warms up.
        rounds = [[measure(function, args.calls) for function in pair] for _ in range(args.rounds)]
        ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = statistics.median(mine / other for mine, other in rounds)
        bar = ""
        if name == "lookup of 1 id":
            bar = f"{'PASS' if ratio <= BAR else 'MISS'}, bar {BAR}"
        print(f"| {name} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} | {bar} |")


if __name__ == "__main__":
    main()
