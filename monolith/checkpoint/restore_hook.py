"""A moment to restore what TensorFlow's own saver does not know.

Variables are restored while a session is created. Right after that, once per session, the hook
here tells its listeners to bring back the rest: tables, admission filters.

Example:
    >>> class Announce(CheckpointRestorerListener):
    ...     def before_restore(self, session):
    ...         print("restoring tables")
    >>> hook = CheckpointRestorerHook([Announce()])
    >>> with tf.Graph().as_default():
    ...     step = tf.constant(1)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         int(session.run(step))
    restoring tables
    1
"""

from collections.abc import Sequence

import tensorflow as tf


class CheckpointRestorerListener:
    """Acts at the stages of a restore; every method does nothing unless overridden."""

    def begin(self) -> None:
        """Called before the graph is finalized, so that ops can be added."""

    def before_restore(self, session: tf.compat.v1.Session) -> None:
        """Called when a session was created and its variables are there."""

    def after_restore(self, session: tf.compat.v1.Session) -> None:
        """Called when `before_restore` of all listeners is done."""

    def end(self, session: tf.compat.v1.Session) -> None:
        """Called when the session ends without an error."""


class CheckpointRestorerHook(tf.compat.v1.train.SessionRunHook):
    """Calls its listeners whenever a session is created; restores nothing itself.

    Args:
        listeners: Called in this order.
    """

    def __init__(self, listeners: Sequence[CheckpointRestorerListener] | None = None) -> None:
        self._listeners = list(listeners or [])

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        for listener in self._listeners:
            listener.before_restore(session)
        for listener in self._listeners:
            listener.after_restore(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        for listener in self._listeners:
            listener.end(session)
