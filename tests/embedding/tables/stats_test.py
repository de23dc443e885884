"""What tables tell about themselves: rows, memory, and what has become of ids."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from support.multi_tables import MultiHashTable, make_configs, make_session, run

from monolith.embedding import entry, filters
from monolith.embedding.sharding import factory
from monolith.embedding.tables import multi, single, stats
from monolith.native import ops
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config

DAY = 24 * 60 * 60


def make_config(dim=1, **settings) -> entry.HashTableConfigInstance:
    config = generate_test_hash_table_config(dim)
    entry.CuckooHashTableConfig(**settings).mutate_table(config.table_config)
    return config


def counts(found: stats.TableStats) -> list[int]:
    return [int(n) for n in (found.rows, found.admitted, found.expired, found.held_back)]


class TestSingle:
    def test_counts(self):
        config = make_config(admit_after=1, expire_after_days=3)
        hash_filter = filters.create_hash_filter(300, 5, name_suffix="_stats_test")
        table = single.hash_table_from_config(config, hash_filter, "stats_test")
        assert counts(table.stats()) == [0, 0, 0, 0]
        table = table.assign_add([1, 2, 3], tf.ones([3, 1]), req_time=1000)
        assert counts(table.stats()) == [0, 0, 0, 3]
        table = table.apply_gradients([1, 2], tf.ones([2, 1]), 0, req_time=1000)
        table = table.assign([3, 3], tf.ones([2, 1]), req_time=1000 + 3 * DAY)
        table.lookup([1, 9])
        assert counts(table.stats()) == [3, 3, 0, 3]
        table, _ = table.evict(1000 + 3 * DAY)
        assert counts(table.stats()) == [1, 3, 2, 3]

    def test_counts_go_on_after_a_restore(self, tmp_path):
        table = single.hash_table_from_config(
            make_config(expire_after_days=3), name_suffix="stats_test_restore"
        )
        table = table.assign([1, 2], tf.ones([2, 1]), req_time=1000)
        table = table.save(str(tmp_path / "t"))
        table = table.assign([3], tf.ones([1, 1]), req_time=1000)
        table = table.restore(str(tmp_path / "t"))
        # Row 3 is gone, but it was made; the restored ones were made before.
        assert counts(table.stats()) == [2, 3, 0, 0]
        table, _ = table.evict(1000 + 3 * DAY)
        table = table.restore(str(tmp_path / "t"))
        assert counts(table.stats()) == [2, 3, 2, 0]
        table = table.assign([4], tf.ones([1, 1]), req_time=1000)
        assert counts(table.stats()) == [3, 4, 2, 0]

    @pytest.mark.parametrize("dim", [1, 16])
    def test_memory(self, dim):
        table = single.test_hash_table(dim, use_adagrad=True)
        empty = table.stats()
        n = 50000
        table = table.assign(tf.range(n, dtype=tf.int64), tf.ones([n, dim]))
        full = table.stats()
        # A header of 16 bytes, then a weight and an accumulator for each dimension; places for
        # rows are handed out by sixteen to 64 stripes.
        row_bytes = 16 + 2 * 4 * dim
        assert n * row_bytes <= int(full.row_bytes) <= (n + 16 * 64) * row_bytes
        assert int(empty.row_bytes) == 0
        assert int(empty.index_bytes) < int(full.index_bytes) < 30 * n + 2**21
        assert int(full.memory_bytes) == int(full.row_bytes) + int(full.index_bytes)


@pytest.mark.usefixtures("graph_mode")
class TestMulti:
    def test_each_table_of_a_set(self):
        table = MultiHashTable.from_configs(
            {"user": make_config(), "movie": make_config(4, expire_after_days=1)}
        )
        table = table.assign(
            {"user": ([1, 2], tf.ones([2, 1])), "movie": ([1], tf.ones([1, 4]))}, req_time=1000
        )
        table = table.assign({"movie": ([2], tf.ones([1, 4]))}, req_time=1000 + DAY)
        table, _ = table.reinitialize("user", [2, 3])
        table, _ = table.evict()
        found = run(table.stats())
        assert list(found) == ["movie", "user"]
        assert counts(found["user"]) == [3, 3, 0, 0]
        assert counts(found["movie"]) == [1, 2, 1, 0]
        # Two stripes with a block of 16 rows, of a header and 4 floats.
        assert found["movie"].row_bytes == 2 * 16 * (16 + 4 * 4)

    def test_counts_go_on_where_a_restore_keeps_rows(self, tmp_path):
        table = MultiHashTable.from_configs(make_configs(a=1, b=1))
        saved = table.assign({"a": ([1, 2], tf.ones([2, 1]))}).save(str(tmp_path / "t"))
        more = saved.assign({"a": ([3], tf.ones([1, 1])), "b": ([4], tf.ones([1, 1]))})
        found = run(more.restore(str(tmp_path / "t")).stats())
        assert counts(found["a"]) == [3, 3, 0, 0]
        assert counts(found["b"]) == [1, 1, 0, 0]

    def test_handles_that_are_no_tables_are_refused(self):
        with make_session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="type"):
                session.run(stats.read_stats(filters.create_dummy_hash_filter()))
            with pytest.raises(tf.errors.NotFoundError):
                session.run(
                    stats.read_stats(ops.read_monolith_multi_hash_table(shared_name="nobody"))
                )

    def test_shapes(self):
        made = stats.read_stats(ops.read_monolith_multi_hash_table(shared_name="t"))
        assert all(numbers.shape.as_list() == [None] for numbers in made)
        assert all(numbers.dtype == tf.int64 for numbers in made)


@pytest.mark.usefixtures("graph_mode")
class TestGetStats:
    def test_no_tables(self):
        assert stats.get_stats() == {}

    def test_all_kinds_of_tables_by_name(self):
        table = single.hash_table_from_config(make_config(2), name_suffix="single")
        several = MultiHashTable.from_configs(make_configs(user=1, movie=1))
        found = stats.get_stats()
        assert sorted(found) == ["movie", "single", "user"]
        writes = [
            table.assign([1], tf.ones([1, 2])).as_op(),
            several.assign({"user": ([1, 2], tf.ones([2, 1]))}).as_op(),
        ]
        with make_session() as session:
            session.run(writes)
            numbers = session.run(found)
        assert {name: counts(n)[0] for name, n in numbers.items()} == {
            "movie": 0,
            "single": 1,
            "user": 2,
        }

    def test_names_that_two_sets_share(self):
        for suffix in ("a", "b"):
            MultiHashTable.from_configs(make_configs(user=1, **{suffix: 1}), name_suffix=suffix)
        assert sorted(stats.get_stats()) == [
            "MonolithMultiHashTable_a/user",
            "MonolithMultiHashTable_b/user",
            "a",
            "b",
        ]

    @pytest.mark.parametrize("native", [True, False], ids=["native", "merged"])
    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_parts_on_servers_are_summed(self, native, num_ps):
        servers, config = create_test_ps_cluster(2)
        configs = {"user": make_config(admit_after=1), "movie": make_config(2)}
        hash_filters = filters.create_hash_filters(num_ps, True, filter_capacity=10000)
        create = (
            factory.create_native_multi_hash_table
            if native
            else factory.create_multi_type_hash_table
        )
        table = create(num_ps, configs, hash_filters)
        ids = tf.range(10, dtype=tf.int64)
        update = table.assign(
            {"user": (ids, tf.ones([10, 1])), "movie": (ids[:7], tf.ones([7, 2]))}
        )
        found = stats.get_stats()
        names = {slot: slot if native else table.slot_mapping[slot] for slot in configs}
        assert sorted(found) == sorted(names.values())
        with tf.compat.v1.Session(servers[0].target, config=config) as session:
            for known in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
                session.run(known.initializer)
            session.run(update.as_op())
            first = session.run(found)
            session.run(update.as_op())
            second = session.run(found)
        assert counts(first[names["user"]]) == [0, 0, 0, 10]
        assert counts(first[names["movie"]]) == [7, 7, 0, 0]
        assert counts(second[names["user"]]) == [10, 10, 0, 10]
        assert counts(second[names["movie"]]) == [7, 7, 0, 0]
        assert first[names["movie"]].memory_bytes > 0


def test_asking_while_others_write():
    table = single.test_hash_table(4)

    def write(first):
        for start in range(first, first + 20000, 1000):
            ids = np.arange(start, start + 1000)
            table.assign_add(ids, np.ones([1000, 4], np.float32))

    writers = [threading.Thread(target=write, args=(i * 20000,)) for i in range(3)]
    for writer in writers:
        writer.start()
    seen = [0]
    while any(writer.is_alive() for writer in writers):
        found = table.stats()
        assert seen[-1] <= int(found.rows) <= 60000
        seen.append(int(found.rows))
    for writer in writers:
        writer.join()
    assert counts(table.stats()) == [60000, 60000, 0, 0]
