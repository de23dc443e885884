"""Signals that end training; `tests/training/train_loop_test.py` has them in a real training."""

import signal
import threading

import pytest
import tensorflow as tf

from monolith.training.hooks.interrupt import StopOnSignalHook

v1 = tf.compat.v1


@pytest.fixture
def count(graph_mode):
    return v1.get_variable("count", initializer=0).assign_add(1)


def test_a_signal_during_session_creation_counts(count):
    class Impatient(v1.train.SessionRunHook):
        def begin(self):
            signal.raise_signal(signal.SIGINT)

    with v1.train.MonitoredSession(hooks=[StopOnSignalHook(), Impatient()]) as session:
        assert session.should_stop()


def test_sigterm_kills_at_the_second_time(count):
    """What it would have done without the hook; here a handler of our own stands for that."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *_: calls.append("killed"))
    try:
        with v1.train.MonitoredSession(hooks=[StopOnSignalHook()]) as session:
            signal.raise_signal(signal.SIGTERM)
            assert calls == []
            signal.raise_signal(signal.SIGTERM)
            assert calls == ["killed"]
            session.run(count)
            assert session.should_stop()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_the_signals_it_was_given(count):
    before = signal.getsignal(signal.SIGINT)
    with v1.train.MonitoredSession(hooks=[StopOnSignalHook([signal.SIGTERM])]):
        assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_it_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def train():
        with tf.Graph().as_default():
            count = v1.get_variable("count", initializer=0).assign_add(1)
            with v1.train.MonitoredSession(hooks=[StopOnSignalHook()]) as session:
                seen.append(signal.getsignal(signal.SIGINT))
                seen.append(session.run(count))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [before, 1]


def test_handlers_come_back_once(count):
    hook = StopOnSignalHook()
    before = signal.getsignal(signal.SIGINT)
    with v1.train.MonitoredSession(hooks=[hook]):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    hook.restore_handlers()
    assert signal.getsignal(signal.SIGINT) is before
