"""Saves and steps that keep out of each other's way; checkpoints of one moment."""

import logging
import os
import threading
import time
from concurrent import futures

import pytest
import tensorflow as tf
from support import reading

from monolith.checkpoint import delta_chain
from monolith.checkpoint import state as checkpoint_state
from monolith.proto import service_pb2
from monolith.tensor import prefetch
from monolith.training.controller import client
from monolith.training.hooks.step_gate import StepGate

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60
POST_PUSH = {
    "num_ps": 2,
    "enable_embedding_postpush": True,
    "enable_variable_postpush": True,
    "embedding_prefetch_capacity": 1,
}


@pytest.fixture
def model_dir(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def file(tmp_path):
    return reading.write_numbers(tmp_path / "numbers.txt", range(60))


def check_moments(model_dir, file):
    """Checks that each checkpoint has a step in all its parts, or in none; returns the steps."""
    state = checkpoint_state.read_list(os.fspath(model_dir))
    steps = []
    for path in checkpoint_state.get_listed(os.fspath(model_dir), state):
        state.model_checkpoint_path = os.path.basename(path)
        checkpoint_state.save_list(os.fspath(model_dir), state)
        reader = tf.train.load_checkpoint(delta_chain.get_newest_prefix(path))
        steps.append(int(reader.get_tensor("global_step")))
        assert reader.get_tensor("dense").tolist() == [-steps[-1]]
        expected = [1] * steps[-1] + [0] * (100 - steps[-1])
        assert reading.read_rows(model_dir) == expected
    return steps


class Fail(v1.train.SessionRunHook):
    def __init__(self, at_step):
        self._steps = at_step

    def before_run(self, run_context):
        self._steps -= 1
        if self._steps == 0:
            raise RuntimeError("enough")


class TestCheckpoints:
    def test_full_ones(self, model_dir, file):
        reading.train(model_dir, [file], 20, save_checkpoints_steps=7, **POST_PUSH)
        assert check_moments(model_dir, file) == [7, 14, 20]

    def test_deltas(self, model_dir, file):
        with pytest.raises(RuntimeError, match="enough"):
            reading.train(
                model_dir,
                [file],
                save_checkpoints_steps=100,
                params={"incremental_save_steps": 4},
                hooks=[Fail(at_step=15)],
                **POST_PUSH,
            )
        assert check_moments(model_dir, file) == [12]

    def test_those_that_somebody_asks_for(self, model_dir, file):
        """From another thread, while training goes on."""
        started = threading.Event()

        def ask():
            assert started.wait(TIMEOUT_SEC)
            with client.connect(os.fspath(model_dir)) as stub:
                for _ in range(4):
                    stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest(), timeout=TIMEOUT_SEC)

        class GoOn(v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                started.set()
                if asked.done():
                    run_context.request_stop()
                time.sleep(0.02)

        with futures.ThreadPoolExecutor() as executor:
            asked = executor.submit(ask)
            reading.train(
                model_dir, [file], 55, save_checkpoints_steps=100, hooks=[GoOn()], **POST_PUSH
            )
            asked.result()
        assert len(check_moments(model_dir, file)) >= 3


class TestGate:
    @pytest.fixture
    def total(self):
        return tf.Variable(0)

    def open_session(self, gate):
        return v1.train.SingularMonitoredSession(hooks=gate.hooks)

    def test_a_save_waits_for_the_step_and_the_next_step_for_the_save(self, total):
        begun, go_on, order = threading.Event(), threading.Event(), []

        def wait():
            begun.set()
            go_on.wait(TIMEOUT_SEC)
            order.append("step")
            return 1

        step = tf.numpy_function(wait, [], tf.int64)
        gate = StepGate()
        listener = gate.create_saver_listener()

        def save(session):
            begun.wait(TIMEOUT_SEC)
            threading.Timer(0.2, go_on.set).start()
            listener.before_save(session, 1)
            time.sleep(0.3)
            order.append("save")
            listener.after_save(session, 1)

        with self.open_session(gate) as session:
            thread = threading.Thread(target=save, args=(session.raw_session(),))
            thread.start()
            session.run(step)
            session.run(step)
            thread.join()
        assert order == ["step", "save", "step"]

    def test_drained_pushes_run_once(self, total):
        manager = prefetch.AsyncFunctionMgr()
        step = manager.add_async_function(total.assign_add, (tf.constant(1),))
        gate = StepGate(manager.hooks)
        listener = gate.create_saver_listener()
        with self.open_session(gate) as session:
            raw = session.raw_session()
            seen = []
            for i in range(1, 6):
                session.run(step)
                if i in (2, 4):
                    listener.before_save(raw, i)
                    listener.before_save(raw, i)  # Of another saver hook, such as one of deltas.
                    seen.append(int(raw.run(total)))
                    listener.after_save(raw, i)
                    listener.after_save(raw, i)
            assert seen == [2, 4]
            assert raw.run(total) == 4

    def test_a_step_that_does_not_end_does_not_hold_a_save_up(self, total, caplog):
        gate = StepGate(max_step_sec=0.2)
        listener = gate.create_saver_listener()
        begun, go_on = threading.Event(), threading.Event()

        def wait():
            begun.set()
            go_on.wait(TIMEOUT_SEC)
            return 1

        step = tf.numpy_function(wait, [], tf.int64)

        def save(session):
            begun.wait(TIMEOUT_SEC)
            listener.before_save(session, 1)
            listener.after_save(session, 1)
            go_on.set()

        with caplog.at_level(logging.WARNING), self.open_session(gate) as session:
            thread = threading.Thread(target=save, args=(session.raw_session(),))
            thread.start()
            session.run(step)
            thread.join()
            session.run(step)
        assert "step 1 is saved while a step is under way" in caplog.text

    def test_a_step_that_failed_is_over(self, total):
        gate = StepGate()
        listener = gate.create_saver_listener()
        failing = tf.debugging.assert_equal(total, 1)
        with pytest.raises(tf.errors.InvalidArgumentError), self.open_session(gate) as session:
            session.run(failing)
        with self.open_session(gate) as session:
            thread = threading.Thread(target=listener.before_save, args=(session.raw_session(), 1))
            thread.start()
            thread.join(TIMEOUT_SEC)
            assert not thread.is_alive()
            listener.after_save(session.raw_session(), 1)
            assert session.run(total) == 0
