"""Only what nobody holds is initialized."""

import pytest
import tensorflow as tf

from monolith.training.tables import partial_init

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_monitored_session_keeps_what_is_there():
    server = tf.distribute.Server.create_local_server()

    def run(value):
        """Adds to a variable that outlives the session, and to one that is new each time."""
        with tf.Graph().as_default():
            kept = tf.compat.v1.get_variable("kept", initializer=1.0, use_resource=True)
            new = tf.compat.v1.get_variable(f"new_{value}", initializer=1.0, use_resource=True)
            add = [v.assign_add(value) for v in (kept, new)]
            creator = tf.compat.v1.train.ChiefSessionCreator(
                partial_init.create_scaffold(tf.compat.v1.train.Scaffold()), master=server.target
            )
            with tf.compat.v1.train.MonitoredSession(creator) as session:
                return [float(v) for v in session.run(add)]

    assert run(2.0) == [3.0, 3.0]
    assert run(4.0) == [7.0, 5.0]


def test_model_that_initializes_itself():
    scaffold = tf.compat.v1.train.Scaffold(init_op=tf.no_op())
    assert partial_init.create_scaffold(scaffold) is scaffold
    scaffold = tf.compat.v1.train.Scaffold(init_fn=lambda scaffold, session: None)
    assert partial_init.create_scaffold(scaffold) is scaffold
