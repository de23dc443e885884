"""Parsing of Example and ExampleBatch against `tf.io.parse_example`, on the same features.

What it shows: examples per second of one batch after another, parsed into ragged ids and dense
numbers inside of a `tf.data` pipeline, as training reads its input. The features are the same in
all three formats: 40 sparse ones, a quarter of them with 5 ids and the others with 1, hashed ids of
63 bits, 4 dense numbers and a label. What each side has parsed is compared first. Sides take turns
in one process; the bar is 3x. CPU time is beside it, which other programs on the machine disturb
less.

Run: `make bench-input`, or `python -m benchmarks.input --rounds 3`; `--write` puts the report into
RESULTS.md.
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

from benchmarks import results_file
from benchmarks.table import report
from monolith.data import parsers
from monolith.proto import example_pb2

BAR = 3.0
NUM_SPARSE = 40
NAMES = [f"feature_{i}" for i in range(NUM_SPARSE)]
WIDTH = 4


def make_records(num_rows: int) -> tuple[list[bytes], list[bytes], bytes]:
    """Returns the same rows as tf.train.Examples, as Examples, and as one ExampleBatch."""
    rng = np.random.default_rng(1)
    plain, rows = [], []
    batch = example_pb2.ExampleBatch(batch_size=num_rows)
    columns = [batch.named_feature_list.add(name=n) for n in [*NAMES, "price", "__LABEL__"]]
    for _ in range(num_rows):
        theirs, ours = tf.train.Example(), example_pb2.Example()
        for i, name in enumerate(NAMES):
            ids = rng.integers(0, 2**63 - 1, 5 if i % 4 == 0 else 1).tolist()
            theirs.features.feature[name].int64_list.value.extend(ids)
            ours.named_feature.add(name=name).feature.fid_v2_list.value.extend(ids)
            columns[i].feature.add().fid_v2_list.value.extend(ids)
        price, label = rng.random(WIDTH).tolist(), [float(rng.random() < 0.5)]
        theirs.features.feature["price"].float_list.value.extend(price)
        theirs.features.feature["label"].float_list.value.extend(label)
        ours.named_feature.add(name="price").feature.float_list.value.extend(price)
        ours.label.extend(label)
        columns[-2].feature.add().float_list.value.extend(price)
        columns[-1].feature.add().float_list.value.extend(label)
        plain.append(theirs.SerializeToString())
        rows.append(ours.SerializeToString())
    return plain, rows, batch.SerializeToString()


def parse_plain(serialized: tf.Tensor) -> parsers.Features:
    spec: dict = {n: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for n in NAMES}
    spec["price"] = tf.io.FixedLenFeature([WIDTH], tf.float32)
    spec["label"] = tf.io.FixedLenFeature([1], tf.float32)
    return tf.io.parse_example(serialized, spec)


def parse_rows(serialized: tf.Tensor) -> parsers.Features:
    return parsers.parse_examples(serialized, NAMES, ["price", "label"], [WIDTH, 1])


def parse_batch(serialized: tf.Tensor) -> parsers.Features:
    return parsers.parse_example_batch(serialized, NAMES, ["price", "label"], [WIDTH, 1])


def check_equal(expected: parsers.Features, found: parsers.Features) -> None:
    for name in NAMES:
        assert np.array_equal(expected[name].values, found[name].values), name
        assert np.array_equal(expected[name].row_splits, found[name].row_splits), name
    for name in ("price", "label"):
        assert np.array_equal(expected[name], found[name]), name


def make_timer(
    parse: Callable[[tf.Tensor], parsers.Features], serialized: tf.Tensor, num_batches: int
) -> Callable[[], tuple[float, float]]:
    """Returns a function that parses the batches and returns seconds and CPU seconds."""
    dataset = tf.data.Dataset.from_tensors(serialized).repeat(num_batches).map(parse)

    def measure() -> tuple[float, float]:
        start, cpu_start = time.perf_counter(), time.process_time()
        # All batches are made, and only the last one comes to Python.
        next(iter(dataset.skip(num_batches - 1)))
        return time.perf_counter() - start, time.process_time() - cpu_start

    return measure


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024, help="examples of a batch")
    parser.add_argument("--batches", type=int, default=500, help="batches per turn")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    results_file.add_argument(parser)
    args = parser.parse_args(argv)

    plain, rows, batch = make_records(args.rows)
    sides = {
        "tf.io.parse_example": (parse_plain, tf.constant(plain)),
        "parse_examples": (parse_rows, tf.constant(rows)),
        "parse_example_batch": (parse_batch, tf.constant(batch)),
    }
    expected = parse_plain(tf.constant(plain))
    for parse, serialized in sides.values():
        check_equal(expected, parse(serialized))
    timers = {name: make_timer(*side, args.batches) for name, side in sides.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(args.rounds + 1):
        for name, measure in timers.items():
            seconds[name].append(measure())
    # The first turn is for the caches. Ratios are of turns that followed each other.
    base = seconds["tf.io.parse_example"][1:]
    rows_of_report = []
    for name, measured in seconds.items():
        speed = args.rows * args.batches / statistics.median(wall for wall, _ in measured[1:])
        ratios = [
            sorted(b[i] / m[i] for b, m in zip(base, measured[1:], strict=True)) for i in range(2)
        ]
        wall, cpu = map(statistics.median, ratios)
        is_ours = name.startswith("parse")
        verdict = ("PASS" if wall >= BAR else "MISS") if is_ours else ""
        rows_of_report.append(
            [
                name,
                f"{speed:,.0f}",
                f"{wall:.2f}x",
                f"{ratios[0][0]:.2f} to {ratios[0][-1]:.2f}" if is_ours else "",
                f"{cpu:.2f}x",
                verdict,
            ]
        )
    text = "\n".join(
        [
            "## Parsing records into features",
            "",
            f"{datetime.date.today()}, `python -m benchmarks.input --write`. {args.rows:,} "
            f"examples in a batch, {NUM_SPARSE} sparse features and {WIDTH} numbers, median of "
            f"{args.rounds} turns; the bar is {BAR:.0f}x `tf.io.parse_example`.",
            "",
            report.table(
                ["op", "examples/s", "against parse_example", "turns", "CPU time", ""],
                rows_of_report,
            ),
        ]
    )
    results_file.publish(text, "bench-input", write=args.write)


if __name__ == "__main__":
    main()
