"""Losses and predictions of heads against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.model.losses import get_sigmoid_loss_and_pred, get_softmax_loss_and_pred

pytestmark = pytest.mark.usefixtures("graph_mode")

LOGITS = np.array([-2.0, 0.5, 3.0, -0.1])
LABEL = np.array([0.0, 1.0, 1.0, 0.0])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cross_entropy(logits, label=LABEL):
    p = sigmoid(logits)
    return -(label * np.log(p) + (1 - label) * np.log(1 - p))


def run(*args, **kwargs):
    with tf.compat.v1.Session() as session:
        return session.run(get_sigmoid_loss_and_pred("ctr", *args, **kwargs))


class TestSigmoid:
    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    def test_loss_is_the_sum_and_pred_the_probability(self, shape):
        loss, pred = run(LOGITS.reshape(shape), LABEL.reshape(shape), 4)
        assert loss == pytest.approx(cross_entropy(LOGITS).sum())
        np.testing.assert_allclose(pred, sigmoid(LOGITS))

    def test_ops_are_named_after_the_head(self):
        loss, pred = get_sigmoid_loss_and_pred("ctr", LOGITS, LABEL, 4)
        assert (loss.op.name, pred.op.name) == ("ctr_sigmoid_loss", "ctr_sigmoid_pred")

    def test_sampled_negatives_move_the_loss_but_not_the_prediction(self):
        loss, pred = run(LOGITS, LABEL, 4, sample_rate=0.1)
        # Odds p / (1 - p) among all are p / (0.1 * (1 - p)) among the sampled ones.
        assert loss == pytest.approx(cross_entropy(LOGITS - np.log(0.1)).sum())
        np.testing.assert_allclose(pred, sigmoid(LOGITS))

    def test_rate_may_differ_between_examples(self):
        rates = np.array([0.1, 1.0, 1.0, 0.5])
        loss, _ = run(LOGITS, LABEL, 4, sample_rate=rates)
        assert loss == pytest.approx(cross_entropy(LOGITS - np.log(rates)).sum())

    def test_no_rate_is_a_rate_of_one(self):
        loss, _ = run(LOGITS, LABEL, 4, sample_rate=None)
        assert loss == pytest.approx(cross_entropy(LOGITS).sum())

    def test_sample_bias(self):
        loss, _ = run(LOGITS, LABEL, 4, sample_rate=0.5, sample_bias=True)
        # All examples are candidates for negatives: odds p / 0.5.
        odds = sigmoid(LOGITS) / 0.5
        assert loss == pytest.approx(cross_entropy(np.log(odds)).sum())

    def test_prediction_after_correction(self):
        _, pred = run(LOGITS, LABEL, 4, sample_rate=0.1, predict_before_correction=False)
        np.testing.assert_allclose(pred, sigmoid(LOGITS - np.log(0.1)))

    @pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-11)])
    def test_loss_and_gradients_keep_their_digits_for_any_logits(self, dtype, rtol):
        logits = np.array([-80.0, -20.0, -1.0, 0.0, 0.3, 15.0, 80.0, 2.0], dtype)
        label = np.array([0.0, 1.0, 0.25, 1.0, 0.0, 1.0, 0.0, 0.9], dtype)
        x, z = tf.constant(logits), tf.constant(label)
        loss, _ = get_sigmoid_loss_and_pred("ctr", x, z, 8, sample_rate=None)
        by_logits, by_label = tf.gradients(loss, [x, z])
        seconds = tf.gradients(3 * by_logits, [x, z])
        with tf.compat.v1.Session() as session:
            total, first, second = session.run([loss, [by_logits, by_label], seconds])

        x, z = logits.astype(np.longdouble), label.astype(np.longdouble)
        assert total == pytest.approx(float((np.logaddexp(0, x) - x * z).sum()), rel=rtol)
        np.testing.assert_allclose(first, [sigmoid(x) - z, -x], rtol=rtol)
        np.testing.assert_allclose(second, [3 * sigmoid(x) * sigmoid(-x), np.full(8, -3)], rtol)

    @pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
    def test_half_precision(self, dtype):
        logits = tf.constant(LOGITS, dtype)
        loss, _ = get_sigmoid_loss_and_pred("ctr", logits, LABEL, 4, sample_rate=None)
        [by_logits] = tf.gradients(loss, logits)
        assert (loss.dtype, by_logits.dtype) == (dtype, dtype)
        with tf.compat.v1.Session() as session:
            total, gradient = session.run([tf.cast(t, tf.float32) for t in (loss, by_logits)])
        assert total == pytest.approx(cross_entropy(LOGITS).sum(), rel=0.02)
        np.testing.assert_allclose(gradient, sigmoid(LOGITS) - LABEL, rtol=0.01)

    def test_weight_and_mask(self):
        weight, mask = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])
        loss, pred = run(LOGITS, LABEL, 4, instance_weight=weight, mask=mask)
        assert loss == pytest.approx((cross_entropy(LOGITS) * weight * mask).sum())
        assert pred.shape == (4,)

    def test_masked_nan_does_not_reach_loss_or_gradient(self):
        logits = tf.constant([1.0, 2.0])
        loss, _ = get_sigmoid_loss_and_pred(
            "ctr", logits, [1.0, np.nan], 2, mask=np.array([True, False])
        )
        with tf.compat.v1.Session() as session:
            value, gradient = session.run([loss, tf.gradients(loss, logits)[0]])
        assert value == pytest.approx(cross_entropy(1.0, 1.0), rel=1e-5)
        np.testing.assert_allclose(gradient, [sigmoid(1.0) - 1, 0], rtol=1e-5)

    def test_clipped_logits(self):
        loss, pred = run(np.array([9.0, -9.0]), np.array([0.0, 1.0]), 2, logit_clip_threshold=0.01)
        # No probability above 0.99 nor below 0.01: -log(0.01) each.
        assert loss == pytest.approx(2 * -np.log(0.01))
        np.testing.assert_allclose(pred, sigmoid(np.array([9.0, -9.0])))

    def test_no_loss_in_prediction(self):
        loss, pred = get_sigmoid_loss_and_pred("ctr", LOGITS, None, 4, mode=ModeKeys.PREDICT)
        assert loss is None
        assert pred.shape == (4,)

    @pytest.mark.parametrize("rate", [0, -1.0, 1.5])
    def test_rate_out_of_range(self, rate):
        with pytest.raises(errors.ConfigError, match="sample_rate of head 'ctr' must be above 0"):
            get_sigmoid_loss_and_pred("ctr", LOGITS, LABEL, 4, sample_rate=rate)

    @pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5])
    def test_clip_threshold_out_of_range(self, threshold):
        with pytest.raises(errors.ConfigError, match="must be a probability between 0 and 1"):
            get_sigmoid_loss_and_pred("ctr", LOGITS, LABEL, 4, logit_clip_threshold=threshold)

    def test_logits_of_the_wrong_size(self):
        with pytest.raises(
            errors.ConfigError, match=r"The logits of head 'ctr' .* 4 examples, got shape"
        ):
            get_sigmoid_loss_and_pred("ctr", np.zeros([4, 2]), LABEL, 4)

    def test_label_of_the_wrong_size(self):
        with pytest.raises(
            errors.ConfigError, match=r"The label of head 'ctr' .* got shape \(4, 2\)"
        ):
            get_sigmoid_loss_and_pred("ctr", LOGITS, np.zeros([4, 2]), None)

    def test_missing_label(self):
        with pytest.raises(errors.ConfigError, match="Head 'ctr' has no label"):
            get_sigmoid_loss_and_pred("ctr", LOGITS, None, 4)


class TestSoftmax:
    LOGITS = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])

    def expected(self, classes):
        p = np.exp(self.LOGITS) / np.exp(self.LOGITS).sum(axis=1, keepdims=True)
        return -np.log(p[[0, 1], classes])

    @pytest.mark.parametrize(
        "label", [np.array([2, 0]), np.eye(3)[[2, 0]]], ids=["classes", "distribution"]
    )
    def test_loss_of_each_example_and_most_probable_class(self, label):
        loss, pred = get_softmax_loss_and_pred("kind", self.LOGITS, label)
        assert pred.op.name == "kind_softmax_pred"
        with tf.compat.v1.Session() as session:
            loss, pred = session.run([loss, pred])
        np.testing.assert_allclose(loss, self.expected([2, 0]))
        np.testing.assert_array_equal(pred, [2, 2])

    def test_no_loss_in_prediction(self):
        loss, _ = get_softmax_loss_and_pred("kind", self.LOGITS, None, ModeKeys.PREDICT)
        assert loss is None

    def test_logits_of_the_wrong_rank(self):
        with pytest.raises(errors.ConfigError, match=r"\[batch, classes\], got \(2,\)"):
            get_softmax_loss_and_pred("kind", np.zeros(2), [0, 1])

    def test_label_of_the_wrong_kind(self):
        with pytest.raises(
            errors.ConfigError, match=r"must be classes, ints .* got float64 of shape \(2,\)"
        ):
            get_softmax_loss_and_pred("kind", self.LOGITS, np.zeros(2))
