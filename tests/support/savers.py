"""Variables to save and restore, for tests of the saver."""

import tensorflow as tf

v1 = tf.compat.v1


def initialize(session: v1.Session) -> None:
    session.run(v1.global_variables_initializer())


def make_variable(name, value, **kwargs):
    return v1.get_variable(name, initializer=value, use_resource=True, **kwargs)
