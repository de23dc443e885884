"""Labels of actions, against the rules in words."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import action_labels

INVALID = np.finfo(np.float32).min


def test_tasks_are_read():
    assert action_labels.read_tasks("1,2:3;4:;:5") == [((1, 2), (3,)), ((4,), ()), ((), (5,))]
    assert action_labels.read_tasks("") == []


@pytest.mark.parametrize("text", ["1", "1:2:0.5", "a:1", "1;2:3"])
def test_what_is_no_task(text):
    with pytest.raises(errors.ConfigError, match="A task is positive:negative"):
        action_labels.read_tasks(text)


def test_labels():
    # Of the third row, nothing is known about the first task; 0 is an action like others.
    actions = tf.ragged.constant([[2, 3], [3], [5, 6], [], [0]], dtype=tf.int64)
    tasks = action_labels.read_tasks("1,2:3;5:;0:")
    found = action_labels.make_labels(actions, tasks, 2.0, -1.0)
    expected = [[2, -1, -1], [-1, -1, -1], [INVALID, 2, -1], [INVALID, -1, -1], [INVALID, -1, 2]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_a_task_without_positive_actions_has_no_positive_rows():
    actions = tf.ragged.constant([[1], [2]], dtype=tf.int64)
    found = action_labels.make_labels(actions, action_labels.read_tasks(":2"), 1.0, 0.0)
    np.testing.assert_array_equal(found, np.array([[INVALID], [0]], np.float32))


def test_no_rows():
    actions = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0])
    found = action_labels.make_labels(actions, action_labels.read_tasks("1:2;3:"), 1.0, 0.0)
    assert found.shape == [0, 2]
