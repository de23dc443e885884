"""The historical `save_utils`: its names, and checkpoints of a whole model directory."""

import logging
import os
import threading

import pytest
import tensorflow as tf

from monolith.checkpoint import paths, state
from monolith.checkpoint import saver as saving
from monolith.native_training import (
    basic_restore_hook,
    hash_table_ops,
    multi_hash_table_ops,
    save_utils,
)
from monolith.testing import generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1


class SaveUtilsTest(tf.test.TestCase):
    def make_basename(self, name):
        path = os.path.join(os.environ["TEST_TMPDIR"], name)
        os.makedirs(path)
        return os.path.join(path, "model.ckpt")

    def test_get_ckpt_steps(self):
        basename = self.make_basename("test_get_ckpt_steps")
        helper = save_utils.SaveHelper(basename)
        self.assertEqual(helper.get_existing_checkpoint_steps(), set())
        v1.get_variable("v", initializer=1.0, use_resource=True)
        saver = save_utils.PartialRecoverySaver()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in (10, 20, 300):
                path = saver.save(session, basename, global_step=step)
                self.assertEqual(path, helper.get_ckpt_prefix(step))
        self.assertEqual(helper.get_existing_checkpoint_steps(), {10, 20, 300})

    def test_exempt_checkpoints(self):
        basename = self.make_basename("test_exempt_checkpoints")
        helper = save_utils.SaveHelper(basename)
        v1.get_variable("v", initializer=1.0, use_resource=True)
        saver = save_utils.PartialRecoverySaver(
            max_to_keep=3, exempt_checkpoint_paths=["model.ckpt-10", "model.ckpt-20"]
        )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in (10, 20, 30, 40, 50):
                saver.save(session, basename, global_step=step)
            self.assertEqual(helper.get_existing_checkpoint_steps(), {10, 20, 30, 40, 50})
            saver.save(session, basename, global_step=60)
        self.assertEqual(helper.get_existing_checkpoint_steps(), {10, 20, 40, 50, 60})
        on_disk = tf.io.gfile.glob(f"{basename}-*.index")
        self.assertEqual(
            {helper.get_global_step_value(path.removesuffix(".index")) for path in on_disk},
            {10, 20, 40, 50, 60},
        )


class TestDeletePath:
    """Tables go with the checkpoint they belong to."""

    def test_old_tables_cannot_be_restored_and_new_ones_can(self, tmp_path):
        basename = str(tmp_path / "model.ckpt")
        global_step = v1.train.get_or_create_global_step()
        set_step = v1.placeholder(tf.int64, [])
        assign_step = v1.assign(global_step, set_step)
        table = hash_table_ops.test_hash_table(1)
        add = table.assign_add([0], [[1.0]]).as_op()
        remove = table.assign_add([0], [[-1.0]]).as_op()
        rows = table.lookup([0])
        restorer = hash_table_ops.HashTableCheckpointRestorerListener(basename)
        saver = save_utils.PartialRecoverySaver(max_to_keep=1)
        hook = save_utils.NoFirstSaveCheckpointSaverHook(
            str(tmp_path),
            save_steps=1,
            saver=saver,
            listeners=[hash_table_ops.HashTableCheckpointSaverListener(basename)],
        )
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(add)
            session.run(assign_step, {set_step: 1})
            assert (tmp_path / "model.ckpt-1.assets").is_dir()
            session.run(assign_step, {set_step: 10})
        assert not list(tmp_path.glob("model.ckpt-1.*"))

        with v1.Session() as session:
            session.run(remove)
            with pytest.raises((ValueError, tf.errors.OpError), match=r"model\.ckpt-1\.assets"):
                restorer._restore_from_path_prefix(session, f"{basename}-1")
            assert session.run(rows).tolist() == [[-1]]
            restorer._restore_from_path_prefix(session, f"{basename}-10")
            assert session.run(rows).tolist() == [[1]]


class TestRoundTrip:
    """A run that was ended and one that went on are the same afterwards."""

    def build(self, model_dir):
        basename = os.path.join(model_dir, "model.ckpt")
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", initializer=1.0, use_resource=True)
        value = weight.read_value()
        table = hash_table_ops.test_hash_table(1, learning_rate=0.1, use_adagrad=True)
        row = table.lookup([7])
        loss = value * tf.reduce_sum(row) + tf.square(value - 3.0)
        grad_value, grad_row = tf.gradients(loss, [value, row])
        with tf.control_dependencies([grad_value, grad_row]):
            train = tf.group(
                v1.assign_sub(weight, 0.1 * grad_value),
                table.apply_gradients([7], grad_row, step).as_op(),
                v1.assign_add(step, 1),
            )
        saver = save_utils.PartialRecoverySaver(sharded=True, model_dir=model_dir)
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        hooks = [
            basic_restore_hook.CheckpointRestorerHook(
                [hash_table_ops.HashTableCheckpointRestorerListener(basename)]
            ),
            save_utils.NoFirstSaveCheckpointSaverHook(
                model_dir,
                save_steps=3,
                saver=saver,
                listeners=[hash_table_ops.HashTableCheckpointSaverListener(basename)],
            ),
        ]
        return hooks, train, [step, weight, row]

    def run(self, model_dir, num_steps):
        with tf.Graph().as_default():
            hooks, train, values = self.build(model_dir)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=model_dir, hooks=hooks, save_checkpoint_secs=None
            ) as session:
                for _ in range(num_steps):
                    session.run(train)
                return [value.tolist() for value in session.run(values)]

    def test_training_goes_on_where_it_ended(self, tmp_path):
        expected = self.run(str(tmp_path / "whole"), 7)
        assert expected[0] == 7
        self.run(str(tmp_path / "parts"), 4)
        self.run(str(tmp_path / "parts"), 2)
        assert self.run(str(tmp_path / "parts"), 1) == expected
        assert sorted(path.name for path in (tmp_path / "parts").glob("*.index")) == [
            "model.ckpt-3.index",
            "model.ckpt-4.index",
            "model.ckpt-6.index",
            "model.ckpt-7.index",
        ]


def test_saving_tables_logs_no_warnings(tmp_path, caplog):
    """What is logged at each save of a run of months has to be worth reading."""
    table = multi_hash_table_ops.MultiHashTable.from_configs(
        {"user": generate_test_hash_table_config(1)}
    )
    v1.train.get_or_create_global_step()
    saver = save_utils.PartialRecoverySaver()
    with v1.Session() as session, caplog.at_level(logging.WARNING):
        session.run([table.initializer, v1.global_variables_initializer()])
        path = saver.save(session, str(tmp_path / "m"))
    # Threads that have nothing to do with a save may log meanwhile; those of a save are in these.
    homes = ("monolith.checkpoint", "monolith.embedding")
    found = [
        record.getMessage()
        for record in caplog.records
        if record.thread == threading.get_ident() or record.name.startswith(homes)
    ]
    assert found == []
    with tf.Graph().as_default():
        v1.train.import_meta_graph(f"{path}.meta")
        assert len(v1.get_collection("monolith_multi_hash_tables")) == 1


def test_historical_names_are_those_of_the_new_homes():
    assert save_utils is saving
    assert save_utils.SaveHelper is paths.SaveHelper
    assert save_utils.get_monolith_checkpoint_state is state.get_monolith_checkpoint_state
    assert save_utils._ckpt_state_cache_map is state._ckpt_state_cache_map
