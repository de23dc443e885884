"""Models of which `tests/data/checkpoint_before` keeps what an earlier version has saved.

The numbers of each follow from the step alone. Everything is imported by its historical path, so
that the version of then could run this file:

    PYTHONPATH=<checkout of that version> python tests/support/saved_before.py OUTPUT_DIRECTORY
"""

import importlib
import os
import sys

import tensorflow as tf

from monolith.native_training import (
    basic_restore_hook,
    cpu_training,
    entry,
    feature,
    hash_filter_ops,
    hash_table_ops,
    multi_hash_table_ops,
    native_task,
    save_utils,
)
from monolith.native_training.estimator import ModeKeys
from monolith.native_training.runtime.hash_table import embedding_hash_table_pb2

try:
    from monolith.graph.spec import GraphSpec
except ImportError:
    from monolith.training.graph_estimator import EstimatorSpec as GraphSpec

v1 = tf.compat.v1

FULL_STEP = 1
LAST_STEP = 3

# What each step of `Tables` updates: id 1 always, one more id once.
IDS_OF_STEP = {1: [1, 2], 2: [1, 3], 3: [1, -4], 4: [1, 5]}
GRADIENT = [1.0, 2.0]

# Which ids the filter of `Tables` counts; an id passes when it comes after `THRESHOLD` others.
THRESHOLD = 3
COUNTED_TWICE = 0x1234_5678_9ABC_DEF0
COUNTED_ONCE = 0x0FED_CBA9_8765_4321


class Tables:
    """A variable, a single table, a multi table of two and a filter, each with its listeners.

    Step n subtracts `GRADIENT` from `dense` and from the rows of `IDS_OF_STEP[n]`; the table
    `adagrad` divides it by the root of 1 and the squares so far.
    """

    def __init__(self, model_dir: str) -> None:
        basename = os.path.join(model_dir, "model.ckpt")
        self.step = v1.train.get_or_create_global_step()
        self.dense = v1.get_variable("dense", initializer=[0.0, 0.0], use_resource=True)
        # With a slash, which no file can have in its name.
        table = hash_table_ops.test_hash_table(2, name_suffix="user/clicks")
        multi = multi_hash_table_ops.MultiHashTable.from_configs(
            {
                "sgd": _make_config(entry.SgdOptimizer()),
                "adagrad": _make_config(entry.AdagradOptimizer(initial_accumulator_value=1.0)),
            },
            name_suffix="multi",
        )
        thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=THRESHOLD
        )
        hash_filter = hash_filter_ops.create_hash_filter(300, 5, thresholds.SerializeToString())

        self.ids = v1.placeholder(tf.int64, [None])
        gradients = tf.tile([GRADIENT], [tf.size(self.ids), 1])
        updates = {"sgd": (self.ids, gradients), "adagrad": (self.ids, gradients)}
        new_step = v1.assign_add(self.step, 1)
        self.train_op = tf.group(
            v1.assign_sub(self.dense, GRADIENT),
            table.apply_gradients(self.ids, gradients, new_step).as_op(),
            multi.apply_gradients(updates, new_step).as_op(),
        )
        self.rows = {
            "single": table.lookup(self.ids),
            **multi.lookup({"sgd": self.ids, "adagrad": self.ids}),
        }
        self.size = table.size()
        ones = tf.ones([tf.size(self.ids), 1])
        passed = hash_filter_ops.intercept_gradient(hash_filter, self.ids, ones)
        self.count = tf.reshape(tf.gradients(passed, ones)[0], [-1]) > 0

        self.saver = save_utils.PartialRecoverySaver(sharded=True, model_dir=model_dir)
        v1.add_to_collection(v1.GraphKeys.SAVERS, self.saver)
        self.saver_hook = save_utils.NoFirstSaveCheckpointSaverHook(
            model_dir,
            save_steps=1 << 30,
            saver=self.saver,
            listeners=[
                hash_table_ops.HashTableCheckpointSaverListener(basename),
                multi_hash_table_ops.MultiHashTableCheckpointSaverListener(basename),
                hash_filter_ops.HashFilterCheckpointSaverListener(basename, [hash_filter], True),
            ],
        )
        restorers = [
            hash_table_ops.HashTableCheckpointRestorerListener(basename),
            multi_hash_table_ops.MultiHashTableCheckpointRestorerListener(basename),
            hash_filter_ops.HashFilterCheckpointRestorerListener(basename, [hash_filter], True),
        ]
        self.restore_hook = basic_restore_hook.CheckpointRestorerHook(restorers)

    def open_session(self, model_dir: str, *hooks: v1.train.SessionRunHook):
        return v1.train.MonitoredTrainingSession(
            checkpoint_dir=model_dir,
            hooks=[self.restore_hook, *hooks],
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
        )

    def train(self, session: v1.Session, step: int) -> None:
        session.run(self.train_op, {self.ids: IDS_OF_STEP[step]})


# Ids of `Job`: rows of the first slot come at once, those of the second after `JOB_THRESHOLD`.
JOB_IDS = {"shown": 1 << 48 | 7, "clicked": 2 << 48 | 7}
JOB_THRESHOLD = 4
JOB_LEARNING_RATE = 0.5


