"""Tensors that cross between processes: counted before and after TensorFlow has cut the graph."""

import pytest
import tensorflow as tf

from monolith import testing
from monolith.training.distributed import crossings

pytestmark = pytest.mark.usefixtures("graph_mode")


def on_server(index):
    return tf.device(f"/job:ps/task:{index}")


def test_tensor_is_sent_once_to_each_server():
    with tf.device("/job:chief/task:0"):
        ids = tf.compat.v1.placeholder(tf.float32, [2])
        parts = []
        for index in range(2):
            with on_server(index):
                parts.append(tf.negative(ids) + tf.square(ids))
        total = tf.add_n(parts)
    assert crossings.count_built([total.op]) == 4
    assert crossings.count_built([parts[0].op]) == 1
    assert crossings.count_built([]) == 0


def test_order_of_ops_is_told_across_processes():
    with tf.device("/job:chief/task:0"), on_server(0):
        first = tf.no_op()
    with tf.device("/job:chief/task:0"), tf.control_dependencies([first]):
        second = tf.no_op()
    assert crossings.count_built([second]) == 1


def test_step_and_the_queue_that_feeds_it():
    """What crosses in a real step, and in the lookup that ran before it."""
    servers, config = testing.create_test_ps_cluster(2)
    with tf.device("/job:ps/task:0"):
        queue = tf.queue.FIFOQueue(2, tf.float32, shapes=[()])
    with tf.device("/job:ps/task:0"):
        number = tf.random.uniform([])
    with tf.device("/job:ps/task:1"):
        looked_up = tf.negative(number)
    with tf.device("/job:ps/task:0"):
        enqueue = queue.enqueue(looked_up)
        taken = queue.dequeue()
    with tf.device("/job:ps/task:1"):
        result = tf.square(taken)
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with tf.compat.v1.Session(servers[0].target, config=config) as session:
        session.run(enqueue)
        session.run(result.op, options=options, run_metadata=metadata)
    assert crossings.count_sent(metadata.partition_graphs) == 1
    # There and back again before it.
    assert crossings.count(tf.compat.v1.get_default_graph(), metadata.partition_graphs) == 3
