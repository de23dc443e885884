"""Tables outside of graphs: called eagerly, and inside of `tf.function`s."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding import entry, filters
from monolith.embedding.tables import single
from monolith.native import ops
from monolith.optimizer import learning_rate
from monolith.testing import generate_test_hash_table_config


@pytest.fixture
def table():
    table = single.test_hash_table(2, learning_rate=0.5)
    yield table
    tf.raw_ops.DestroyResourceOp(resource=table.table)


class TestEager:
    def test_reads_and_writes(self, table):
        table = table.assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        table = table.assign_add([2, 3], [[1.0, 1.0], [5.0, 6.0]])
        table = table.apply_gradients([1], [[2.0, 4.0]], 0)
        rows = table.lookup([1, 2, 3, 4]).numpy()
        assert rows.tolist() == [[0, 0], [4, 5], [5, 6], [0, 0]]
        assert table.size().numpy() == 3
        assert table.as_op() is table.table

    def test_gradient_tape(self, table):
        table = table.assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        ids = tf.constant([1, 2, 1], tf.int64)
        with tf.GradientTape() as tape:
            rows = table.lookup(ids)
            tape.watch(rows)
            loss = tf.reduce_sum(rows * [[1.0], [2.0], [3.0]])
        table = table.apply_gradients(ids, tape.gradient(loss, rows), 0)
        # 0.5 * (1 + 3) and 0.5 * 2.
        assert table.lookup([1, 2]).numpy().tolist() == [[-1, 0], [2, 3]]

    def test_gradient_tape_by_a_dense_variable(self, table):
        table = table.assign([1], [[1.0, 2.0]])
        weight = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table.lookup([1]) * weight)
        assert tape.gradient(loss, weight).numpy() == 3

    def test_fused_ops(self, table):
        other = single.test_hash_table(1)
        handles = [table.table, other.table]
        ids, sizes = [5, 6], [1, 1]
        _, _, id_offsets, emb_offsets, indices = single.fused_lookup(handles, ids, sizes, 1)
        handles = single.fused_apply_gradient(
            handles,
            ids,
            indices,
            sizes,
            [1.0, 2.0, 3.0],
            id_offsets,
            emb_offsets,
            [0.5, 1.0],
            0,
            0,
            num_of_shards=1,
        )
        rows, *_ = single.fused_lookup(handles, ids, sizes, 1)
        assert rows.numpy().tolist() == [-0.5, -1, -3]

    def test_learning_rate_functions_follow_the_step(self):
        table = single.test_hash_table(1, learning_rate=learning_rate.PolynomialDecay(1.0, 10, 2.0))
        step = tf.compat.v1.train.get_or_create_global_step()
        step.assign(0)
        table = table.apply_gradients([1], [[1.0]], step)
        assert table.lookup([1]).numpy() == -1
        step.assign(10)
        table = table.apply_gradients([1], [[1.0]], step)
        assert table.lookup([1]).numpy() == -3
        step.assign(0)

    def test_filters_of_two_tables_are_apart(self):
        tables = [
            single.test_hash_table(1, enable_hash_filter=True, occurrence_threshold=threshold)
            for threshold in (1, 2)
        ]
        for _ in range(2):
            tables = [table.assign_add([1], [[1.0]]) for table in tables]
        assert [int(table.size()) for table in tables] == [1, 0]

    def test_tables_without_a_name_are_apart(self):
        first, second = single.test_hash_table(1), single.test_hash_table(1)
        first.assign([1], [[1.0]])
        assert second.size().numpy() == 0

    def test_name_is_one_for_the_process(self):
        config = generate_test_hash_table_config(1)
        first = single.hash_table_from_config(config, name_suffix="eager_test_shared")
        with pytest.raises(ValueError, match="has already been used"):
            single.hash_table_from_config(config, name_suffix="eager_test_shared")
        first.assign([1], [[1.0]])
        again = ops.monolith_hash_table(
            filters.create_dummy_hash_filter("eager_test_shared"),
            single.create_dummy_sync_client(),
            config=config.table_config.SerializeToString(deterministic=True),
            shared_name=first.name,
        )
        assert ops.monolith_hash_table_size(again).numpy() == 1

    def test_destroyed_table_can_be_made_anew(self):
        config = generate_test_hash_table_config(1)
        for _ in range(2):
            tf.compat.v1.reset_default_graph()  # Forgets which names are in use.
            table = single.hash_table_from_config(config, name_suffix="eager_test_again")
            assert table.size().numpy() == 0
            table.assign([1], [[1.0]])
            tf.raw_ops.DestroyResourceOp(resource=table.table)

    def test_no_proto(self, table):
        with pytest.raises(RuntimeError, match="Only a table in a graph has a proto"):
            table.to_proto()

    def test_not_in_the_collection(self, table):
        assert not tf.compat.v1.get_collection("monolith_hash_tables")

    def test_many_threads_lose_no_update(self, table):
        ids = np.arange(100)

        def add():
            for _ in range(50):
                table.assign_add(ids, np.ones([100, 2], np.float32))

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(table.lookup(ids), np.full([100, 2], 200))


def test_table_with_eviction_in_the_background_ends_at_once():
    config = generate_test_hash_table_config(1)
    entry.CuckooHashTableConfig(feature_evict_every_n_hours=1).mutate_table(config.table_config)
    table = single.hash_table_from_config(config, name_suffix="eager_test_evictor")
    assert table.assign([1], [[1.0]]).size().numpy() == 1
    begin = time.monotonic()
    tf.raw_ops.DestroyResourceOp(resource=table.table)
    # The thread that evicts looks every 10 seconds; it must not be waited for that long.
    assert time.monotonic() - begin < 9


class TestFunction:
    def test_writes_are_in_order(self, table):
        @tf.function
        def train(ids):
            first = table.assign(ids, [[1.0, 1.0]])
            second = first.apply_gradients(ids, [[2.0, 2.0]], 0)
            third = second.assign_add(ids, [[5.0, 5.0]])
            return second.lookup(ids), third.lookup(ids)

        _, rows = train(tf.constant([1], tf.int64))
        assert rows.numpy().tolist() == [[5, 5]]

    def test_write_without_a_reader_happens(self, table):
        @tf.function
        def write():
            table.assign([1], [[1.0, 2.0]])

        write()
        assert table.lookup([1]).numpy().tolist() == [[1, 2]]

    def test_gradients(self, table):
        table.assign([1], [[1.0, 2.0]])

        @tf.function
        def train(ids):
            rows = table.lookup(ids)
            loss = tf.reduce_sum(rows * rows)
            (by_rows,) = tf.gradients(loss, rows)
            (by_handle,) = tf.gradients(loss, table.table)
            return by_rows, by_handle.indices, by_handle.values

        ids = tf.constant([1, 1], tf.int64)
        by_rows, indices, values = train(ids)
        assert by_rows.numpy().tolist() == [[2, 4], [2, 4]]
        assert indices.numpy().tolist() == [1, 1]
        assert values.numpy().tolist() == [[2, 4], [2, 4]]

    def test_loop(self, table):
        @tf.function
        def train(steps):
            for step in tf.range(steps):
                table.apply_gradients([3], [[-2.0, -4.0]], step)
            return table.lookup([3])

        assert train(tf.constant(10)).numpy().tolist() == [[10, 20]]

    def test_save_and_restore(self, table, tmp_path):
        @tf.function
        def save_and_restore(path):
            saved = table.assign([1], [[1.0, 2.0]]).save(path)
            overwritten = saved.assign([1], [[9.0, 9.0]])
            return overwritten.restore(path).lookup([1])

        rows = save_and_restore(tf.constant(str(tmp_path / "t")))
        assert rows.numpy().tolist() == [[1, 2]]

    def test_all_reads(self, table):
        table.assign([1 << 48], [[1.0, 2.0]])

        @tf.function
        def read():
            offset, entries = table.save_as_tensor(0, 1, 10, 0)
            return (
                table.size(),
                table.lookup_entry([1 << 48]),
                offset,
                single.extract_slot_from_entry(entries),
            )

        size, entries, offset, slots = read()
        assert size.numpy() == 1
        assert len(entries.numpy()[0]) > 0
        assert offset.numpy() > 0
        assert slots.numpy().tolist() == [1]

    def test_evict(self, table):
        table.assign([1], [[1.0, 2.0]], req_time=0)

        @tf.function
        def evict():
            evicted_table, evicted = table.evict(36500 * 86400)
            return evicted, evicted_table.size()

        assert [int(number) for number in evict()] == [1, 0]

    def test_learning_rate_is_computed_in_the_function(self):
        table = single.test_hash_table(1, learning_rate=learning_rate.PolynomialDecay(1.0, 10, 2.0))
        step = tf.compat.v1.train.get_or_create_global_step()

        @tf.function
        def train():
            return table.apply_gradients([1], [[1.0]], step).lookup([1])

        step.assign(0)
        assert train().numpy() == -1
        step.assign(10)
        assert train().numpy() == -3
        step.assign(0)
