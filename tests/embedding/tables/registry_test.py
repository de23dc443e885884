"""All tables of a graph in one list, whatever their kind."""

import pytest
import tensorflow as tf

from monolith import testing
from monolith.embedding.tables import multi, registry, single
from monolith.embedding.tables.registry import TableShard
from monolith.proto import embedding_hash_table_pb2

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_multi(name, **dims):
    configs = {
        table: testing.generate_test_hash_table_config(dim, learning_rate=0.1)
        for table, dim in dims.items()
    }
    return multi.MultiHashTable.from_configs(configs, name_suffix=name)


def test_both_kinds_tell_the_same_of_themselves():
    user = single.test_hash_table(3, name_suffix="user", expire_time=7, extra_restore_names=["u"])
    items = make_multi("items", movie=1, book=2)
    first, second = registry.get_tables()
    assert (first.table, first.handle, first.name) == (user, user.table, "MonolithHashTable_user")
    assert first.config == registry.TableTraits(
        table_names=("MonolithHashTable_user",),
        dims=(3,),
        expire_times=embedding_hash_table_pb2.SlotExpireTimeConfig(
            default_expire_time=7
        ).SerializeToString(),
        snapshot_format=registry.SINGLE_FORMAT,
        other_names=("u", "MonolithHashTable_u"),
    )
    assert second.table is items
    assert (second.handle, second.name) == (items.handle, "MonolithMultiHashTable_items")
    assert second.config.table_names == ("book", "movie")  # The order of `sizes`.
    assert second.config.dims == (2, 1)
    assert second.config.snapshot_format is registry.MULTI_FORMAT
    assert first.table.initializer is None
    assert second.table.initializer is items.initializer


def test_sizes_are_vectors_of_both_kinds():
    user = single.test_hash_table(1, name_suffix="user")
    items = make_multi("items", movie=1, book=1)
    writes = [
        user.assign([1, 2, 3], [[1.0], [1.0], [1.0]]).as_op(),
        items.assign({"movie": ([5], [[1.0]])}).as_op(),
    ]
    sizes = [entry.table.sizes() for entry in registry.get_tables()]
    with tf.compat.v1.Session() as session:
        session.run(items.initializer)
        session.run(writes)
        assert [size.tolist() for size in session.run(sizes)] == [[3], [0, 1]]


def test_collections_select_a_kind():
    single.test_hash_table(1, name_suffix="user")
    make_multi("items", movie=1)
    keys = registry._HASH_TABLE_GRAPH_KEY, registry._MULTI_HASH_TABLE_GRAPH_KEY
    found = [[entry.name for entry in registry.get_tables(key)] for key in keys]
    assert found == [["MonolithHashTable_user"], ["MonolithMultiHashTable_items"]]


def test_a_table_is_whole_unless_a_shard_is_set():
    single.test_hash_table(1, name_suffix="user_1")
    single.test_hash_table(1, name_suffix="item_1")
    registry.set_shard("MonolithHashTable_user_1", TableShard("user", 1, 2))
    assert [entry.shard for entry in registry.get_tables()] == [
        TableShard("user", 1, 2),
        TableShard("MonolithHashTable_item_1", 0, 1),
    ]
    with tf.Graph().as_default():
        single.test_hash_table(1, name_suffix="user_1")
        (entry,) = registry.get_tables()
        assert entry.shard == TableShard("MonolithHashTable_user_1")


def test_server_is_part_of_the_other_names_of_a_table():
    single.test_hash_table(1, name_suffix="user_1", extra_restore_names=["u"])
    (entry,) = registry.get_tables()
    assert entry.config.other_names == ("u", "MonolithHashTable_u_1", "MonolithHashTable_u")


def test_two_kinds_cannot_share_a_name():
    # Their files would.
    taken = make_multi("items", movie=1)
    with pytest.raises(ValueError, match="MonolithMultiHashTable_items has already been used"):
        single.HashTable(table=taken.handle, shared_name=taken.shared_name, dim_size=1)


def test_tables_of_an_imported_graph_are_there():
    single.test_hash_table(2, name_suffix="user")
    make_multi("items", movie=1)
    meta_graph = tf.compat.v1.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(meta_graph)
        found = [(entry.name, entry.config.dims) for entry in registry.get_tables()]
        assert found == [("MonolithHashTable_user", (2,)), ("MonolithMultiHashTable_items", (1,))]
