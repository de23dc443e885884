"""AUC against its definition, and the best one against simulated labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import errors
from monolith.data.auc import auc, best_auc


def count_pairs(scores, labels):
    """The definition, pair by pair."""
    right = pairs = 0.0
    for i, (score, label) in enumerate(zip(scores, labels, strict=True)):
        for j, (other_score, other_label) in enumerate(zip(scores, labels, strict=True)):
            if i == j:
                continue
            weight = label * (1 - other_label)
            pairs += weight
            right += weight * (1 if score > other_score else 0.5 if score == other_score else 0)
    return right / pairs


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0, 0.25, 0.6, 1])), min_size=2, max_size=12
    ).filter(lambda rows: 0 < sum(p for _, p in rows) < len(rows))
)
def test_agrees_with_the_definition(rows):
    scores, labels = zip(*rows, strict=True)
    assert auc(scores, labels) == pytest.approx(count_pairs(scores, labels), abs=1e-12)


def test_known_values():
    assert auc([1, 2, 3, 4], [0, 0, 1, 1]) == 1
    assert auc([4, 3, 2, 1], [0, 0, 1, 1]) == 0
    assert auc([7, 7, 7, 7], [0, 1, 0, 1]) == 0.5


def test_best_auc_is_what_simulated_labels_give():
    rng = np.random.default_rng(5)
    probabilities = rng.beta(1, 2, 3000)
    simulated = [auc(probabilities, rng.random(3000) < probabilities) for _ in range(200)]
    error = np.std(simulated) / np.sqrt(len(simulated))
    assert best_auc(probabilities) == pytest.approx(np.mean(simulated), abs=4 * error)
    assert error < 0.001


def test_no_other_order_is_better():
    rng = np.random.default_rng(6)
    probabilities = rng.random(500)
    best = best_auc(probabilities)
    assert auc(np.log(probabilities), probabilities) == pytest.approx(best)
    for noise in (0.01, 0.1, 1):
        assert auc(probabilities + noise * rng.standard_normal(500), probabilities) < best


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([1, 2], [0], "got 2 scores and 1 labels"),
        ([1, 2], [0, 2], "labels lie between 0 and 1"),
        ([1, float("nan")], [0, 1], "Scores must be numbers"),
        ([1, 2], [1, 1], "at least one clicked and one skipped"),
        ([], [], "at least one clicked and one skipped"),
    ],
)
def test_bad_input_is_refused(scores, labels, message):
    with pytest.raises(errors.ConfigError, match=message):
        auc(scores, labels)
