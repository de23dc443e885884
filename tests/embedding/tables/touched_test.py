"""The ops behind incremental saves and restores: layers, servers, bad arguments."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from support.segments import make_config

from monolith.embedding import entry
from monolith.embedding.tables import multi, single, touched
from monolith.native import ops
from monolith.proto.embedding_hash_table_pb2 import EntryDump


def make_table(name):
    return single.test_hash_table(1, name_suffix=f"touched_tables_{name}", use_adagrad=True)


def fill(table, ids, value):
    return table.assign(ids, np.full([len(ids), 1], value, np.float32))


def save_touched(table, basename, compression=""):
    ops.monolith_table_gather_touched(table.table)
    ops.monolith_table_save_touched(table.table, basename, compression=compression)
    ops.monolith_table_forget_touched(table.table)


def test_later_layers_win(tmp_path):
    table = make_table("later")
    fill(table, [1, 2, 3], 1.0).save(f"{tmp_path}/full")
    ops.monolith_table_track_touched(table.table, capacity=10)
    fill(table, [2, 4], 2.0)
    save_touched(table, f"{tmp_path}/a")
    fill(table, [4, 5], 3.0)
    save_touched(table, f"{tmp_path}/b")
    restored = make_table("later_restored")
    ops.monolith_table_restore_layers(
        restored.table, [f"{tmp_path}/{name}" for name in ("full", "a", "b")], [0, 1, 2]
    )
    assert restored.lookup([1, 2, 3, 4, 5]).numpy()[:, 0].tolist() == [1, 2, 1, 3, 3]
    ids = [1, 2, 3, 4, 5, 6]
    assert restored.lookup_entry(ids).numpy().tolist() == table.lookup_entry(ids).numpy().tolist()


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_a_server_keeps_the_ids_of_its_remainder(tmp_path, num_servers):
    table = make_table(f"servers_{num_servers}")
    ids = np.array([-7, -6, -1, 0, 1, 5, 2**62, -(2**63)])
    fill(table, ids, 1.0).save(f"{tmp_path}/full")
    for server in range(num_servers):
        part = make_table(f"servers_{num_servers}_{server}")
        ops.monolith_table_restore_layers(
            part.table, [f"{tmp_path}/full"], [0], server=server, num_servers=num_servers
        )
        own = part.lookup(ids).numpy()[:, 0] == 1
        assert own.tolist() == (ids % num_servers == server).tolist()
        assert part.size() == own.sum()


def test_error_leaves_the_table_as_it_was(tmp_path):
    table = make_table("error")
    fill(table, [1], 1.0).save(f"{tmp_path}/full")
    other = make_table("error_other")
    fill(other, [9], 9.0)
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        ops.monolith_table_restore_layers(
            other.table, [f"{tmp_path}/full", f"{tmp_path}/missing"], [0, 1]
        )
    assert other.lookup([1, 9]).numpy()[:, 0].tolist() == [0, 9]


def test_a_removed_row_in_a_full_snapshot_is_an_error(tmp_path):
    table = make_table("removed")
    ops.monolith_table_track_touched(table.table, capacity=10)
    fill(table, [1], 1.0)
    table.evict(10**10)
    save_touched(table, f"{tmp_path}/delta")
    other = make_table("removed_other")
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit"):
        ops.monolith_table_restore_layers(other.table, [f"{tmp_path}/delta"], [0])


def restore_changed(table, basenames, start_anew=(), keep_values=(), **attrs):
    ops.monolith_table_restore_changed(
        table,
        basenames,
        list(range(len(basenames))),
        tf.constant(list(start_anew), tf.string),
        tf.constant(list(keep_values), tf.string),
        **attrs,
    )


def test_rows_of_changed_tables_are_passed_over_or_keep_their_values(tmp_path):
    def make_set(name, dims, **optimizers):
        configs = {
            table: make_config((dim, optimizers.get(table, entry.AdagradOptimizer())))
            for table, dim in dims.items()
        }
        return multi.MultiHashTable.from_configs(configs, name_suffix=name)

    def write(table, value, ids):
        rows = {name: (ids, np.full([len(ids), 2], value)) for name in ("a", "b", "c")}
        return table.assign(rows)

    saved = make_set("changed_saved", {"a": 2, "b": 2, "c": 2})
    write(saved, 1.0, [1, 2, 3]).save(f"{tmp_path}/full")
    ops.monolith_table_track_touched(saved.handle, capacity=10)
    write(saved, 2.0, [2])
    saved.evict(0)
    save_touched(SimpleNamespace(table=saved.handle), f"{tmp_path}/delta", "SNAPPY")

    names = [f"{tmp_path}/full", f"{tmp_path}/delta"]
    restored = make_set("changed", {"a": 2, "b": 3, "c": 2}, c=entry.AdamOptimizer())
    for handed, message in (
        ([], "does not fit table [bc]"),
        (["b"], "does not fit table c"),
        (["c"], "does not fit table b"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            restore_changed(restored.handle, names, handed, compression="SNAPPY")
        assert restored.sizes().numpy().tolist() == [0, 0, 0]
    restore_changed(restored.handle, names, ["b"], ["c"], compression="SNAPPY")
    assert restored.sizes().numpy().tolist() == [3, 0, 3]
    rows = restored.lookup({"a": [1, 2, 3], "c": [1, 2, 3]})
    assert rows["a"].numpy()[:, 0].tolist() == rows["c"].numpy()[:, 0].tolist() == [1, 2, 1]
    # As if the rows had just been assigned to a table with this optimizer.
    fresh = make_set("changed_fresh", {"c": 2}, c=entry.AdamOptimizer())
    fresh = fresh.assign({"c": ([1], [[1.0, 1.0]])})
    (entry_now,), (entry_fresh,) = (
        [EntryDump.FromString(t.lookup_entry({"c": [1]})["c"].numpy()[0])]
        for t in (restored, fresh)
    )
    assert entry_now.opt == entry_fresh.opt


def test_names_of_changed_tables_are_checked(tmp_path):
    table = make_table("changed_names")
    fill(table, [1], 1.0).save(f"{tmp_path}/full")
    name = "MonolithHashTable_touched_tables_changed_names"
    for names, message in (
        ((["other"], []), "has no table other"),
        (([name], [name]), "twice"),
        (([name, name], []), "twice"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            restore_changed(table.table, [f"{tmp_path}/full"], *names)
    assert table.lookup([1]).numpy().tolist() == [[1]]
    restore_changed(table.table, [f"{tmp_path}/full"], [name])
    assert table.size() == 0


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0], "one number per basename, 2, got 1"),
        ([1, 2], "must start at 0"),
        ([0, 2], "must start at 0 and rise by 0 or 1, entry 1 is 2"),
        ([-1, 0], "must not be negative"),
        ([1, 0], "must start at 0"),
    ],
)
def test_bad_layers_are_refused(layers, message):
    table = make_table("layers")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_table_restore_layers(table.table, ["a", "b"], layers)


def test_bad_servers_are_refused(tmp_path):
    table = make_table("bad_servers")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, num_servers\), got 2 of 2"):
        ops.monolith_table_restore_layers(table.table, ["a"], [0], server=2, num_servers=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one basename"):
        ops.monolith_table_restore_layers(
            table.table, tf.zeros([0], tf.string), tf.zeros([0], tf.int64)
        )


def test_tables_that_do_not_track_say_so(tmp_path):
    table = make_table("not_tracked")
    for call in (
        lambda: ops.monolith_table_gather_touched(table.table),
        lambda: ops.monolith_table_save_touched(table.table, f"{tmp_path}/x"),
        lambda: ops.monolith_table_forget_touched(table.table),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="MonolithTableTrackTouched"):
            call()


def test_tracking_twice_keeps_what_is_known():
    table = make_table("twice")
    ops.monolith_table_track_touched(table.table, capacity=10)
    fill(table, [1, 2], 1.0)
    ops.monolith_table_track_touched(table.table, capacity=10)
    gathered = ops.monolith_table_gather_touched(table.table)
    assert (int(gathered.num_ids), bool(gathered.complete)) == (2, True)


@pytest.mark.usefixtures("graph_mode")
def test_rows_that_change_during_a_save_are_in_the_next(tmp_path):
    table = single.test_hash_table(1, name_suffix="t")
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    write = table.assign_add(ids, tf.ones([tf.size(ids), 1])).as_op()
    tables = touched.TouchedTables(capacity=100)
    with tf.compat.v1.Session() as session:
        tables.track(session)
        session.run(write, {ids: [1, 2]})
        assert tables.gather(session) == (2, True)
        session.run(write, {ids: [2, 3]})
        tables.save(session, f"{tmp_path}/a/")
        tables.forget(session)
        assert tables.gather(session) == (2, True)
