"""Dropout: what it leaves out, what it scales, and when it does nothing."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.layers.dropout import Dropout


def run(tensor):
    with tf.compat.v1.Session() as session:
        return session.run(tensor)


def test_training_leaves_a_share_out_and_scales_the_others():
    tf.compat.v1.set_random_seed(1)
    kept = run(Dropout(0.2)(tf.fill([100, 100], 4.0), training=True))
    # 4 / (1 - 0.2) of four fifths of 10,000 numbers: the mean stays 4, give or take 5 deviations of
    # 5 * sqrt(0.2 * 0.8) / 100 each.
    assert np.unique(kept).tolist() == [0.0, 5.0]
    assert abs(kept.mean() - 4) < 0.1


def test_each_step_leaves_out_others():
    dropped = Dropout(0.5)(tf.ones([10, 10]), training=True)
    with tf.compat.v1.Session() as session:
        assert (session.run(dropped) != session.run(dropped)).any()


def test_without_training_nothing_changes():
    x = np.random.default_rng(1).normal(size=[3, 4, 5])
    np.testing.assert_array_equal(run(Dropout(0.9)(x, training=False)), x)


def test_rate_zero_changes_nothing():
    np.testing.assert_array_equal(run(Dropout(0)(tf.ones([3, 4]), training=True)), np.ones([3, 4]))


def test_what_was_left_out_has_no_gradient():
    x = tf.ones([10, 10])
    dropped = Dropout(0.5)(x, training=True)
    values, gradient = run([dropped, tf.gradients(dropped, x)[0]])
    np.testing.assert_array_equal(values, gradient)


def test_has_no_weights():
    Dropout(0.5)(tf.ones([2, 3]), training=True)
    assert not tf.compat.v1.global_variables()


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 20, float("nan"), True, "0.5", None])
def test_rate_out_of_its_range(rate):
    with pytest.raises(errors.ConfigError, match="at least 0 and below 1, got"):
        Dropout(rate)


@pytest.mark.parametrize("training", [None, 1, "train"])
def test_training_is_a_bool(training):
    with pytest.raises(errors.ConfigError, match=r"must be True or False.* give `batch.training`"):
        Dropout(0.5)(tf.ones([2, 3]), training=training)


@pytest.mark.parametrize("training", [True, False])
def test_ints_are_refused_in_every_mode(training):
    with pytest.raises(errors.ConfigError, match="'dropout' needs floats, got int32"):
        Dropout(0.5)([[1, 2]], training=training)
