"""Counting the ids of each slot beside a checkpoint."""

import os

import pytest
import tensorflow as tf
from google.protobuf import text_format

from monolith.embedding.tables import multi, single
from monolith.native_training.hooks import ckpt_info
from monolith.proto import ckpt_info_pb2
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config
from monolith.training.hooks import checkpoint_info

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_id(slot, number):
    return slot << 48 | number


def read_counts(model_dir, step):
    with open(os.path.join(model_dir, f"ckpt.info-{step}")) as file:
        info = text_format.Parse(file.read(), ckpt_info_pb2.CkptInfo())
    assert not info.feature_counts
    return dict(info.slot_counts)


def add(table, ids):
    return table.assign_add(tf.constant(ids, tf.int64), tf.zeros([len(ids), 1])).as_op()


def test_historical_path():
    assert ckpt_info is checkpoint_info


class FidCountListenerTest(tf.test.TestCase):
    def test_basic(self):
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], "test_basic")
        table = single.test_hash_table(1)
        fill = add(table, [1])
        listener = checkpoint_info.FidSlotCountSaverListener(model_dir)
        with tf.compat.v1.train.SingularMonitoredSession() as session:
            session.run(fill)
            listener.before_save(session.raw_session(), 0)
        self.assertEqual(read_counts(model_dir, 0)[0], 1)


def test_counts_of_all_tables_are_added_up(tmp_path):
    tables = [single.test_hash_table(1, name_suffix=f"t{i}") for i in range(3)]
    slots = [0, 1, 1, 7, 7, 7]
    fills = [
        add(table, [make_id(slot, 100 * t + i) for i, slot in enumerate(slots)])
        for t, table in enumerate(tables)
    ]
    listener = checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    with tf.compat.v1.train.SingularMonitoredSession() as session:
        session.run(fills[0])
        listener.before_save(session.raw_session(), 1)
        session.run(fills)
        for _ in range(5):  # Tables on one device must not overwrite each other's counts.
            listener.before_save(session.raw_session(), 2)
            assert read_counts(tmp_path, 2) == {0: 3, 1: 6, 7: 9}
    assert read_counts(tmp_path, 1) == {0: 1, 1: 2, 7: 3}


def test_more_rows_than_a_portion(tmp_path):
    table = single.test_hash_table(1)
    fill = add(table, [make_id(i % 3, i) for i in range(9000)])
    listener = checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    with tf.compat.v1.train.SingularMonitoredSession() as session:
        session.run(fill)
        listener.before_save(session.raw_session(), 1)
    assert read_counts(tmp_path, 1) == {0: 3000, 1: 3000, 2: 3000}


def test_largest_slot(tmp_path):
    table = single.test_hash_table(1)
    fill = add(table, [make_id(32767, 5)])  # 15 bits.
    listener = checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    with tf.compat.v1.train.SingularMonitoredSession() as session:
        session.run(fill)
        listener.before_save(session.raw_session(), 1)
    assert read_counts(tmp_path, 1) == {32767: 1}


def test_tables_on_two_servers(tmp_path):
    servers, config = create_test_ps_cluster(2)
    fills = []
    for i in range(2):
        with tf.device(f"/job:ps/task:{i}/device:CPU:0"):
            table = single.test_hash_table(1, name_suffix=f"on_server_{i}")
            fills.append(add(table, [make_id(i, n) for n in range(5)] + [make_id(9, i)]))
    listener = checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    creator = tf.compat.v1.train.ChiefSessionCreator(master=servers[0].target, config=config)
    with tf.compat.v1.train.MonitoredSession(creator) as session:
        session.run(fills)
        listener.before_save(session, 4)
    assert read_counts(tmp_path, 4) == {0: 5, 1: 5, 9: 2}


def test_counter_is_no_part_of_the_model(tmp_path):
    single.test_hash_table(1)
    checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    assert tf.compat.v1.global_variables() == []
    assert tf.compat.v1.local_variables() == []


def test_with_a_saver_hook(tmp_path):
    step = tf.compat.v1.train.get_or_create_global_step()
    table = single.test_hash_table(1)
    with tf.control_dependencies([add(table, [1, 2])]):
        train = tf.compat.v1.assign_add(step, 1)
    hook = tf.compat.v1.train.CheckpointSaverHook(
        str(tmp_path),
        save_steps=2,
        listeners=[checkpoint_info.FidSlotCountSaverListener(str(tmp_path))],
    )
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(2):
            session.run(train)
    assert read_counts(tmp_path, 0) == {}
    assert read_counts(tmp_path, 2) == {0: 2}


def test_graph_without_tables(tmp_path):
    message = (
        "Unable to find hash tables. It may be caused by creating the listener before calling "
        "model_fn"
    )
    with pytest.raises(ValueError, match=message):
        checkpoint_info.FidSlotCountSaverListener(str(tmp_path))


@pytest.mark.parametrize("with_single_table", [False, True])
def test_multi_hash_tables_write_their_own_counts(tmp_path, with_single_table):
    multi.MultiHashTable.from_configs({"slot0": generate_test_hash_table_config(1)})
    if with_single_table:
        single.test_hash_table(1)
    listener = checkpoint_info.FidSlotCountSaverListener(str(tmp_path))
    with tf.compat.v1.Session() as session:
        listener.before_save(session, 1)
    assert os.listdir(tmp_path) == []
