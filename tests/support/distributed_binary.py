"""One member of a job that trains a small task; the tests of `distributed_train` start several.

It is the counterpart of the original's `cpu_training_distributed_test_binary`: the same flags and
cases. Members find each other by files below the test's directory.
"""

import os
import time

import tensorflow as tf
from absl import app, flags

from monolith.native_training import (
    cluster_manager,
    cpu_training,
    entry,
    feature,
    native_task,
    service_discovery,
)
from monolith.training.graph.estimator import GraphSpec

FLAGS = flags.FLAGS

DIM = 5


def define_flags():
    flags.DEFINE_integer("test_case", 0, "Which case to run.")
    flags.DEFINE_string("test_dir", None, "Directory of the test.")
    flags.DEFINE_enum("server_type", "worker", ["ps", "worker"], "Role of this process.")
    flags.DEFINE_integer("index", 0, "Index of this process in its role.")
    flags.DEFINE_integer("num_ps", 1, "Servers that take part.")
    flags.DEFINE_integer("num_workers", 1, "Workers, the chief included.")
    flags.DEFINE_integer("num_extra_ps", 0, "Servers of which the slowest are left out.")
    flags.DEFINE_integer("num_redundant_ps", 0, "Servers of which the last are left out.")
    flags.DEFINE_string("uuid", "", "Identifies the run.")
    flags.DEFINE_bool("use_native_multi_hash_table", False, "Whether tables are one resource.")


def _sleep_short():
    time.sleep(0.1)


class SyncHook(tf.compat.v1.train.SessionRunHook):
    """Has the chief wait until all workers have created their sessions."""

    def __init__(self, num_workers, index):
        self._index = index
        keys = tf.compat.v1.GraphKeys
        is_ready = tf.compat.v1.Variable(
            [False] * num_workers,
            name="sync_hook",
            trainable=False,
            use_resource=True,
            collections=[keys.LOCAL_VARIABLES if index == 0 else keys.GLOBAL_VARIABLES],
        )
        self._say_ready = tf.compat.v1.scatter_update(is_ready, index, True).op
        self._read = is_ready.read_value()

    def after_create_session(self, session, coord):
        session.run(self._say_ready)
        if self._index == 0:
            while not all(session.run(self._read)):
                _sleep_short()


class FeatureTask(native_task.NativeTask):
    """One feature with two equal ids in one batch."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("training_hooks", [], "Hooks beside those of the task itself.")
        return p

    def create_input_fn(self, mode):
        def input_fn():
            ids = tf.ragged.constant([[0, 1]], dtype=tf.int64)
            return tf.data.Dataset.from_tensors({"feature": ids})

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(feature.FeatureSlotConfig(name="slot"))
            slice_ = slot.add_feature_slice(
                DIM, entry.ZerosInitializer(), entry.AdagradOptimizer(learning_rate=0.1)
            )
            column = feature.FeatureColumnV1(slot, "feature")
            embedding = column.embedding_lookup(slice_)
            loss = tf.reduce_sum(1.0 - embedding)
            rows = column.get_all_embeddings_concat()
            grads = tf.gradients(loss, rows)
            step = tf.compat.v1.train.get_or_create_global_step()
            with tf.control_dependencies(
                [self.ctx.apply_embedding_gradients(zip(grads, [rows], strict=True))]
            ):
                train_op = step.assign_add(1).op
            hooks = [*self.p.training_hooks]
            if not is_dry_run():
                hooks.append(SyncHook(FLAGS.num_workers, FLAGS.index))
            return GraphSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)

        return model_fn


def is_dry_run():
    return getattr(tf.compat.v1.get_default_graph(), "dry_run", False)


class HostServiceDiscovery(service_discovery.ServiceDiscovery):
    """Keeps registrations in files `<base>/<name>/<index>` that hold the address."""

    def __init__(self, base_path):
        self._base_path = base_path

    def register(self, name, index, addr):
        directory = os.path.join(self._base_path, name)
        os.makedirs(directory, exist_ok=True)
        temporary = os.path.join(self._base_path, f"{name}-{index}-{os.getpid()}")
        with open(temporary, "w") as file:
            file.write(addr)
        os.replace(temporary, os.path.join(directory, str(index)))

    def deregister(self, name, index, addr):
        os.unlink(os.path.join(self._base_path, name, str(index)))

    def query(self, name):
        directory = os.path.join(self._base_path, name)
        if not os.path.isdir(directory):
            return {}
        found = {}
        for index in os.listdir(directory):
            with open(os.path.join(directory, index)) as file:
                found[int(index)] = file.read()
        return found


def test_run(params):
    """Takes part in the job as the flags say."""
    directory = os.path.join(FLAGS.test_dir, FLAGS.uuid)
    config = cpu_training.DistributedCpuTrainingConfig(
        server_type=FLAGS.server_type,
        index=FLAGS.index,
        num_ps=FLAGS.num_ps,
        num_workers=FLAGS.num_workers,
        num_extra_ps=FLAGS.num_extra_ps,
        num_redundant_ps=FLAGS.num_redundant_ps,
        model_dir=os.path.join(directory, "model"),
        uuid=FLAGS.uuid,
        use_native_multi_hash_table=FLAGS.use_native_multi_hash_table,
        enable_model_ckpt_info=True,
        retry_wait_in_secs=0,
    )
    params.train.max_pending_seconds_for_barrier = 2
    discovery = HostServiceDiscovery(os.path.join(directory, "discovery"))
    cpu_training.distributed_train(config, discovery, params)


def test0():
    """Everything goes well."""
    test_run(FeatureTask.params().set(name="feature_task"))


def test1():
    """The servers are never dismissed, so that a test can look at them."""

    def never_ends(*args, **kwargs):
        while True:
            time.sleep(1)

    cpu_training._shutdown_ps = never_ends
    test_run(FeatureTask.params().set(name="feature_task"))


class RaiseErrorHook(tf.compat.v1.train.SessionRunHook):
    """Has the first step of the process fail as one does whose server does not answer."""

    def __init__(self):
        self._has_raised = False

    def before_run(self, run_context):
        if not self._has_raised:
            self._has_raised = True
            raise tf.errors.DeadlineExceededError(None, None, "Not a real one.")


def test2():
    """A step fails once, and the worker tries again."""
    test_run(FeatureTask.params().set(name="feature_task", training_hooks=[RaiseErrorHook()]))


# Called like tests by the specification; this file is no test file, so nobody collects them.
CASES = {0: test0, 1: test1, 2: test2}


def main(argv):
    del argv
    tf.compat.v1.disable_eager_execution()
    cluster_manager._cluster_query_failure_handler = _sleep_short
    cpu_training._EXTRA_PS_BENCHMARK_SECS = 0.5
    CASES[FLAGS.test_case]()


def run(argv):
    """Runs in a process that was not started with these flags."""
    define_flags()
    FLAGS(argv)
    main(argv)


if __name__ == "__main__":
    define_flags()
    app.run(main)
