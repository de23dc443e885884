"""MLP against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.layers.mlp import MLP


def test_outputs_and_gradients(check_against_model):
    x = tf.compat.v1.placeholder(tf.float64, [None, 3])
    outputs = MLP([4, 5, 2], activation="softplus", output_activation="sigmoid")(x)

    def model(weights, inputs):
        for i in range(3):
            inputs = inputs @ weights[f"mlp/dense_{i}/kernel"] + weights[f"mlp/dense_{i}/bias"]
            inputs = np.log1p(np.exp(inputs)) if i < 2 else 1 / (1 + np.exp(-inputs))
        return inputs

    check_against_model(outputs, model, np.random.default_rng(1).normal(size=[6, 3]), x)


def test_last_layer_is_linear_by_default(check_against_model):
    x = tf.compat.v1.placeholder(tf.float64, [None, 2])
    outputs = MLP([3, 1], use_bias=False)(x)

    def model(weights, inputs):
        hidden = np.maximum(inputs @ weights["mlp/dense_0/kernel"], 0)
        return hidden @ weights["mlp/dense_1/kernel"]

    check_against_model(outputs, model, np.random.default_rng(1).normal(size=[6, 2]), x)


@pytest.mark.parametrize("units", [[], (), 8, None])
def test_no_layers(units):
    with pytest.raises(errors.ConfigError, match="must be a list with one width for each layer"):
        MLP(units)


def test_zero_units():
    with pytest.raises(errors.ConfigError, match=r"Each of the units of an MLP .* got 0"):
        MLP([8, 0])


def test_learns_exclusive_or():
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    y = np.array([[0], [1], [1], [0]], np.float32)
    logits = MLP([8, 1], activation="tanh")(x)
    loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))
    train = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(200):
            session.run(train)
        assert session.run(loss) < 0.1  # A linear model stays at 4 * log(2).
