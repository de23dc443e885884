"""Knowing the session that is training."""

import gc
import threading

import pytest
import tensorflow as tf

from monolith.native_training.hooks import session_hooks
from monolith.training.hooks import current_session


def test_historical_path():
    assert session_hooks is current_session


@pytest.mark.usefixtures("graph_mode")
class SessionHooksTest(tf.test.TestCase):
    def testBasic(self):
        self.assertIsNone(session_hooks.get_current_session())
        tf.constant(0)
        hook = session_hooks.SetCurrentSessionHook()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
            self.assertIsNotNone(session_hooks.get_current_session())
        self.assertIsNone(session_hooks.get_current_session())


def open_session():
    return tf.compat.v1.train.MonitoredSession(hooks=[current_session.SetCurrentSessionHook()])


def raw(session):
    """The plain session inside a monitored one."""
    return session._tf_sess()


@pytest.mark.usefixtures("graph_mode")
class TestGetCurrentSession:
    @pytest.fixture(autouse=True)
    def _op(self, graph_mode):
        self.three = tf.constant(3)

    def test_is_the_plain_session_of_the_loop(self):
        with open_session() as session:
            assert current_session.get_current_session() is raw(session)
            assert current_session.get_current_session().run(self.three) == 3

    def test_default_session_without_a_hook(self):
        with tf.compat.v1.Session() as session:
            assert current_session.get_current_session() is session
        assert current_session.get_current_session() is None

    def test_hook_goes_before_default_session(self):
        with tf.compat.v1.Session() as default:
            with open_session() as session:
                assert current_session.get_current_session() is raw(session)
            assert current_session.get_current_session() is default

    def test_inner_session_gives_back_to_the_outer_one(self):
        with open_session() as outer:
            with open_session() as inner:
                assert current_session.get_current_session() is raw(inner)
            assert current_session.get_current_session() is raw(outer)

    def test_ending_the_older_session_leaves_the_newer_one(self):
        older, newer = open_session(), open_session()
        older.close()
        assert current_session.get_current_session() is raw(newer)
        newer.close()
        assert current_session.get_current_session() is None

    def test_closed_session_that_nobody_ended_does_not_count(self):
        session = tf.compat.v1.Session()
        current_session.SetCurrentSessionHook().after_create_session(session, None)
        assert current_session.get_current_session() is session
        session.close()
        assert current_session.get_current_session() is None

    def test_is_seen_by_other_threads(self):
        seen = []
        with open_session() as session:
            thread = threading.Thread(
                target=lambda: seen.append(current_session.get_current_session())
            )
            thread.start()
            thread.join()
            assert seen == [raw(session)]

    def test_session_that_is_created_again_replaces_the_lost_one(self):
        fail = [True]

        class FailOnce(tf.compat.v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                if fail and fail.pop():
                    raise tf.errors.AbortedError(None, None, "lost a server")

        hooks = [current_session.SetCurrentSessionHook(), FailOnce()]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            first = raw(session)
            session.run(self.three)
            assert raw(session) is not first
            assert current_session.get_current_session() is raw(session)
        assert current_session.get_current_session() is None

    def test_session_that_failed_is_forgotten(self):
        def fail():
            with open_session():
                raise ValueError("bad batch")

        with pytest.raises(ValueError, match="bad batch"):
            fail()
        gc.collect()
        assert current_session.get_current_session() is None
