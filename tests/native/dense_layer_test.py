"""The op of a dense layer and its gradients, against the same formulas in TensorFlow's ops."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.native import ops

ACTIVATIONS = {"linear": tf.identity, "relu": tf.nn.relu}


def make_layer(batch: int, dim: int, units: int) -> list[tf.Tensor]:
    rng = np.random.default_rng(7)
    shapes = ([batch, dim], [dim, units], [units])
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]


def plain(inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, activation: str) -> tf.Tensor:
    return ACTIVATIONS[activation](tf.matmul(inputs, kernel) + bias)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("batch", "dim", "units"),
    [
        pytest.param(512, 64, 256, id="wide"),
        pytest.param(512, 256, 64, id="deep"),
        pytest.param(100, 33, 1, id="logits"),
        pytest.param(7, 500, 17, id="odd_sizes"),
        pytest.param(0, 4, 3, id="empty_batch"),
    ],
)
class TestAgainstTensorFlow:
    def test_outputs_and_gradients(self, batch, dim, units, activation):
        layer = make_layer(batch, dim, units)
        weights = tf.constant(np.random.default_rng(8).normal(size=[batch, units]), tf.float32)
        results = []
        for function in (ops.monolith_dense, plain):
            with tf.GradientTape() as tape:
                tape.watch(layer)
                outputs = function(*layer, activation=activation)
                loss = tf.reduce_sum(outputs * weights)
            results.append([outputs, *tape.gradient(loss, layer)])
        for mine, expected in zip(*results, strict=True):
            # Sums of `dim` or `batch` products, in another order.
            np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)

    def test_second_gradients(self, batch, dim, units, activation):
        layer = make_layer(batch, dim, units)
        results = []
        for function in (ops.monolith_dense, plain):
            with tf.GradientTape() as outer:
                outer.watch(layer)
                with tf.GradientTape() as inner:
                    inner.watch(layer)
                    loss = tf.reduce_sum(function(*layer, activation=activation) ** 2)
                gradients = inner.gradient(loss, layer)
                penalty = tf.add_n([tf.reduce_mean(g**2) for g in gradients[1:]])
            results.append(outer.gradient(penalty, layer))
        for mine, expected in zip(*results, strict=True):
            scale = 1 + np.abs(expected).max(initial=0)
            np.testing.assert_allclose(mine / scale, expected / scale, atol=1e-5)


def test_without_bias():
    inputs, kernel, _ = make_layer(5, 4, 3)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        outputs = ops.monolith_dense(inputs, kernel, tf.zeros([0]))
        loss = tf.reduce_sum(outputs)
    np.testing.assert_allclose(outputs, tf.matmul(inputs, kernel), rtol=1e-5, atol=1e-6)
    expected = np.repeat(np.sum(inputs, axis=0)[:, None], 3, axis=1)
    np.testing.assert_allclose(tape.gradient(loss, kernel), expected, rtol=1e-5, atol=1e-6)


def test_nan_is_not_hidden_by_relu():
    """The check of the loss would miss a model that has diverged."""
    outputs = ops.monolith_dense([[np.nan], [1.0]], [[1.0]], [0.0], activation="relu")
    assert np.isnan(outputs[0, 0])
    assert outputs[1, 0] == 1


@pytest.mark.parametrize(
    ("inputs", "kernel", "bias", "message"),
    [
        pytest.param([2, 3], [4, 5], [5], r"got \[2,3\] and \[4,5\]", id="dims_differ"),
        pytest.param([2], [2, 5], [5], r"got \[2\] and \[2,5\]", id="a_vector"),
        pytest.param([2, 3], [3, 5], [4], "must have 5 elements or none, got", id="bias"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(inputs, kernel, bias, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_dense(tf.zeros(inputs), tf.zeros(kernel), tf.zeros(bias))


def test_gradient_refuses_shapes_that_do_not_fit():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`grad` must have the shape \[2,5\]"):
        ops.monolith_dense_gradient(
            tf.zeros([2, 3]), tf.zeros([3, 5]), tf.zeros([2, 5]), tf.zeros([2, 4])
        )


def test_static_shape():
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, [None, 3])
        outputs = ops.monolith_dense(inputs, tf.zeros([3, 5]), tf.zeros([5]))
        assert outputs.shape.as_list() == [None, 5]
        gradients = tf.gradients(outputs, [inputs])
        assert gradients[0].shape.as_list() == [None, 3]
