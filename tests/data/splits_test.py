"""Inputs that are read file by file, in an order that somebody else decides."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import reader, splits
from monolith.data.schema import Ids, Label

pytestmark = pytest.mark.usefixtures("graph_mode")

SCHEMA = [Ids("user"), Label("click")]
ROWS = 5


class Taker:
    """Takes what it is told to, and notes how many batches had come out before each."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)
        self.files = None
        self.num_batches = 0
        self.ends = []

    def announce(self, files):
        self.files = list(files)

    def take(self):
        self.ends.append(self.num_batches)
        return next(self._numbers, None)

    def count(self):
        self.num_batches += 1


def read_all(input_fn, numbers):
    """Returns the batches as lists, and the taker."""
    taker = Taker(numbers)
    # As in training: batches are read ahead.
    dataset = splits.make_dataset(input_fn, taker).prefetch(4)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    batches = []
    with tf.compat.v1.Session() as session:
        session.run(iterator.initializer)
        try:
            while True:
                batches.append(session.run(batch))
        except tf.errors.OutOfRangeError:
            return batches, taker


def write_csv(number):
    path = f"day-{number}.csv"
    lines = [f"{100 * number + row},1\n" for row in range(ROWS)]
    with open(path, "w") as file:
        file.write("".join(["user,click\n", *lines]))
    return path


def write_parquet(number):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    users = [100 * number + row for row in range(ROWS)]
    table = pyarrow.table({"user": users, "click": [1.0] * ROWS})
    parquet.write_table(table, f"day-{number}.parquet")
    return f"day-{number}.parquet"


def write_tfrecord(number):
    path = f"day-{number}.tfrecord"
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(ROWS):
            example = tf.train.Example()
            example.features.feature["user"].int64_list.value.append(100 * number + row)
            example.features.feature["click"].float_list.value.append(1.0)
            writer.write(example.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("write", "read"),
    [
        pytest.param(write_csv, reader.csv, id="csv"),
        pytest.param(write_parquet, reader.parquet, id="parquet"),
        pytest.param(write_tfrecord, reader.tfrecord, id="tfrecord"),
    ],
)
def test_reader_reads_the_files_that_are_taken(write, read):
    paths = [write(number) for number in range(4)]
    batches, taker = read_all(read(paths, SCHEMA, batch_size=3), [2, 0, 3])
    assert taker.files == paths
    users = [batch["user"].values.tolist() for batch in batches]
    # No batch has rows of two files.
    assert users == [[200, 201, 202], [203, 204], [0, 1, 2], [3, 4], [300, 301, 302], [303, 304]]
    # When a file is taken, all batches of the one before have come out.
    assert taker.ends == [0, 2, 4, 6]


def test_reader_that_shuffles_does_so_in_each_file():
    paths = [write_csv(number) for number in range(2)]
    days = reader.csv(paths, SCHEMA, batch_size=ROWS, shuffle=100)
    batches, _ = read_all(lambda: days().repeat(2), [1, 0])
    users = [sorted(batch["user"].values) for batch in batches]
    first, second = list(range(ROWS)), list(range(100, 100 + ROWS))
    assert users == [second, second, first, first]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(
            lambda paths: tf.data.Dataset.list_files("day-*.csv", shuffle=False).interleave(
                tf.data.TextLineDataset, cycle_length=2
            ),
            id="interleaved",
        ),
        pytest.param(tf.data.TextLineDataset, id="one_reader"),
        pytest.param(
            lambda paths: tf.data.TextLineDataset(paths).shuffle(100).prefetch(2), id="shuffled"
        ),
    ],
)
def test_dataset_of_files(read):
    paths = [write_csv(number) for number in range(3)]
    batches, taker = read_all(lambda: read(paths).batch(4), [1, 2])
    assert [path.removeprefix("./") for path in taker.files] == paths
    assert len(batches) == 4
    lines = {line.decode() for batch in batches[:2] for line in batch}
    assert lines == {"user,click", *(f"{100 + row},1" for row in range(ROWS))}
    assert taker.ends == [0, 2, 4]


def test_features_and_labels():
    paths = [write_csv(number) for number in range(2)]

    def input_fn():
        lines = tf.data.TextLineDataset(paths).batch(10)
        return lines.map(lambda line: ({"line": line}, tf.size(line)))

    (batch,), _ = read_all(input_fn, [1])
    assert batch[1] == 1 + ROWS


def test_empty_file():
    paths = [write_csv(0), "empty", write_csv(1)]
    open("empty", "w").close()
    batches, taker = read_all(lambda: tf.data.TextLineDataset(paths).batch(10), [1, 0])
    assert len(batches) == 1
    assert taker.ends == [0, 0, 1]


def test_nothing_is_left():
    paths = [write_csv(number) for number in range(2)]
    assert read_all(lambda: tf.data.TextLineDataset(paths), [])[0] == []


@pytest.mark.parametrize(
    ("make", "what"),
    [
        pytest.param(lambda days: days().repeat(), "repeats it for ever", id="endless"),
        pytest.param(lambda days: tf.data.Dataset.range(5), "no files are found", id="no_files"),
        pytest.param(
            lambda days: tf.data.Dataset.zip((days(), days())), "it has 2 readers", id="two_readers"
        ),
        pytest.param(
            lambda days: tf.data.TextLineDataset(days.files).shard(2, 0), "`shard`", id="divided"
        ),
        pytest.param(
            lambda days: tf.data.Dataset.list_files("day-*").interleave(tf.data.TextLineDataset),
            "shuffles the names of its files",
            id="files_in_any_order",
        ),
        pytest.param(lambda days: tf.constant(1), "it is a ", id="no_dataset"),
    ],
)
def test_input_without_splits_is_refused(make, what):
    days = reader.csv([write_csv(number) for number in range(2)], SCHEMA)
    with pytest.raises(errors.ConfigError, match=what):
        splits.make_dataset(lambda: make(days), Taker([]))
