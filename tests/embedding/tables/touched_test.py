"""The ops behind incremental saves and restores: layers, servers, bad arguments."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding.tables import single, touched
from monolith.native import ops


def make_table(name):
    return single.test_hash_table(1, name_suffix=f"touched_tables_{name}", use_adagrad=True)


def fill(table, ids, value):
    return table.assign(ids, np.full([len(ids), 1], value, np.float32))


def save_touched(table, basename):
    ops.monolith_table_gather_touched(table.table)
    ops.monolith_table_save_touched(table.table, basename)
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
