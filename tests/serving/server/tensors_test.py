"""Tensors on the wire."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2

from monolith.serving.server import status, tensors

TYPES = [
    np.float32,
    np.float64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.bool_,
    np.float16,
    tf.bfloat16.as_numpy_dtype,
]


def read(proto: tensor_pb2.TensorProto, max_bytes: int = 10_000) -> np.ndarray:
    return tensors.read_tensor(proto, max_bytes=max_bytes)


@pytest.mark.parametrize("numpy_type", TYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shape", [[], [0], [3], [2, 3]])
def test_round_trip_with_tensorflow(numpy_type, shape):
    array = (np.random.default_rng(1).integers(0, 100, shape) % 100).astype(numpy_type)
    # What TensorFlow writes, as bytes or, for one element, as a value.
    np.testing.assert_array_equal(read(tf.make_tensor_proto(array)), array)
    # What we write, and TensorFlow reads.
    written = tensors.write_tensor(array)
    assert not written.tensor_content
    np.testing.assert_array_equal(tf.make_ndarray(written), array)
    assert tf.make_ndarray(written).dtype == array.dtype
    np.testing.assert_array_equal(read(written), array)


@pytest.mark.parametrize("shape", [[], [0], [2, 2]])
def test_round_trip_of_strings(shape):
    array = np.full(shape, b"a\x00\xff", object)
    np.testing.assert_array_equal(read(tf.make_tensor_proto(array, tf.string)), array)
    np.testing.assert_array_equal(tf.make_ndarray(tensors.write_tensor(array)), array)


def test_views_are_written_in_their_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for view in (array.T, array[:, ::2], array.astype(">f4")):
        np.testing.assert_array_equal(tf.make_ndarray(tensors.write_tensor(view)), view)


@pytest.mark.parametrize(
    ("dtype", "field", "values", "expected"),
    [
        (types_pb2.DT_FLOAT, "float_val", [1.5], [1.5, 1.5, 1.5]),
        (types_pb2.DT_INT64, "int64_val", [1, 2], [1, 2, 2]),
        (types_pb2.DT_INT32, "int_val", [], [0, 0, 0]),
        (types_pb2.DT_STRING, "string_val", [b"a", b"b"], [b"a", b"b", b"b"]),
        (types_pb2.DT_STRING, "string_val", [], [b"", b"", b""]),
    ],
)
def test_the_last_value_counts_for_the_rest(dtype, field, values, expected):
    proto = tensor_pb2.TensorProto(dtype=dtype)
    proto.tensor_shape.dim.add(size=3)
    getattr(proto, field).extend(values)
    assert read(proto).tolist() == expected
    if values:  # Without any, NumPy makes text of strings.
        assert tf.make_ndarray(proto).tolist() == expected


def make(dtype: int, *shape: int, **fields) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=dtype, **fields)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        pytest.param(make(types_pb2.DT_FLOAT, -1), "must be known", id="open_size"),
        pytest.param(make(types_pb2.DT_FLOAT, 2, float_val=[1, 2, 3]), "3", id="too_many"),
        pytest.param(
            make(types_pb2.DT_FLOAT, 2, tensor_content=b"123"), "8 bytes, got 3", id="few_bytes"
        ),
        pytest.param(
            make(types_pb2.DT_STRING, 2, tensor_content=b"12"), "string_val", id="string_content"
        ),
        pytest.param(make(types_pb2.DT_INT8, 1, int_val=[200]), "-128 to 127", id="beyond_int8"),
        pytest.param(make(types_pb2.DT_HALF, 1, half_val=[-1]), "got -1", id="bits_of_half"),
        pytest.param(make(types_pb2.DT_RESOURCE, 1), "resource cannot be sent", id="resource"),
        pytest.param(make(types_pb2.DT_INVALID, 1), "cannot be sent", id="no_type"),
        pytest.param(make(9999, 1), "type 9999 cannot be sent", id="unknown_type"),
        pytest.param(make(types_pb2.DT_FLOAT, *[1] * 33), "at most 32", id="dimensions"),
    ],
)
def test_contradictions(proto, message):
    with pytest.raises(status.RequestError, match=message) as raised:
        read(proto)
    assert raised.value.code is status.Code.INVALID_ARGUMENT


def test_unknown_rank():
    proto = make(types_pb2.DT_FLOAT)
    proto.tensor_shape.unknown_rank = True
    with pytest.raises(status.RequestError, match="must be known"):
        read(proto)


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(make(types_pb2.DT_FLOAT, 1 << 40, float_val=[1]), id="one_value"),
        pytest.param(make(types_pb2.DT_STRING, 1 << 40), id="strings"),
        pytest.param(make(types_pb2.DT_FLOAT, 1 << 40, 1 << 40), id="beyond_64_bits"),
    ],
)
def test_a_small_message_cannot_take_much_memory(proto):
    with pytest.raises(status.RequestError, match="the limit of a request is 10000") as raised:
        read(proto)
    assert raised.value.code is status.Code.RESOURCE_EXHAUSTED


def test_booleans_are_true_or_false():
    assert read(make(types_pb2.DT_BOOL, 3, tensor_content=b"\x00\x01\x7f")).tolist() == [
        False,
        True,
        True,
    ]


def test_an_output_that_no_message_holds():
    with pytest.raises(status.RequestError, match="complex64"):
        tensors.write_tensor(np.zeros([1], np.complex64))
