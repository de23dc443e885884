"""Stopping and saving because a file, or an op, asks for it."""

import os
import pathlib
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf
from support.waiting import wait_for

from monolith.native_training.hooks import controller_hooks
from monolith.testing import create_test_ps_cluster
from monolith.training.controller import barrier
from monolith.training.hooks import control_file

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60


def test_historical_path():
    assert controller_hooks is control_file
    assert controller_hooks.STOP_ACTION == "Stop"
    assert controller_hooks.QUERY_INTERVAL == 60


@pytest.fixture
def train():
    return tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)


@pytest.fixture(autouse=True)
def _no_threads_left():
    yield
    assert [t for t in threading.enumerate() if t.name == "query_action"] == []


def ask(session, op):
    """Runs an op that asks for something, as another thread or process does.

    Through the monitored session itself it would not be known whether the hook, which reads in the
    same run, sees it in this step or in the next one.
    """
    session._tf_sess().run(op)


class ControllerHookTest(tf.test.TestCase):
    def test_stop(self):
        train = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
        helper = control_file.StopHelper()
        barrier_op = barrier.BarrierOp(1, barrier_callbacks=[helper.create_barrier_callback()])
        hook = control_file.ControllerHook(0, barrier_op)
        hooks = [hook, helper.create_stop_hook()]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(train)
            self.assertFalse(session.should_stop())
            ask(session, hook.stop_op)
            session.run(train)
            self.assertTrue(session.should_stop())

    def test_save(self):
        train = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
        trigger_save = mock.Mock()
        hook = control_file.ControllerHook(0, trigger_save=trigger_save)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(train)
            trigger_save.assert_not_called()
            ask(session, hook.trigger_save_op)
            for _ in range(3):
                session.run(train)
        trigger_save.assert_called_once_with()


class TestStop:
    def test_workers_are_stopped_through_the_barrier(self, train):
        """Chief and worker 1 in one process, each with its own session on one server."""
        servers, config = create_test_ps_cluster(1)
        steps_of_worker = []
        is_working = threading.Event()

        def build(index):
            step = tf.compat.v1.train.get_or_create_global_step()
            with tf.device("/job:ps/task:0"):
                helper = control_file.StopHelper()
                barrier_op = barrier.BarrierOp(
                    2,
                    is_chief=index == 0,
                    wait_seconds=0.01,
                    barrier_callbacks=[helper.create_barrier_callback()],
                )
            hooks = [barrier.BarrierHook(index, barrier_op), helper.create_stop_hook()]
            return tf.compat.v1.assign_add(step, 1), barrier_op, hooks

        def open_session(hooks, creator):
            return tf.compat.v1.train.MonitoredSession(
                creator(master=servers[0].target, config=config), hooks=hooks
            )

        def work():
            with tf.Graph().as_default():
                advance, _, hooks = build(1)
                creator = tf.compat.v1.train.WorkerSessionCreator
                with open_session(hooks, creator) as session:
                    while not session.should_stop():
                        steps_of_worker.append(int(session.run(advance)))
                        is_working.set()

        with tf.Graph().as_default():
            advance, barrier_op, hooks = build(0)
            control = control_file.ControllerHook(1, barrier_op, sleep=lambda _: time.sleep(0.01))
            assert control.stop_op.device == "/job:ps/task:0/device:CPU:0"
            creator = tf.compat.v1.train.ChiefSessionCreator
            with open_session([control, *hooks], creator) as session:
                worker = threading.Thread(target=work)
                worker.start()
                assert is_working.wait(TIMEOUT_SEC)
                ask(session, control.stop_op)
                while not session.should_stop():
                    session.run(advance)
                worker.join(TIMEOUT_SEC)
                assert not worker.is_alive()
        assert steps_of_worker

    def test_worker_that_never_comes(self, train, caplog):
        now = [0.0]

        def sleep(seconds):
            now[0] += seconds

        helper = control_file.StopHelper()
        barrier_op = barrier.BarrierOp(2, barrier_callbacks=[helper.create_barrier_callback()])
        hook = control_file.ControllerHook(barrier_op=barrier_op, sleep=sleep, clock=lambda: now[0])
        hooks = [hook, helper.create_stop_hook()]
        with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
            ask(session, hook.stop_op)
            session.run(train)
            assert now == [30.0]
            assert barrier_op.is_barrier_removed(session.raw_session())
            assert session.should_stop()
        assert "workers [1] did not come to the barrier" in caplog.text

    def test_stop_waits_for_a_barrier_of_somebody_else(self, train):
        helper = control_file.StopHelper()
        barrier_op = barrier.BarrierOp(1, barrier_callbacks=[helper.create_barrier_callback()])
        hook = control_file.ControllerHook(barrier_op=barrier_op)
        hooks = [hook, helper.create_stop_hook()]
        with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
            barrier_op.place_barrier(session.raw_session(), "Save")
            ask(session, hook.stop_op)
            session.run(train)
            assert not session.should_stop()
            assert barrier_op.is_barrier_placed(session.raw_session())
            barrier_op.remove_barrier(session.raw_session())
            session.run(train)
            assert session.should_stop()

    def test_without_a_barrier_the_session_itself_stops(self, train):
        hook = control_file.ControllerHook()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            ask(session, hook.stop_op)
            session.run(train)
            assert session.should_stop()

    @pytest.mark.parametrize("action", ["", "Save", "stop"])
    def test_other_actions_do_not_stop(self, train, action):
        helper = control_file.StopHelper()
        helper.create_barrier_callback()(action, None)
        hooks = [helper.create_stop_hook()]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(train)
            assert not session.should_stop()


