"""Counting the steps and examples of a worker."""

import pytest
import tensorflow as tf

from monolith.training.hooks import step_counts

pytestmark = pytest.mark.usefixtures("graph_mode")


def run(hook, batches):
    ids = tf.data.Dataset.from_generator(
        lambda: (list(range(n)) for n in batches), output_signature=tf.TensorSpec([None], tf.int64)
    )
    numbers = tf.compat.v1.data.make_one_shot_iterator(ids).get_next()
    step_counts.collect_batch_size({"user": tf.RaggedTensor.from_tensor(numbers[:, None])})
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            session.run(numbers)


def test_batches_of_different_sizes():
    hook = step_counts.StepCountHook()
    run(hook, [3, 0, 5])
    assert hook.totals == (3, 8)


def test_sessions_add_up():
    hook = step_counts.StepCountHook()
    for _ in range(2):
        with tf.Graph().as_default():
            run(hook, [3, 4])
    assert hook.totals == (4, 14)


@pytest.mark.parametrize("ids", [{}, {"user": "not ragged"}])
def test_graph_that_does_not_tell(ids):
    step_counts.collect_batch_size(ids)
    hook = step_counts.StepCountHook()
    step = tf.no_op()
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(step)
    assert hook.totals == (1, None)
