"""Metrics of the last examples of a training, quickly enough to be computed while it runs.

They are named and defined as those of an evaluation, see `monolith.model.outputs`.

Example:
    >>> compute_auc(np.float32([0.1, 0.4, 0.35, 0.8]), np.float32([0, 0, 1, 1]))
    0.75
"""

from collections.abc import Sequence

import numpy as np

from monolith import errors
from monolith.data.auc import auc
from monolith.model.heads import Head

_LARGEST_FLOAT = np.float32(np.inf).view(np.uint32)


def compute(
    head: Head, preds: Sequence[np.ndarray], labels: Sequence[np.ndarray], most: int
) -> tuple[str, float | None]:
    """Returns the name of a head's metric and its value; None if there is none.

    Args:
        head: The head.
        preds: Its predictions, a batch each.
        labels: What was to be predicted.
        most: How many examples count; of more, the last ones.
    """
    if head.pred.dtype.is_integer:
        classes = [_to_classes(label) for label in labels]
        return f"{head.name}_accuracy", _compute_mean(_join(preds, most) == _join(classes, most))
    pred, label = _join(preds, most), _join(labels, most)
    if len(pred) != len(label):
        return head.name, None  # The step fails, too, or the model masks examples in its own way.
    if head.classification:
        return f"{head.name}_auc", compute_auc(pred, label)
    return f"{head.name}_mse", _compute_mean(np.square(pred - label))


def compute_auc(preds: np.ndarray, labels: np.ndarray) -> float | None:
    """Returns the AUC of predictions `[n]` for labels between 0 and 1, `[n]`; None without one.

    There is none where all labels are the same, or something is not a number.
    """
    preds = np.asarray(preds, np.float32) + np.float32(0)  # There is no -0 then.
    clicked = np.asarray(labels == 1)
    if not (clicked | (labels == 0)).all() or (preds < 0).any():
        return _compute_any_auc(preds, labels)
    # Numbers from 0 on are ordered as their bits are. With the label in the lowest bit there is
    # one array to sort, in place, which is many times faster than to sort one by another.
    keys = (preds.view(np.uint32) << 1) | clicked
    keys.sort()
    num_clicked = np.count_nonzero(clicked)
    pairs = num_clicked * (len(keys) - num_clicked)
    scores = keys >> 1
    if pairs == 0 or scores[-1] > _LARGEST_FLOAT:
        return None
    # Equal scores are a group, whose pairs count half: all are counted twice, to stay with ints.
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    clicked_of_group = np.add.reduceat(keys & 1, starts, dtype=np.int64)
    skipped_of_group = np.diff(starts, append=len(keys)) - clicked_of_group
    skipped_below = np.cumsum(skipped_of_group) - skipped_of_group
    right = np.sum(clicked_of_group * (2 * skipped_below + skipped_of_group))
    return float(right / (2 * pairs))


def _compute_any_auc(preds: np.ndarray, labels: np.ndarray) -> float | None:
    try:
        return auc(preds, labels)
    except errors.ConfigError:
        return None


def _compute_mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if np.size(values) else None


def _join(batches: Sequence[np.ndarray], most: int) -> np.ndarray:
    return np.concatenate([np.ravel(batch) for batch in batches])[-most:]


def _to_classes(label: np.ndarray) -> np.ndarray:
    """Returns the classes of labels, which may be a distribution over them."""
    is_distribution = np.ndim(label) == 2 and label.shape[1] != 1
    return np.argmax(label, axis=1) if is_distribution else label
