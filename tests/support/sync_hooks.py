"""What a rank does in the test of the hooks that act in all ranks at once."""

import datetime
import pathlib

import tensorflow as tf
from support.sync_tasks import write

from monolith.embedding.tables import single
from monolith.graph import collectives
from monolith.proto import parameter_sync_pb2
from monolith.training.hooks import sync_training


class Calls:
    """Stands for a timer, and notes what is asked of it.

    Attributes:
        names: What was.
    """

    def __init__(self):
        self.names = []

    def __getattr__(self, name):
        return lambda: self.names.append(name)


class Client:
    """Notes for which model rows would be sent.

    Attributes:
        models: The names.
    """

    def __init__(self):
        self.models = set()

    def create_sync_op(self, config):
        return tf.compat.v1.py_func(self._send, [config], tf.string)

    def _send(self, text):
        self.models.add(parameter_sync_pb2.ClientConfig.FromString(text).model_name)
        return text


class Backend:
    def get_sync_targets(self, name):
        return name, ["localhost:1"]


def run_hooks(directory):
    """Runs steps with all hooks until one of them stops the ranks.

    The directory of rank 0 has the files of an operator; the other ranks have none.
    """
    collectives.init(timeout_sec=60.0)
    model_dir = str(pathlib.Path(directory, f"model-{collectives.rank()}"))
    dump, online, limit, client = Calls(), Calls(), Calls(), Client()
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        table = single.test_hash_table(1, name_suffix="user")
        update = table.assign_add(tf.constant([1, 2], tf.int64), [[1.0], [2.0]]).as_op()
        with tf.control_dependencies([update, collectives.allreduce(tf.ones([]))]):
            train_op = tf.compat.v1.assign_add(step, 1)
            # The data of the other ranks is older.
            age = 0 if collectives.rank() == 0 else 500
            count = tf.compat.v1.get_variable("count", initializer=tf.constant(1000, tf.int64))
            time = tf.compat.v1.assign_add(count, 1) - age
        tf.compat.v1.add_to_collection(sync_training.REQ_TIME_COLLECTION, time)
        hooks = [
            sync_training.SyncTrainingForceDumpHook(
                model_dir, dump, 1, get_time=lambda: datetime.datetime(2026, 1, 1, 3)
            ),
            sync_training.SyncTrainingSaverControlHook(f"{directory}/model-0", online, 1),
            sync_training.ReqTimeControlDumpHook(model_dir, limit, 1),
            sync_training.ParameterSyncHook(Backend(), collectives.rank(), client=client),
            sync_training.SyncTrainingInfoHook(),
            tf.compat.v1.train.CheckpointSaverHook(
                f"{model_dir}/saved",
                save_steps=4,
                listeners=[sync_training.SyncTrainingBarrierSaverListener()],
            ),
        ]
        config = tf.compat.v1.ConfigProto()
        collectives.update_session_config(config)
        with tf.compat.v1.train.MonitoredTrainingSession(
            collectives.get_session_target(), config=config, hooks=hooks
        ) as session:
            num_steps = 0
            while not session.should_stop():
                session.run([train_op, time])
                num_steps += 1
    found = {"dump": dump.names, "online": online.names, "limit": limit.names}
    write(directory, "found", {**found, "steps": num_steps, "models": sorted(client.models)})
    collectives.shutdown()
