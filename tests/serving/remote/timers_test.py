"""Functions that wait for their time."""

import threading

import pytest

from monolith.serving.remote.timers import Timers


@pytest.fixture
def timers():
    timers = Timers()
    yield timers
    timers.close()


def test_functions_are_called_in_the_order_of_their_times(timers):
    called = []
    done = threading.Event()
    timers.after(0.05, done.set)
    timers.after(0.02, lambda: called.append("second"))
    timers.after(0.0, lambda: called.append("first"))
    assert done.wait(60)
    assert called == ["first", "second"]


def test_one_that_fails_does_not_stop_the_others(timers, caplog):
    done = threading.Event()
    timers.after(0.0, lambda: 1 / 0)
    timers.after(0.001, done.set)
    assert done.wait(60)
    assert "a timer failed" in caplog.text


def test_what_waits_at_the_end_is_called_then(timers):
    called = []
    timers.after(1000, lambda: called.append("waiting"))
    timers.close()
    assert called == ["waiting"]
    timers.after(1000, lambda: called.append("late"))
    assert called == ["waiting", "late"]
