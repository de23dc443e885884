"""Lost parameter servers come back from the checkpoint, the others keep what they hold."""

import os

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2

from monolith.native_training import (
    basic_restore_hook,
    hash_table_ops,
    multi_hash_table_ops,
    save_utils,
    utils,
)
from monolith.testing import generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")


def _generate_config(servers, job_name=utils.PS_JOB_NAME):
    """A cluster of these servers, for sessions that share what the servers hold."""
    job = cluster_pb2.JobDef(name=job_name)
    for i, server in enumerate(servers):
        job.tasks[i] = server.target.removeprefix("grpc://")
    config = tf.compat.v1.ConfigProto(cluster_def=cluster_pb2.ClusterDef(job=[job]))
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return config


def _get_id_tensor(x):
    return tf.constant(x, dtype=tf.int64)


class PartialRestoreTest(tf.test.TestCase):
    def build_graph(self):
        with tf.device(utils.ps_device(0)):
            global_step = tf.compat.v1.train.get_or_create_global_step()
            op = tf.compat.v1.assign_add(global_step, 1)
            v0 = tf.compat.v1.get_variable("v0", initializer=0, use_resource=True)
            op0 = tf.compat.v1.assign_add(v0, 1)
            table0 = hash_table_ops.test_hash_table(1, name_suffix="0")
            add0 = table0.assign_add(_get_id_tensor([0]), [[1.0]])
            lookup0 = table0.lookup(_get_id_tensor([0]))
        with tf.device(utils.ps_device(1)):
            v1 = tf.compat.v1.get_variable("v1", initializer=0, use_resource=True)
            op1 = tf.compat.v1.assign_add(v1, 1)
            table1 = hash_table_ops.test_hash_table(1, name_suffix="1")
            add1 = table1.assign_add(_get_id_tensor([0]), [[1.0]])
            lookup1 = table1.lookup(_get_id_tensor([0]))
        train_op = tf.group(op, op0, op1, add0.as_op(), add1.as_op())
        return train_op, v0, v1, lookup0, lookup1

    def make_hooks(self, model_dir, ps_monitor):
        basename = os.path.join(model_dir, "model.ckpt")
        saver = save_utils.PartialRecoverySaver(sharded=True, ps_monitor=ps_monitor)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
        saver_hook = save_utils.NoFirstSaveCheckpointSaverHook(
            model_dir,
            save_steps=1000,
            saver=saver,
            listeners=[hash_table_ops.HashTableCheckpointSaverListener(basename)],
        )
        restore_hook = basic_restore_hook.CheckpointRestorerHook(
            [hash_table_ops.HashTableCheckpointRestorerListener(basename, ps_monitor)]
        )
        # Restore before the saver hook marks the servers as set up.
        return [restore_hook, saver_hook]

    def test_restore_with_ps_monitor(self):
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], "with_ps_monitor")
        train_op, *values = self.build_graph()
        hooks = self.make_hooks(model_dir, save_utils.PsMonitor(2))
        server1 = tf.distribute.Server.create_local_server()
        server2 = tf.distribute.Server.create_local_server()
        config = _generate_config([server1, server2])
        with open_session(server1, config, hooks, model_dir) as session:
            session.run(train_op)
        self.assertIsNotNone(tf.train.latest_checkpoint(model_dir))

        with tf.compat.v1.Session(server1.target, config=config) as session:
            session.run(train_op)
            self.assertAllEqual(session.run(values), [2, 2, [[2]], [[2]]])

        # All servers are new: everything comes from the checkpoint.
        server3 = tf.distribute.Server.create_local_server()
        server4 = tf.distribute.Server.create_local_server()
        new_config = _generate_config([server3, server4])
        with open_session(server3, new_config, hooks, model_dir) as session:
            self.assertAllEqual(session.run(values), [1, 1, [[1]], [[1]]])

        # Server 0 is the old one, server 1 was lost and replaced.
        server5 = tf.distribute.Server.create_local_server()
        mixed_config = _generate_config([server1, server5])
        with open_session(server1, mixed_config, hooks, model_dir) as session:
            self.assertAllEqual(session.run(values), [2, 1, [[2]], [[1]]])

    def test_restore_without_ps_monitor(self):
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], "without_ps_monitor")
        train_op, *values = self.build_graph()
        hooks = self.make_hooks(model_dir, None)
        servers = [tf.distribute.Server.create_local_server() for _ in range(2)]
        config = _generate_config(servers)
        with open_session(servers[0], config, hooks, model_dir) as session:
            session.run(train_op)

        with tf.compat.v1.Session(servers[0].target, config=config) as session:
            session.run(train_op)
            self.assertAllEqual(session.run(values), [2, 2, [[2]], [[2]]])

        with open_session(servers[0], config, hooks, model_dir) as session:
            self.assertAllEqual(session.run(values), [1, 1, [[1]], [[1]]])


def open_session(server, config, hooks, model_dir):
    return tf.compat.v1.train.MonitoredTrainingSession(
        server.target,
        config=config,
        checkpoint_dir=model_dir,
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
    )


