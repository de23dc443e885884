"""Sessions that close, and those that do not."""

import logging
import threading
import time

import pytest
import tensorflow as tf
from tensorflow.python.client import session as tf_session

from monolith.training.distributed import sessions

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_sessions_close_as_ever():
    close = tf_session.BaseSession.close
    tf.constant(1)
    with sessions.giving_up_after(10.0):
        session = tf.compat.v1.Session()
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            session.run(tf.constant(2))
    assert tf_session.BaseSession.close is close


def test_error_of_a_close(monkeypatch):
    def fail(self):
        raise tf.errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr(tf_session.BaseSession, "close", fail)
    session = tf.compat.v1.Session.__new__(tf.compat.v1.Session)
    session._session = None
    with (
        sessions.giving_up_after(10.0),
        pytest.raises(tf.errors.UnavailableError, match="gone"),
    ):
        session.close()


def test_close_that_does_not_end_is_given_up(monkeypatch, caplog):
    may_end = threading.Event()
    monkeypatch.setattr(tf_session.BaseSession, "close", lambda self: may_end.wait(60))
    monkeypatch.setattr(sessions, "_given_up", [])
    session = tf.compat.v1.Session.__new__(tf.compat.v1.Session)
    session._session = None
    start_sec = time.monotonic()
    with caplog.at_level(logging.WARNING), sessions.giving_up_after(0.1):
        session.close()
    assert time.monotonic() - start_sec < 30
    assert "does not close within 0.1 s" in caplog.text
    assert sessions._given_up == [session]
    may_end.set()
