"""Dense against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.layers.dense import Dense


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 3)], ids=["matrix", "sequence"])
def test_outputs_and_gradients(check_against_model, shape):
    x = tf.compat.v1.placeholder(tf.float64, [None, *shape[1:]])
    outputs = Dense(2, "tanh")(x)
    assert outputs.shape.as_list() == [None, *shape[1:-1], 2]

    def model(weights, inputs):
        return np.tanh(inputs @ weights["dense/kernel"] + weights["dense/bias"])

    check_against_model(outputs, model, np.random.default_rng(1).normal(size=shape), x)


def test_without_bias(check_against_model):
    x = tf.compat.v1.placeholder(tf.float64, [None, 3])
    outputs = Dense(2, use_bias=False)(x)
    assert len(tf.compat.v1.trainable_variables()) == 1

    def model(weights, inputs):
        return inputs @ weights["dense/kernel"]

    check_against_model(outputs, model, np.random.default_rng(1).normal(size=[4, 3]), x)


def test_activation_and_initializers_may_be_functions():
    dense = Dense(
        2,
        tf.square,
        kernel_initializer=tf.compat.v1.constant_initializer(2.0),
        bias_initializer=tf.compat.v1.constant_initializer(-1.0),
    )
    outputs = dense([[1.0, 2.0]])
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        # (1 * 2 + 2 * 2 - 1) ** 2
        np.testing.assert_allclose(session.run(outputs), [[25.0, 25.0]])