class Job(native_task.NativeTask):
    """A training job whose batches are all the same: one id in each of two slots, with SGD.

    The loss is the sum of all numbers, so that every gradient is 1.
    """

    def create_input_fn(self, mode):
        def input_fn():
            ids = {
                name: tf.ragged.constant([[row_id]], tf.int64) for name, row_id in JOB_IDS.items()
            }
            return tf.data.Dataset.from_tensors(ids).repeat(100)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, embeddings = [], {}
            for slot_id, name in enumerate(JOB_IDS, 1):
                slot = self.ctx.create_feature_slot(
                    feature.FeatureSlotConfig(
                        name=name,
                        slot_id=slot_id,
                        occurrence_threshold=JOB_THRESHOLD if name == "clicked" else 0,
                        default_vec_initializer=entry.ZerosInitializer(),
                        default_vec_optimizer=entry.SgdOptimizer(JOB_LEARNING_RATE),
                    )
                )
                vector = slot.add_feature_slice(2)
                columns.append(feature.FeatureColumnV1(slot, name))
                embeddings[name] = columns[-1].embedding_lookup(vector)
            bias = v1.get_variable("bias", initializer=[0.0], use_resource=True)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={**embeddings, "bias": bias[None]})
            loss = tf.reduce_sum(bias) + tf.add_n([tf.reduce_sum(e) for e in embeddings.values()])
            rows = [column.get_all_embeddings_concat() for column in columns]
            gradients = tf.gradients(loss, [*rows, bias])
            update = self.ctx.apply_embedding_gradients(zip(gradients[:-1], rows, strict=True))
            optimizer = v1.train.GradientDescentOptimizer(JOB_LEARNING_RATE)
            with tf.control_dependencies([update]):
                train_op = optimizer.apply_gradients(
                    [(gradients[-1], bias)], v1.train.get_or_create_global_step()
                )
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


def train_job(model_dir: str, native: bool, steps: int, hooks=(), **train_params):
    """Trains `Job` as a user would; `native` chooses one multi table over single ones."""
    params = Job.params().set(
        name="job", **{f"train.{name}": value for name, value in train_params.items()}
    )
    conf = cpu_training.CpuTrainingConfig(
        save_checkpoints_steps=1000,
        use_native_multi_hash_table=native,
        enable_embedding_postpush=False,
        embedding_prefetch_capacity=0,
    )
    return cpu_training.local_train_internal(params, conf, model_dir, steps, user_hooks=list(hooks))


def _make_config(optimizer: entry.Optimizer) -> entry.HashTableConfigInstance:
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(config)
    config.entry_config.segments.append(
        entry.CombineAsSegment(2, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor())
    )
    return entry.HashTableConfigInstance(config, [1.0])


class _KillHook(v1.train.SessionRunHook):
    """Ends a job without its last save, as a crash does."""

    class Killed(Exception):
        pass

    def begin(self) -> None:
        self._step = v1.train.get_global_step()

    def after_run(self, run_context, run_values) -> None:
        if int(run_context.session.run(self._step)) == LAST_STEP:
            raise self.Killed


def _make_tables(model_dir: str) -> None:
    incremental = importlib.import_module("monolith.checkpoint.incremental")
    with tf.Graph().as_default():
        model = Tables(model_dir)
        delta_hook = incremental.IncrementalCheckpointSaverHook(
            model.saver_hook, save_steps=1 << 30
        )
        session = model.open_session(model_dir, model.saver_hook, delta_hook)._tf_sess()
        for step in range(1, LAST_STEP + 1):
            model.train(session, step)
            if step == FULL_STEP:
                session.run(model.count, {model.ids: [COUNTED_TWICE, COUNTED_ONCE]})
                session.run(model.count, {model.ids: [COUNTED_TWICE]})
            delta_hook.save(session, step)
        session.close()


def _make_job(model_dir: str, native: bool) -> None:
    try:
        train_job(model_dir, native, 100, [_KillHook()], incremental_save_steps=1)
    except _KillHook.Killed:
        return
    raise RuntimeError("The job was not killed.")


def _keep_what_a_restore_needs(model_dir: str) -> None:
    """Removes graphs, which are large and name paths, and makes paths relative."""
    manifest = importlib.import_module("monolith.checkpoint.manifest")
    state = importlib.import_module("monolith.checkpoint.state")
    newest = tf.train.latest_checkpoint(model_dir)
    state.write_list(model_dir, newest, [newest], relative=True)
    os.remove(newest + ".meta")
    manifest.write(newest)
    for name in os.listdir(model_dir):
        if name.startswith(("events.", "graph.pbtxt", "meta_graph")):
            os.remove(os.path.join(model_dir, name))


if __name__ == "__main__":
    tf.compat.v1.disable_eager_execution()
    for name, make in {
        "tables": _make_tables,
        "job_multi": lambda directory: _make_job(directory, native=True),
        "job_single": lambda directory: _make_job(directory, native=False),
    }.items():
        directory = os.path.join(sys.argv[1], name)
        os.makedirs(directory)
        make(directory)
        _keep_what_a_restore_needs(directory)
