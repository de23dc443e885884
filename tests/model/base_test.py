"""What a model builds in each mode, and on which device."""

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from support.models import LABEL, Model, X, build, linear_model_fn, make_features, with_model_fn

from monolith import errors
from monolith.graph import export_mode
from monolith.graph.mode_keys import ModeKeys
from monolith.model import base

pytestmark = pytest.mark.usefixtures("graph_mode")

FLAGS = flags.FLAGS


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class TestTrain:
    def test_one_step(self):
        spec = build(with_model_fn(linear_model_fn), make_features())
        w = tf.compat.v1.trainable_variables()[0]
        with tf.compat.v1.train.MonitoredSession() as session:
            _, loss = session.run([spec.train_op, spec.loss])
            value, step = session.run([w, tf.compat.v1.train.get_global_step()])
        pred = sigmoid(X)
        assert loss == pytest.approx(np.square(pred - LABEL).sum(), rel=1e-5)
        gradient = (2 * (pred - LABEL) * pred * (1 - pred) * X).sum()
        assert value == pytest.approx(1 - 0.1 * gradient, rel=1e-5)
        assert step == 1

    def test_clip_norm_and_weight_decay(self):
        made = with_model_fn(linear_model_fn, clip_norm=0.01, dense_weight_decay=0.5)
        spec = build(made, make_features())
        with tf.compat.v1.train.MonitoredSession() as session:
            session.run(spec.train_op)
            value = session.run(tf.compat.v1.trainable_variables()[0])
        pred = sigmoid(X)
        sign = np.sign((2 * (pred - LABEL) * pred * (1 - pred) * X).sum())
        assert value == pytest.approx(1 - 0.1 * (0.01 * sign + 0.5 * 1.0), rel=1e-5)

    def test_extra_losses_are_added(self):
        def model_fn(self, features, mode):
            spec = linear_model_fn(self, features, mode)
            self.add_loss(tf.constant(10.0))
            self.add_loss([tf.constant([20.0]), 30.0])
            return spec

        spec = build(with_model_fn(model_fn), make_features())
        with tf.compat.v1.train.MonitoredSession() as session:
            loss = session.run(spec.loss)
        assert loss == pytest.approx(np.square(sigmoid(X) - LABEL).sum() + 60, rel=1e-5)

    def test_losses_of_one_graph_do_not_reach_the_next(self):
        made = with_model_fn(linear_model_fn)
        with tf.Graph().as_default():
            made.add_loss(1.0)
        assert made.losses == []

    def test_moving_averages_run_before_the_gradients(self):
        average = tf.Variable(0.0, trainable=False)

        def model_fn(self, features, mode):
            average.assign_sub(-1.0, name="AssignMovingAvg")
            return linear_model_fn(self, features, mode)

        spec = build(with_model_fn(model_fn), make_features())
        with tf.compat.v1.train.MonitoredSession() as session:
            session.run(spec.train_op)
            assert session.run(average) == 1.0

    def test_hooks_of_the_graph(self):
        hook = tf.compat.v1.train.SessionRunHook()

        def model_fn(self, features, mode):
            self.add_training_hook(hook)
            return linear_model_fn(self, features, mode)

        made = with_model_fn(model_fn)
        assert build(made, make_features()).training_hooks == (hook,)

    def test_hook_that_writes_samples_comes_once(self):
        kafka = type("KafkaMetricHook", (tf.compat.v1.train.SessionRunHook,), {})
        made = with_model_fn(linear_model_fn)
        for hook in (kafka(), kafka(), tf.compat.v1.train.SessionRunHook()):
            made.add_training_hook(hook)
        assert len(made._training_hooks) == 2

    def test_tuple_with_a_default_optimizer(self):
        def model_fn(self, features, mode):
            spec = linear_model_fn(self, features, mode)
            self._default_dense_optimizer = spec.optimizer
            return spec.label, spec.loss, spec.pred

        assert build(with_model_fn(model_fn), make_features()).predictions.keys() == {"ctr_head"}

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"optimizer": None}, "dense_optimizer not found! model_fn of Ranking gave none; set"),
            ({"loss": None}, "model_fn of Ranking gave no loss; set EstimatorSpec"),
            ({"loss": [1.0, 2.0]}, r"must be one number, got a tensor of shape \(2,\); reduce it"),
        ],
    )
    def test_bad_specs(self, fields, message):
        def model_fn(self, features, mode):
            return linear_model_fn(self, features, mode)._replace(**fields)

        with pytest.raises(errors.ConfigError, match=message):
            build(with_model_fn(model_fn), make_features())

    def test_forgotten_return(self):
        with pytest.raises(errors.ConfigError, match=r"must return an EstimatorSpec.* got None"):
            build(with_model_fn(lambda self, features, mode: None), make_features())

    def test_input_fn_that_returns_nothing(self):
        made = type("Ranking", (Model,), {"input_fn": lambda self, mode: None})()
        with pytest.raises(
            errors.ConfigError, match="input_fn of Ranking returned nothing in mode"
        ):
            made.create_input_fn(ModeKeys.TRAIN)()

    @pytest.mark.parametrize("name", ["deep_insight", "kafka_metrics", "file_metrics"])
    def test_samples_for_a_service(self, name):
        made = with_model_fn(linear_model_fn, **{f"metrics.enable_{name}": True})
        with pytest.raises(errors.ConfigError, match=f"metrics.enable_{name}` sends samples"):
            made.create_model_fn()


