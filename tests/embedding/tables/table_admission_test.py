"""Tables with a threshold and an expiry of their own, whatever slot the bits of an id name."""

import numpy as np
import pytest
import tensorflow as tf
from support.multi_tables import MultiHashTable, make_session
from support.multi_tables import run as run_multi

from monolith.embedding import entry, filters
from monolith.embedding.sharding import factory
from monolith.embedding.tables import multi, registry, single
from monolith.embedding.tables.touched import TouchedTables
from monolith.graph import export_mode
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config

DAY = 24 * 60 * 60
# All of slot 0 if these were ids with slots; and one of slot 7, one of the last.
IDS = [0, 1, 7, 7 << 48 | 1, -1]


def make_config(dim=1, **settings) -> entry.HashTableConfigInstance:
    config = generate_test_hash_table_config(dim)
    entry.CuckooHashTableConfig(**settings).mutate_table(config.table_config)
    return config


def make_filter(default=0, suffix="", **slot_to_threshold) -> tf.Tensor:
    config = proto.SlotOccurrenceThresholdConfig(default_occurrence_threshold=default)
    for slot, threshold in slot_to_threshold.items():
        number = int(slot.removeprefix("slot"))
        config.slot_occurrence_thresholds.add(slot=number, occurrence_threshold=threshold)
    return filters.create_hash_filter(10000, 5, config.SerializeToString(), suffix)


def count_until_admitted(session, update, rows, most=20) -> list[int]:
    """Returns at which run of `update` each id got its row."""
    first = np.zeros(len(IDS), int)
    for number in range(1, most + 1):
        session.run(update)
        present = session.run(rows)[:, 0] != 0
        first[present & (first == 0)] = number
    return first.tolist()


