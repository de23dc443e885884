"""Dense variables that each worker has itself, beside tables on servers.

In a job whose workers train the dense part together, every worker initializes its own variables,
and then takes the values of the chief, which has restored them, or has initialized them as the
first. From there on all do the same steps, so that they stay equal.

Example:
    >>> with tf.Graph().as_default():
    ...     own = tf.compat.v1.get_variable("own", initializer=1.0)
    ...     with tf.device("/job:ps/task:0"):
    ...         shared = tf.compat.v1.get_variable("shared", initializer=2.0)
    ...     [variable.op.name for variable in get_own_variables()]
    ['own']
"""

from typing import Any

import tensorflow as tf

from monolith.graph import collectives, devices


def get_own_variables() -> list[tf.Variable]:
    """Returns the global variables of the default graph that are not on a server."""
    variables = tf.compat.v1.global_variables()
    return [variable for variable in variables if not devices.is_on_server(variable.device)]


def create_scaffold(scaffold: tf.compat.v1.train.Scaffold) -> tf.compat.v1.train.Scaffold:
    """Returns a scaffold with which a worker besides the chief initializes its own variables.

    Args:
        scaffold: Of the model.
    """
    return _OwnScaffold(copy_from_scaffold=scaffold, ready_for_local_init_op=tf.no_op())


class _OwnScaffold(tf.compat.v1.train.Scaffold):
    _local_init_op: Any

    def finalize(self) -> Any:
        # Not before: hooks make variables, too.
        if self._local_init_op is None:
            self._local_init_op = tf.group(
                self.default_local_init_op(),
                tf.compat.v1.variables_initializer(get_own_variables()),
            )
        return super().finalize()


class TakeFromChiefHook(tf.compat.v1.train.SessionRunHook):
    """Gives all workers the variables of the chief when their sessions are there.

    Goes behind the hook by which the chief says that it is ready. Made when the graph of the model
    is complete, which is the same in all workers; what hooks add to it may not be.
    """

    def __init__(self) -> None:
        self._assign: tf.Operation | None = None
        if collectives.size() == 1:
            return
        variables = get_own_variables()
        # The others add nothing to it, so that all travel in few messages.
        own = [variable.read_value() for variable in variables]
        given = own if collectives.rank() == 0 else [tf.zeros_like(value) for value in own]
        taken = collectives.grouped_allreduce(given, collectives.Sum)
        self._assign = tf.group(
            *[
                tf.compat.v1.assign(variable, value)
                for variable, value in zip(variables, taken, strict=True)
            ]
        )

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._assign is not None:
            session.run(self._assign)
