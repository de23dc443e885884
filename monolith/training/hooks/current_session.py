"""The session that is training right now, for code that is not handed one.

Callbacks deep in a model or in a listener sometimes need the session of the running loop. A
monitored session is not TensorFlow's default session, so a hook notes it.

Example:
    >>> with tf.Graph().as_default():
    ...     three = tf.constant(3)
    ...     hook = SetCurrentSessionHook()
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
    ...         noted = get_current_session()
    ...         int(noted.run(three))
    3
    >>> get_current_session() is noted
    False
"""

import threading
import weakref

import tensorflow as tf


class _Info:
    """The sessions that hooks have noted and not let go, the newest last.

    There can be several: training and evaluation in one process, chief and worker in two threads.
    They are held weakly, and closed ones do not count: a hook's `end` is not called when a session
    fails.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: list[weakref.ref[tf.compat.v1.Session]] = []

    @property
    def session(self) -> tf.compat.v1.Session | None:
        """The newest session that is still there, None without one."""
        with self._lock:
            for reference in reversed(self._sessions):
                session = reference()
                if session is not None and not session._closed:
                    return session
        return None

    def add(self, session: tf.compat.v1.Session) -> None:
        with self._lock:
            self._sessions.append(weakref.ref(session))

    def remove(self, session: tf.compat.v1.Session | None) -> None:
        with self._lock:
            self._sessions = [r for r in self._sessions if r() not in (None, session)]


_INFO = _Info()


class SetCurrentSessionHook(tf.compat.v1.train.SessionRunHook):
    """Makes its session the one that `get_current_session` returns, until the session ends.

    The end of one session leaves others alone: the one before becomes current again.
    """

    def __init__(self) -> None:
        self._own: weakref.ref[tf.compat.v1.Session] | None = None

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        # A session that is created again after a failure takes the place of the failed one.
        self._forget()
        self._own = weakref.ref(session)
        _INFO.add(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        self._forget()

    def _forget(self) -> None:
        _INFO.remove(self._own() if self._own is not None else None)
        self._own = None


def get_current_session() -> tf.compat.v1.Session | None:
    """Returns the session of the running loop, else TensorFlow's default session, else None."""
    return _INFO.session or tf.compat.v1.get_default_session()
