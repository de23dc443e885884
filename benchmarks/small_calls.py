"""Calls of 1, 16 and 64 ids: what a call costs before it has any ids to work on.

What it shows: microseconds of a lookup, a write and a step of SGD in a table of 100,000 rows of dim
16, against `tf.lookup.experimental.DenseHashTable` (a step there is a lookup, a subtraction and an
insert). All sides run in one process, on one thread, in many short turns, each in a loop of one
graph (`tf.while_loop`, one call of the session); the figures are medians of the time of the
processor, which others on the machine disturb least. What the loop itself costs, the same for all,
is measured too and taken off before the ratio. The bar is that a lookup and a step take no longer
than DenseHashTable's; a write alone has none: it also notes the time, and takes several locks where
DenseHashTable has one for all. A last table has calls from Python, eagerly, with the dispatch of
TensorFlow that both sides have.

Run: `make bench-small`, or `python -m benchmarks.small_calls --rounds 21`; about a minute.
"""

import argparse
import dataclasses
import datetime
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks import results_file
from benchmarks.table import machine, report
from monolith.embedding.tables import single

BAR = 1.0
JUDGED = ("lookup", "step")
DIM = 16
ROWS = 100_000
NUM_IDS = (1, 16, 64)
LEARNING_RATE = 0.01
# Calls in one run of the loop; the loop goes round once for so many calls.
CALLS = 500
CALLS_PER_TURN = 10
EAGER_CALLS = 50

# Adds a call on ids [n] to the graph, or makes it; returns what to wait for.
Call = Callable[[tf.Tensor], Any]


@dataclasses.dataclass(frozen=True)
class Contender:
    """A table with rows, and what can be done with it."""

    lookup: Call
    write: Call
    step: Call


OPERATIONS = tuple(field.name for field in dataclasses.fields(Contender))


def make_ids(n: int, calls: int) -> np.ndarray:
    return np.random.default_rng(n).integers(1, ROWS + 1, [calls, n])


def fill(insert: Callable[[np.ndarray, np.ndarray], Any], run: Callable[[Any], Any]) -> None:
    ids = np.arange(1, ROWS + 1)
    run(insert(ids, np.full([ROWS, DIM], 0.5, np.float32)))


def rows_of(ids: tf.Tensor) -> tf.Tensor:
    return tf.constant(0.25, shape=[ids.shape[0], DIM])


def make_ours(run: Callable[[Any], Any]) -> Contender:
    table = single.test_hash_table(DIM, learning_rate=LEARNING_RATE)
    fill(lambda ids, rows: table.assign(ids, rows).as_op(), run)
    return Contender(
        lookup=table.lookup,
        write=lambda ids: table.assign(ids, rows_of(ids)).as_op(),
        step=lambda ids: table.apply_gradients(ids, rows_of(ids), 1).as_op(),
    )


def make_theirs(run: Callable[[Any], Any]) -> Contender:
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, tf.zeros([DIM]), empty_key=0, deleted_key=-1
    )
    fill(table.insert, run)

    def step(ids: tf.Tensor) -> Any:
        return table.insert(ids, table.lookup(ids) - LEARNING_RATE * rows_of(ids))

    return Contender(
        lookup=table.lookup, write=lambda ids: table.insert(ids, rows_of(ids)), step=step
    )


def make_loop(call: Call, n: int) -> tf.Tensor:
    """Adds CALLS calls on other ids each time, one after another."""
    turns = CALLS // CALLS_PER_TURN
    ids = tf.constant(make_ids(n, CALLS).reshape(turns, CALLS_PER_TURN, n))

    def turn(i: tf.Tensor) -> tf.Tensor:
        last: Any = i
        for one in tf.unstack(tf.gather(ids, i), CALLS_PER_TURN):
            with tf.control_dependencies([last]):
                last = call(one)
        with tf.control_dependencies([last]):
            return i + 1

    return tf.while_loop(lambda i: i < turns, turn, [tf.constant(0)], parallel_iterations=1)


def measure_loops(rounds: int) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
    """Returns microseconds of a call by operation and number of ids: ours, theirs, the loop's."""
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    found = {}
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        sides = [make_ours(session.run), make_theirs(session.run)]
        for operation in OPERATIONS:
            for n in NUM_IDS:
                # An op that does next to nothing: what remains is the loop.
                calls = [*(getattr(side, operation) for side in sides), tf.identity]
                loops = [session.make_callable(make_loop(call, n)) for call in calls]
                for loop in loops:
                    loop()  # Optimizes the graph, and warms up.
                found[operation, n] = [
                    tuple(1e6 * seconds(loop) / CALLS for loop in loops) for _ in range(rounds)
                ]
    return found


def measure_eagerly(rounds: int) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Returns microseconds of a call from Python: ours and theirs."""
    sides = [make_ours(lambda done: done), make_theirs(lambda done: done)]
    found = {}
    for operation in OPERATIONS:
        for n in NUM_IDS:
            ids = [tf.constant(one) for one in make_ids(n, EAGER_CALLS)]

            def call_all(call: Call, ids: list[tf.Tensor] = ids) -> None:
                for one in ids:
                    call(one)

            calls = [getattr(side, operation) for side in sides]
            found[operation, n] = [
                tuple(1e6 * seconds(lambda c=call: call_all(c)) / EAGER_CALLS for call in calls)
                for _ in range(rounds)
            ]
    return found


def seconds(function: Callable[[], object]) -> float:
    """Returns the time of the processor."""
    start = time.process_time()
    function()
    return time.process_time() - start


def ratios_of(times: Sequence[Sequence[float]]) -> list[float]:
    """Returns theirs by ours of each round, without the loop where it was measured."""
    return [(t[1] - sum(t[2:])) / (t[0] - sum(t[2:])) for t in times]


def make_table(times: dict[tuple[str, int], list[tuple[float, ...]]], in_graph: bool) -> str:
    rows = []
    for (operation, n), rounds in times.items():
        ratios = sorted(ratios_of(rounds))
        ratio = statistics.median(ratios)
        quarter = len(ratios) // 4
        row = [operation, str(n)]
        row += [f"{statistics.median(column):.2f}" for column in zip(*rounds, strict=True)]
        row += [f"{ratio:.2f}x", f"{ratios[quarter]:.2f} to {ratios[-quarter - 1]:.2f}"]
        if in_graph:
            is_judged = operation in JUDGED
            row.append(("PASS" if ratio >= BAR else "MISS") if is_judged else "no bar")
        rows.append(row)
    header = ["call", "ids", "ours us", "DenseHashTable us"]
    header += ["loop alone us"] if in_graph else []
    header += ["ours is faster by", "half of the rounds"]
    return report.table([*header, ""] if in_graph else header, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101, help="turns of each side")
    results_file.add_argument(parser)
    args = parser.parse_args(argv)
    in_graph = make_table(measure_loops(args.rounds), in_graph=True)
    eagerly = make_table(measure_eagerly(args.rounds), in_graph=False)
    text = "\n".join(
        [
            "## Small calls",
            "",
            f"{datetime.date.today()}, {machine.cpu_model()}, one thread, {ROWS:,} rows of dim "
            f"{DIM}, {args.rounds} rounds, `python -m benchmarks.small_calls`. Medians of "
            "processor time; the loop is taken off before the ratio.",
            "",
            in_graph,
            "",
            "From Python, eagerly:",
            "",
            eagerly,
        ]
    )
    results_file.publish(text, "bench-small", write=args.write)


if __name__ == "__main__":
    main()
