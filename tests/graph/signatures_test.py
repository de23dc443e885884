"""Inputs and outputs of exported models."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph.signatures import PredictOutput, ServingInputReceiver, get_export_outputs

pytestmark = pytest.mark.usefixtures("graph_mode")


class TestPredictOutput:
    def test_a_tensor_is_called_output(self):
        tensor = tf.constant([1.0])
        assert PredictOutput(tensor).outputs == {"output": tensor}

    def test_names_stay(self):
        outputs = {"ctr": tf.constant([1.0]), "cvr": tf.constant([2.0])}
        assert PredictOutput(outputs).outputs == outputs

    @pytest.mark.parametrize(
        ("outputs", "problem"),
        [
            ({1: "tensor"}, "An output must have a string as its name, got 1"),
            ({"a": "text"}, "An output must be a tensor, got 'text' for 'a'"),
            (None, "An output must be a tensor, got None for 'output'"),
        ],
    )
    def test_what_is_wrong_is_named(self, outputs, problem):
        if outputs == {1: "tensor"}:
            outputs = {1: tf.constant(1)}
        with pytest.raises(errors.ConfigError, match=problem):
            PredictOutput(outputs)

    def test_signature(self):
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        signature = PredictOutput({"twice": tf.identity(x, name="y")}).as_signature_def({"in": x})
        assert signature.method_name == "tensorflow/serving/predict"
        assert signature.inputs["in"].name == "x:0"
        assert [d.size for d in signature.inputs["in"].tensor_shape.dim] == [-1, 2]
        assert signature.outputs["twice"].name == "y:0"


class TestServingInputReceiver:
    def test_single_tensors_get_names(self):
        x = tf.compat.v1.placeholder(tf.string, [None])
        receiver = ServingInputReceiver(x, x)
        assert receiver.features == {"feature": x}
        assert receiver.receiver_tensors == {"input": x}

    def test_features_can_be_anything_that_the_model_takes(self):
        ids = tf.ragged.constant([[1], [2, 3]])
        receiver = ServingInputReceiver({"ids": ids, "nested": [ids]}, {})
        assert receiver.features["ids"] is ids

    def test_nothing_to_receive(self):
        receiver = ServingInputReceiver({})
        assert (receiver.features, receiver.receiver_tensors) == ({}, {})

    def test_receivers_must_be_tensors(self):
        with pytest.raises(errors.ConfigError, match="A receiver must be a tensor, got 3"):
            ServingInputReceiver({}, {"a": 3})


class TestGetExportOutputs:
    def test_several_need_a_default(self):
        outputs = {name: PredictOutput(tf.constant(1)) for name in ("a", "b")}
        with pytest.raises(ValueError, match=r"must be called 'serving_default', .*got \['a', 'b'"):
            get_export_outputs(outputs, None)
        outputs["serving_default"] = outputs["a"]
        assert get_export_outputs(outputs, None) == outputs

    @pytest.mark.parametrize("bad", [[], tf.no_op])
    def test_must_be_a_dictionary(self, bad):
        with pytest.raises(ValueError, match="export_outputs must be a dictionary from names"):
            get_export_outputs(bad, None)

    def test_values_must_be_outputs(self):
        with pytest.raises(ValueError, match=r"export_outputs\['a'\] must be a PredictOutput"):
            get_export_outputs({"a": tf.constant(1)}, None)