@pytest.mark.usefixtures("graph_mode")
class TestSingle:
    @pytest.mark.parametrize("method", ["assign", "assign_add", "apply_gradients", "dedup"])
    @pytest.mark.parametrize("threshold", [0, 1, 2, 15])
    def test_threshold_of_the_table_is_in_place_of_the_slots(self, method, threshold):
        table = single.hash_table_from_config(
            make_config(admit_after=threshold), make_filter(default=3, slot7=1), "user"
        )
        ones = tf.ones([len(IDS), 1])
        if method == "assign":
            update = table.assign(IDS, ones)
        elif method == "assign_add":
            update = table.assign_add(IDS, ones)
        else:
            update = table.apply_gradients(IDS, ones, 0, enable_dedup=method == "dedup")
        rows = table.lookup(IDS)
        with tf.compat.v1.Session() as session:
            admitted = count_until_admitted(session, update.as_op(), rows)
        assert admitted == [threshold + 1] * len(IDS)

    def test_tables_that_share_a_filter_count_apart(self):
        shared = make_filter()
        tables = [
            single.hash_table_from_config(make_config(admit_after=n), shared, f"table_{n}")
            for n in (1, 2, 3)
        ]
        updates = [table.assign(IDS, tf.ones([len(IDS), 1])).as_op() for table in tables]
        rows = [table.lookup(IDS) for table in tables]
        with tf.compat.v1.Session() as session:
            # All three together, then each alone: what one sees, the others do not count.
            session.run(updates)
            assert [np.count_nonzero(session.run(r)) for r in rows] == [0, 0, 0]
            assert count_until_admitted(session, updates[2], rows[2]) == [3] * len(IDS)
            assert [np.count_nonzero(session.run(r)) for r in rows[:2]] == [0, 0]
            assert count_until_admitted(session, updates[0], rows[0]) == [1] * len(IDS)
            assert count_until_admitted(session, updates[1], rows[1]) == [2] * len(IDS)

    def test_slots_count_as_before_beside_it(self):
        shared = make_filter(default=2)
        by_slot = single.hash_table_from_config(make_config(), shared, "by_slot")
        own = single.hash_table_from_config(make_config(admit_after=0), shared, "own")
        ones = tf.ones([len(IDS), 1])
        update = [by_slot.assign(IDS, ones).as_op(), own.assign(IDS, ones).as_op()]
        rows = tf.concat([by_slot.lookup(IDS), own.lookup(IDS)], 1)
        with tf.compat.v1.Session() as session:
            seen = [
                np.count_nonzero(session.run([update, rows.op]) and session.run(rows), axis=0)
                for _ in range(3)
            ]
        assert [s.tolist() for s in seen] == [[0, 5], [0, 5], [5, 5]]

    def test_probabilistic_filter_draws_with_the_tables_threshold(self):
        table = single.hash_table_from_config(
            make_config(admit_after=10), filters.create_probabilistic_filter(False), "lots"
        )
        size = table.assign(tf.range(5000, dtype=tf.int64), tf.ones([5000, 1])).size()
        with tf.compat.v1.Session() as session:
            # 5000 draws with probability 0.1: 500, with a deviation of 21.
            assert session.run(size) == pytest.approx(500, abs=110)

    def test_filter_that_admits_everything_is_refused(self):
        table = single.hash_table_from_config(make_config(admit_after=2), name_suffix="user")
        with (
            tf.compat.v1.Session() as session,
            pytest.raises(
                tf.errors.InvalidArgumentError,
                match="`occurrence_threshold` of table MonolithHashTable_user is 2, but its filter "
                "admits every id; give the table a filter that holds ids back, or leave the",
            ),
        ):
            session.run(table.size())

    def test_no_threshold_needs_no_filter(self):
        table = single.hash_table_from_config(make_config(admit_after=0), name_suffix="user")
        with tf.compat.v1.Session() as session:
            assert session.run(table.assign([1], [[1.0]]).size()) == 1

    def test_more_than_the_filter_counts_is_refused(self):
        table = single.hash_table_from_config(make_config(admit_after=16), make_filter(), "user")
        with (
            tf.compat.v1.Session() as session,
            pytest.raises(
                tf.errors.InvalidArgumentError,
                match="is 16, but its filter counts to 15; lower the threshold, or take a prob",
            ),
        ):
            session.run(table.size())

    def test_serving_tables_hold_nothing_back(self):
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            table = single.hash_table_from_config(make_config(admit_after=2), name_suffix="user")
        with tf.compat.v1.Session() as session:
            assert session.run(table.assign([1], [[1.0]]).lookup([1])).tolist() == [[1]]

    def test_table_that_counts_under_another_name_is_another_table(self):
        config = make_config(admit_after=2).table_config.SerializeToString()
        client = single.create_dummy_sync_client()
        first, same, other = (
            ops.monolith_hash_table(
                make_filter(), client, config=config, shared_name="t", counted_as=name
            )
            for name in ("user", "user", "movie")
        )
        with tf.compat.v1.Session() as session:
            session.run([first.op, same.op])
            with pytest.raises(tf.errors.InvalidArgumentError, match="exists with another config"):
                session.run(other.op)

    def test_counts_survive_a_save_of_the_filter(self, tmp_path):
        hash_filter = make_filter()
        table = single.hash_table_from_config(make_config(admit_after=2), hash_filter, "user")
        update = table.assign(IDS, tf.ones([len(IDS), 1])).as_op()
        basename = str(tmp_path / "filter")
        save = filters.save_hash_filter(hash_filter, basename, True)
        restore = filters.restore_hash_filter(hash_filter, basename, True)
        with tf.compat.v1.Session() as session:
            session.run(update)
            session.run(save)
        with tf.compat.v1.Session() as session:
            session.run(restore)
            assert count_until_admitted(session, update, table.lookup(IDS)) == [2] * len(IDS)