class TestPartialRestore:
    """What the historical cases leave open, on two servers of which one is lost."""

    def save_and_lose_server_1(self, build, model_dir, make_listeners=lambda basename, monitor: ()):
        """Trains one step, saves, trains another, and replaces server 1 by a new one.

        Returns what opens a session on the servers that are there then.
        """
        monitor = save_utils.PsMonitor(2)
        train_op = build()
        basename = os.path.join(model_dir, "model.ckpt")
        saver_listener, restorer_listener = make_listeners(basename, monitor) or (None, None)
        saver = save_utils.PartialRecoverySaver(sharded=True, ps_monitor=monitor)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
        hooks = [
            basic_restore_hook.CheckpointRestorerHook(
                [restorer_listener] if restorer_listener else []
            ),
            save_utils.NoFirstSaveCheckpointSaverHook(
                model_dir,
                save_steps=1000,
                saver=saver,
                listeners=[saver_listener] if saver_listener else [],
            ),
        ]
        servers = [tf.distribute.Server.create_local_server() for _ in range(2)]
        config = _generate_config(servers)
        with open_session(servers[0], config, hooks, model_dir) as session:
            session.run(train_op)
        with tf.compat.v1.Session(servers[0].target, config=config) as session:
            session.run(train_op)
        servers[1] = tf.distribute.Server.create_local_server()
        return lambda: open_session(servers[0], _generate_config(servers), hooks, model_dir)

    def test_multi_hash_tables(self, tmp_path):
        lookups = []

        def build():
            step = tf.compat.v1.train.get_or_create_global_step()
            ops = [tf.compat.v1.assign_add(step, 1)]
            for i in range(2):
                with tf.device(utils.ps_device(i)):
                    table = multi_hash_table_ops.MultiHashTable.from_configs(
                        {"user": generate_test_hash_table_config(1)}, name_suffix=str(i)
                    )
                    ids = _get_id_tensor([7])
                    ops.append(table.assign_add({"user": (ids, [[1.0]])}).as_op())
                    lookups.append(table.lookup({"user": ids})["user"])
            return tf.group(*ops)

        reopen = self.save_and_lose_server_1(
            build,
            str(tmp_path),
            lambda basename, monitor: (
                multi_hash_table_ops.MultiHashTableCheckpointSaverListener(basename),
                multi_hash_table_ops.MultiHashTableCheckpointRestorerListener(basename, monitor),
            ),
        )
        with reopen() as session:
            assert [row.tolist() for row in session.run(lookups)] == [[[2]], [[1]]]

    def test_variables_on_devices_without_a_type(self, tmp_path):
        """`replica_device_setter` says `/job:ps/task:0`, the monitor adds `/device:CPU:0`."""
        variables = []

        def build():
            setter = tf.compat.v1.train.replica_device_setter(2, worker_device="/job:ps/task:0")
            with tf.compat.v1.device(setter):
                step = tf.compat.v1.train.get_or_create_global_step()
                for i in range(3):
                    variables.append(
                        tf.compat.v1.get_variable(f"v{i}", initializer=0, use_resource=True)
                    )
            # Step and variables take turns on the servers.
            assert [v.device for v in variables] == [f"/job:ps/task:{i}" for i in (1, 0, 1)]
            return tf.group(*(tf.compat.v1.assign_add(v, 1) for v in [step, *variables]))

        reopen = self.save_and_lose_server_1(build, str(tmp_path))
        with reopen() as session:
            assert session.run(variables) == [1, 2, 1]

    def test_no_server_was_lost(self, tmp_path):
        variables = []
        monitor = save_utils.PsMonitor(1)
        with tf.device(utils.ps_device(0)):
            variables.append(tf.compat.v1.get_variable("v", initializer=1, use_resource=True))
            bump = tf.compat.v1.assign_add(variables[0], 1)
        saver = save_utils.PartialRecoverySaver(sharded=True, ps_monitor=monitor)
        server = tf.distribute.Server.create_local_server()
        with tf.compat.v1.Session(server.target, config=_generate_config([server])) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            path = saver.save(session, str(tmp_path / "m"))
            saver.setup_ps_initialized_state(session)
            session.run(bump)
            saver.restore(session, path)
            assert session.run(variables) == [2]
            with pytest.raises(ValueError, match="not a valid checkpoint"):
                saver.restore(session, str(tmp_path / "other"))
            with pytest.raises(ValueError, match="save_path when it is None"):
                saver.restore(session, None)

    def test_checkpoint_without_a_variable_of_the_lost_server(self, tmp_path):
        monitor = save_utils.PsMonitor(2)
        for i in range(2):
            with tf.device(utils.ps_device(i)):
                tf.compat.v1.get_variable(f"v{i}", initializer=1, use_resource=True)
        variables = tf.compat.v1.global_variables()
        saver = save_utils.PartialRecoverySaver(sharded=True, ps_monitor=monitor)
        servers = [tf.distribute.Server.create_local_server() for _ in range(2)]
        with tf.compat.v1.Session(servers[0].target, config=_generate_config(servers)) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            saver.setup_ps_initialized_state(session)
            path = save_utils.PartialRecoverySaver(variables[:1]).save(session, str(tmp_path / "m"))
        servers[1] = tf.distribute.Server.create_local_server()
        with (
            tf.compat.v1.Session(servers[0].target, config=_generate_config(servers)) as session,
            pytest.raises(
                tf.errors.NotFoundError,
                match=r"(?s)a Variable name or other graph key that is missing.*Key v1 not found",
            ),
        ):
            saver.restore(session, path)
