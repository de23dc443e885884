"""FM against the sum over pairs."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.layers.fm import FM


def sum_over_pairs(weights, inputs):
    pairs = itertools.combinations(range(inputs.shape[1]), 2)
    return sum(inputs[:, i] * inputs[:, j] for i, j in pairs)


@pytest.mark.parametrize("keep_dim", [False, True])
def test_outputs_and_gradients(check_against_model, keep_dim):
    x = tf.compat.v1.placeholder(tf.float64, [None, 5, 3])

    def model(weights, inputs):
        products = sum_over_pairs(weights, inputs)
        return products if keep_dim else products.sum(axis=1, keepdims=True)

    outputs = FM(keep_dim)(x)
    assert outputs.shape.as_list() == [None, 3 if keep_dim else 1]
    check_against_model(outputs, model, np.random.default_rng(1).normal(size=[4, 5, 3]), x)


def test_list_of_features_is_the_same_as_a_stack():
    x = np.random.default_rng(1).normal(size=[4, 3, 2])
    fm = FM()
    with tf.compat.v1.Session() as session:
        stacked, listed = session.run([fm(x), fm([x[:, 0], x[:, 1], x[:, 2]])])
    np.testing.assert_allclose(stacked, listed)


def test_single_feature_has_no_pairs():
    with tf.compat.v1.Session() as session:
        np.testing.assert_array_equal(session.run(FM()([[[1.0, 2.0]]])), [[0.0]])


def test_has_no_weights_and_takes_any_width():
    fm = FM()
    fm(tf.ones([2, 3, 4]))
    fm(tf.ones([2, 3, 8]))
    assert not tf.compat.v1.global_variables()


def test_matrix_is_refused():
    with pytest.raises(
        errors.ConfigError, match=r"needs a tensor with 3 dimensions.*got shape \(2, 3\)"
    ):
        FM()(tf.ones([2, 3]))


def test_features_of_several_widths():
    with pytest.raises(errors.ConfigError, match=r"got widths \[4, 8\]; look all of them up"):
        FM()([tf.ones([2, 4]), tf.ones([2, 8])])


def test_no_features():
    with pytest.raises(errors.ConfigError, match="at least one feature"):
        FM()([])
