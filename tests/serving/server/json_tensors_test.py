"""Tensors as JSON."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from monolith.serving.server import status
from monolith.serving.server.json_tensors import (
    Form,
    read_inputs,
    to_array,
    to_json,
    write_outputs,
)
from monolith.serving.server.signature import TensorSpec

FLOAT, INT, STRING, BOOL = (
    types_pb2.DT_FLOAT,
    types_pb2.DT_INT64,
    types_pb2.DT_STRING,
    types_pb2.DT_BOOL,
)


class Function:
    def __init__(self, **inputs) -> None:
        self.name = "f"
        self.inputs = {
            name: TensorSpec(name, f"{name}:0", dtype, shape)
            for name, (dtype, shape) in inputs.items()
        }


ONE = Function(x=(FLOAT, (None, 2)))
TWO = Function(ids=(INT, (None,)), text=(STRING, (None,)))
TEXT = Function(text=(STRING, (None,)))


@pytest.mark.parametrize(
    ("function", "body", "expected"),
    [
        (ONE, {"instances": [[1, 2], [3, 4]]}, {"x": [[1, 2], [3, 4]]}),
        (ONE, {"instances": [{"x": [1, 2]}]}, {"x": [[1, 2]]}),
        (ONE, {"inputs": [[1, 2], [3, 4]]}, {"x": [[1, 2], [3, 4]]}),
        (ONE, {"inputs": {"x": [[1, 2]]}}, {"x": [[1, 2]]}),
        (
            TWO,
            {"instances": [{"ids": 1, "text": "a"}, {"text": "\u00e4", "ids": 2}]},
            {"ids": [1, 2], "text": [b"a", b"\xc3\xa4"]},
        ),
        (TWO, {"inputs": {"ids": [1], "text": ["a"]}}, {"ids": [1], "text": [b"a"]}),
        (TEXT, {"instances": [{"b64": "/w=="}, "a"]}, {"text": [b"\xff", b"a"]}),
        (TEXT, {"instances": [{"text": {"b64": "/w=="}}]}, {"text": [b"\xff"]}),
        (TEXT, {"inputs": ["a"]}, {"text": [b"a"]}),
    ],
)
def test_both_forms(function, body, expected):
    arrays, form = read_inputs(body, function)
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    assert form.value in body


@pytest.mark.parametrize(
    ("function", "body", "message"),
    [
        (ONE, {}, 'either "instances"'),
        (ONE, {"instances": [[1, 2]], "inputs": [[1, 2]]}, 'either "instances"'),
        (ONE, {"instances": []}, "at least one"),
        (ONE, {"instances": {"x": 1}}, "must be a list"),
        (ONE, {"instances": None}, "must be a list"),
        (ONE, {"instances": [{"y": 1}]}, "no input 'y'; it has 'x'"),
        (ONE, {"inputs": {"y": 1}}, "no input 'y'"),
        (ONE, {"instances": [[1, 2], [3]]}, "equal lists"),
        (ONE, {"instances": [[1, 2], 3]}, "equal lists"),
        (ONE, {"instances": [1, [2, 3]]}, "must be of type float32, got .2, 3."),
        (ONE, {"instances": [["1", "2"]]}, "must be of type float32, got '1'"),
        (ONE, {"instances": [[1, None]]}, "got None"),
        (ONE, {"instances": [[1, True]]}, "got True"),
        (ONE, {"instances": [[1, 1e300]]}, "beyond float32"),
        (ONE, {"instances": [[1, 10**400]]}, "beyond float32"),
        (ONE, {"inputs": {"b64": "aa"}}, "must be of type float32"),
        (TWO, {"instances": [1]}, "several inputs, 'ids', 'text'"),
        (TWO, {"instances": [{"ids": 1, "text": "a"}, {"ids": 1}]}, "not like the first"),
        (TWO, {"instances": [{"ids": 1, "text": "a"}, 7]}, "7 is not like the first"),
        (TWO, {"inputs": {"ids": [1.0], "text": ["a"]}}, "must be of type int64, got 1.0"),
        (TWO, {"inputs": {"ids": [1 << 63], "text": ["a"]}}, "beyond int64"),
        (TEXT, {"instances": [1]}, "must be of type string, got 1"),
        (TEXT, {"instances": [{"b64": "?"}]}, "not base64"),
        (TEXT, {"instances": ["a", {"b64": 7}]}, "must be of type string"),
    ],
)
def test_what_does_not_fit(function, body, message):
    with pytest.raises(status.RequestError, match=message) as raised:
        read_inputs(body, function)
    assert raised.value.code is status.Code.INVALID_ARGUMENT
    assert len(raised.value.message) < 500


def test_deep_lists_are_refused():
    deep = 1.0
    for _ in range(40):
        deep = [deep]
    with pytest.raises(status.RequestError, match="more than 32 dimensions"):
        read_inputs({"inputs": deep}, ONE)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "float16", "bfloat16"])
def test_ranges_of_types(dtype):
    dtype = tf.dtypes.as_dtype(dtype)
    spec = TensorSpec("x", "x:0", dtype.as_datatype_enum, (None,))
    good = [0, int(dtype.max)] if dtype.is_integer else [0.5, 1]
    assert to_array(good, spec).dtype == dtype.as_numpy_dtype
    bad = int(dtype.max) + 1 if dtype.is_integer else 1e39
    with pytest.raises(status.RequestError, match=f"beyond {dtype.name}"):
        to_array([bad], spec)


def test_booleans_and_special_numbers():
    spec = TensorSpec("x", "x:0", BOOL, (None,))
    assert to_array([True, False], spec).tolist() == [True, False]
    with pytest.raises(status.RequestError):
        to_array([1], spec)
    spec = TensorSpec("x", "x:0", FLOAT, (None,))
    read = to_array(json.loads("[NaN, Infinity, -Infinity]"), spec)
    np.testing.assert_array_equal(read, np.array([np.nan, np.inf, -np.inf], np.float32))


def test_an_empty_list_gets_the_width_of_the_input():
    assert to_array([], TensorSpec("x", "x:0", FLOAT, (None, 3))).shape == (0, 3)
    assert to_array([], TensorSpec("x", "x:0", FLOAT, None)).shape == (0,)
    assert to_array(5, TensorSpec("x", "x:0", FLOAT, ())).shape == ()


def test_answers_have_the_form_of_the_request():
    one = {"y": np.array([1.5, 2.5], np.float32)}
    assert write_outputs(one, Form.ROWS, 2) == {"predictions": [1.5, 2.5]}
    assert write_outputs(one, Form.COLUMNS, 0) == {"outputs": [1.5, 2.5]}
    two = {**one, "z": np.array([[1], [2]])}
    assert write_outputs(two, Form.ROWS, 2) == {
        "predictions": [{"y": 1.5, "z": [1]}, {"y": 2.5, "z": [2]}]
    }
    assert write_outputs(two, Form.COLUMNS, 0) == {"outputs": {"y": [1.5, 2.5], "z": [[1], [2]]}}


@pytest.mark.parametrize("output", [np.float32(3), np.zeros([3]), np.zeros([1, 2])])
def test_an_output_that_is_not_by_rows(output):
    outputs = {"y": np.asarray(output)}
    with pytest.raises(status.RequestError, match='send "inputs" instead'):
        write_outputs(outputs, Form.ROWS, 2)
    assert "outputs" in write_outputs(outputs, Form.COLUMNS, 0)


def test_numbers_are_short_and_exact():
    values = np.array([0.2, 1.0, 1e-7, 16777216.0, 3.4e38], np.float32)
    written = json.dumps(to_json(values, "y"))
    assert written == "[0.2, 1.0, 1e-07, 16777216.0, 3.4e+38]"
    random = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    np.testing.assert_array_equal(np.array(to_json(random, "y"), np.float32), random)
    assert to_json(np.array([0.1], np.float64), "y") == [0.1]
    assert to_json(np.array([0.5], np.float16), "y") == [0.5]
    assert to_json(np.array([2**63 - 1]), "y") == [2**63 - 1]


def test_strings_are_text_or_base64():
    texts = np.array([["a", "\u00e4"]], object)
    assert to_json(texts, "y") == [["a", "\u00e4"]]
    raw = np.array([b"\xff"], object)
    assert to_json(raw, "y") == [{"b64": "/w=="}]
    assert to_json(np.array([b"a"], object), "y_bytes") == [{"b64": "YQ=="}]
