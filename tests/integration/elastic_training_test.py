"""A whole training goes on with another number of parameter servers, and from deltas."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.embedding.tables import multi, single
from monolith.graph.run_config import GraphRunConfig
from monolith.model.task import NativeTask
from monolith.proto import embedding_hash_table_pb2 as table_proto
from monolith.training import cpu
from monolith.training.graph.estimator import GraphEstimator, GraphSpec, ModeKeys

pytestmark = pytest.mark.usefixtures("graph_mode")

IDS = np.arange(-30, 90)
# Large enough to be cut: a part of a variable has at most 128 KiB.
KERNEL_SHAPE = [20000, 4]
DIM = 4


class SmallTask(NativeTask):
    """One feature, and a variable that is cut into parts when there are several servers."""

    def create_input_fn(self, mode):
        def input_fn():
            ids = tf.data.Dataset.from_tensor_slices(IDS).batch(10, drop_remainder=True).repeat()
            return ids.map(lambda batch: {"user": tf.RaggedTensor.from_tensor(batch[:, None])})

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                FeatureSlotConfig(
                    name="user", default_vec_optimizer=entry.AdagradOptimizer(learning_rate=0.1)
                )
            )
            slice_ = slot.add_feature_slice(DIM)
            column = FeatureColumnV1(slot, "user")
            embedding = column.embedding_lookup(slice_)
            kernel = tf.compat.v1.get_variable(
                "kernel",
                KERNEL_SHAPE,
                initializer=tf.compat.v1.random_uniform_initializer(seed=1),
                use_resource=True,
            )
            kernel = tf.convert_to_tensor(kernel)
            # New rows are zeros, with which the kernel would learn nothing.
            logits = tf.matmul(embedding + 1.0, kernel, transpose_b=True)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"sum": tf.reduce_sum(logits, axis=1)})
            loss = tf.reduce_mean(tf.square(1.0 - logits))
            rows = column.get_all_embeddings_concat()
            variables = tf.compat.v1.trainable_variables()
            grads = tf.gradients(loss, [rows, *variables])
            step = tf.compat.v1.train.get_or_create_global_step()
            update = self.ctx.apply_embedding_gradients([(grads[0], rows)])
            optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
            with tf.control_dependencies([update]):
                train_op = optimizer.apply_gradients(
                    zip(grads[1:], variables, strict=True), global_step=step
                )
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


class ReadStateHook(tf.compat.v1.train.SessionRunHook):
    """Reads rows and variables when a session was created, and after each step.

    With `kill_at`, it ends the training there as a crash would: without a last save.
    """

    class Killed(Exception):
        pass

    def __init__(self, kill_at=None):
        self._kill_at = kill_at
        self.num_parts = 0
        self.states = {}

    def begin(self):
        singles = tf.compat.v1.get_collection(single._HASH_TABLE_GRAPH_KEY)
        multis = tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY)
        self._entries = [table.lookup_entry(IDS) for table in singles]
        self._entries += [t.lookup_entry({"user": IDS})["user"] for t in multis]
        self._variables = tf.compat.v1.global_variables()
        self._step = tf.compat.v1.train.get_global_step()

    def after_create_session(self, session, coord):
        self.restored = self._read(session)

    def after_run(self, run_context, run_values):
        self.last = self._read(run_context.session)
        step = int(run_context.session.run(self._step))
        self.states[step] = self.last
        if self._kill_at == step:
            raise self.Killed

    def _read(self, session):
        rows, state = {}, {}
        for entries in session.run(self._entries):
            for row_id, dump in zip(IDS, entries, strict=True):
                if dump:
                    assert row_id not in rows
                    rows[int(row_id)] = dump
        parts = {}
        for variable, value in zip(self._variables, session.run(self._variables), strict=True):
            info = variable._save_slice_info
            name = info.full_name if info else variable.op.name
            parts.setdefault(name, {})[info.var_offset[0] if info else 0] = np.atleast_1d(value)
        self.num_parts = len(parts["kernel"])
        for name, by_start in parts.items():
            state[name] = np.concatenate([by_start[start] for start in sorted(by_start)]).tobytes()
        return rows, state


def train(model_dir, num_ps, steps, hook, native=True, **train_params):
    params = SmallTask.params().set(
        name="small", **{f"train.{name}": value for name, value in train_params.items()}
    )
    conf = cpu.CpuTrainingConfig(
        num_ps=num_ps,
        save_checkpoints_steps=1000,
        use_native_multi_hash_table=native,
        enable_variable_partition=True,
        enable_embedding_postpush=False,
        embedding_prefetch_capacity=0,
    )
    return cpu.local_train_internal(params, conf, str(model_dir), steps, user_hooks=[hook])


@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
def test_servers_come_and_go(tmp_path, native):
    hook = ReadStateHook()
    train(tmp_path, 3, 4, hook, native)
    assert hook.num_parts == 3
    assert len(hook.last[0]) == 40
    for name in ("kernel", "kernel/Adam", "kernel/Adam_1"):
        assert np.count_nonzero(np.frombuffer(hook.last[1][name], np.float32)) > 70000, name
    for num_ps, num_parts in ((2, 2), (0, 1), (1, 1)):
        before, hook = hook, ReadStateHook()
        train(tmp_path, num_ps, 1, hook, native)
        assert hook.num_parts == num_parts
        assert hook.restored == before.last


def test_crashed_training_goes_on_from_its_deltas(tmp_path):
    crashed = ReadStateHook(kill_at=5)
    with pytest.raises(ReadStateHook.Killed):
        train(tmp_path, 2, 100, crashed, incremental_save_steps=2)
    base = tf.train.latest_checkpoint(str(tmp_path))
    assert base.endswith("model.ckpt-2")  # The first save of a session is full.
    assert [delta.step for delta in delta_chain.read(base)] == [4]

    resumed = ReadStateHook()
    estimator = train(tmp_path, 3, 1, resumed)
    assert resumed.restored == crashed.states[4]
    assert len(resumed.restored[0]) == 40  # Four steps of ten ids.
    # The last step of the crashed one is lost, and is done again.
    assert resumed.last[1]["global_step"] == crashed.last[1]["global_step"]
    assert estimator.latest_checkpoint().endswith("model.ckpt-5")


def test_no_deltas_by_default(tmp_path):
    train(tmp_path, 0, 3, ReadStateHook())
    assert SmallTask.params().train.incremental_save_steps is None
    assert SmallTask.params().train.incremental_save_secs is None
    assert not list(tmp_path.glob("*.delta*"))


def test_predictions_are_those_of_the_last_delta(tmp_path):
    crashed = ReadStateHook(kill_at=5)
    with pytest.raises(ReadStateHook.Killed):
        train(tmp_path, 0, 100, crashed, incremental_save_steps=2)
    params = SmallTask.params().set(name="small")
    training = cpu.CpuTraining(cpu.CpuTrainingConfig(), params.instantiate())
    estimator = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=str(tmp_path))
    )
    input_fn = training.create_input_fn(ModeKeys.PREDICT)
    predicted = [p["sum"] for p in estimator.predict(lambda: input_fn().take(1))]
    # Of the delta, neither of the full checkpoint nor of the step after the delta.
    assert {
        step: np.allclose(predicted, compute_sums(crashed.states[step]), rtol=1e-4)
        for step in (2, 4, 5)
    } == {2: False, 4: True, 5: False}


def compute_sums(state):
    """Returns what the model predicts for the first batch, computed from saved rows."""
    rows, variables = state
    kernel = np.frombuffer(variables["kernel"], np.float32).reshape(KERNEL_SHAPE)
    embeddings = [
        table_proto.EntryDump.FromString(rows[int(row_id)]).num if int(row_id) in rows else [0] * 4
        for row_id in IDS[:10]
    ]
    return (np.asarray(embeddings) + 1) @ kernel.sum(axis=0, dtype=np.float64)
