"""What the tests of layers share: weights in NumPy, and gradients by finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def _graph(graph_mode: None) -> None:
    """Layers build graphs."""


@pytest.fixture(name="check_against_model")
def _check_against_model() -> Callable[..., None]:
    return check_against_model


def check_against_model(
    outputs: tf.Tensor,
    model: Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray],
    inputs: np.ndarray,
    placeholder: tf.Tensor,
) -> None:
    """Compares outputs and all gradients with a NumPy model.

    The gradients of a random weighted sum of the outputs, by the inputs and by every variable, are
    compared with central differences of the model, so its own derivative is not needed. Double
    precision keeps both below 1e-6.

    Args:
        outputs: What the layer gave.
        model: The outputs, as a function of the weights by name and of the inputs.
        inputs: The values fed for `placeholder`.
        placeholder: The inputs of the layer.
    """
    variables = tf.compat.v1.trainable_variables()
    rng = np.random.default_rng(0)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        # Random instead of initial values: zeros would hide a swapped or missing bias.
        weights = {v.op.name: rng.normal(size=v.shape) for v in variables}
        for variable in variables:
            variable.load(weights[variable.op.name], session)
        actual = session.run(outputs, {placeholder: inputs})
        np.testing.assert_allclose(actual, model(weights, inputs), rtol=1e-9, atol=1e-9)

        factors = rng.normal(size=actual.shape)
        gradients = tf.gradients(outputs * factors, [placeholder, *variables])
        input_gradient, *weight_gradients = session.run(gradients, {placeholder: inputs})

    def loss(weights: dict[str, np.ndarray], inputs: np.ndarray) -> float:
        return float(np.sum(model(weights, inputs) * factors))

    expected = differentiate(lambda x: loss(weights, x), inputs)
    np.testing.assert_allclose(input_gradient, expected, rtol=1e-5, atol=1e-6)
    for variable, gradient in zip(variables, weight_gradients, strict=True):
        name = variable.op.name
        expected = differentiate(lambda w, n=name: loss({**weights, n: w}, inputs), weights[name])
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def differentiate(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Returns the gradient by central differences."""
    step = 1e-5
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = at.copy()
        moved[index] += step
        above = function(moved)
        moved[index] -= 2 * step
        gradient[index] = (above - function(moved)) / (2 * step)
    return gradient
