"""Heads: means over a batch, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.model import objectives
from monolith.model.objectives import BinaryHead, RegressionHead, SoftmaxHead

pytestmark = pytest.mark.usefixtures("graph_mode")

LOGITS = np.array([-2.0, 0.5, 3.0, -0.1], np.float32)
LABELS = np.array([0.0, 1.0, 1.0, 0.0], np.float32)
CLASS_LOGITS = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 4.0]], np.float32)


def run(tensors):
    with tf.compat.v1.Session() as session:
        return session.run(tensors)


def cross_entropy(logits, labels=LABELS):
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return -(labels * np.log(p) + (1 - labels) * np.log(1 - p))


def class_losses(classes):
    probabilities = np.exp(CLASS_LOGITS) / np.exp(CLASS_LOGITS).sum(axis=1, keepdims=True)
    return -np.log(probabilities[[0, 1], classes])


class TestBinaryHead:
    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    @pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
    def test_loss_is_the_mean(self, shape, dtype):
        labels = LABELS.astype(dtype).reshape(shape)
        head = BinaryHead("click", LOGITS.reshape(shape), labels)
        loss, prediction = run([head.loss, head.prediction])
        assert loss == pytest.approx(cross_entropy(LOGITS).mean())
        np.testing.assert_allclose(prediction, 1 / (1 + np.exp(-LOGITS)), rtol=1e-6)
        assert head.classification

    def test_loss_does_not_depend_on_the_batch_size(self):
        once = BinaryHead("once", LOGITS, LABELS).loss
        twice = BinaryHead("twice", np.tile(LOGITS, 2), np.tile(LABELS, 2)).loss
        assert np.isclose(*run([once, twice]))

    def test_weights_multiply_before_the_mean_over_examples(self):
        weights = np.array([1.0, 0.0, 2.0, 0.5])
        head = BinaryHead("click", LOGITS, LABELS, weights=weights)
        assert run(head.loss) == pytest.approx((cross_entropy(LOGITS) * weights).mean())

    def test_sample_rate_moves_the_logits_of_the_loss_only(self):
        head = BinaryHead("click", LOGITS, LABELS, sample_rate=0.25)
        loss, prediction = run([head.loss, head.prediction])
        # Odds p / (1 - p) become p / ((1 - p) * 0.25) among sampled examples.
        assert loss == pytest.approx(cross_entropy(LOGITS - np.log(0.25)).mean())
        np.testing.assert_allclose(prediction, 1 / (1 + np.exp(-LOGITS)), rtol=1e-6)

    def test_without_labels_there_is_no_loss(self):
        head = BinaryHead("click", LOGITS)
        assert (head.loss, head.labels) == (None, None)

    @pytest.mark.parametrize("label", [2.0, -1.0, 0.5, np.nan])
    def test_other_labels_end_the_step_with_a_sentence(self, label):
        head = BinaryHead("click", [0.0, 0.0], [1.0, label])
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"The labels of head click must be 0 or 1, .*, got {label:g}; make them so",
        ):
            run(head.loss)

    def test_some_of_the_other_labels_are_shown(self):
        head = BinaryHead("click", np.zeros(6), [1, 7, 0, 8, 9, 10])
        with pytest.raises(tf.errors.InvalidArgumentError, match="got 7, 8, 9; make"):
            run(head.loss)

    @pytest.mark.parametrize("kind", [BinaryHead, RegressionHead])
    def test_labels_that_are_strings_are_refused(self, kind):
        with pytest.raises(errors.DataError, match="labels of head 'click' are strings"):
            kind("click", LOGITS, ["1", "0", "1", "0"])

    @pytest.mark.parametrize("kind", [BinaryHead, RegressionHead])
    def test_labels_of_another_number_end_the_step_with_a_sentence(self, kind):
        logits = tf.compat.v1.placeholder_with_default(LOGITS, [None])
        head = kind("click", logits, tf.constant([[1, 0], [0, 1], [1, 0], [0, 1]]))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="got 8 numbers for 4 examples; give several"
        ):
            run(head.loss)

    @pytest.mark.parametrize(
        ("kind", "what"), [(BinaryHead, "logits"), (RegressionHead, "prediction")]
    )
    @pytest.mark.parametrize("shape", [(None, 2), (4, 2), (None, 3, 1), (4, 1, 1), ()])
    def test_several_numbers_for_an_example_are_refused(self, kind, what, shape):
        given = tf.compat.v1.placeholder(tf.float32, shape)
        for labels in (LABELS, None):
            with pytest.raises(errors.ConfigError, match=rf"The {what} of head 'click' must") as e:
                kind("click", given, labels)
            assert str(given.shape) in str(e.value)

    @pytest.mark.parametrize("kind", [BinaryHead, RegressionHead])
    @pytest.mark.parametrize("shape", [None, (None,), (None, None), (None, 1)])
    def test_shapes_that_are_not_known_are_taken(self, kind, shape):
        assert kind("click", tf.compat.v1.placeholder(tf.float32, shape), LABELS).loss is not None

    def test_an_empty_batch_has_loss_zero(self):
        head = BinaryHead("click", tf.zeros([0]), tf.zeros([0]))
        assert run(head.loss) == 0

    def test_labels_of_another_number_are_refused(self):
        with pytest.raises(errors.ConfigError, match="one number for each of the 4 examples"):
            BinaryHead("click", LOGITS, LABELS[:3])


class TestRegressionHead:
    def test_loss_is_the_mean_square(self):
        head = RegressionHead("rating", LOGITS[:, np.newaxis], LABELS)
        loss, prediction = run([head.loss, head.prediction])
        assert loss == pytest.approx(((LOGITS - LABELS) ** 2).mean())
        np.testing.assert_array_equal(prediction, LOGITS)
        assert not head.classification

    def test_weights(self):
        weights = np.array([1.0, 0.0, 2.0, 0.5], np.float32)
        head = RegressionHead("rating", LOGITS, LABELS, weights=weights, loss_weight=3.0)
        assert run(head.loss) == pytest.approx(3 * (weights * (LOGITS - LABELS) ** 2).mean())

    def test_integer_labels_are_numbers(self):
        head = RegressionHead("rating", [1.5, 2.5], [1, 2])
        assert run(head.loss) == pytest.approx(0.25)

    def test_without_labels_there_is_no_loss(self):
        assert RegressionHead("rating", LOGITS).loss is None


class TestSoftmaxHead:
    def test_loss_is_the_mean_and_prediction_the_class(self):
        head = SoftmaxHead("genre", CLASS_LOGITS, [1, 0])
        loss, prediction = run([head.loss, head.prediction])
        assert loss == pytest.approx(class_losses([1, 0]).mean())
        assert prediction.tolist() == [1, 2]

    def test_without_labels_there_is_no_loss(self):
        assert SoftmaxHead("genre", [[1.0, 2.0]]).loss is None

    @pytest.mark.parametrize("shape", [(2,), (2, 1), None])
    @pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.float64, np.bool_])
    def test_classes_are_taken_as_readers_give_them(self, shape, dtype):
        classes = np.array([1, 0], dtype)
        labels = tf.compat.v1.placeholder_with_default(classes.reshape(shape or (2,)), shape)
        head = SoftmaxHead("genre", CLASS_LOGITS, labels)
        loss, found = run([head.loss, head.labels])
        assert loss == pytest.approx(class_losses([1, 0]).mean())
        assert (found.tolist(), found.dtype) == ([1, 0], np.int64)

    def test_a_distribution_over_classes_is_taken_as_it_is(self):
        share = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
        loss = run(SoftmaxHead("genre", CLASS_LOGITS, share).loss)
        first = (class_losses([0, 2]) + class_losses([1, 2])) / 2
        assert loss == pytest.approx(first.mean())

    def test_weights(self):
        weights = np.array([[3.0], [0.5]])
        head = SoftmaxHead("genre", CLASS_LOGITS, [1, 0], weights=weights, loss_weight=2.0)
        assert run(head.loss) == pytest.approx(2 * (weights[:, 0] * class_losses([1, 0])).mean())

    @pytest.mark.parametrize("label", [3, -1, 0.5, np.nan])
    def test_labels_that_are_no_classes_end_the_step_with_a_sentence(self, label):
        head = SoftmaxHead("genre", CLASS_LOGITS, [0.0, label])
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"labels of head genre must be classes, .* from 0 to 2, got {label:g}; count",
        ):
            run(head.loss)

    def test_strings_are_refused(self):
        with pytest.raises(errors.DataError, match="labels of head 'genre' are strings"):
            SoftmaxHead("genre", CLASS_LOGITS, [["a"], ["b"]])

    def test_labels_of_another_number_are_refused(self):
        with pytest.raises(errors.ConfigError, match="one number for each of the 2 examples"):
            SoftmaxHead("genre", CLASS_LOGITS, [1, 0, 1])

    def test_a_distribution_over_other_classes_is_refused(self):
        with pytest.raises(errors.ConfigError, match="of the shape of the logits"):
            SoftmaxHead("genre", CLASS_LOGITS, [[1.0, 0.0], [0.0, 1.0]])

    def test_weights_of_another_number_are_refused(self):
        with pytest.raises(errors.ConfigError, match="weights of head 'genre' must hold one"):
            SoftmaxHead("genre", CLASS_LOGITS, [1, 0], weights=[1.0, 2.0, 3.0])

    def test_logits_without_classes_are_refused(self):
        with pytest.raises(errors.ConfigError, match=r"\[batch, classes\], got \(4,\)"):
            SoftmaxHead("genre", LOGITS, [1, 0, 1, 0])


class TestAsSpec:
    def test_losses_of_heads_are_summed_by_their_weights(self):
        click = BinaryHead("click", LOGITS, LABELS)
        like = BinaryHead("like", -LOGITS, LABELS, loss_weight=0.5)
        spec = objectives.as_spec([click, like], "Ranking", "optimizer")
        expected = cross_entropy(LOGITS).mean() + 0.5 * cross_entropy(-LOGITS).mean()
        assert run(spec.loss) == pytest.approx(expected)
        assert (spec.head_name, spec.optimizer) == (["click", "like"], "optimizer")

    def test_heads_without_labels_have_no_loss(self):
        assert objectives.as_spec(BinaryHead("click", LOGITS), "Ranking", None).loss is None

    def test_two_heads_of_one_name_are_refused(self):
        heads = [BinaryHead("click", LOGITS), RegressionHead("click", LOGITS)]
        with pytest.raises(errors.ConfigError, match="two heads that are named 'click'; give each"):
            objectives.as_spec(heads, "Ranking", None)

    @pytest.mark.parametrize("result", [None, [], LOGITS, {"click": 1}, ["click"]])
    def test_anything_else_is_refused(self, result):
        with pytest.raises(errors.ConfigError, match="`call` of Ranking must return a head"):
            objectives.as_spec(result, "Ranking", None)


def test_loss_weight_must_be_a_number():
    with pytest.raises(errors.ConfigError, match="`loss_weight` of head 'click'"):
        BinaryHead("click", LOGITS, LABELS, loss_weight=float("nan"))
