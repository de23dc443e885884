"""Stopping all workers between two steps."""

import logging
import threading
import time

import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training import barrier_ops
from monolith.training.controller import barrier

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60


def test_historical_path():
    assert barrier_ops is barrier


class TestPlacing:
    def test_place_and_remove(self):
        barrier_op = barrier.BarrierOp(1)
        with tf.compat.v1.train.MonitoredSession() as session:
            assert barrier_op.is_barrier_removed(session)
            assert not barrier_op.is_barrier_placed(session)
            assert barrier_op.is_none_blocked(session)
            barrier_op.place_barrier(session)
            assert barrier_op.is_barrier_placed(session)
            assert not barrier_op.is_barrier_removed(session)
            assert session.run(barrier_op.barrier_placed_tensor)
            assert barrier_op.is_all_blocked(session)
            barrier_op.remove_barrier(session)
            assert barrier_op.is_barrier_removed(session)
            assert not session.run(barrier_op.barrier_placed_tensor)

    def test_placing_twice_is_refused(self):
        calls = []
        barrier_op = barrier.BarrierOp(1, barrier_callbacks=[lambda *args: calls.append(args[0])])
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.place_barrier(session, "first")
            with pytest.raises(barrier.BarrierAlreadyPlacedError, match="placed already"):
                barrier_op.place_barrier(session, "second")
            assert calls == ["first"]
            barrier_op.remove_barrier(session)
            barrier_op.place_barrier(session, "third")
        assert calls == ["first", "third"]

    def test_of_many_threads_one_places_it(self):
        barrier_op = barrier.BarrierOp(1)
        outcomes = []
        start = threading.Barrier(8)
        with tf.compat.v1.train.MonitoredSession() as session:

            def place():
                start.wait(TIMEOUT_SEC)
                try:
                    barrier_op.place_barrier(session)
                    outcomes.append("placed")
                except barrier.BarrierAlreadyPlacedError:
                    outcomes.append("refused")

            threads = [threading.Thread(target=place) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT_SEC)
        assert sorted(outcomes) == ["placed"] + ["refused"] * 7

    def test_removing_what_is_not_placed_does_nothing(self):
        barrier_op = barrier.BarrierOp(2)
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.remove_barrier(session)
            assert barrier_op.is_none_blocked(session)

    def test_callback_gets_action_and_session_of_a_placed_barrier(self):
        seen = []

        def callback(action, session):
            seen.append((action, session, barrier_op.is_barrier_placed(session)))

        barrier_op = barrier.BarrierOp(2, barrier_callbacks=[callback])
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.place_barrier(session, "Save")
            assert seen == [("Save", session, True)]

    def test_barriers_with_different_prefixes_are_independent(self):
        first = barrier.BarrierOp(1)
        second = barrier.BarrierOp(1, name_prefix="other")
        with tf.compat.v1.train.MonitoredSession() as session:
            first.place_barrier(session)
            assert second.is_barrier_removed(session)

    def test_variables_are_local_in_the_chief_and_global_elsewhere(self):
        names = [
            "monolith_barrier/default/barrier_op_action",
            "monolith_barrier/default/barrier_var",
        ]
        barrier.BarrierOp(2, is_chief=True)
        assert sorted(v.op.name for v in tf.compat.v1.local_variables()) == names
        assert tf.compat.v1.global_variables() == []
        with tf.Graph().as_default():
            barrier.BarrierOp(2, is_chief=False)
            assert sorted(v.op.name for v in tf.compat.v1.global_variables()) == names
            assert tf.compat.v1.local_variables() == []

    def test_no_capacity_is_refused(self):
        with pytest.raises(errors.ConfigError, match="got size 0"):
            barrier.BarrierOp(0)


