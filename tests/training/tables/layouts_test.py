"""Training with fused layouts gives what training without them gives, with fewer ops."""

import os

import numpy as np
import pytest
import tensorflow as tf
from support.layout_models import STEPS, Ranking, predict

from monolith import errors
from monolith.native_training import cpu_training

pytestmark = pytest.mark.usefixtures("graph_mode")


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
