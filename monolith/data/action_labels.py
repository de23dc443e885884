"""Labels that are made of a row's actions, for each of several tasks.

`1,2:3;4:` has two tasks: of the first, the actions 1 and 2 are positive and 3 is negative; of the
second, 4 is positive and everything else negative.

Example:
    >>> tasks = read_tasks("1,2:3;4:")
    >>> actions = tf.ragged.constant([[2, 4], [3], [5]], dtype=tf.int64)
    >>> labels = make_labels(actions, tasks, positive_label=1.0, negative_label=0.0).numpy()
    >>> labels[:, 1].tolist(), labels[:2, 0].tolist(), float(labels[2, 0]) == INVALID_LABEL
    ([1.0, 0.0, 0.0], [1.0, 0.0], True)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from monolith import errors

# A label that no loss counts: the lowest number of 32 bits.
INVALID_LABEL = float(np.finfo(np.float32).min)


class ActionTask(NamedTuple):
    """What the actions of a row say about one task.

    Attributes:
        positive: A row with one of these is positive.
        negative: Another one with one of these is negative. If there are none, all others are.
    """

    positive: tuple[int, ...]
    negative: tuple[int, ...]


def read_tasks(text: str) -> list[ActionTask]:
    """Reads `positive:negative;positive:negative`, with commas between actions.

    Raises:
        errors.ConfigError: That is something else.
    """
    return [_read_task(part) for part in text.split(";") if part]


def make_labels(
    actions: tf.RaggedTensor,
    tasks: Sequence[ActionTask],
    positive_label: float,
    negative_label: float,
) -> tf.Tensor:
    """Returns the labels of rows, `[rows, tasks]`; `INVALID_LABEL` where nothing is known.

    Args:
        actions: Of each row, int64.
        tasks: One or several.
        positive_label: The label of positive rows.
        negative_label: That of negative ones.
    """
    labels = []
    for task in tasks:
        is_negative: tf.Tensor | bool = not task.negative or _has_one(actions, task.negative)
        otherwise = tf.where(is_negative, negative_label, INVALID_LABEL)
        labels.append(tf.where(_has_one(actions, task.positive), positive_label, otherwise))
    return tf.stack(labels, axis=1)


def _has_one(actions: tf.RaggedTensor, wanted: Sequence[int]) -> tf.Tensor:
    is_wanted = tf.reduce_any(
        tf.equal(actions.flat_values[:, None], tf.constant(wanted, tf.int64, [1, len(wanted)])),
        axis=1,
    )
    return tf.reduce_any(actions.with_flat_values(is_wanted), axis=1)


def _read_task(text: str) -> ActionTask:
    try:
        positive, negative = text.split(":")
        return ActionTask(_read_actions(positive), _read_actions(negative))
    except ValueError:
        raise errors.ConfigError(
            f"A task is positive:negative, with commas between actions, as 1,2:3, got {text!r}."
        ) from None


def _read_actions(text: str) -> tuple[int, ...]:
    return tuple(int(action) for action in text.split(",") if action.strip())
