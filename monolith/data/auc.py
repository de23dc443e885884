"""The area under the ROC curve, also where the labels are probabilities.

AUC is the probability that a clicked example is scored higher than one that was not, ties counting
half. Where the true click probabilities are known, as in synthetic data, no labels need to be
drawn: example i is clicked and example j is not with probability p_i (1 - p_j), which weighs the
pair. Scores ordered like the probabilities themselves reach the highest value there is, `best_auc`.

Example:
    >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    >>> round(best_auc([0.2, 0.8]), 4)  # 0.8 * 0.8 against 0.2 * 0.2
    0.9412
"""

from typing import Any

import numpy as np

from monolith import errors


def auc(scores: Any, labels: Any) -> float:
    """Returns the AUC of `scores`, `[n]`, for labels between 0 and 1, `[n]`.

    With labels 0 and 1 it is the ordinary AUC, exactly. With probabilities it is the expected
    number of pairs in the right order divided by the expected number of pairs.

    Raises:
        errors.ConfigError: The shapes differ, a score is NaN, a label lies outside of [0, 1], or
            there is no pair to compare.
    """
    scores = np.asarray(scores).reshape(-1)
    clicked = np.asarray(labels, np.float64).reshape(-1)
    if len(scores) != len(clicked):
        raise errors.ConfigError(
            f"Each score needs a label, got {len(scores)} scores and {len(clicked)} labels."
        )
    if np.isnan(scores).any() or not ((clicked >= 0) & (clicked <= 1)).all():
        raise errors.ConfigError("Scores must be numbers and labels lie between 0 and 1.")
    order = np.argsort(scores)
    scores, clicked = scores[order], clicked[order]
    skipped = 1 - clicked
    # An example is never compared with itself.
    self_pairs = clicked @ skipped
    pairs = clicked.sum() * skipped.sum() - self_pairs
    if pairs <= 0:
        raise errors.ConfigError("AUC needs at least one clicked and one skipped example.")
    group = np.cumsum(np.concatenate([[0], scores[1:] != scores[:-1]])) if len(scores) else order
    clicked_of_group = np.bincount(group, clicked)
    skipped_of_group = np.bincount(group, skipped)
    skipped_below = np.cumsum(skipped_of_group) - skipped_of_group
    right = clicked_of_group @ (skipped_below + skipped_of_group / 2) - self_pairs / 2
    return float(right / pairs)


def best_auc(probabilities: Any) -> float:
    """Returns the AUC that no scorer exceeds, given each example's true probability, `[n]`."""
    return auc(probabilities, probabilities)
