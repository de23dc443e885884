"""What the tests of both versions of RMSProp share."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from monolith.optimizer import rmsprop


class RmspropModel:
    """Both formulas in NumPy, float64."""

    def __init__(self, var, beta1, beta2, epsilon, weight_decay, use_v2):
        self.var = np.array(var, np.float64)
        self.m, self.v = np.zeros_like(self.var), np.zeros_like(self.var)
        self._settings = beta1, beta2, epsilon, weight_decay
        self._use_v2 = use_v2

    def apply(self, grad, learning_rate):
        beta1, beta2, epsilon, weight_decay = self._settings
        h = np.asarray(grad, np.float64) + weight_decay * self.var
        if self._use_v2:
            self.v = beta2 * self.v + h**2
            self.m = beta1 * self.m + learning_rate * h / (np.sqrt(self.v) + epsilon)
        else:
            self.v = beta2 * self.v + (1 - beta2) * h**2
            self.m = beta1 * self.m + learning_rate * h / np.sqrt(self.v + epsilon)
        self.var -= self.m


def check_rmsprop_against_model(seed, shape, dtype, beta1, beta2, epsilon, weight_decay, use_v2):
    rng = np.random.default_rng(seed)
    var = tf.Variable(rng.normal(size=shape), dtype=dtype)
    learning_rate = 0.05
    optimizer = rmsprop.RmspropOptimizer(
        learning_rate, beta1, beta2, epsilon, weight_decay, use_v2=use_v2
    )
    model = RmspropModel(var.numpy(), beta1, beta2, epsilon, weight_decay, use_v2)
    for _ in range(5):
        grad = tf.constant(rng.normal(size=shape), dtype)
        optimizer.apply_gradients([(grad, var)])
        model.apply(grad.numpy(), float(np.float32(learning_rate)))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == tf.float32 else {"rtol": 1e-7}
    np.testing.assert_allclose(optimizer.get_slot(var, "m").numpy(), model.m, **tolerance)
    np.testing.assert_allclose(optimizer.get_slot(var, "v").numpy(), model.v, **tolerance)
    np.testing.assert_allclose(var.numpy(), model.var, **tolerance)


@pytest.fixture(scope="session")
def check_rmsprop() -> Callable[..., None]:
    """Compares a few random steps with the NumPy model."""
    return check_rmsprop_against_model