class TestModes:
    @pytest.mark.parametrize(
        ("own", "asked", "expected"),
        [
            (ModeKeys.TRAIN, ModeKeys.TRAIN, ModeKeys.TRAIN),
            (ModeKeys.EVAL, ModeKeys.TRAIN, ModeKeys.EVAL),
            (ModeKeys.TRAIN, ModeKeys.PREDICT, ModeKeys.PREDICT),
            (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.EVAL),
        ],
    )
    def test_what_the_user_sees(self, own, asked, expected):
        seen = []

        def input_fn(self, mode):
            seen.append(mode)
            return Model.input_fn(self, mode)

        made = type("Ranking", (Model,), {"input_fn": input_fn})()
        made.mode = own
        made.create_input_fn(asked)()
        assert seen == [expected]

    def test_unknown_mode(self):
        with pytest.raises(ValueError, match=r"model error! .* got 'test'"):
            build(with_model_fn(linear_model_fn), make_features(), "test")


class TestDeviceContext:
    @pytest.fixture
    def _sync(self, monkeypatch):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        FLAGS["enable_sync_training"].value = True
        FLAGS.mark_as_parsed()

    def test_nothing_happens_alone(self):
        with base.MonolithDeviceCtx(base.DeviceCtxType.MODEL_FN):
            assert tf.constant(1).device == ""

    @pytest.mark.usefixtures("_sync")
    @pytest.mark.parametrize(
        "ctx_type",
        [
            base.DeviceCtxType.INPUT_FN,
            base.DeviceCtxType.MODEL_FN,
            base.DeviceCtxType.INPUT_RECEIVER_FN,
            base.DeviceCtxType.OTHERS,
        ],
    )
    def test_ops_are_placed_in_synchronous_training(self, ctx_type):
        with base.MonolithDeviceCtx(ctx_type):
            assert tf.constant(1).device == "/device:CPU:0"

    @pytest.mark.usefixtures("_sync")
    def test_nothing_happens_in_an_export(self):
        with (
            export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
            base.MonolithDeviceCtx(base.DeviceCtxType.MODEL_FN),
        ):
            assert tf.constant(1).device == ""

    def test_unknown_type(self):
        with (
            pytest.raises(errors.ConfigError, match="A device context is one of input_fn"),
            base.MonolithDeviceCtx("model"),
        ):
            pass