class TestSave:
    def test_failing_save_does_not_end_the_training(self, train, caplog):
        def fail():
            raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")

        hook = control_file.ControllerHook(trigger_save=fail)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            ask(session, hook.trigger_save_op)
            session.run(train)
            assert session.run(train) == 2
        assert "the disk is full" in caplog.text

    def test_run_that_saves_nothing(self, train, caplog):
        hook = control_file.ControllerHook()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            ask(session, hook.trigger_save_op)
            session.run(train)
        assert "has nothing that could save" in caplog.text


class TestQueryActionHook:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        monkeypatch.setattr(controller_hooks, "QUERY_INTERVAL", 0.02)

    def ask(self, model_dir, request):
        """Leaves a request as an operator should, and returns the response."""
        pathlib.Path(model_dir, "request.tmp").write_bytes(request)
        os.replace(f"{model_dir}/request.tmp", f"{model_dir}/monolith_action")
        wait_for(lambda: not os.path.exists(f"{model_dir}/monolith_action"))
        return pathlib.Path(model_dir, "monolith_action_response").read_text()

    def test_save(self, tmp_path, train):
        trigger_save = mock.Mock()
        hook = control_file.ControllerHook(trigger_save=trigger_save)
        hooks = [hook, control_file.QueryActionHook(str(tmp_path), hook)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            assert self.ask(tmp_path, b"action: TRIGGER_SAVE") == "OK"
            session.run(train)
            session.run(train)
            trigger_save.assert_called_once_with()
        assert os.listdir(tmp_path) == ["monolith_action_response"]

    def test_stop(self, tmp_path, train):
        hook = control_file.ControllerHook()
        hooks = [hook, control_file.QueryActionHook(str(tmp_path), hook)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            assert self.ask(tmp_path, b"action: STOP\n") == "OK"
            session.run(train)
            assert session.should_stop()

    @pytest.mark.parametrize(
        ("request_text", "response"),
        [
            pytest.param(b"action: JUMP", "The request cannot be read: 1:9", id="no_such_action"),
            pytest.param(b"\xff\xfe", "The request cannot be read: ", id="no_text"),
            pytest.param(b"action: UNKNOWN", "Unknown action: UNKNOWN; expected", id="unknown"),
            pytest.param(b"", "Unknown action: UNKNOWN; expected", id="empty"),
        ],
    )
    def test_bad_request_is_answered_and_the_next_one_works(
        self, tmp_path, train, request_text, response
    ):
        trigger_save = mock.Mock()
        hook = control_file.ControllerHook(trigger_save=trigger_save)
        hooks = [hook, control_file.QueryActionHook(str(tmp_path), hook)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            assert self.ask(tmp_path, request_text).startswith(response)
            session.run(train)
            trigger_save.assert_not_called()
            assert self.ask(tmp_path, b"action: TRIGGER_SAVE") == "OK"
            session.run(train)
            trigger_save.assert_called_once_with()

    def test_directory_that_does_not_exist(self, tmp_path, train):
        hook = control_file.ControllerHook()
        query = control_file.QueryActionHook(str(tmp_path / "none"), hook)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook, query]) as session:
            assert session.run(train) == 1

    def test_thread_ends_with_a_session_that_fails(self, tmp_path, train):
        hook = control_file.ControllerHook()
        query = control_file.QueryActionHook(str(tmp_path), hook)

        def fail():
            with tf.compat.v1.train.MonitoredSession(hooks=[hook, query]) as session:
                session.run(train)
                raise ValueError("bad batch")

        with pytest.raises(ValueError, match="bad batch"):
            fail()

    def test_long_interval_does_not_delay_the_end(self, tmp_path, train, monkeypatch):
        monkeypatch.setattr(controller_hooks, "QUERY_INTERVAL", 3600)
        hook = control_file.ControllerHook()
        query = control_file.QueryActionHook(str(tmp_path), hook)
        start = time.monotonic()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook, query]) as session:
            session.run(train)
        assert time.monotonic() - start < 60
