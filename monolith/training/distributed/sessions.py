"""Making and closing sessions without waiting for members that are gone.

A session that is closed tells every server that it used, and waits for the answer; from a server
that was started again elsewhere none will ever come. And one that is made asks them all at its
first run, and waits as long: a server may have been replaced since somebody said where it is. A
worker that has lost a member has better things to do: it gives the session up and leaves the
waiting to a thread.

Example:
    >>> with tf.Graph().as_default(), giving_up_after(1.0):
    ...     session = tf.compat.v1.Session()
    ...     session.close()
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session

from monolith.cluster.background import BackgroundCall

logger = logging.getLogger(__name__)

_POLL_SEC = 0.2
# Attribute of a session that has reached its members.
_IS_MADE = "_monolith_is_made"

# What was given up is kept: to forget it would close it again.
_given_up: list[Any] = []


@contextlib.contextmanager
def giving_up_after(timeout_sec: float) -> Iterator[None]:
    """Has all sessions that are closed in the block close within some seconds, or be given up.

    Args:
        timeout_sec: How long to wait for one.
    """
    close = tf_session.BaseSession.close

    def close_or_give_up(self: Any) -> None:
        closer = _Call("close_session", close, self)
        closer.start()
        closer.join(timeout_sec)
        if closer.is_alive():
            _given_up.append(self)
            logger.warning(
                "a session does not close within %g s, since one of its members does not answer; "
                "it is given up",
                timeout_sec,
            )
        elif closer.error is not None:
            raise closer.error

    tf_session.BaseSession.close = close_or_give_up
    try:
        yield
    finally:
        tf_session.BaseSession.close = close


@contextlib.contextmanager
def made_within(timeout_sec: float, check: Callable[[], None]) -> Iterator[None]:
    """Has all sessions that are first run in the block reach their members in time, or fail.

    Args:
        timeout_sec: How long to wait for one.
        check: Called meanwhile; what it raises ends the wait.
    """
    extend = tf_session.BaseSession._extend_graph

    def extend_in_time(self: Any) -> None:
        if getattr(self, _IS_MADE, False):
            extend(self)
            return
        maker = _Call("make_session", extend, self)
        maker.start()
        deadline_sec = time.monotonic() + timeout_sec
        try:
            maker.join(_POLL_SEC)
            while maker.is_alive():
                check()
                if time.monotonic() > deadline_sec:
                    raise tf.errors.UnavailableError(
                        None,
                        None,
                        f"a session was not made within {timeout_sec:g} s, since one of its "
                        "members does not answer",
                    )
                maker.join(_POLL_SEC)
        except Exception:
            _given_up.append(self)
            raise
        if maker.error is not None:
            raise maker.error
        setattr(self, _IS_MADE, True)

    tf_session.BaseSession._extend_graph = extend_in_time
    try:
        yield
    finally:
        tf_session.BaseSession._extend_graph = extend


class _Call(BackgroundCall):
    """Calls something with a session, which may take for ever."""

    def __init__(self, name: str, function: Any, session: Any) -> None:
        super().__init__(name)
        self._function = function
        self._session = session
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._function(self._session)
        except Exception as error:  # noqa: BLE001 - raised by who has asked for it
            self.error = error
