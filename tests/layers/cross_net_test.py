"""CrossNet against NumPy, and against the polynomial that it stands for."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.layers.cross_net import CrossNet


def full_rank(weights, x0):
    x = x0
    for i in range(3):
        # Example by example, as in the paper, where x is a column.
        x = np.stack(
            [
                row0 * (weights[f"cross_net/kernel_{i}"].T @ row + weights[f"cross_net/bias_{i}"])
                + row
                for row0, row in zip(x0, x, strict=True)
            ]
        )
    return x


def low_rank(weights, x0):
    product = {
        f"cross_net/kernel_{i}": (
            weights[f"cross_net/kernel_v_{i}"] @ weights[f"cross_net/kernel_u_{i}"]
        )
        for i in range(3)
    }
    return full_rank({**weights, **product}, x0)


@pytest.mark.parametrize(
    ("projection_dim", "model", "num_weights"),
    [
        pytest.param(None, full_rank, 3 * (4 * 4 + 4), id="full_rank"),
        pytest.param(2, low_rank, 3 * (4 * 2 + 2 * 4 + 4), id="low_rank"),
    ],
)
def test_outputs_and_gradients(check_against_model, projection_dim, model, num_weights):
    x = tf.compat.v1.placeholder(tf.float64, [None, 4])
    outputs = CrossNet(3, projection_dim)(x)
    variables = tf.compat.v1.trainable_variables()
    assert sum(variable.shape.num_elements() for variable in variables) == num_weights
    check_against_model(outputs, model, np.random.default_rng(1).normal(size=[5, 4]), x)


def test_all_ones_give_powers():
    # dim 1, W = 1, b = 0: x * x + x, then x * (x * x + x) + (x * x + x).
    outputs = CrossNet(2, kernel_initializer="ones", use_bias=False)([[2.0], [3.0]])
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(outputs), [[18.0], [48.0]])


def test_calling_twice_shares_weights():
    cross = CrossNet(2, 1)
    cross(tf.ones([1, 4]))
    count = len(tf.compat.v1.trainable_variables())
    cross(tf.ones([2, 4]))
    assert len(tf.compat.v1.trainable_variables()) == count == 2 * 3


def test_sequence_is_refused():
    with pytest.raises(
        errors.ConfigError, match=r"needs a tensor with 2 dimensions.*got shape \(2, 3, 4\)"
    ):
        CrossNet(1)(tf.ones([2, 3, 4]))


def test_projection_as_wide_as_the_inputs():
    with pytest.raises(
        errors.ConfigError, match=r"projection_dim 4 .* smaller than .* 4; leave it"
    ):
        CrossNet(1, projection_dim=4)(tf.ones([2, 4]))


@pytest.mark.parametrize("settings", [{"num_layers": 0}, {"num_layers": 1, "projection_dim": 0}])
def test_zero_sizes(settings):
    with pytest.raises(errors.ConfigError, match="must be a positive int, got 0"):
        CrossNet(**settings)
