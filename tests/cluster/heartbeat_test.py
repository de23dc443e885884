"""Heartbeats: they go on, survive errors, and end when asked."""

import subprocess
import sys
import textwrap
import threading

import pytest

from monolith.cluster import heartbeat


@pytest.fixture(autouse=True)
def _stop_all():
    yield
    heartbeat._stop_all()
    assert threads() == []


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("beat-")]


def start(key, beat, **kwargs):
    kwargs = {"thread_name": f"beat-{key}", "period_sec": 0.005, "retry_sec": 0.005, **kwargs}
    heartbeat.start(key, beat, **kwargs)


def test_beats_until_stopped(eventually):
    beats = []
    start("a", lambda: beats.append(1))
    eventually(lambda: len(beats) >= 3)
    assert [t.daemon for t in threads()] == [True]
    heartbeat.stop("a")
    assert threads() == []
    heartbeat.stop("a")  # twice does no harm


def test_first_beat_comes_at_once(eventually):
    beats = []
    start("a", lambda: beats.append(1), period_sec=3600)
    eventually(lambda: beats)


def test_same_key_is_replaced(eventually):
    old, new = [], []
    start("a", lambda: old.append(1))
    start("a", lambda: new.append(1))
    eventually(lambda: len(new) >= 3)
    assert len(threads()) == 1
    heartbeat.stop("a")
    assert threads() == []


def test_keys_are_independent(eventually):
    a, b = [], []
    start("a", lambda: a.append(1))
    start("b", lambda: b.append(1))
    heartbeat.stop("a")
    before = len(b)
    eventually(lambda: len(b) > before + 2)


def test_errors_are_logged_once_and_retried(eventually, caplog):
    beats = []

    def fail():
        beats.append(1)
        raise OSError("no route")

    start("a", fail, period_sec=3600)
    eventually(lambda: len(beats) >= 5)
    heartbeat.stop("a")
    assert caplog.text.count("beat-a failed and is tried again every 0.005 s") == 1
    assert "no route" in caplog.text


def test_trouble_is_logged_anew_after_it_was_over(eventually, caplog):
    beats = []

    def flaky():
        beats.append(1)
        if len(beats) in (1, 3):
            raise OSError("no route")

    start("a", flaky)
    eventually(lambda: len(beats) >= 5)
    heartbeat.stop("a")
    assert caplog.text.count("beat-a failed") == 2


def test_a_beat_may_end_itself(eventually):
    start("a", lambda: heartbeat.stop("a"))
    eventually(lambda: not threads())


def test_hanging_beat_holds_up_neither_stop_nor_exit(monkeypatch):
    monkeypatch.setattr(heartbeat, "_JOIN_SEC", 0.05)
    release = threading.Event()
    start("a", release.wait)
    heartbeat.stop("a")
    release.set()
    for thread in threads():
        thread.join()


def test_interpreter_exit():
    program = textwrap.dedent(
        """
        import time
        from monolith.cluster import heartbeat
        for key in range(20):
            heartbeat.start(key, lambda: time.sleep(3600), thread_name="hangs", period_sec=1,
                            retry_sec=1)
        heartbeat.start("x", lambda: None, thread_name="waits", period_sec=3600, retry_sec=1)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
