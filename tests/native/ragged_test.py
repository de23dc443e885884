"""MonolithFusedValueRowids: values against TensorFlow and NumPy, bad splits."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native import ops


def expected_rowids(splits):
    return np.repeat(np.arange(len(splits) - 1), np.diff(splits))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30))
def test_agrees_with_numpy(lengths):
    splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    rowids = ops.monolith_fused_value_rowids(splits)
    assert rowids.dtype == tf.int64
    np.testing.assert_array_equal(rowids, expected_rowids(splits))


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(np.random.default_rng(1).integers(0, 5, 300_000), id="short_rows"),
        pytest.param([10, 1_000_000, 0, 3], id="one_long_row"),
        pytest.param([0] * 500_000 + [3] + [0] * 500_000, id="mostly_empty_rows"),
    ],
)
def test_large_inputs_are_split_over_threads(lengths):
    splits = np.concatenate([[0], np.cumsum(lengths)])
    np.testing.assert_array_equal(ops.monolith_fused_value_rowids(splits), expected_rowids(splits))


def test_agrees_with_tensorflow():
    ragged = tf.ragged.constant([[], [1], [2, 3]])
    np.testing.assert_array_equal(
        ops.monolith_fused_value_rowids(ragged.row_splits), ragged.value_rowids()
    )


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        pytest.param([], "must have at least one element", id="empty"),
        pytest.param([1, 2], "must start with 0, got 1", id="start"),
        pytest.param([0, 3, 2], "must not decrease, but element 2 is 2 after 3", id="decreasing"),
        pytest.param([0, -1], "must not decrease", id="negative"),
        pytest.param([[0, 1]], "must be a vector", id="matrix"),
    ],
)
def test_bad_splits(splits, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_fused_value_rowids(np.array(splits, np.int64))


def test_static_shapes():
    with tf.Graph().as_default():
        constant = ops.monolith_fused_value_rowids(tf.constant([0, 2, 5], tf.int64))
        assert constant.shape.as_list() == [5]
        fed = tf.compat.v1.placeholder(tf.int64, [None])
        assert ops.monolith_fused_value_rowids(fed).shape.as_list() == [None]
        with pytest.raises(ValueError, match="rank"):
            ops.monolith_fused_value_rowids(tf.compat.v1.placeholder(tf.int64, [2, 2]))


def test_has_no_gradient():
    with tf.Graph().as_default():
        values = tf.constant([1.0, 2.0])
        splits = tf.cast(tf.cumsum(values), tf.int64)
        rowids = ops.monolith_fused_value_rowids(splits)
        assert tf.gradients(tf.cast(rowids, tf.float32), [values]) == [None]
