"""Which variables a worker has itself, and who initializes them; see also the integration test."""

import pytest
import tensorflow as tf

from monolith.training.tables import own_variables

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_a_worker_waits_for_nobody_to_initialize_its_own_variables():
    variable = tf.compat.v1.get_variable("v", initializer=3.0, use_resource=True)
    # As a model with tables does: TensorFlow would wait for the chief to initialize them.
    tf.compat.v1.add_to_collection(
        tf.compat.v1.GraphKeys.READY_FOR_LOCAL_INIT_OP,
        tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
    )
    scaffold = own_variables.create_scaffold(tf.compat.v1.train.Scaffold())
    # Hooks make some, too, also local ones.
    late = tf.compat.v1.get_variable("late", initializer=4.0, use_resource=True)
    local = tf.compat.v1.get_variable(
        "local", initializer=5.0, collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    )
    creator = tf.compat.v1.train.WorkerSessionCreator(scaffold, max_wait_secs=5)
    with tf.compat.v1.train.MonitoredSession(creator) as session:
        assert session.run([variable, late, local]) == [3.0, 4.0, 5.0]


def test_variables_on_servers_are_left_to_the_chief():
    with tf.device("/job:ps/task:1/device:CPU:0"):
        tf.compat.v1.get_variable("shared", initializer=1.0, use_resource=True)
    with tf.device("/job:worker/task:1/device:CPU:0"):
        own = tf.compat.v1.get_variable("own", initializer=1.0, use_resource=True)
    assert own_variables.get_own_variables() == [own]
