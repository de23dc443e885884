"""Each worker reads its part of the input, and all parts together are the input."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import monolith as ml
from monolith import errors
from monolith.data import division
from monolith.data.division import Part, divide

NUM_FILES = 5
ROWS_PER_FILE = 6


@pytest.fixture
def csv_files(tmp_path):
    paths = []
    for number in range(NUM_FILES):
        path = tmp_path / f"day-{number}.csv"
        rows = [str(number * ROWS_PER_FILE + row) for row in range(ROWS_PER_FILE)]
        path.write_text("\n".join(["id", *rows, ""]))
        paths.append(str(path))
    return paths


@pytest.fixture
def record_files(tmp_path):
    paths = []
    for number in range(NUM_FILES):
        path = str(tmp_path / f"part-{number}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(ROWS_PER_FILE):
                writer.write(str(number * ROWS_PER_FILE + row).encode())
        paths.append(path)
    return paths


def read_parts(input_fn, num_parts, seed=3, num_passes=1):
    """Returns the batches of each part, read in graphs of their own as workers do."""
    parts = []
    for index in range(num_parts):
        with tf.Graph().as_default():
            dataset = divide(input_fn, Part(index, num_parts, seed)).repeat(num_passes)
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            batch, batches = iterator.get_next(), []
            with tf.compat.v1.Session() as session:
                session.run(iterator.initializer)
                while True:
                    try:
                        batches.append(session.run(batch))
                    except tf.errors.OutOfRangeError:
                        break
            parts.append(batches)
    return parts


def count_numbers(parts):
    """Returns how often each number is in all parts together."""
    return collections.Counter(int(n) for part in parts for batch in part for n in np.ravel(batch))


def every_number(count, times=1):
    return dict.fromkeys(range(count), times)


def parse_numbers(line):
    return tf.strings.to_number(line, tf.int64)


class TestDatasets:
    def test_batches(self):
        parts = read_parts(lambda: tf.data.Dataset.range(10).batch(2), 3)
        assert [[batch.tolist() for batch in part] for part in parts] == [
            [[0, 1], [6, 7]],
            [[2, 3], [8, 9]],
            [[4, 5]],
        ]

    def test_one_part_is_everything(self):
        (part,) = read_parts(lambda: tf.data.Dataset.range(3), 1)
        assert part == [0, 1, 2]

    def test_fewer_batches_than_workers(self):
        assert read_parts(lambda: tf.data.Dataset.range(1), 3) == [[0], [], []]

    def test_shuffle_without_a_seed(self):
        def input_fn():
            return tf.data.Dataset.range(40).shuffle(40).batch(4)

        parts = read_parts(input_fn, 2, num_passes=3)
        assert count_numbers(parts) == every_number(40, times=3)
        others = read_parts(input_fn, 2, seed=4)
        assert [b.tolist() for b in others[0]] != [b.tolist() for b in parts[0][:5]]

    def test_shuffle_with_a_seed_keeps_it(self):
        def input_fn():
            return tf.data.Dataset.range(40).shuffle(40, seed=1).batch(4)

        first, second = (read_parts(input_fn, 2, seed=seed)[0] for seed in (3, 4))
        assert [b.tolist() for b in first] == [b.tolist() for b in second]

    def test_files(self, record_files):
        def input_fn():
            lines = tf.data.TFRecordDataset(record_files)
            return lines.shuffle(7).map(parse_numbers).batch(4)

        parts = read_parts(input_fn, 2)
        assert count_numbers(parts) == every_number(NUM_FILES * ROWS_PER_FILE)
        # Files 0, 2 and 4 of the five.
        firsts = sorted({int(n) // ROWS_PER_FILE for batch in parts[0] for n in batch})
        assert firsts == [0, 2, 4]

    def test_files_of_a_pattern(self, record_files, tmp_path):
        def input_fn():
            names = tf.data.Dataset.list_files(str(tmp_path / "part-*"))
            return names.interleave(tf.data.TFRecordDataset).map(parse_numbers).batch(4)

        parts = read_parts(input_fn, 3)
        assert count_numbers(parts) == every_number(NUM_FILES * ROWS_PER_FILE)
        files = [{int(n) // ROWS_PER_FILE for batch in part for n in batch} for part in parts]
        assert sum(map(len, files)) == NUM_FILES

    def test_fewer_files_than_workers(self, record_files):
        def input_fn():
            return tf.data.TFRecordDataset(record_files[:1]).map(parse_numbers).batch(2)

        parts = read_parts(input_fn, 2)
        assert count_numbers(parts) == every_number(ROWS_PER_FILE)
        assert all(parts)

    def test_pairs_of_files_stay_together(self, record_files):
        def input_fn():
            features, labels = (tf.data.TFRecordDataset(record_files) for _ in range(2))
            return (
                tf.data.Dataset.zip((features, labels))
                .map(lambda *texts: tf.strings.join(texts))
                .batch(4)
            )

        numbers = [str(n) * 2 for n in range(NUM_FILES * ROWS_PER_FILE)]
        found = [
            text.decode() for part in read_parts(input_fn, 2) for batch in part for text in batch
        ]
        assert sorted(found) == sorted(numbers)

    def test_input_that_divides_itself(self, caplog):
        def input_fn():
            return tf.data.Dataset.range(6).shard(2, 1)

        with caplog.at_level("INFO"):
            assert read_parts(input_fn, 2) == [[1, 3, 5], [1, 3, 5]]
        assert "divides the input itself" in caplog.text

    def test_input_that_is_no_dataset(self):
        assert divide(lambda: {"x": 1}, Part(0, 2)) == {"x": 1}

    def test_seed_of_the_graph_is_what_it_was(self):
        with tf.Graph().as_default() as graph:
            divide(lambda: tf.data.Dataset.range(6).shuffle(2), Part(0, 2, 7))
            assert graph.seed is None
            graph.seed = 5
            divide(lambda: tf.data.Dataset.range(6).shuffle(2), Part(0, 2, 7))
            assert graph.seed == 5

    @pytest.mark.parametrize(("index", "of"), [(-1, 2), (2, 2), (0, 0)])
    def test_part_that_is_not_there(self, index, of):
        with pytest.raises(errors.ConfigError, match=f"of {of} parts has no part {index}"):
            Part(index, of)


class TestReaders:
    def read(self, reader, num_parts, seed=3):
        return read_parts(lambda: get_ids(reader()), num_parts, seed)

    def test_files(self, csv_files):
        reader = ml.data.csv(csv_files, [ml.data.Ids("id")], batch_size=4)
        parts = self.read(reader, 2)
        assert count_numbers(parts) == every_number(NUM_FILES * ROWS_PER_FILE)
        assert {int(n) // ROWS_PER_FILE for batch in parts[1] for n in batch} == {1, 3}

    def test_fewer_files_than_workers_and_a_shuffle(self, csv_files):
        reader = ml.data.csv(csv_files[:2], [ml.data.Ids("id")], batch_size=2, shuffle=6)
        parts = self.read(reader, 3)
        assert count_numbers(parts) == every_number(2 * ROWS_PER_FILE)
        assert all(parts)

    def test_readers_of_which_one_has_too_few_files(self, csv_files):
        many = ml.data.csv(csv_files[:3], [ml.data.Ids("id")], batch_size=3)
        few = ml.data.csv(csv_files[3:4], [ml.data.Ids("id")], batch_size=3)
        parts = read_parts(lambda: get_ids(many()).concatenate(get_ids(few())), 2)
        assert count_numbers(parts) == every_number(4 * ROWS_PER_FILE)

    def test_nobody_else_has_a_part(self, csv_files):
        reader = ml.data.csv(csv_files, [ml.data.Ids("id")], batch_size=4)
        self.read(reader, 2)
        numbers = [int(n) for batch in reader for n in batch["id"].flat_values]
        assert numbers == list(range(NUM_FILES * ROWS_PER_FILE))
        assert division.get_seed() is None


def get_ids(dataset):
    return dataset.map(lambda batch: batch["id"].flat_values)
