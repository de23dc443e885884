"""Which ops a gate waits for; what it is good for is tested in prefetch_async_test.py."""

import tensorflow as tf

from monolith.tensor import input_gate, prefetch

v1 = tf.compat.v1


def range_input(n):
    return v1.data.make_one_shot_iterator(tf.data.Dataset.range(n)).get_next()


def test_inputs_of_a_step(graph_mode):
    """What is computed from a batch, and what a variable holds, is nothing to wait for."""
    batch, other_batch = range_input(3), range_input(3)
    prefetched, _ = prefetch.enqueue_dicts_with_queue_return(other_batch)
    weight = tf.Variable(2, dtype=tf.int64)
    looked_up = tf.numpy_function(lambda x: x, [batch * weight], tf.int64)
    looked_up.set_shape([])
    noise = tf.random.uniform([], maxval=5, dtype=tf.int64)
    inputs = input_gate._find_inputs((looked_up + prefetched + noise).op)
    assert sorted(op.type for op in inputs) == [
        "IteratorGetNext",
        "QueueDequeueV2",
        "RandomUniformInt",
    ]


def test_gate_opens_once_per_ticket(graph_mode):
    x = v1.placeholder_with_default(3, [])
    value, queue = prefetch.enqueue_dicts_with_queue_return(x, capacity=4)
    gate = input_gate.InputGate(queue.enqueue_op, [value.op])
    blocked = v1.RunOptions(timeout_in_ms=50)
    with v1.Session() as session:
        session.run(queue.enqueue_op)
        try:
            session.run(value, options=blocked)
            raise AssertionError("The gate was open.")
        except tf.errors.DeadlineExceededError:
            assert session.run(queue.size()) == 1
        assert session.run((value, gate.open_now))[0] == 3
        session.run(queue.enqueue_op, {x: 4})
        assert session.run((value, gate.open_with_input))[0] == 4


def test_step_without_the_enqueue_has_no_input(graph_mode):
    value, queue = prefetch.enqueue_dicts_with_queue_return(range_input(3))
    gate = input_gate.InputGate(queue.enqueue_op, [value.op])
    unrelated = tf.constant(1)
    with tf.control_dependencies([queue.enqueue_op]):
        step = tf.no_op()
    assert gate.is_fed_by(step)
    assert gate.is_fed_by({"loss": unrelated, "step": [step.name]})
    assert not gate.is_fed_by([unrelated, unrelated.name])
    assert not gate.is_fed_by(value)
    assert not gate.is_fed_by({1: step, "a": object()})
