"""Metrics of the last examples: as the slow ones, where there is one, and None where not."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from monolith.data.auc import auc
from monolith.model.heads import Head
from monolith.training.hooks import window_metrics


def make_head(dtype=tf.float32, classification=True) -> Head:
    with tf.Graph().as_default():
        return Head("click", tf.constant([0], dtype), tf.constant([0.0]), classification)


class TestAuc:
    @hypothesis.given(
        st.lists(
            st.tuples(st.sampled_from([0.0, -0.0, 1e-30, 0.1, 0.5, 0.50001, 1.0]), st.booleans()),
            min_size=1,
        )
    )
    def test_is_that_of_all_pairs(self, examples):
        preds = np.float32([pred for pred, _ in examples])
        labels = np.array([label for _, label in examples])
        clicked, skipped = preds[labels], preds[~labels]
        value = window_metrics.compute_auc(preds, labels.astype(np.float32))
        if not len(clicked) or not len(skipped):
            assert value is None
        else:
            won = np.sign(clicked[:, None] - skipped[None, :])
            assert value == pytest.approx(np.mean((won + 1) / 2), abs=1e-9)

    def test_of_many(self):
        rng = np.random.default_rng(0)
        preds = rng.random(50_000).astype(np.float32)
        labels = (rng.random(50_000) < preds).astype(np.float32)
        assert window_metrics.compute_auc(preds, labels) == pytest.approx(auc(preds, labels))

    def test_labels_that_are_probabilities(self):
        preds, labels = np.float32([0.2, 0.8]), np.float32([0.3, 0.6])
        assert window_metrics.compute_auc(preds, labels) == pytest.approx(auc(preds, labels))

    def test_predictions_below_zero(self):
        """Scores of a head that says it classifies, and does not give probabilities."""
        preds, labels = np.float32([-2, -1, 1]), np.float32([0, 1, 1])
        assert window_metrics.compute_auc(preds, labels) == 1.0

    @pytest.mark.parametrize(
        ("preds", "labels"),
        [
            ([], []),
            ([0.1, 0.2], [1, 1]),
            ([0.1, 0.2], [0, 0]),
            ([0.1, np.nan], [0, 1]),
            ([0.1, 0.2], [0, -1]),
            ([0.1, 0.2], [0, np.nan]),
        ],
    )
    def test_without_one(self, preds, labels):
        assert window_metrics.compute_auc(np.float32(preds), np.float32(labels)) is None


class TestCompute:
    def test_name_and_value_of_each_kind(self):
        preds, labels = [np.float32([0.25, 0.75])], [np.float32([0, 1])]
        assert window_metrics.compute(make_head(), preds, labels, 9) == ("click_auc", 1.0)
        regression = make_head(classification=False)
        assert window_metrics.compute(regression, preds, labels, 9) == ("click_mse", 0.0625)
        classes = make_head(tf.int64)
        chosen, right = [np.int64([2, 0, 1])], [np.float32([2, 1, 1])]
        assert window_metrics.compute(classes, chosen, right, 9) == ("click_accuracy", 2 / 3)

    def test_a_distribution_over_classes(self):
        head = make_head(tf.int32)
        labels = [np.float32([[0, 0, 1], [1, 0, 0]])]
        value = window_metrics.compute(head, [np.int32([2, 1])], labels, 9)
        assert value == ("click_accuracy", 0.5)

    def test_only_the_last_examples_count(self):
        head = make_head(classification=False)
        preds, labels = [np.float32([9, 9]), np.float32([9, 1])], [np.zeros(2), np.zeros(2)]
        assert window_metrics.compute(head, preds, labels, 1) == ("click_mse", 1.0)

    def test_columns_and_empty_batches(self):
        head = make_head(classification=False)
        preds = [np.float32([[2], [2]]), np.zeros([0, 1], np.float32)]
        labels = [np.float32([[1], [3]]), np.zeros([0, 1], np.float32)]
        assert window_metrics.compute(head, preds, labels, 9) == ("click_mse", 1.0)
        assert window_metrics.compute(head, preds[1:], labels[1:], 9) == ("click_mse", None)

    def test_more_labels_than_predictions(self):
        labels = [np.float32([0, 1, 1])]
        assert window_metrics.compute(make_head(), [np.float32([0.1])], labels, 9)[1] is None
