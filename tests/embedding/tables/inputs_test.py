"""What callers may hand to a table."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding.tables import inputs


@pytest.mark.parametrize(
    "ids",
    [
        [1, -2],
        (1, -2),
        np.array([1, -2]),
        np.array([1, -2], np.int32),
        np.array([1, 2**64 - 2], np.uint64),
        tf.constant([1, -2], tf.int64),
    ],
    ids=["list", "tuple", "int64_array", "int32_array", "uint64_array", "tensor"],
)
def test_ids(ids):
    tensor = inputs.to_ids(ids)
    assert tensor.dtype == tf.int64
    assert tensor.numpy().tolist() == [1, -2]


@pytest.mark.parametrize("ids", [[], np.array([]), tf.constant([], tf.int64)])
def test_no_ids(ids):
    assert inputs.to_ids(ids).shape == [0]


@pytest.mark.parametrize("ids", [np.array([1.0]), np.float32(1), np.array([True])])
def test_arrays_that_hold_no_ids(ids):
    with pytest.raises(TypeError, match=r"^`ids` must hold integers, got a NumPy array of "):
        inputs.to_ids(ids)


def test_floats():
    for values in ([1, 2.5], np.array([1, 2.5]), np.array([1, 2.5], np.float16)):
        tensor = inputs.to_floats(values)
        assert tensor.dtype == tf.float32
        assert tensor.numpy().tolist() == [1, 2.5]
    with pytest.raises(TypeError, match=r"^`values` must hold real numbers"):
        inputs.to_floats(np.array([1j]))


def test_steps_and_times():
    for step in (3, np.int32(3), tf.constant(3), tf.Variable(3, dtype=tf.int64)):
        tensor = inputs.to_step(step)
        assert tensor.dtype == tf.int64
        assert int(tensor) == 3
    assert int(inputs.to_seconds(None)) == 0
    assert inputs.to_seconds(5).dtype == tf.int64


@pytest.mark.parametrize("size", [2**31, 2**32, -(2**31) - 1])
def test_numpy_sizes_beyond_32_bits_are_refused(size):
    with pytest.raises(ValueError, match="`sizes` must hold numbers of 32 bits"):
        inputs.to_sizes(np.array([1, size]))
