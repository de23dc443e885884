"""Metrics and predictions of a model, and the files they go to."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from support.models import Model, X, build, linear_model_fn, make_features, with_model_fn

from monolith import errors
from monolith.graph import export_mode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import ServingInputReceiver
from monolith.model.ranking import EstimatorSpec

pytestmark = pytest.mark.usefixtures("graph_mode")

FLAGS = flags.FLAGS


def auc(label, pred):
    """The share of pairs of a positive and a negative example that are in the right order."""
    positive, negative = pred[label == 1], pred[label == 0]
    order = np.sign(positive[:, None] - negative[None, :])
    return float(np.mean((order + 1) / 2))


class TestMetrics:
    def run_metrics(self, spec_fields, batches):
        """Returns the metrics of an evaluation over batches of (label, pred)."""
        label = tf.compat.v1.placeholder(tf.float32, [None, *np.shape(batches[0][0])[1:]])
        pred = tf.compat.v1.placeholder(tf.as_dtype(batches[0][1].dtype), [None])

        def model_fn(self, features, mode):
            return EstimatorSpec(label, pred, "head", tf.constant(0.0), **spec_fields)

        spec = build(with_model_fn(model_fn), {}, ModeKeys.EVAL)
        updates = [update for _, update in spec.eval_metric_ops.values()]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.local_variables_initializer())
            for labels, preds in batches:
                session.run(updates, {label: labels, pred: preds})
            return session.run({name: value for name, (value, _) in spec.eval_metric_ops.items()})

    def test_auc(self):
        rng = np.random.default_rng(0)
        label = rng.integers(0, 2, 1000)
        pred = np.clip(0.5 + 0.1 * (label - 0.5) + 0.05 * rng.normal(size=1000), 0, 1)
        pred = pred.astype(np.float32)
        batches = [(label[:400], pred[:400]), (label[400:], pred[400:])]
        metrics = self.run_metrics({}, batches)
        assert metrics == {"head_auc": pytest.approx(auc(label, pred), abs=2e-3)}

    def test_mse(self):
        rng = np.random.default_rng(0)
        label, pred = rng.normal(size=[2, 100]).astype(np.float32)
        metrics = self.run_metrics({"classification": False}, [(label, pred), (label + 1, pred)])
        expected = np.mean([np.square(label - pred), np.square(label + 1 - pred)])
        assert metrics == {"head_mse": pytest.approx(expected, rel=1e-5)}

    @pytest.mark.parametrize(
        "label", [np.array([0, 1, 2, 2]), np.eye(3)[[0, 1, 2, 2]]], ids=["classes", "one_hot"]
    )
    def test_accuracy_of_classes(self, label):
        metrics = self.run_metrics({}, [(label, np.array([0, 1, 2, 0]))])
        assert metrics == {"head_accuracy": 0.75}

    def test_column_of_labels(self):
        label, pred = np.array([[1.0], [0.0]]), np.array([0.9, 0.1], np.float32)
        assert self.run_metrics({}, [(label, pred)]) == {"head_auc": pytest.approx(1.0)}

    def test_label_of_another_size(self):
        batch = (np.zeros([4]), np.zeros(2, np.float32))
        with pytest.raises(tf.errors.InvalidArgumentError, match="label of head `head` must have"):
            self.run_metrics({}, [batch])

    def test_logits_instead_of_probabilities(self):
        batch = (np.zeros(2), np.array([-3.0, 2.0], np.float32))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"give tf.sigmoid\(logits\), or"):
            self.run_metrics({}, [batch])

    def test_head_without_label_has_no_metric(self):
        def model_fn(self, features, mode):
            return EstimatorSpec(None, tf.zeros([2]), "ctr", tf.constant(0.0))

        assert build(with_model_fn(model_fn), {}, ModeKeys.EVAL).eval_metric_ops == {}

    def test_several_heads(self):
        def model_fn(self, features, mode):
            zeros = tf.zeros([2])
            return EstimatorSpec(
                [zeros, zeros],
                [zeros, zeros],
                ["click", "time"],
                tf.constant(0.0),
                classification=[True, False],
            )

        spec = build(with_model_fn(model_fn), {}, ModeKeys.EVAL)
        assert list(spec.eval_metric_ops) == ["click_auc", "time_mse"]

    @pytest.mark.parametrize(
        ("flag", "param", "expected"),
        [(True, None, False), (False, None, True), (True, False, True), (False, True, False)],
    )
    def test_training_has_metrics_if_asked_for(self, flag, param, expected):
        FLAGS["disable_native_metrics"].value = flag
        spec = build(with_model_fn(linear_model_fn, disable_native_metrics=param), make_features())
        assert bool(tf.compat.v1.local_variables()) is expected
        assert len(spec.training_hooks) == int(expected)

    def test_training_prints_metrics(self, capfd):
        spec = build(with_model_fn(linear_model_fn, disable_native_metrics=False), make_features())
        hooks = list(spec.training_hooks)
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(spec.train_op)
        # 0.5 is a positive example between the negative -1 and 2: one of two pairs is right.
        assert "training, step 1: ctr_auc = 0.5" in capfd.readouterr().err


class TestPredict:
    def test_single_head(self):
        spec = build(with_model_fn(linear_model_fn), make_features(), ModeKeys.PREDICT)
        assert spec.predictions.op.type == "Sigmoid"
        assert list(spec.export_outputs) == ["serving_default"]
        assert list(spec.export_outputs["serving_default"].outputs) == ["output"]

    def test_several_heads(self):
        def model_fn(self, features, mode):
            return EstimatorSpec(None, {"click": features["x"], "like": features["x"]})

        spec = build(with_model_fn(model_fn), make_features(), ModeKeys.PREDICT)
        assert list(spec.predictions) == ["click", "like"]

    def test_extra_outputs_are_signatures_of_an_export(self):
        def model_fn(self, features, mode):
            self.add_extra_output("hidden", features["x"], head_name="ctr", head_type="vector")
            return linear_model_fn(self, features, mode)

        made = with_model_fn(model_fn)
        spec = build(made, make_features(), ModeKeys.PREDICT)
        assert list(spec.export_outputs) == ["serving_default"]
        assert tf.compat.v1.get_collection("signature_name") == ["hidden"]
        assert tf.compat.v1.get_collection("head_name") == ["ctr"]
        assert tf.compat.v1.get_collection("head_type") == ["vector"]
        with (
            tf.Graph().as_default(),
            export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
        ):
            spec = build(made, make_features(), ModeKeys.PREDICT)
        assert list(spec.export_outputs) == ["serving_default", "hidden"]

    @pytest.mark.parametrize("name", ["hidden", "serving_default"])
    def test_output_twice(self, name):
        made = with_model_fn(linear_model_fn)
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            made.add_extra_output("hidden", tf.zeros([1]))
            with pytest.raises(KeyError, match=f"key {name} exists!"):
                made.add_extra_output(name, tf.zeros([1]))

    @pytest.mark.parametrize("mode", [ModeKeys.PREDICT, ModeKeys.EVAL])
    def test_file_of_predictions(self, tmp_path, mode):
        def model_fn(self, features, mode):
            return EstimatorSpec(
                features["label"],
                {"first": features["x"], "second": features["x"] + 1},
                loss=tf.constant(0.0),
                classification=False,
            )

        features = {
            **make_features(),
            "uid": tf.constant([7, 8, 9]),
            "name": tf.constant(["a", "b", "c"]),
            "pair": tf.constant([[1, 2], [3, 4], [5, 6]]),
        }
        features["label"] = [features["label"]] * 2
        made = with_model_fn(
            model_fn, output_path=str(tmp_path / "out"), output_fields="uid, name,pair"
        )
        spec = build(made, features, mode)
        is_eval = mode == ModeKeys.EVAL
        hooks = spec.evaluation_hooks if is_eval else spec.prediction_hooks
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(spec.loss if is_eval else spec.predictions)
        lines = pathlib.Path(tmp_path / "out" / "part-00000").read_text().splitlines()
        columns = [line.split("\t") for line in lines]
        assert [c[:3] for c in columns] == [["7", "a", "1,2"], ["8", "b", "3,4"], ["9", "c", "5,6"]]
        np.testing.assert_allclose(np.array([c[3:] for c in columns], float), np.c_[X, X + 1])

    def test_field_that_is_not_there(self, tmp_path):
        made = with_model_fn(linear_model_fn, output_path=str(tmp_path), output_fields="uid")
        with pytest.raises(errors.ConfigError, match=r"output_fields names 'uid'.* are: label, x"):
            build(made, make_features(), ModeKeys.PREDICT)

    def test_receiver_function(self):
        def receiver_fn(self):
            x = tf.compat.v1.placeholder(tf.float32, [None])
            return ServingInputReceiver({"x": x}, {"x": x})

        exportable = type("Exportable", (Model,), {"serving_input_receiver_fn": receiver_fn})()
        receiver = exportable.create_serving_input_receiver_fn()()
        assert list(receiver.receiver_tensors) == ["x"]

    def test_no_receiver_function(self):
        assert Model().create_serving_input_receiver_fn() is None
        with pytest.raises(NotImplementedError, match="Model cannot be exported without serving"):
            Model().serving_input_receiver_fn()
