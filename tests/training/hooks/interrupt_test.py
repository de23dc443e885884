"""Signals that end training, in real processes; `tests/training/graph/loop_test.py` has more."""

import os
import signal
import threading
import time

import pytest
import tensorflow as tf
from support import reading

from monolith.checkpoint import failpoints
from monolith.training.hooks.interrupt import StopOnSignalHook

v1 = tf.compat.v1

TIMEOUT_SEC = 120


@pytest.fixture(autouse=True)
def handled_sigint():
    """As in a program of its own, also if somebody started the tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_wakeups_of_others_stay_theirs(count):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with v1.train.MonitoredSession(hooks=[StopOnSignalHook(only_default=True)]) as session:
            signal.raise_signal(signal.SIGINT)
            assert os.read(reader, 1) == bytes([signal.SIGINT])
            session.run(count)
            assert session.should_stop()
        assert signal.set_wakeup_fd(before) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "handler", [signal.SIG_IGN, lambda number, frame: None], ids=["ignored", "handled"]
)
def test_others_keep_their_handlers(count, handler):
    signal.signal(signal.SIGINT, handler)
    with v1.train.MonitoredSession(hooks=[StopOnSignalHook(only_default=True)]) as session:
        assert signal.getsignal(signal.SIGINT) is handler
        signal.raise_signal(signal.SIGINT)
        session.run(count)
        assert not session.should_stop()


class TestTraining:
    """A user's own program, which knows nothing of signals."""

    @pytest.fixture
    def start(self, tmp_path):
        """Starts a training, and waits until it has done some steps."""
        file = reading.write_numbers(tmp_path / "numbers.txt", range(90))
        children = []

        def start(**job):
            seen = tmp_path / "seen"
            child = reading.start_child(
                model_dir=tmp_path / "model",
                files=[file],
                path=seen,
                save_checkpoints_steps=1000,
                wait=0.05,
                **job,
            )
            children.append(child)
            deadline = time.monotonic() + TIMEOUT_SEC
            while not (seen.exists() and len(seen.read_text().split()) >= 3):
                assert child.poll() is None, child.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return child

        yield start
        for child in children:
            child.kill()
            child.communicate()

    def goes_on(self, tmp_path):
        """Returns how many batches there were before, if the next ones follow them."""
        before = [int(line) for line in (tmp_path / "seen").read_text().split()]
        with tf.Graph().as_default():
            after = reading.train(tmp_path / "model", [str(tmp_path / "numbers.txt")], 4)
        assert before + after == list(range(len(before) + 4))
        return len(before)

    @pytest.mark.parametrize(
        ("number", "code"),
        [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)],
    )
    def test_is_saved_and_goes_on(self, start, tmp_path, number, code):
        child = start()
        child.send_signal(number)
        _, log = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == code, log
        assert "Traceback" not in log
        step = self.goes_on(tmp_path)
        line = f"{number.name}: training has stopped at step {step}, which is saved in "
        assert log.count(line) == 1, log
        assert "the same program goes on from there" in log

    def test_a_second_one_ends_it_at_once(self, start, tmp_path):
        """In the middle of the save, too."""
        child = start(sleep_at=failpoints.TABLES_WRITTEN)
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "sleeping\n"
        child.send_signal(signal.SIGINT)
        _, log = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == -signal.SIGINT, log
        assert not os.path.exists(tmp_path / "model" / "checkpoint")

    def test_a_second_one_ends_a_step_that_waits_for_its_input(self, start):
        child = start(task={"stall_at": 5}, say_step=6)
        assert child.stdout.readline() == "step 6 begins\n"
        child.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=TIMEOUT_SEC)
        # By itself, or, where it has not come so far, by the signal.
        assert child.returncode in (143, -signal.SIGTERM)

    def test_a_program_that_handles_the_signal_itself(self, start):
        child = start(handled=signal.SIGTERM)
        child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == 7, log
        assert "training has stopped" not in log

    def test_a_job_that_ignores_ctrl_c_goes_on_to_its_end(self, start):
        child = start(ignored=[signal.SIGINT])
        child.send_signal(signal.SIGINT)
        output, log = child.communicate(timeout=TIMEOUT_SEC)
        assert (child.returncode, output) == (0, "trained\n"), log
