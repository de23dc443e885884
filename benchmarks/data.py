"""How fast input comes: the synthetic stream, and the same rows from Parquet, TFRecord and CSV.

What it shows: examples per second, in batches of 512 with user, movie, genres and label, as arrays
and as tensors in a graph, as a model reads them. The rate is per second of processor time of all
threads, so it holds for one core and does not depend on what else the machine does; the rate by
the clock stands beside. The bar: the stream feeds 300,000 examples per second from one core.

Then what it costs to save the position of a CSV file and to go on there: in order; with 100,000
rows shuffled at a time by the reader, which reads them again; and with as many in the buffer of
`tf.data`'s own shuffle, which is saved row by row.

Run: `python -m benchmarks.data`, or with `--examples 1000000`.
"""

import argparse
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from monolith.data import columns, csv_files, examples, movies, parquet_files
from monolith.data.schema import Feature, Ids, Label
from monolith.training.hooks.input_position import Found, InputPosition

BAR = 300_000
BATCH_SIZE = 512
SCHEMA: list[Feature] = [Ids("user"), Ids("movie"), Ids("genres"), Label("label")]


def write_files(world: movies.World, num_examples: int, directory: pathlib.Path) -> None:
    """Writes the first examples of the stream in each format."""
    features = world.features(world.examples(0, num_examples))
    genres = features["genres"]
    assert isinstance(genres, columns.Ragged)
    rows = [part.tolist() for part in np.split(genres.values, np.cumsum(genres.lengths)[:-1])]
    users = world.user_ids[world.examples(0, num_examples).user].tolist()
    shown = world.movie_ids[world.examples(0, num_examples).movie].tolist()
    labels = world.examples(0, num_examples).label.tolist()

    table = pa.table({"user": users, "movie": shown, "genres": rows, "label": labels})
    pq.write_table(table, directory / "stream.parquet")
    with (
        open(directory / "stream.csv", "w") as csv,
        tf.io.TFRecordWriter(str(directory / "stream.tfrecord")) as tfrecord,
    ):
        csv.write("user,movie,genres,label\n")
        for user, movie, ids, label in zip(users, shown, rows, labels, strict=True):
            csv.write(f"{user},{movie},{'|'.join(map(str, ids))},{label}\n")
            example = tf.train.Example()
            feature = example.features.feature
            feature["user"].int64_list.value.append(user)
            feature["movie"].int64_list.value.append(movie)
            feature["genres"].int64_list.value.extend(ids)
            feature["label"].float_list.value.append(label)
            tfrecord.write(example.SerializeToString())


def run_arrays(world: movies.World, num_examples: int) -> Iterator[None]:
    for batch in world.batches(BATCH_SIZE, stop=num_examples):
        world.features(batch)
        yield


def run_graph(make_dataset: Callable[[], tf.data.Dataset]) -> Iterator[None]:
    with tf.Graph().as_default():
        batch = tf.compat.v1.data.make_one_shot_iterator(make_dataset()).get_next()
        step = tf.group(*tf.nest.flatten(batch, expand_composites=True))
        with tf.compat.v1.Session() as session:
            while True:
                try:
                    session.run(step)
                except tf.errors.OutOfRangeError:
                    return
                yield


def measure(batches: Iterator[None]) -> tuple[float, float]:
    """Returns examples per second of processor time, and by the clock."""
    for _ in range(20):  # Warms up; what is built once is not counted.
        next(batches)
    wall, processor = time.perf_counter(), time.process_time()
    count = BATCH_SIZE * sum(1 for _ in batches)
    return count / (time.process_time() - processor), count / (time.perf_counter() - wall)


SHUFFLED = 100_000


def shuffle_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.unbatch().shuffle(SHUFFLED).ragged_batch(BATCH_SIZE)


def measure_position(
    make_dataset: Callable[[], tf.data.Dataset], path: str
) -> tuple[float, float, int]:
    """Returns seconds to save a position and to go on there, and its size in bytes."""
    seconds = []
    for is_restored in (False, True):
        with tf.Graph().as_default():
            iterator = tf.compat.v1.data.make_initializable_iterator(make_dataset())
            batch = tf.nest.flatten(iterator.get_next(), expand_composites=True)
            position = InputPosition()
            with tf.compat.v1.Session() as session:
                session.run(iterator.initializer)
                start = time.perf_counter()
                if is_restored:
                    assert position.restore(session, path) is Found.UNFINISHED
                    session.run(batch)
                else:
                    for _ in range(50):
                        session.run(batch)
                    start = time.perf_counter()
                    position.save(session, path)
                seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1], os.path.getsize(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=300_000, help="length of each source")
    num_examples = parser.parse_args(argv).examples

    world = movies.World(movies.WorldConfig(num_examples=num_examples))
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        write_files(world, num_examples, directory)
        sources = {
            "stream, arrays": run_arrays(world, num_examples),
            "stream, tensors": run_graph(lambda: movies.dataset(world, batch_size=BATCH_SIZE)),
            "Parquet": run_graph(
                lambda: parquet_files.dataset(directory / "stream.parquet", SCHEMA)
            ),
            "TFRecord": run_graph(lambda: examples.dataset(directory / "stream.tfrecord", SCHEMA)),
            "CSV": run_graph(lambda: csv_files.dataset(directory / "stream.csv", SCHEMA)),
        }
        print(f"{num_examples:,} examples in batches of {BATCH_SIZE}")
        print(f"{'source':<16} {'per core':>12} {'by the clock':>13} {'bar':>9}")
        for source, batches in sources.items():
            per_core, by_clock = measure(batches)
            line = f"{source:<16} {per_core:12,.0f} {by_clock:13,.0f}"
            if source.startswith("stream"):
                line += f" {BAR:9,}  {'PASS' if per_core >= BAR else 'MISS'}"
            print(line)
        shuffled = columns.Batching(batch_size=BATCH_SIZE, shuffle_rows=SHUFFLED)
        csv = directory / "stream.csv"
        positions = {
            "in order": lambda: csv_files.dataset(csv, SCHEMA),
            "shuffle of the reader": lambda: csv_files.dataset(csv, SCHEMA, batching=shuffled),
            "shuffle of tf.data": lambda: shuffle_rows(csv_files.dataset(csv, SCHEMA)),
        }
        print(f"\n{'position':<24} {'save':>9} {'go on':>9} {'bytes':>12}")
        for name, make_dataset in positions.items():
            save_sec, restore_sec, size = measure_position(make_dataset, f"{directory}/position")
            print(f"{name:<24} {save_sec:7.3f} s {restore_sec:7.3f} s {size:12,}")


if __name__ == "__main__":
    main()
