"""What a model function hands back.

Covers monolith/graph/mode_keys.py.
"""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import PredictOutput
from monolith.graph.spec import GraphSpec

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_spec(mode=ModeKeys.TRAIN, **fields):
    needed = {"loss": tf.constant(1.0), "train_op": tf.no_op(), "predictions": tf.constant([1.0])}
    return GraphSpec(mode, **{**needed, **fields})


def test_fields():
    assert GraphSpec._fields == (
        "mode",
        "predictions",
        "loss",
        "train_op",
        "eval_metric_ops",
        "export_outputs",
        "training_chief_hooks",
        "training_hooks",
        "scaffold",
        "evaluation_hooks",
        "prediction_hooks",
    )


@pytest.mark.parametrize(
    "name", ["training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks"]
)
class TestHooks:
    def test_become_tuples(self, name):
        hook = v1.train.SessionRunHook()
        assert getattr(make_spec(), name) == ()
        assert getattr(make_spec(**{name: [hook]}), name) == (hook,)
        assert getattr(make_spec(**{name: None}), name) == ()

    def test_must_be_hooks(self, name):
        with pytest.raises(ValueError, match=f"{name} must be hooks, instances of"):
            make_spec(**{name: [1]})


class TestWhatAModeNeeds:
    @pytest.mark.parametrize(
        ("mode", "missing"),
        [
            (ModeKeys.TRAIN, "loss"),
            (ModeKeys.TRAIN, "train_op"),
            (ModeKeys.EVAL, "loss"),
            (ModeKeys.PREDICT, "predictions"),
        ],
    )
    def test_missing(self, mode, missing):
        with pytest.raises(ValueError, match=f"Missing {missing}: a model function must give it"):
            make_spec(mode, **{missing: None})

    @pytest.mark.parametrize(
        ("mode", "fields"),
        [
            (ModeKeys.TRAIN, ["predictions"]),
            (ModeKeys.EVAL, ["predictions", "train_op"]),
            (ModeKeys.PREDICT, ["loss", "train_op"]),
        ],
    )
    def test_the_rest_may_be_missing(self, mode, fields):
        make_spec(mode, **dict.fromkeys(fields))

    def test_unknown_mode(self):
        with pytest.raises(ValueError, match=r"mode must be one of .*got 'training'"):
            make_spec("training")


class TestLoss:
    def test_a_scalar_is_kept(self):
        loss = tf.constant(1.0)
        assert make_spec(loss=loss).loss is loss

    @pytest.mark.parametrize("shape", [[1], [1, 1], None])
    def test_one_element_becomes_a_scalar(self, shape):
        loss = v1.placeholder(tf.float32, shape)
        assert make_spec(loss=loss).loss.shape == []

    @pytest.mark.parametrize("shape", [[2], [None], [1, None]])
    def test_several_are_refused(self, shape):
        with pytest.raises(errors.ConfigError, match="must be one number, got a tensor of shape"):
            make_spec(loss=v1.placeholder(tf.float32, shape))


class TestExportOutputs:
    def test_all_predictions_by_default(self):
        predictions = {"a": tf.constant([1]), "b": tf.constant([2])}
        spec = make_spec(ModeKeys.PREDICT, predictions=predictions)
        assert list(spec.export_outputs) == ["serving_default"]
        assert spec.export_outputs["serving_default"].outputs == predictions

    def test_only_for_predictions(self):
        assert make_spec(ModeKeys.TRAIN).export_outputs is None

    def test_a_bare_tensor_is_called_output(self):
        tensor = tf.constant([1])
        spec = make_spec(ModeKeys.PREDICT, predictions=tensor)
        assert spec.export_outputs["serving_default"].outputs == {"output": tensor}

    def test_a_single_output_is_the_default_too(self):
        output = PredictOutput(tf.constant([1]))
        spec = make_spec(ModeKeys.PREDICT, export_outputs={"mine": output})
        assert spec.export_outputs == {"mine": output, "serving_default": output}


class TestMetrics:
    def test_default(self):
        assert make_spec().eval_metric_ops == {}

    def test_must_be_pairs(self):
        with pytest.raises(ValueError, match=r"eval_metric_ops\['auc'\] must be a pair of value"):
            make_spec(eval_metric_ops={"auc": tf.constant(1.0)})


class TestReplace:
    def test_fields_are_replaced_and_normalised(self):
        hook = v1.train.SessionRunHook()
        spec = make_spec()
        replaced = spec._replace(training_hooks=[hook])
        assert isinstance(replaced, GraphSpec)
        assert replaced.training_hooks == (hook,)
        assert replaced.loss is spec.loss
        assert replaced.scaffold is spec.scaffold
        assert spec.training_hooks == ()

    def test_hooks_can_be_put_before_those_of_the_model(self):
        first, second = v1.train.SessionRunHook(), v1.train.SessionRunHook()
        spec = make_spec(training_hooks=[second])
        spec = spec._replace(training_hooks=(first,) + spec.training_hooks)
        assert spec.training_hooks == (first, second)

    def test_the_mode_stays(self):
        spec = make_spec()
        assert spec._replace(mode=ModeKeys.TRAIN).mode == ModeKeys.TRAIN
        with pytest.raises(ValueError, match="cannot be changed, it is 'train'; got 'eval'"):
            spec._replace(mode=ModeKeys.EVAL)

    def test_unknown_field(self):
        with pytest.raises(ValueError, match=r"has no \['hooks'\]; its fields are"):
            make_spec()._replace(hooks=[])

    def test_it_is_checked_again(self):
        with pytest.raises(ValueError, match="Missing loss"):
            make_spec()._replace(loss=None)


def test_scaffold():
    scaffold = v1.train.Scaffold()
    assert make_spec(scaffold=scaffold).scaffold is scaffold
    assert isinstance(make_spec().scaffold, v1.train.Scaffold)
