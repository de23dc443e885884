"""Sessions that close, and those that do not."""

import logging
import socket
import threading
import time

import pytest
import tensorflow as tf
from tensorflow.python.client import session as tf_session

from monolith.training.distributed import sessions
from monolith.training.tables.members import NodeAliveCheckerError

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


class TestMaking:
    @pytest.fixture
    def silent(self):
        """The config of a session with a server, behind whose address nobody answers."""
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            server = tf.distribute.Server({"local": ["127.0.0.1:0"]})
            own = server.target.removeprefix("grpc://")
            addr = f"127.0.0.1:{nobody.getsockname()[1]}"
            cluster = tf.train.ClusterSpec({"chief": [own], "ps": [addr]})
            config = tf.compat.v1.ConfigProto(cluster_def=cluster.as_cluster_def())
            yield server.target, config

    def run(self, silent):
        target, config = silent
        with tf.Graph().as_default() as graph:
            one = tf.constant(1)
            session = tf.compat.v1.Session(target, graph=graph, config=config)
            session.run(one)

    def test_server_that_does_not_answer(self, silent):
        with (
            sessions.made_within(0.5, lambda: None),
            pytest.raises(tf.errors.UnavailableError, match=r"was not made within 0\.5 s"),
        ):
            self.run(silent)

    def test_news_of_a_server_end_the_wait(self, silent):
        def check():
            raise NodeAliveCheckerError("ps 0 was replaced")

        with (
            sessions.made_within(600, check),
            pytest.raises(NodeAliveCheckerError, match="ps 0 was replaced"),
        ):
            self.run(silent)

    def test_others_run_as_ever(self):
        extend = tf_session.BaseSession._extend_graph
        with tf.Graph().as_default(), sessions.made_within(60, lambda: None):
            one = tf.constant(1)
            with tf.compat.v1.Session() as session:
                assert session.run(one) == 1
                # What comes to the graph later is told to the session, too.
                assert session.run(one + 1) == 2
        assert tf_session.BaseSession._extend_graph is extend

    def test_error_of_a_server(self, monkeypatch):
        def fail(self):
            raise tf.errors.UnavailableError(None, None, "gone")

        monkeypatch.setattr(tf_session.BaseSession, "_extend_graph", fail)
        with (
            tf.Graph().as_default(),
            sessions.made_within(60, lambda: None),
            tf.compat.v1.Session() as session,
            pytest.raises(tf.errors.UnavailableError, match="gone"),
        ):
            session.run(tf.constant(1))