@pytest.mark.usefixtures("graph_mode")
class TestMulti:
    def test_tables_of_a_set_have_thresholds_of_their_own(self):
        configs = {
            "user": make_config(admit_after=2),
            "movie": make_config(2, admit_after=4),
            "by_slot": make_config(),
            "all": make_config(admit_after=0),
        }
        table = MultiHashTable.from_configs(configs, make_filter(default=1, slot7=3))
        updates = {
            name: (IDS, tf.ones([len(IDS), 2 if name == "movie" else 1])) for name in configs
        }
        rows = table.lookup(dict.fromkeys(configs, IDS))
        for method in (table.assign, table.assign_add):
            with make_session() as session:
                update = method(updates).as_op()
                first = {name: np.zeros(len(IDS), int) for name in configs}
                for number in range(1, 7):
                    session.run(update)
                    for name, found in session.run(rows).items():
                        first[name][(found[:, 0] != 0) & (first[name] == 0)] = number
            assert first["user"].tolist() == [3] * 5
            assert first["movie"].tolist() == [5] * 5
            assert first["by_slot"].tolist() == [2, 2, 2, 4, 2]
            assert first["all"].tolist() == [1] * 5

    def test_filter_that_admits_everything_is_refused(self):
        table = MultiHashTable.from_configs(
            {"movie": make_config(), "user": make_config(admit_after=2)}
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="`occurrence_threshold` of table user is 2, but its filter admits every id",
        ):
            run_multi(table.sizes())

    def test_serving_tables_hold_nothing_back(self):
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            table = MultiHashTable.from_configs({"user": make_config(admit_after=2)})
        assert run_multi(table.assign({"user": ([1], [[1.0]])}).sizes()).tolist() == [1]


CREATORS = pytest.mark.parametrize(
    "create",
    [factory.create_multi_type_hash_table, factory.create_native_multi_hash_table],
    ids=["merged", "native"],
)


@pytest.mark.usefixtures("graph_mode")
@CREATORS
@pytest.mark.parametrize("num_ps", [0, 2])
def test_servers_hold_back_by_table(create, num_ps):
    servers, config = create_test_ps_cluster(2)
    configs = {"user": make_config(admit_after=1), "movie": make_config(admit_after=2)}
    hash_filters = filters.create_hash_filters(num_ps, True, filter_capacity=10000)
    table = create(num_ps, configs, hash_filters)
    ids = tf.constant(IDS, tf.int64)
    update = table.apply_gradients(
        {name: (ids, tf.ones([len(IDS), 1])) for name in configs}, tf.constant(0, tf.int64)
    ).as_op()
    rows = table.lookup(dict.fromkeys(configs, ids))
    with tf.compat.v1.Session(servers[0].target, config=config) as session:
        for known in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
            session.run(known.initializer)
        seen = []
        for _ in range(3):
            session.run(update)
            found = session.run(rows)
            seen.append([np.count_nonzero(found[name]) for name in ("user", "movie")])
    assert seen == [[0, 0], [5, 0], [5, 5]]


@pytest.mark.usefixtures("graph_mode")
def test_only_tables_with_the_same_threshold_and_expiry_are_merged():
    settings = {
        "a": {"admit_after": 1},
        "b": {"admit_after": 2},
        "c": {"admit_after": 2},
        "d": {},
        "e": {"admit_after": 0},
        "f": {"admit_after": 2, "expire_after_days": 3},
    }
    configs = {name: make_config(**kwargs) for name, kwargs in settings.items()}
    hash_filters = filters.create_hash_filters(0, True, filter_capacity=10000)
    merged = factory.create_multi_type_hash_table(0, configs, hash_filters)
    by_table: dict[str, str] = {}
    for name, table in sorted(merged.slot_mapping.items()):
        by_table[table] = by_table.get(table, "") + name
    assert sorted(by_table.values()) == ["a", "bc", "d", "e", "f"]
    # A merged table counts the ids of all that share it, as it holds their rows.
    update = merged.assign({"b": ([1], [[1.0]]), "c": ([2], [[1.0]])}).as_op()
    rows = merged.lookup({"b": tf.constant([1, 2], tf.int64)})["b"]
    with tf.compat.v1.Session() as session:
        seen = [session.run(update) or session.run(rows).ravel().tolist() for _ in range(3)]
    assert seen == [[0, 0], [0, 0], [1, 1]]