class TestWaiting:
    @pytest.mark.parametrize("index", [-1, 0, 2, 3])
    def test_bad_index_is_refused(self, index):
        barrier_op = barrier.BarrierOp(2)
        message = rf"Index \[{index}\] must be non-negative and less than capacity \[2\]\. "
        with (
            tf.compat.v1.train.MonitoredSession() as session,
            pytest.raises(ValueError, match=message),
        ):
            barrier_op.wait_until_barrier_removed(session, index)

    @pytest.mark.parametrize("index", [-1, 2])
    def test_hook_of_no_worker_is_refused(self, index):
        with pytest.raises(ValueError, match=rf"Index \[{index}\] must be"):
            barrier.BarrierHook(index, barrier.BarrierOp(2))

    def test_blocked_workers_are_seen_and_go_when_it_is_removed(self):
        seen = []

        def sleep(seconds):
            seen.append(
                (
                    seconds,
                    barrier_op.get_blocked_indices(session),
                    barrier_op.get_unblocked_indices(session),
                    barrier_op.is_all_blocked(session),
                    barrier_op.is_none_blocked(session),
                )
            )
            if len(seen) == 3:
                barrier_op.remove_barrier(session)

        barrier_op = barrier.BarrierOp(3, wait_seconds=7, sleep=sleep)
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.place_barrier(session)
            barrier_op.wait_until_barrier_removed(session, 2)
            assert seen == [(7, [0, 2], [1], False, False)] * 3
            assert barrier_op.is_none_blocked(session)

    def test_all_blocked(self):
        blocked = []

        def sleep(_):
            if len(blocked) == 0:
                blocked.append(barrier_op.is_all_blocked(session))
                barrier_op.wait_until_barrier_removed(session, 2)
            else:
                blocked.append(barrier_op.is_all_blocked(session))
                barrier_op.remove_barrier(session)

        barrier_op = barrier.BarrierOp(3, sleep=sleep)
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.place_barrier(session)
            barrier_op.wait_until_barrier_removed(session, 1)
        # Worker 1 is there alone at first, then worker 2 too.
        assert blocked == [False, True]

    def test_worker_whose_callback_fails_does_not_count_as_waiting(self):
        def callback(action, session):
            if action == "bad":
                raise tf.errors.UnimplementedError(None, None, "cannot save the input")

        worker_op = barrier.BarrierOp(2, barrier_callbacks=[callback], name_prefix="shared")
        with tf.compat.v1.train.MonitoredSession() as session:
            with pytest.raises(tf.errors.UnimplementedError):
                worker_op.place_barrier(session, "bad")
            with pytest.raises(tf.errors.UnimplementedError, match="cannot save the input"):
                worker_op.wait_until_barrier_removed(session, 1)
            assert worker_op.get_blocked_indices(session) == [0]

    def test_says_once_a_minute_that_it_waits(self, caplog):
        now_sec = [0.0]

        def sleep(seconds):
            now_sec[0] += seconds
            if now_sec[0] >= 150:
                barrier_op.remove_barrier(session)

        barrier_op = barrier.BarrierOp(2, sleep=sleep, clock=lambda: now_sec[0])
        with (
            caplog.at_level(logging.INFO, logger=barrier.__name__),
            tf.compat.v1.train.MonitoredSession() as session,
        ):
            barrier_op.place_barrier(session)
            barrier_op.wait_until_barrier_removed(session, 1)
        lines = [record.getMessage() for record in caplog.records]
        assert lines.count("worker 1 still waits at the barrier") == 2


class Worker(threading.Thread):
    """Makes five steps in a session of its own graph, like another process of the job."""

    def __init__(self, master):
        super().__init__(daemon=True)
        self.master = master
        self.steps = 0
        self.actions = []
        self.waits = threading.Event()
        self.failure = None

    def run(self):
        try:
            with tf.Graph().as_default():
                self._train()
        except Exception as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def _train(self):
        def sleep(seconds):
            self.waits.set()
            time.sleep(0.01)

        barrier_op = barrier.BarrierOp(
            2,
            is_chief=False,
            barrier_callbacks=[lambda action, session: self.actions.append(action)],
            sleep=sleep,
        )
        hook = barrier.BarrierHook(1, barrier_op)
        step = tf.constant(0)
        creator = tf.compat.v1.train.WorkerSessionCreator(master=self.master)
        with tf.compat.v1.train.MonitoredSession(creator, hooks=[hook]) as session:
            for _ in range(5):
                session.run(step)
                self.steps += 1

    def finish(self):
        self.join(TIMEOUT_SEC)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


class TestBarrierHook:
    def test_worker_stops_after_one_step_and_resumes(self):
        server = tf.distribute.Server.create_local_server()
        barrier_op = barrier.BarrierOp(2)
        creator = tf.compat.v1.train.ChiefSessionCreator(master=server.target)
        with tf.compat.v1.train.MonitoredSession(creator) as session:
            barrier_op.place_barrier(session, "my_action")
            worker = Worker(server.target)
            worker.start()
            assert worker.waits.wait(TIMEOUT_SEC)
            # The hook waits inside the first run, so that the loop has counted none.
            assert worker.steps == 0
            assert worker.actions == ["my_action"]
            assert barrier_op.is_all_blocked(session)
            barrier_op.remove_barrier(session)
            worker.finish()
            assert worker.steps == 5
            assert worker.actions == ["my_action"]
            assert barrier_op.is_none_blocked(session)

    def test_one_of_five_steps_has_run_when_the_worker_stops(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        advance = tf.compat.v1.assign_add(step, 1)
        steps_while_waiting = []

        def sleep(_):
            steps_while_waiting.append(int(session.run(step)))
            barrier_op.remove_barrier(session)

        barrier_op = barrier.BarrierOp(2, sleep=sleep)
        hook = barrier.BarrierHook(1, barrier_op)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as monitored:
            session = monitored._tf_sess()
            barrier_op.place_barrier(session)
            for _ in range(5):
                monitored.run(advance)
            assert steps_while_waiting == [1]
            assert session.run(step) == 5

    def test_chief_does_not_wait(self):
        def sleep(seconds):
            raise AssertionError("The chief waits at the barrier.")

        barrier_op = barrier.BarrierOp(2, sleep=sleep)
        step = tf.constant(3)
        hook = barrier.BarrierHook(0, barrier_op)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            barrier_op.place_barrier(session._tf_sess())
            assert session.run(step) == 3
