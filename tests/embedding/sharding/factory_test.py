"""Tables made for no, one or two servers behave the same."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding import filters
from monolith.embedding.sharding import factory as sharded_table_factory
from monolith.embedding.sharding import servers as sharded_tables
from monolith.embedding.tables import multi, multi_type, single
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

NUM_PS = 2


@pytest.fixture
def connect():
    servers, config = create_test_ps_cluster(NUM_PS)
    return lambda: tf.compat.v1.Session(servers[0].target, config=config)


def make_configs():
    """Slots `a` and `b` have equal configs, `c` has another."""
    return {
        "a": generate_test_hash_table_config(2),
        "b": generate_test_hash_table_config(2),
        "c": generate_test_hash_table_config(1),
    }


def make_filters(num_ps):
    return [None] * max(1, num_ps)


def create_reduced(num_ps, *args, **kwargs):
    return sharded_table_factory.create_multi_type_hash_table(
        num_ps, *args, reduce_network_packets=True, **kwargs
    )


CREATORS = pytest.mark.parametrize(
    "create",
    [
        sharded_table_factory.create_multi_type_hash_table,
        create_reduced,
        sharded_table_factory.create_native_multi_hash_table,
    ],
    ids=["merged", "merged_reduced", "native"],
)


def initialize_tables(session) -> None:
    for table in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
        session.run(table.initializer)


@CREATORS
@pytest.mark.parametrize("num_ps", [0, 1, 2])
def test_a_training_step(create, num_ps, connect):
    table = create(num_ps, make_configs(), make_filters(num_ps))
    ids = {
        "a": tf.constant([1, 2], tf.int64),
        "b": tf.constant([3], tf.int64),
        "c": tf.constant([1, 4], tf.int64),
    }
    table = table.assign(
        {
            "a": (ids["a"], [[1.0, 2.0], [3.0, 4.0]]),
            "b": (ids["b"], [[5.0, 6.0]]),
            "c": (ids["c"], [[7.0], [8.0]]),
        }
    )
    rows = table.lookup(ids)
    updates = {slot: (ids[slot], 0.5 * rows[slot]) for slot in ids}
    table = table.apply_gradients(updates, tf.constant(0, tf.int64), req_time=tf.constant(5))
    updated = table.lookup(ids)
    with connect() as session:
        initialize_tables(session)
        rows, updated = session.run([rows, updated])
    assert rows["a"].tolist() == [[1, 2], [3, 4]]
    assert updated["a"].tolist() == [[0.5, 1], [1.5, 2]]
    assert updated["b"].tolist() == [[2.5, 3]]
    assert updated["c"].tolist() == [[3.5], [4]]


def test_kinds_without_servers():
    merged = sharded_table_factory.create_multi_type_hash_table(0, make_configs(), [None])
    assert isinstance(merged, multi_type.MergedMultiTypeHashTable)
    assert isinstance(merged._table, multi_type.MultiTypeHashTable)
    native = sharded_table_factory.create_native_multi_hash_table(0, make_configs(), [None])
    assert isinstance(native, multi.MultiHashTable)
    assert native.shared_name == "MonolithMultiHashTable_"


def test_names_of_tables():
    def names(num_ps, **kwargs):
        with tf.Graph().as_default():
            sharded_table_factory.create_multi_type_hash_table(
                num_ps, make_configs(), make_filters(num_ps), **kwargs
            )
            tables = tf.compat.v1.get_collection(single._HASH_TABLE_GRAPH_KEY)
            return {(table.name, table.table.device) for table in tables}

    merged = {
        "MonolithHashTable_" + hashlib.md5(slots.encode()).hexdigest() for slots in ("a,b", "c")
    }
    assert names(0) == {(name, "/device:CPU:0") for name in merged}
    on_servers = {
        (f"{name}_{i}", f"/job:ps/task:{i}/device:CPU:0") for name in merged for i in range(2)
    }
    assert names(2) == on_servers
    assert names(2, reduce_network_packets=True) == on_servers


def test_kinds_with_servers():
    merged = sharded_table_factory.create_multi_type_hash_table(2, make_configs(), [None, None])
    tables = merged._table._tables.values()
    assert all(isinstance(table, sharded_tables.DistributedHashTable) for table in tables)
    with tf.Graph().as_default():
        reduced = create_reduced(2, make_configs(), [None, None])
    assert isinstance(reduced._table, sharded_tables.DistributedMultiTypeHashTable)
    native = sharded_table_factory.create_native_multi_hash_table(2, make_configs(), [None, None])
    assert isinstance(native, sharded_tables.DistributedMultiTypeHashTable)
    assert [part.shared_name for part in native._tables] == [
        "MonolithMultiHashTable_0",
        "MonolithMultiHashTable_1",
    ]


@CREATORS
def test_filters_hold_new_ids_back(create, connect):
    thresholds = single.embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
        default_occurrence_threshold=2
    ).SerializeToString()
    hash_filters = filters.create_hash_filters(NUM_PS, True, config=thresholds)
    table = create(NUM_PS, make_configs(), hash_filters)
    ids = tf.constant([1, 2], tf.int64)
    update = table.apply_gradients({"c": (ids, [[1.0], [1.0]])}, tf.constant(0, tf.int64)).as_op()
    rows = table.lookup({"c": ids})["c"]
    with connect() as session:
        initialize_tables(session)
        seen = []
        for _ in range(4):
            session.run(update)
            seen.append(session.run(rows).ravel().tolist())
    # Two occurrences are needed before the third update makes a row.
    assert seen == [[0, 0], [0, 0], [-1, -1], [-2, -2]]


@CREATORS
def test_one_filter_and_client_for_each_server(create):
    message = "Number of PS should be equal to number of sync clients, while got 2 vs 1"
    with pytest.raises(AssertionError, match=message):
        create(2, make_configs(), [None, None], sync_clients=[None])
    with pytest.raises(AssertionError, match="number of hash filters, while got 2 vs 1"):
        create(2, make_configs(), [None])
    with pytest.raises(AssertionError, match="while got 0 vs 3"):
        create(0, make_configs(), [None], sync_clients=[None] * 3)


def test_configs_are_converted_once_for_all_servers(monkeypatch):
    converted = []
    convert = multi.convert_to_cached_config

    def count(configs):
        converted.append(configs)
        return convert(configs)

    monkeypatch.setattr(multi, "convert_to_cached_config", count)
    factory = sharded_table_factory.MultiHashTableFactory([None, None], [None, None])
    configs = make_configs()
    factory(0, configs)
    factory(1, configs)
    assert len(converted) == 1
    with tf.Graph().as_default():
        factory(0, make_configs())
    assert len(converted) == 2


def test_snapshots_of_two_servers(connect, tmp_path):
    """What each server saves comes back into tables that are made anew."""
    table = sharded_table_factory.create_native_multi_hash_table(
        NUM_PS, make_configs(), [None, None]
    )
    ids = np.arange(50)
    table = table.assign({"c": (ids, ids[:, np.newaxis].astype(np.float32))})
    saved = [part.save(str(tmp_path / str(i))).as_op() for i, part in enumerate(table._tables)]
    with connect() as session:
        initialize_tables(session)
        session.run(saved)
    servers, config = create_test_ps_cluster(NUM_PS)
    with tf.Graph().as_default():
        table = sharded_table_factory.create_native_multi_hash_table(
            NUM_PS, make_configs(), [None, None]
        )
        restored = [
            part.restore(str(tmp_path / str(i))).as_op() for i, part in enumerate(table._tables)
        ]
        rows = table.lookup({"c": ids})["c"]
        with tf.compat.v1.Session(servers[0].target, config=config) as session:
            initialize_tables(session)
            session.run(restored)
            assert session.run(rows).ravel().tolist() == ids.tolist()
