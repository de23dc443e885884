"""Datasets over sources: their batches, their passes, and that their iterators can be saved.

That files are gone on with at every batch is in
tests/training/hooks/input_position_readers_test.py.
"""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.rows import SCHEMA, Chunks, expected_row, make_rows

from monolith import errors
from monolith.data import columns, seekable


def make(sizes=(13, 27), **batching):
    return seekable.make_dataset(Chunks(tuple(sizes)), columns.Batching(**batching))


@pytest.mark.parametrize("sizes", [[10], [3, 4, 3], [1] * 10, [0, 9, 0, 1], [4, 4, 2]])
def test_rows_keep_their_order_and_values(sizes):
    batches = list(make(sizes, batch_size=4))
    assert [len(batch["click"]) for batch in batches] == [4, 4, 2]
    assert list(batches[0]) == [feature.name for feature in SCHEMA]
    assert make_rows(batches) == [expected_row(i) for i in range(10)]


def test_drop_remainder_makes_the_batch_size_static():
    dataset = make((7, 3), batch_size=4, drop_remainder=True)
    assert dataset.element_spec["user"].shape == [4, None]
    assert dataset.element_spec["price"].shape == [4, 2]
    assert dataset.element_spec["click"].shape == [4]
    assert make_rows(dataset) == [expected_row(i) for i in range(8)]


def test_shapes_and_number_of_batches_are_unknown_otherwise():
    dataset = make(batch_size=4)
    assert dataset.element_spec["click"].shape.as_list() == [None]
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_no_rows():
    assert list(make(())) == []
    assert list(make((0, 0), shuffle_rows=5)) == []


class TestShuffling:
    def test_every_pass_has_its_own_order_and_the_seed_fixes_it(self):
        dataset = make(batch_size=5, shuffle_rows=20, seed=3)
        first, second = make_rows(dataset), make_rows(dataset)
        for rows in (first, second):
            assert sorted(rows[:20], key=lambda r: r[4]) == [expected_row(i) for i in range(20)]
            assert sorted(rows[20:], key=lambda r: r[4]) == [expected_row(i) for i in range(20, 40)]
        assert first != second
        again = make(batch_size=5, shuffle_rows=20, seed=3)
        assert [make_rows(again), make_rows(again)] == [first, second]
        assert make_rows(make(batch_size=5, shuffle_rows=20, seed=4)) != first

    def test_repeat_makes_passes_of_the_same_orders(self):
        dataset = make(batch_size=5, shuffle_rows=20, seed=3)
        rows = make_rows(dataset.repeat(2))
        assert rows[:40] != rows[40:]
        again = make(batch_size=5, shuffle_rows=20, seed=3)
        assert make_rows(again.repeat(2)) == rows

    def test_a_seed_decides_alone(self):
        orders = []
        for seed in (1, 2):
            tf.random.set_seed(seed)
            orders.append(make_rows(make(batch_size=5, shuffle_rows=20, seed=0)))
        assert orders[0] == orders[1]

    def test_without_a_seed_every_run_has_another_order(self):
        orders = []
        for _ in range(2):
            tf.random.set_seed(1)
            orders.append(make_rows(make(batch_size=5, shuffle_rows=20)))
        assert orders[0] != orders[1]


class TestSaving:
    @pytest.mark.parametrize("shuffle_rows", [None, 7, 100])
    def test_eager_iterators_are_saved_by_a_checkpoint(self, tmp_path, shuffle_rows):
        def make_iterator():
            return iter(make((6, 7), batch_size=3, shuffle_rows=shuffle_rows, seed=1).repeat(2))

        iterator = make_iterator()
        batches, paths = [], []
        for batch in iterator:
            batches.append(batch)
            paths.append(tf.train.Checkpoint(i=iterator).write(f"{tmp_path}/{len(paths)}"))
        assert len(batches) == 2 * 5
        for i, path in enumerate(paths):
            other = make_iterator()
            tf.train.Checkpoint(i=other).read(path)
            assert make_rows(other) == make_rows(batches[i + 1 :]), i

    def test_a_pass_without_a_seed_is_gone_on_with_in_its_order(self, tmp_path):
        def make_iterator():
            return iter(make(batch_size=3, shuffle_rows=30).repeat(2))

        iterator = make_iterator()
        first = next(iterator)
        path = tf.train.Checkpoint(i=iterator).write(f"{tmp_path}/position")
        rows = make_rows([first, *iterator])
        other = make_iterator()
        tf.train.Checkpoint(i=other).read(path)
        found = make_rows(other)
        assert found[:37] == rows[3:40]
        # Nobody knows the order of the next pass, but it has all rows.
        assert sorted(found[37:]) == sorted(rows[40:])

    def test_two_iterators_of_a_dataset_do_not_disturb_each_other(self):
        dataset = make((40, 40), batch_size=3)
        found = [[], []]
        for pair in zip(dataset, dataset, strict=True):
            for rows, batch in zip(found, pair, strict=True):
                rows.append(batch)
        assert make_rows(found[0]) == make_rows(found[1]) == [expected_row(i) for i in range(80)]

    def test_iterators_of_many_threads(self):
        dataset = make([50] * 6, batch_size=7)
        found = {}

        def read(i):
            found[i] = make_rows(dataset)

        threads = [threading.Thread(target=read, args=[i]) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(found[i] == [expected_row(j) for j in range(300)] for i in range(6))

    def test_more_iterators_than_may_be_open(self, monkeypatch):
        opened = seekable._Open(max_open=3)
        monkeypatch.setattr(seekable, "_open", opened)
        sources = [Counted((40,)) for _ in range(5)]
        batching = columns.Batching(batch_size=5)
        iterators = [iter(seekable.make_dataset(source, batching)) for source in sources]
        rounds = [[next(iterator) for iterator in iterators] for _ in range(8)]
        for batches in zip(*rounds, strict=True):
            assert make_rows(batches) == [expected_row(i) for i in range(40)]
        assert len(opened._readings) <= 3
        assert sum(len(source.places) for source in sources) > 5  # Some were opened again.


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d.repeat(2), id="repeat"),
        pytest.param(
            lambda d: tf.data.Dataset.range(4).interleave(lambda _: d, cycle_length=3),
            id="interleave",
        ),
        pytest.param(lambda d: d.map(lambda b: b, num_parallel_calls=2), id="map"),
        pytest.param(lambda d: d.concatenate(d), id="twice"),
        pytest.param(lambda d: d.cache(), id="cache"),
        pytest.param(lambda d: d.shard(2, 1), id="shard"),
        pytest.param(lambda d: d.take(3).skip(1), id="part"),
        pytest.param(lambda d: tf.data.Dataset.zip((d, d)).map(lambda a, _: a), id="zip"),
    ],
)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_datasets_go_on_as_others_do(change, graph):
    """The same rows as of a dataset that has them as tensors."""

    def make_tensors():
        batches = list(make((13, 7), batch_size=3))
        rows = [tf.nest.map_structure(lambda t: t, batch["price"]) for batch in batches]
        dataset = tf.data.Dataset.range(len(rows))
        prices = tf.concat(rows, 0)
        return dataset.map(lambda i: prices[3 * i : 3 * i + 3])

    expected = [batch.numpy().tolist() for batch in change(make_tensors())]
    if not graph:
        found = [batch.numpy().tolist() for batch in change(make((13, 7), batch_size=3).map(price))]
    else:
        with tf.Graph().as_default():
            dataset = change(make((13, 7), batch_size=3).map(price))
            batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            found = []
            with tf.compat.v1.Session() as session:
                try:
                    while True:
                        found.append(session.run(batch).tolist())
                except tf.errors.OutOfRangeError:
                    pass
    assert found == expected


