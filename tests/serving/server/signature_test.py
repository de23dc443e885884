"""What a function takes and gives."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from monolith.serving.server import status
from monolith.serving.server.signature import Signature, TensorSpec, format_shape


def make_definition(inputs: dict, outputs: dict) -> meta_graph_pb2.SignatureDef:
    definition = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for infos, tensors in ((definition.inputs, inputs), (definition.outputs, outputs)):
        for name, (dtype, shape) in tensors.items():
            infos[name].name = f"{name}:0"
            infos[name].dtype = dtype
            if shape is None:
                infos[name].tensor_shape.unknown_rank = True
            for dim in shape or ():
                infos[name].tensor_shape.dim.add(size=dim)
    return definition


FLOAT, INT = types_pb2.DT_FLOAT, types_pb2.DT_INT64


@pytest.fixture
def signature() -> Signature:
    definition = make_definition(
        {"x": (FLOAT, [-1, 2]), "any": (INT, None)}, {"a": (FLOAT, [-1]), "b": (FLOAT, [-1])}
    )
    return Signature("f", definition)


def test_inputs_come_in_the_order_of_their_names(signature):
    x, any_ = np.zeros([3, 2], np.float32), np.zeros([7], np.int64)
    first, second = signature.complete({"x": x, "any": any_})
    assert first is any_
    assert second is x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros([3, 2], np.float32)}, "takes the inputs 'any', 'x'; 'any' is missing"),
        ({}, "'any', 'x' is missing"),
        ({"x": np.zeros([1, 2], np.float32), "z": np.zeros(1)}, "'z' is not among them, and 'any'"),
        (
            {"x": np.zeros([3, 3], np.float32), "any": np.zeros(1, np.int64)},
            r"'x' must be of shape \[\?, 2\], got \[3, 3\]",
        ),
        (
            {"x": np.zeros([3], np.float32), "any": np.zeros(1, np.int64)},
            r"must be of shape \[\?, 2\], got \[3\]",
        ),
        (
            {"x": np.zeros([3, 2], np.float64), "any": np.zeros(1, np.int64)},
            "'x' must be of type float32, got float64",
        ),
    ],
)
def test_inputs_that_do_not_fit(signature, arrays, message):
    with pytest.raises(status.RequestError, match=message):
        signature.complete(arrays)


def test_outputs_are_chosen(signature):
    assert signature.choose_outputs([]) == ("a", "b")
    assert signature.choose_outputs(["b"]) == ("b",)
    with pytest.raises(status.RequestError, match="has no output 'c'; it has 'a', 'b'"):
        signature.choose_outputs(["c"])
    with pytest.raises(status.RequestError, match="'a' is asked for twice"):
        signature.choose_outputs(["a", "a"])


def test_an_input_may_have_a_default():
    definition = make_definition({"x": (FLOAT, [1]), "k": (INT, [])}, {"y": (FLOAT, [1])})
    definition.defaults["k"].CopyFrom(tf.make_tensor_proto(7, tf.int64))
    k, x = Signature("f", definition).complete({"x": np.ones([1], np.float32)})
    assert (k, x) == (7, 1)


def test_functions_that_cannot_be_called():
    definition = make_definition({"x": (types_pb2.DT_VARIANT, [-1])}, {"y": (FLOAT, [-1])})
    assert "variant" in Signature("f", definition).problem
    definition = make_definition({"x": (INT, [-1])}, {"y": (FLOAT, [-1])})
    definition.inputs["x"].coo_sparse.values_tensor_name = "values:0"
    assert "sparse or ragged" in Signature("f", definition).problem


def test_shapes_as_text():
    assert format_shape((None, 3)) == "[?, 3]"
    assert TensorSpec("x", "x:0", FLOAT, None).find_problem(np.zeros([2], np.float32)) is None