@pytest.mark.usefixtures("graph_mode")
class TestExpiry:
    """Row 1 is 5 days old, rows 2 and 3 are new; a table keeps rows for 1 day, another for 30."""

    @staticmethod
    def write(table, wrap):
        table = table.assign(*wrap([1, 7 << 48], [[1.0], [1.0]]), req_time=1000)
        return table.assign(*wrap([2, 3], [[1.0], [1.0]]), req_time=1000 + 5 * DAY)

    @pytest.mark.parametrize(("days", "kept"), [(1, 2), (5, 2), (6, 4), (30, 4)])
    def test_single(self, days, kept, tmp_path):
        config = make_config(expire_after_days=days)
        table = single.hash_table_from_config(config, name_suffix="user")
        table = self.write(table, lambda *rows: rows)
        saved = table.save(str(tmp_path / "t")).restore(str(tmp_path / "t"))
        with tf.compat.v1.Session() as session:
            assert session.run(saved.size()) == kept
        with tf.compat.v1.Session() as session:
            evicted_table, evicted = table.evict(1000 + 5 * DAY)
            assert session.run([evicted, evicted_table.size()]) == [4 - kept, kept]

    def test_multi(self, tmp_path):
        configs = {"a": make_config(expire_after_days=1), "b": make_config(expire_after_days=30)}
        table = MultiHashTable.from_configs(configs)
        table = self.write(table, lambda *rows: ({"a": rows, "b": rows},))
        base = str(tmp_path / "t")
        assert run_multi(table.save(base).feature_stat(base)[1]).tolist() == [2, 4]
        evicted_table, evicted = table.evict()
        assert [n.tolist() for n in run_multi([evicted, evicted_table.sizes()])] == [[2, 0], [2, 4]]

    def test_deltas(self, tmp_path):
        configs = {"a": make_config(expire_after_days=1), "b": make_config(expire_after_days=30)}
        several = MultiHashTable.from_configs(configs)
        one = single.hash_table_from_config(configs["a"], name_suffix="one")
        other = single.hash_table_from_config(configs["b"], name_suffix="other")
        writes = [
            self.write(several, lambda *rows: ({"a": rows, "b": rows},)).as_op(),
            *(self.write(table, lambda *rows: rows).as_op() for table in (one, other)),
        ]
        touched = TouchedTables(capacity=100)
        saved, restored = [], []
        for known in registry.get_tables():
            full = str(tmp_path / f"full_{known.file}")
            saved.append(known.table.save(full).as_op())
            restored.append(
                ops.monolith_table_restore_layers(
                    known.handle,
                    [full, str(tmp_path / known.file)],
                    [0, 1],
                    compression=known.config.snapshot_format.compression,
                )
            )
        sizes = [known.table.sizes() for known in registry.get_tables()]
        with make_session() as session:
            touched.track(session)
            session.run(saved)  # Of no rows.
            session.run(writes)
            assert touched.gather(session) == (4 * 4, True)
            touched.save(session, f"{tmp_path}/")
            session.run(restored)
            assert [n.tolist() for n in session.run(sizes)] == [[2], [4], [2, 4]]


def test_eager_tables_with_thresholds():
    shared = make_filter(suffix="_admission_eager")
    tables = [
        single.hash_table_from_config(make_config(admit_after=n), shared, f"admission_eager_{n}")
        for n in (1, 2)
    ]
    sizes = []
    for _ in range(3):
        tables = [table.assign([7], [[1.0]]) for table in tables]
        sizes.append([int(table.size()) for table in tables])
    assert sizes == [[0, 0], [1, 0], [1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="its filter admits every id"):
        single.hash_table_from_config(make_config(admit_after=1), name_suffix="admission_refused")
