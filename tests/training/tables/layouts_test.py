"""Training with fused layouts gives what training without them gives, with fewer ops."""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.graph.mode_keys import ModeKeys
from monolith.model.ranking import EstimatorSpec, MonolithModel, get_sigmoid_loss_and_pred
from monolith.native_training import cpu_training

pytestmark = pytest.mark.usefixtures("graph_mode")

BATCH = 6
STEPS = 20
FEATURES = ("age", "city", "clicked", "item", "tags", "words")


class Ranking(MonolithModel):
    """Sums, a mean, a sequence, and two features that share a slot."""

    def input_fn(self, mode):
        rng = np.random.default_rng(5)
        num_examples = STEPS * BATCH
        data = {"label": rng.integers(0, 2, num_examples).astype(np.float32)}
        for number, name in enumerate(FEATURES):
            # Few ids, so that many repeat; none, in some examples. Those of other slots differ,
            # since merged tables have one row for equal ids.
            lengths = rng.integers(0, 4, num_examples)
            ids = rng.integers(0, 15, lengths.sum()) + 100 * (3 if name == "clicked" else number)
            data[name] = tf.RaggedTensor.from_row_lengths(ids.astype(np.int64), lengths)
        data["req_time"] = np.full([num_examples], 1_700_000_000, np.int64)
        return tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True)

    def model_fn(self, features, mode):
        for name in ("age", "city", "item", "words"):
            self.create_embedding_feature_column(name)
        self.create_embedding_feature_column("tags", combiner="reduce_mean")
        self.create_embedding_feature_column("clicked", shared_name="item", max_seq_length=2)
        settings = {
            "initializer": entry.ConstantsInitializer(0.1),
            "optimizer": entry.AdagradOptimizer(0.3, initial_accumulator_value=0.5),
        }
        bias = self.lookup_embedding_slice(
            ["age", "city", "tags"], "bias", 1, out_type="add_n", **settings
        )
        deep = self.lookup_embedding_slice(
            {"item": 3, "age": 2, "words": 4}, "deep", out_type="concat", **settings
        )
        pairs = self.lookup_embedding_slice(
            ["tags", "city"], "pair", 3, out_type="stack", **settings
        )
        (sequence,) = self.lookup_embedding_slice(["clicked"], "deep", 3, **settings)
        parts = [deep, tf.reshape(pairs, [-1, 6]), tf.reshape(sequence, [-1, 6])]
        weights = tf.compat.v1.get_variable(
            "weights", [21, 1], initializer=tf.compat.v1.constant_initializer(0.2)
        )
        hidden = tf.tanh(tf.matmul(tf.concat(parts, 1), weights))
        label = features["label"]
        loss, pred = get_sigmoid_loss_and_pred("ctr", hidden + bias, label, BATCH, mode=mode)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        return EstimatorSpec(label, pred, "ctr", loss, optimizer)

    def serving_input_receiver_fn(self):
        raise NotImplementedError


class OpCounter(tf.compat.v1.train.SessionRunHook):
    """Counts the ops of a step: those that its end, the next global step, depends on."""

    def begin(self):
        graph = tf.compat.v1.get_default_graph()
        todo = [op for op in graph.get_operations() if op.type == "AssignAddVariableOp"]
        seen = set(todo)
        assert seen
        while todo:
            op = todo.pop()
            for other in [*(x.op for x in op.inputs), *op.control_inputs]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        self.count = len(seen)


def train(model_dir, num_ps=0, native=True, fused=False, hooks=(), last_step=STEPS, **settings):
    conf = cpu_training.CpuTrainingConfig(
        num_ps=num_ps,
        use_native_multi_hash_table=native,
        enable_fused_layout=fused,
        **settings,
    )
    estimator = cpu_training.local_train_internal(
        Ranking.params(), conf, os.fspath(model_dir), steps=None, user_hooks=list(hooks)
    )
    assert estimator.get_variable_value("global_step") == last_step
    return estimator


def predict(estimator) -> np.ndarray:
    input_fn = Ranking().create_input_fn(ModeKeys.PREDICT)
    return np.concatenate([np.ravel(p) for p in estimator.predict(input_fn)])


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """Predictions, weights and the number of ops of training without fused layouts."""
    counter = OpCounter()
    with tf.Graph().as_default():
        estimator = train(tmp_path_factory.mktemp("ordinary"), hooks=[counter])
        return predict(estimator), estimator.get_variable_value("weights"), counter.count


def assert_learned(estimator, ordinary) -> None:
    predictions, weights, _ = ordinary
    assert np.std(predictions) > 0.05
    np.testing.assert_allclose(estimator.get_variable_value("weights"), weights, atol=1e-5)
    np.testing.assert_allclose(predict(estimator), predictions, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ps", "native"), [(0, False), (2, True), (2, False)], ids=["merged", "servers", "both"]
)
def test_learns_the_same(num_ps, native, ordinary, tmp_path):
    assert_learned(train(tmp_path, num_ps, native, fused=True), ordinary)


def test_learns_the_same_with_fewer_ops(ordinary, tmp_path):
    counter = OpCounter()
    assert_learned(train(tmp_path, fused=True, hooks=[counter]), ordinary)
    print(f"ops of a step: {ordinary[2]}, with fused layouts {counter.count}")
    assert counter.count < 0.8 * ordinary[2]


@pytest.mark.slow
def test_one_kind_of_training_goes_on_where_the_other_was(tmp_path):
    predictions = []
    for second in (True, False):
        for last_step, fused in ((STEPS, not second), (2 * STEPS, second)):
            with tf.Graph().as_default():
                model_dir = tmp_path / str(second)
                estimator = train(model_dir, fused=fused, last_step=last_step)
        with tf.Graph().as_default():
            predictions.append(predict(estimator))
    np.testing.assert_allclose(*predictions, atol=1e-5)


@pytest.mark.slow
def test_lookups_ahead_and_late_pushes(tmp_path):
    estimator = train(
        tmp_path, fused=True, embedding_prefetch_capacity=1, enable_embedding_postpush=True
    )
    # Rows were trained, although each of them a step or two late.
    assert np.std(predict(estimator)) > 0.05


class Direct(Ranking):
    """Looks up a slice of a column by itself."""

    def model_fn(self, features, mode):
        spec = super().model_fn(features, mode)
        column = self.create_embedding_feature_column("direct")
        column.embedding_lookup(column.feature_slot.add_feature_slice(2))
        return spec

    def input_fn(self, mode):
        return super().input_fn(mode).map(lambda x: {**x, "direct": x["age"]})


def test_a_feature_without_a_layout_is_refused(tmp_path):
    conf = cpu_training.CpuTrainingConfig(enable_fused_layout=True)
    with pytest.raises(errors.ConfigError, match="feature 'direct' is looked up without a layout"):
        cpu_training.local_train_internal(Direct.params(), conf, os.fspath(tmp_path), steps=1)
