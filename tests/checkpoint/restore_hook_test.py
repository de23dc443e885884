"""The hook that tells listeners when to restore."""

import pytest
import tensorflow as tf

from monolith.checkpoint import restore_hook
from monolith.native_training import basic_restore_hook


class RecordingListener(restore_hook.CheckpointRestorerListener):
    """Notes who was called when."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def begin(self):
        self.calls.append((self.name, "begin"))

    def before_restore(self, session):
        assert isinstance(session, tf.compat.v1.Session)
        self.calls.append((self.name, "before_restore"))

    def after_restore(self, session):
        assert isinstance(session, tf.compat.v1.Session)
        self.calls.append((self.name, "after_restore"))

    def end(self, session):
        self.calls.append((self.name, "end"))


def test_historical_path():
    assert basic_restore_hook is restore_hook


@pytest.mark.usefixtures("graph_mode")
class TestHook:
    def test_restores_once_per_session_whatever_the_number_of_steps(self):
        calls = []
        hook = restore_hook.CheckpointRestorerHook([RecordingListener("a", calls)])
        step = tf.constant(0)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(5):
                session.run(step)
            assert calls == [("a", "begin"), ("a", "before_restore"), ("a", "after_restore")]
        assert calls[3:] == [("a", "end")]

    def test_all_listeners_finish_before_restore_first(self):
        calls = []
        listeners = [RecordingListener(name, calls) for name in "ab"]
        hook = restore_hook.CheckpointRestorerHook(listeners)
        tf.constant(0)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
            pass
        assert calls == [
            (name, stage)
            for stage in ("begin", "before_restore", "after_restore", "end")
            for name in "ab"
        ]

    def test_sees_restored_variables_and_runs_after_each_recovery(self):
        values = []
        variable = tf.compat.v1.get_variable("v", initializer=3)

        class ReadVariable(restore_hook.CheckpointRestorerListener):
            def before_restore(self, session):
                values.append(int(session.run(variable)))

        hook = restore_hook.CheckpointRestorerHook([ReadVariable()])
        fail = [True]

        class FailOnce(tf.compat.v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                if fail.pop() if fail else False:
                    raise tf.errors.AbortedError(None, None, "lost a server")

        with tf.compat.v1.train.MonitoredSession(hooks=[hook, FailOnce()]) as session:
            session.run(variable)
        assert values == [3, 3]

    def test_without_listeners(self):
        step = tf.constant(7)
        hook = restore_hook.CheckpointRestorerHook()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert session.run(step) == 7

    def test_base_listener_does_nothing(self):
        hook = restore_hook.CheckpointRestorerHook([restore_hook.CheckpointRestorerListener()])
        step = tf.constant(7)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert session.run(step) == 7
