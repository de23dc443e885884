"""Closing sessions without waiting for members that are gone.

A session that is closed tells every server that it used, and waits for the answer; from a server
that was started again elsewhere none will ever come. A worker that has lost a member has better
things to do: it gives the session up and leaves the waiting to a thread.

Example:
    >>> with tf.Graph().as_default(), giving_up_after(1.0):
    ...     session = tf.compat.v1.Session()
    ...     session.close()
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf  # noqa: F401 - for the example
from tensorflow.python.client import session as tf_session

from monolith.cluster.background import BackgroundCall

logger = logging.getLogger(__name__)

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
        closer = _Closer(close, self)
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


class _Closer(BackgroundCall):
    def __init__(self, close: Any, session: Any) -> None:
        super().__init__("close_session")
        self._close = close
        self._session = session
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._close(self._session)
        except Exception as error:  # noqa: BLE001 - raised where it was closed
            self.error = error
