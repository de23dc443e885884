"""MonolithFeatureInsight against NumPy: values, shapes, gradients, errors."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native import ops


def expected_output(inputs, weight, sizes, aggregate):
    ends = np.cumsum(sizes)
    products = [
        inputs[:, end - size : end] @ weight[end - size : end]
        for size, end in zip(sizes, ends, strict=True)
    ]
    if aggregate:
        return np.stack([np.sum(product**2, axis=1) for product in products], axis=1)
    return np.concatenate(products, axis=1)


def make_case(seed, batch, sizes, units, dtype=np.float64):
    rng = np.random.default_rng(seed)
    dim = sum(sizes)
    return rng.normal(size=(batch, dim)).astype(dtype), rng.normal(size=(dim, units)).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    units=st.integers(0, 40),
    aggregate=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_agrees_with_numpy(seed, batch, sizes, units, aggregate, dtype):
    inputs, weight = make_case(seed, batch, sizes, units, dtype)
    output = ops.monolith_feature_insight(inputs, weight, sizes, aggregate)
    assert output.dtype == dtype
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(
        output, expected_output(inputs, weight, sizes, aggregate), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("aggregate", [False, True])
def test_historical_sizes(aggregate):
    inputs, weight = make_case(0, 3, [3, 2, 4], 2)
    output = ops.monolith_feature_insight(inputs, weight, [3, 2, 4], aggregate)
    assert output.shape == ((3, 3) if aggregate else (3, 6))
    np.testing.assert_allclose(output, expected_output(inputs, weight, [3, 2, 4], aggregate))


@pytest.mark.parametrize("aggregate", [False, True])
def test_large_batch_is_split_over_threads(aggregate):
    sizes = [16] * 10
    inputs, weight = make_case(1, 2000, sizes, 33)
    output = ops.monolith_feature_insight(inputs, weight, sizes, aggregate)
    np.testing.assert_allclose(output, expected_output(inputs, weight, sizes, aggregate))


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize(("batch", "units"), [(3, 2), (5, 1), (4, 19), (300, 16)])
def test_gradient_agrees_with_tensorflow(batch, units, aggregate):
    sizes = [3, 2, 4]
    inputs, weight = map(tf.constant, make_case(2, batch, sizes, units))
    coefficients = np.random.default_rng(3).normal(
        size=(batch, len(sizes) if aggregate else len(sizes) * units)
    )

    def in_tensorflow():
        products = [
            tf.matmul(x, w)
            for x, w in zip(tf.split(inputs, sizes, 1), tf.split(weight, sizes, 0), strict=True)
        ]
        if aggregate:
            return tf.stack([tf.reduce_sum(product**2, 1) for product in products], 1)
        return tf.concat(products, 1)

    def native():
        return ops.monolith_feature_insight(inputs, weight, sizes, aggregate)

    gradients = []
    for compute in (native, in_tensorflow):
        with tf.GradientTape() as tape:
            tape.watch([inputs, weight])
            loss = tf.reduce_sum(compute() * coefficients)
        gradients.append(tape.gradient(loss, [inputs, weight]))
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("aggregate", [False, True])
def test_gradient_in_a_graph_with_an_open_batch(aggregate):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.float32, [None, 3])
        weight = tf.constant([[1.0], [2.0], [3.0]])
        output = ops.monolith_feature_insight(inputs, weight, [1, 2], aggregate)
        assert output.shape.as_list() == [None, 2]
        (gradient,) = tf.gradients(output, [inputs])
        assert gradient.shape.as_list() == [None, 3]
        # Products are x0 and 2 x1 + 3 x2; squared, their derivatives carry a factor 2 y.
        factors = [[2.0, 52.0, 78.0]] if aggregate else [[1.0, 2.0, 3.0]]
        np.testing.assert_allclose(session.run(gradient, {inputs: [[1.0, 2.0, 3.0]]}), factors)


@pytest.mark.parametrize(
    ("inputs", "weight", "sizes", "message"),
    [
        pytest.param(
            (2, 5), (4, 1), [2, 2], r"`input_embedding` .*\[batch, 4\].*\[2,5\]", id="dim"
        ),
        pytest.param((2, 4), (3, 1), [2, 2], r"`weight` .*\[4, units\].*\[3,1\]", id="weight"),
        pytest.param((4,), (4, 1), [2, 2], "`input_embedding`", id="vector"),
        pytest.param((2, 4), (4,), [2, 2], "`weight`", id="weight_vector"),
        pytest.param((2, 4), (4, 1), [4, 0], r"positive numbers, got \[4, 0\]", id="empty_segment"),
        pytest.param((2, 4), (4, 1), [5, -1], "positive numbers", id="negative_segment"),
    ],
)
class TestBadInput:
    def test_eager(self, inputs, weight, sizes, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ops.monolith_feature_insight(tf.zeros(inputs), tf.zeros(weight), sizes)

    def test_graph_fails_while_it_is_built(self, inputs, weight, sizes, message):
        with tf.Graph().as_default(), pytest.raises(ValueError, match="must be"):
            ops.monolith_feature_insight(tf.zeros(inputs), tf.zeros(weight), sizes)


def test_segment_sizes_are_needed():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="segment_sizes"):
        ops.monolith_feature_insight(tf.zeros([1, 1]), tf.zeros([1, 1]), [])
