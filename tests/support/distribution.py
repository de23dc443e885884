"""Ids and gradients for the tests of the distribution ops."""

import numpy as np
import tensorflow as tf


def ids_of(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def lists(tensors) -> list:
    return [t.to_list() if isinstance(t, tf.RaggedTensor) else t.numpy().tolist() for t in tensors]


def assert_gradients_are_numeric(function, *inputs, delta: float = 1e-2) -> None:
    theoretical, numeric = tf.test.compute_gradient(
        function, [tf.constant(x, tf.float32) for x in inputs], delta=delta
    )
    for exact, approximate in zip(theoretical, numeric, strict=True):
        np.testing.assert_allclose(exact, approximate, rtol=2e-2, atol=2e-2)


def weighted_sum(tensors) -> tf.Tensor:
    """A scalar in which every element counts differently."""
    flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
    return tf.reduce_sum(flat * tf.cast(tf.range(1, tf.size(flat) + 1), tf.float32))
