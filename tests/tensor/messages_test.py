"""Small tensors cross together, with the same values as one by one."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.tensor import messages
from monolith.testing import create_test_ps_cluster
from monolith.training.distributed import crossings

_PS = ["/job:ps/task:0", "/job:ps/task:1"]


@pytest.fixture(scope="module")
def cluster():
    """Two servers, and a third one that is the worker."""
    servers, config = create_test_ps_cluster(3)
    (servers_of_job,) = config.cluster_def.job
    address = servers_of_job.tasks.pop(2)
    config.cluster_def.job.add(name="worker").tasks[0] = address
    return servers[2], config


def _make_variables():
    variables = []
    for number, shape in enumerate([[2, 3], [3], [], [4], [0, 2]]):
        with tf.device(_PS[number % 2]):
            values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + number
            variables.append(tf.Variable(values, name=f"v{number}"))
    return variables


def _run(session, fetches):
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    values = session.run(fetches, options=options, run_metadata=metadata)
    return values, crossings.count_sent(metadata.partition_graphs)


def test_a_step_reads_and_sends_once_for_each_server(cluster, graph_mode):
    worker, config = cluster
    variables = _make_variables()
    with tf.device("/job:ps/task:0"):
        large = tf.Variable(tf.ones([messages.MAX_BYTES]), name="large")
    with tf.device("/job:worker/task:0"):
        total = tf.add_n([tf.reduce_sum(v * v) for v in variables])
        # 2v is what a gradient of the sum of squares would be.
        sent = messages.send_together(
            [2.0 * v.read_value() for v in variables] + [large.read_value()],
            [v.device for v in [*variables, large]],
        )
        updates = [
            v.assign_sub(gradient, read_value=False)
            for v, gradient in zip([*variables, large], sent, strict=True)
        ]
        train_op = tf.group(*updates, total)
    messages.read_together(train_op)
    before = [np.arange(n, dtype=np.float32) + i for i, n in enumerate([6, 3, 1, 4, 0])]
    with tf.compat.v1.Session(worker.target, config=config) as session:
        session.run(tf.compat.v1.global_variables_initializer())
        found, _ = _run(session, total)
        assert found == sum(float((v * v).sum()) for v in before)
        _, num_sent = _run(session, train_op)
        # v - 2v is -v, and of the large one 1 - 1 is 0.
        for variable, value in zip(variables, before, strict=True):
            np.testing.assert_array_equal(session.run(variable).ravel(), -value)
        assert not session.run(large).any()
    # For each of both servers: values, gradients, and that its updates are done. The large one
    # comes and goes by itself.
    assert num_sent == 2 * 3 + 2


def test_leaves_alone_what_it_cannot_pack(graph_mode):
    with tf.device("/job:worker/task:0"):
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
        unknown = tf.compat.v1.placeholder(tf.float32, [None])
        tensors = [tf.ones([2]), slices, unknown, tf.ones([3], tf.float64), tf.ones([2])]
        sent = messages.send_together(tensors, [*[_PS[0]] * 4, "/job:worker/task:0"])
    assert all(after is before for after, before in zip(sent, tensors, strict=True))


def test_reads_after_an_update_stay_where_they_are(graph_mode):
    variables = _make_variables()[:3:2]  # Both on the first server.
    with tf.device("/job:worker/task:0"):
        with tf.control_dependencies([v.assign_add(v * 0 + 1) for v in variables]):
            late = [v.read_value() for v in variables]
        train_op = tf.group(*[tf.identity(value) for value in late])
    inputs = [value.op.inputs[0] for value in late]
    messages.read_together(train_op)
    assert [value.op.inputs[0] for value in late] == inputs
