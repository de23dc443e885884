"""Tables on parameter servers: two real servers, and sessions that talk to them."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.checkpoint import restore_hook
from monolith.embedding import filters
from monolith.embedding.tables import multi, multi_type, single
from monolith.graph import devices
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

NUM_PS = 2


@pytest.fixture
def cluster():
    return create_test_ps_cluster(NUM_PS)


@pytest.fixture
def connect(cluster):
    servers, config = cluster
    return lambda: tf.compat.v1.Session(servers[0].target, config=config)


def make_tables(dim: int = 2, **kwargs) -> list[single.HashTable]:
    tables = []
    for i in range(NUM_PS):
        with tf.device(devices.ps_device(i)):
            config = generate_test_hash_table_config(dim, **kwargs)
            tables.append(single.hash_table_from_config(config, name_suffix=f"table_{i}"))
    return tables


def test_every_op_runs_where_the_table_is(connect):
    tables = make_tables(learning_rate=0.5)
    assert [table.table.device for table in tables] == [devices.ps_device(i) for i in range(NUM_PS)]
    ids = tf.constant([1, 2], tf.int64)
    chains = []
    for table in tables:
        table = table.assign(ids, [[1.0, 2.0], [3.0, 4.0]])
        table = table.assign_add([1], [[1.0, 1.0]])
        table = table.apply_gradients([2], [[2.0, 2.0]], 0)
        chains.append(table)
    results = [(t.lookup(ids), t.size(), t.lookup_entry([9])) for t in chains]
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with connect() as session:
        for rows, size, entries in session.run(results, options=options, run_metadata=metadata):
            assert rows.tolist() == [[2, 3], [2, 3]]
            assert size == 2
            assert entries.tolist() == [b""]
    used = {
        (node.op, node.device.partition("/task:")[2][0])
        for partition in metadata.partition_graphs
        for node in partition.node
        if node.op.startswith("MonolithHashTable")
    }
    for op in ("Lookup", "Assign", "AssignAdd", "Optimize", "Size", "LookupEntry", ""):
        assert {("MonolithHashTable" + op, str(i)) for i in range(NUM_PS)} <= used


def test_fused_updates_stay_on_their_server(connect):
    config = generate_test_hash_table_config(1)

    def make_table(slot, config):
        return single.hash_table_from_config(config, name_suffix=slot)

    with tf.device(devices.ps_device(1)):
        table = multi_type.MultiTypeHashTable({"a": config, "b": config}, make_table)
    _, _, id_offsets, emb_offsets, indices = table.fused_lookup([1, 2], [1, 1], 1)
    table = table.fused_apply_gradient(
        [1, 2], indices, [1, 1], [1.0, 2.0], id_offsets, emb_offsets, 0, 0, num_of_shards=1
    )
    rows = table.lookup({"a": [1], "b": [2]})
    with connect() as session:
        rows = session.run(rows)
    assert {slot: r.tolist() for slot, r in rows.items()} == {"a": [[-1]], "b": [[-2]]}


def test_rows_outlive_a_session(connect):
    tables = make_tables()
    writes = [table.assign([1], [[1.0 + i, 2.0]]).as_op() for i, table in enumerate(tables)]
    rows = [table.lookup([1]) for table in tables]
    with connect() as session:
        session.run(writes)
    with connect() as session:
        assert [r.tolist() for r in session.run(rows)] == [[[1, 2]], [[2, 2]]]


def test_another_graph_finds_the_tables_by_name(connect):
    with connect() as session:
        session.run([table.assign([1], [[1.0, 2.0]]).as_op() for table in make_tables()])
    with tf.Graph().as_default():
        tables = make_tables()
        with connect() as session:
            rows = session.run([table.lookup([1]) for table in tables])
        assert [r.tolist() for r in rows] == [[[1, 2]], [[1, 2]]]


def test_two_sessions_train_the_same_rows(connect):
    tables = make_tables(dim=1)
    update = [table.apply_gradients([1], [[-1.0]], 0).as_op() for table in tables]
    rows = [table.lookup([1]) for table in tables]
    with connect() as first, connect() as second:
        for _ in range(5):
            first.run(update)
            second.run(update)
        assert [r.tolist() for r in first.run(rows)] == [[[10]], [[10]]]


def test_gradients_reach_both_servers(connect):
    tables = make_tables()
    rows = [table.lookup([i + 1]) for i, table in enumerate(tables)]
    loss = tf.add_n([tf.reduce_sum(r * (i + 1.0)) for i, r in enumerate(rows)])
    slices = tf.gradients(loss, [table.table for table in tables])
    updated = [
        table.apply_gradients(s.indices, s.values, 0)
        for table, s in zip(tables, slices, strict=True)
    ]
    result = [table.lookup([i + 1]) for i, table in enumerate(updated)]
    with connect() as session:
        assert [r.tolist() for r in session.run(result)] == [[[-1, -1]], [[-2, -2]]]


def test_filters_are_beside_their_tables(connect):
    hash_filters = filters.create_hash_filters(NUM_PS, True)
    sizes = []
    for i in range(NUM_PS):
        with tf.device(devices.ps_device(i)):
            table = single.hash_table_from_config(
                generate_test_hash_table_config(1),
                hash_filter=hash_filters[i],
                name_suffix=f"filtered_{i}",
            )
        sizes.append(table.assign_add([1, 2], [[1.0], [2.0]]).size())
    with connect() as session:
        assert session.run(sizes) == [2, 2]


def test_multi_tables(connect):
    configs = {name: generate_test_hash_table_config(dim) for name, dim in (("a", 1), ("b", 2))}
    cached = multi.convert_to_cached_config(configs)
    tables = []
    for i in range(NUM_PS):
        with tf.device(devices.ps_device(i)):
            tables.append(multi.MultiHashTable.from_cached_config(cached, name_suffix=str(i)))
    updated = [
        table.apply_gradients({"a": ([1], [[1.0 + i]]), "b": ([2], [[2.0, 3.0]])}, 0)
        for i, table in enumerate(tables)
    ]
    rows = [table.lookup({"a": [1], "b": [2]}) for table in updated]
    with connect() as session:
        session.run([table.initializer for table in tables])
        first, second = session.run(rows)
    assert first["a"].tolist() == [[-1]]
    assert second["a"].tolist() == [[-2]]
    assert second["b"].tolist() == [[-2, -3]]


def test_only_the_server_that_started_anew_is_restored(tmp_path):
    """The monitor says which; the other server keeps what it was taught since the save."""
    basename = str(tmp_path / "model.ckpt")
    tables = make_tables(dim=1)
    write = {
        value: [table.assign([1], [[value]]).as_op() for table in tables] for value in (1.0, 2.0)
    }
    rows = [table.lookup([1]) for table in tables]
    saver = single.HashTableCheckpointSaverListener(basename)

    class Monitor:
        def is_ps_uninitialized(self, sess, device):
            return device == devices.ps_device(1)

    restore = restore_hook.CheckpointRestorerHook(
        [single.HashTableCheckpointRestorerListener(basename, ps_monitor=Monitor())]
    )
    old_servers, config = create_test_ps_cluster(NUM_PS)
    with tf.compat.v1.Session(old_servers[0].target, config=config) as session:
        session.run(write[1.0])
        saver.before_save(session, 1)
        session.run(write[2.0])

    new_servers, new_config = create_test_ps_cluster(1)
    config.cluster_def.job[0].tasks[1] = new_config.cluster_def.job[0].tasks[0]
    with tf.compat.v1.Session(old_servers[0].target, config=config) as session:
        assert [r.tolist() for r in session.run(rows)] == [[[2]], [[0]]]
        restore.after_create_session(session, None)
        assert [r.tolist() for r in session.run(rows)] == [[[2]], [[1]]]
    assert new_servers


def test_snapshots_move_between_servers(connect, tmp_path):
    tables = make_tables(dim=1)
    ids = np.arange(100)
    full = tables[0].assign(ids, ids[:, np.newaxis].astype(np.float32))
    saved = full.save(str(tmp_path / "t"))
    restored = tables[1].restore(str(tmp_path / "t")).lookup(ids)
    with connect() as session:
        session.run(saved.as_op())
        rows = session.run(restored)
    assert rows.ravel().tolist() == ids.tolist()