def price(batch):
    return batch["price"]


class Broken(Chunks):
    def read(self, place):
        yield from super().read(place)
        raise errors.DataError("The well has run dry; dig.")


class TestErrors:
    def test_come_with_their_sentence_on_every_pass(self):
        dataset = seekable.make_dataset(Broken((8,)), columns.Batching(batch_size=4))
        for _ in range(2):
            found = []
            with pytest.raises(tf.errors.InvalidArgumentError, match="The well has run dry; dig"):
                found.extend(iter(dataset))
            assert make_rows(found) == [expected_row(i) for i in range(8)]

    def test_of_the_first_row_come_on_every_pass(self):
        dataset = seekable.make_dataset(Broken(()), columns.Batching(batch_size=4))
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="The well has run dry; dig"):
                list(dataset)

    def test_that_are_ignored_end_the_pass(self):
        """Not a loop that never ends."""
        dataset = seekable.make_dataset(Broken((8,)), columns.Batching(batch_size=4))
        rows = make_rows(dataset.ignore_errors().repeat(2))
        assert rows == [expected_row(i) for i in range(8)] * 2


class Counted(Chunks):
    """Notes how often rows were looked for."""

    def __init__(self, sizes):
        super().__init__(sizes)
        object.__setattr__(self, "places", [])
        object.__setattr__(self, "num_open", [0])

    def read(self, place):
        self.places.append(place)
        self.num_open[0] += 1
        try:
            yield from super().read(place)
        finally:
            self.num_open[0] -= 1


class TestOpenSources:
    def test_each_pass_opens_them_once(self):
        source = Counted((20, 20))
        list(seekable.make_dataset(source, columns.Batching(batch_size=3)).repeat(3))
        assert source.places == [(0,)] * 3
        assert source.num_open == [0]

    def test_close(self):
        source = Counted((20, 20))
        reading = seekable.Reading(source, columns.Batching(batch_size=3))
        iterator = iter(reading.make_dataset())
        next(iterator)
        assert source.num_open == [1]
        # What was prefetched is there; the rest is looked for again.
        reading.close()
        rows = make_rows(iterator)
        assert rows == [expected_row(i) for i in range(3, 40)]

    def test_they_are_closed_with_their_graph(self):
        source = Counted((20, 20))
        with tf.Graph().as_default():
            dataset = seekable.make_dataset(source, columns.Batching(batch_size=3))
            batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            with tf.compat.v1.Session() as session:
                session.run(batch["click"])
        assert source.num_open == [1]
        del dataset, batch, session
        gc.collect()
        assert source.num_open == [0]


def test_a_program_may_end_while_batches_are_read_ahead(tmp_path):
    """It neither hangs nor prints a trace."""
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "".join(f"{i}\n" for i in range(200_000)))
    program = f"""
import monolith.data as data
reader = data.csv({str(path)!r}, [data.Ids("id")], shuffle=50_000)
iterators = [iter(reader()) for _ in range(3)]
next(iterators[0])
next(iter(reader))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert "Traceback" not in result.stderr
    assert "ignored" not in result.stderr


def test_numbers_of_a_position_are_of_64_bits():
    """Offsets beyond 32 bits come through TensorFlow as they are."""

    class Far(Chunks):
        def read(self, place):
            offset = place[0] or 2**62
            if offset < 2**62 + 3:
                yield {"price": np.full((1, 2), offset - 2**62, np.float32)}, (offset + 1,)
                yield from self.read((offset + 1,))

        def make_layout(self, rows):
            return columns.FeatureLayout([SCHEMA[3]], rows)

    dataset = seekable.make_dataset(Far(()), columns.Batching(batch_size=1))
    assert [batch["price"].numpy()[0, 0] for batch in dataset] == [0, 1, 2]
