"""Checkpoints for which the workers rest, and the positions of their inputs."""

import contextlib
import logging
import os
import threading

import pytest
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import restore_hook
from monolith.native_training.hooks import ckpt_hooks
from monolith.proto import ckpt_hooks_pb2
from monolith.testing import create_test_ps_cluster
from monolith.training.controller import barrier
from monolith.training.hooks import checkpoint_barrier

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60


def test_historical_path():
    assert ckpt_hooks is checkpoint_barrier
    assert ckpt_hooks.SAVE_ACTION == "Save"


class RecordingListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self):
        self.before_saves = []
        self.after_saves = []

    def before_save(self, session, global_step_value):
        self.before_saves.append(global_step_value)

    def after_save(self, session, global_step_value):
        self.after_saves.append(global_step_value)


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


class TestCkptInfo:
    def test_round_trip(self):
        checkpoint_barrier.BarrierSaverListener(barrier.BarrierOp(1))
        info = ckpt_hooks_pb2.WorkerCkptInfo(global_step=10)
        with tf.compat.v1.train.MonitoredSession() as session:
            empty = checkpoint_barrier.get_ckpt_info(session)
            assert empty == ckpt_hooks_pb2.WorkerCkptInfo()
            checkpoint_barrier.assign_ckpt_info(session, info)
            assert checkpoint_barrier.get_ckpt_info(session) == info

    def test_worker_that_starts_does_not_wipe_it_out(self):
        servers, config = create_test_ps_cluster(1)

        def open_worker():
            with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
                checkpoint_barrier.WorkerCkptHelper("unused", 1)
                return tf.compat.v1.train.MonitoredSession(
                    tf.compat.v1.train.ChiefSessionCreator(master=servers[0].target, config=config)
                )

        with open_worker() as chief:
            checkpoint_barrier.assign_ckpt_info(chief, ckpt_hooks_pb2.WorkerCkptInfo(global_step=7))
            with open_worker() as worker:
                assert checkpoint_barrier.get_ckpt_info(worker).global_step == 7


class TestBarrierSaverListener:
    def test_next_listener_waits_for_the_barrier(self, tmp_path):
        """Workers that train on hold the save up until they have arrived."""
        step = tf.compat.v1.train.get_or_create_global_step()
        advance = tf.compat.v1.assign_add(step, 1)
        arrive = threading.Event()
        looked = threading.Event()
        saved_before_arrival = []

        def sleep(seconds):
            saved_before_arrival.extend(recorder.before_saves)
            looked.set()
            arrive.wait(TIMEOUT_SEC)

        barrier_op = barrier.BarrierOp(2, wait_seconds=0.01)
        recorder = RecordingListener()
        hook = tf.compat.v1.train.CheckpointSaverHook(
            str(tmp_path),
            save_steps=1,
            listeners=[
                checkpoint_barrier.BarrierSaverListener(
                    barrier_op, wait_seconds=0.01, max_pending_seconds=TIMEOUT_SEC, sleep=sleep
                ),
                recorder,
            ],
        )
        # Without a save at the start: nobody could arrive before the session is there.
        hook.after_create_session = lambda session, coord: None
        waited = []

        def work(session):
            # Worker 1: goes to the barrier when it sees it.
            assert looked.wait(TIMEOUT_SEC)
            arrived = threading.Timer(0.05, arrive.set)
            arrived.start()
            barrier_op.wait_until_barrier_removed(session, 1)
            waited.append(True)

        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            worker = threading.Thread(target=work, args=(session.raw_session(),))
            worker.start()
            session.run(advance)
            worker.join(TIMEOUT_SEC)
            assert waited == [True]
            assert saved_before_arrival == []
            assert recorder.before_saves == recorder.after_saves == [1]
            assert barrier_op.is_none_blocked(session)

    def test_action_and_step_reach_the_callbacks(self):
        seen = []

        def note(action, session):
            seen.append((action, checkpoint_barrier.get_ckpt_info(session).global_step))

        listener = checkpoint_barrier.BarrierSaverListener(
            barrier.BarrierOp(1, barrier_callbacks=[note])
        )
        with tf.compat.v1.train.MonitoredSession() as session:
            for step in (3, 8):
                listener.before_save(session, step)
                listener.after_save(session, step)
        assert seen == [("Save", 3), ("Save", 8)]

    def test_worker_that_never_comes_does_not_hold_the_save_up(self, caplog):
        barrier_op = barrier.BarrierOp(3)
        fake = FakeTime()
        listener = checkpoint_barrier.BarrierSaverListener(
            barrier_op, sleep=fake.sleep, clock=fake.clock
        )
        with (
            tf.compat.v1.train.MonitoredSession() as session,
            caplog.at_level(logging.WARNING, logger=checkpoint_barrier.__name__),
        ):
            listener.before_save(session, 1)
            assert fake.slept == [1] * 30
            assert "workers [1, 2] are not at the barrier after 30 seconds" in caplog.text
            assert barrier_op.is_barrier_placed(session)
            listener.after_save(session, 1)
            assert barrier_op.is_barrier_removed(session)

    def test_barrier_of_somebody_else_stays(self):
        barrier_op = barrier.BarrierOp(1)
        listener = checkpoint_barrier.BarrierSaverListener(barrier_op)
        with tf.compat.v1.train.MonitoredSession() as session:
            barrier_op.place_barrier(session)
            listener.before_save(session, 1)
            listener.after_save(session, 1)
            listener.end(session, 1)
            assert barrier_op.is_barrier_placed(session)
            barrier_op.remove_barrier(session)
            listener.before_save(session, 2)
            assert barrier_op.is_barrier_placed(session)
            listener.after_save(session, 2)
            assert barrier_op.is_barrier_removed(session)

    def test_failing_callback_leaves_no_barrier(self):
        def fail(action, session):
            raise ValueError("no position")

        barrier_op = barrier.BarrierOp(1, barrier_callbacks=[fail])
        listener = checkpoint_barrier.BarrierSaverListener(barrier_op)
        with tf.compat.v1.train.MonitoredSession() as session:
            with pytest.raises(ValueError, match="no position"):
                listener.before_save(session, 1)
            assert barrier_op.is_barrier_removed(session)

    def test_end_removes_the_barrier_of_a_failed_save(self):
        barrier_op = barrier.BarrierOp(1)
        listener = checkpoint_barrier.BarrierSaverListener(barrier_op)
        with tf.compat.v1.train.MonitoredSession() as session:
            listener.before_save(session, 1)
            listener.end(session, 1)
            assert barrier_op.is_barrier_removed(session)


class InitializeInput(tf.compat.v1.train.SessionRunHook):
    def __init__(self, iterator):
        self._iterator = iterator

    def after_create_session(self, session, coord):
        session.run(self._iterator.initializer)


def make_input(dataset=None):
    if dataset is None:
        dataset = tf.data.Dataset.range(10)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    return iterator.get_next(), InitializeInput(iterator)


class NoteRestored(tf.compat.v1.train.SessionRunHook):
    """Says what a saver says that restores the model."""

    def __init__(self, prefix):
        self._prefix = prefix

    def after_create_session(self, session, coord):
        restore_hook.note_restored(session, self._prefix)


def read_and_save(model_dir, dataset=None, index=0, step=10, num_elements=1, first_hooks=()):
    """Trains in a fresh graph as worker `index`: restores, reads, saves; returns what it read."""
    with tf.Graph().as_default():
        element, initialize = make_input(dataset() if dataset else None)
        helper = checkpoint_barrier.WorkerCkptHelper(model_dir, index)
        barrier_op = barrier.BarrierOp(
            1, barrier_callbacks=[helper.create_save_iterator_callback()]
        )
        listener = checkpoint_barrier.BarrierSaverListener(barrier_op)
        hooks = [*first_hooks, initialize, helper.create_restorer_hook()]
        with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
            read = [session.run(element).tolist() for _ in range(num_elements)]
            listener.before_save(session.raw_session(), step)
            listener.after_save(session.raw_session(), step)
            return read


class TestWorkerCkptHelper:
    def test_iterator_goes_on_where_it_was_saved(self, tmp_path):
        model_dir = str(tmp_path / "model")
        assert read_and_save(model_dir, step=10) == [0]
        names = set(os.listdir(model_dir))
        assert names == {"checkpoint_input_worker_0", "input_worker_0.ckpt-10"}
        assert read_and_save(model_dir, step=20, num_elements=2) == [1, 2]
        assert read_and_save(model_dir, step=30) == [3]

    def test_directory_that_was_moved(self, tmp_path):
        assert read_and_save(str(tmp_path / "old")) == [0]
        (tmp_path / "old").rename(tmp_path / "new")
        assert read_and_save(str(tmp_path / "new")) == [1]

    def test_old_positions_are_removed_across_runs(self, tmp_path):
        for step in range(1, 8):
            assert read_and_save(str(tmp_path), step=step) == [step - 1]
        kept = {path.name for path in tmp_path.glob("input_*")}
        assert kept == {f"input_worker_0.ckpt-{step}" for step in range(3, 8)}

    def test_workers_have_positions_of_their_own(self, tmp_path):
        assert read_and_save(str(tmp_path), index=1, num_elements=3) == [0, 1, 2]
        assert read_and_save(str(tmp_path), index=2) == [0]
        assert read_and_save(str(tmp_path), index=1) == [3]

    def test_pipeline_with_shuffle_map_and_prefetch(self, tmp_path):
        def dataset():
            data = tf.data.Dataset.range(10).shuffle(10, seed=1).map(lambda x: x * 2)
            return data.batch(2).prefetch(2)

        batches = [batch for _ in range(5) for batch in read_and_save(str(tmp_path), dataset)]
        assert sorted(x for batch in batches for x in batch) == list(range(0, 20, 2))

    def test_missing_directory(self, tmp_path):
        element, initialize = make_input()
        helper = checkpoint_barrier.WorkerCkptHelper(str(tmp_path / "none"), 0)
        hooks = [initialize, helper.create_restorer_hook()]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            assert session.run(element) == 0
        assert not os.path.exists(tmp_path / "none")

    def test_without_iterators(self, tmp_path):
        helper = checkpoint_barrier.WorkerCkptHelper(str(tmp_path), 0)
        callback = helper.create_save_iterator_callback()
        with tf.compat.v1.train.MonitoredSession(hooks=[helper.create_restorer_hook()]) as session:
            callback(checkpoint_barrier.SAVE_ACTION, session)
        assert os.listdir(tmp_path) == []

    def test_disabled(self, tmp_path):
        assert read_and_save(str(tmp_path)) == [0]
        with tf.Graph().as_default():
            checkpoint_barrier.disable_iterator_save_restore()
            element, initialize = make_input()
            helper = checkpoint_barrier.WorkerCkptHelper(str(tmp_path), 0)
            hooks = [initialize, helper.create_restorer_hook()]
            before = sorted(os.listdir(tmp_path))
            with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
                assert session.run(element) == 0
                helper.create_save_iterator_callback()("Save", session)
            assert sorted(os.listdir(tmp_path)) == before

    def test_disabling_late_is_refused(self, tmp_path):
        checkpoint_barrier.WorkerCkptHelper(str(tmp_path), 0)
        with pytest.raises(errors.ConfigError, match="before a `WorkerCkptHelper` is made"):
            checkpoint_barrier.disable_iterator_save_restore()

    def test_other_actions_save_nothing(self, tmp_path):
        _, initialize = make_input()
        helper = checkpoint_barrier.WorkerCkptHelper(str(tmp_path), 0)
        callback = helper.create_save_iterator_callback()
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[initialize]) as session:
            for action in ("", "Stop", "save"):
                callback(action, session.raw_session())
        assert os.listdir(tmp_path) == []

    def test_input_that_cannot_tell_its_position(self, tmp_path, caplog):
        def dataset():
            return tf.data.Dataset.from_generator(
                lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
            )

        with caplog.at_level(logging.WARNING, logger=checkpoint_barrier.__name__):
            read = read_and_save(str(tmp_path), dataset)
        assert read == [0]
        assert "worker 0 reads its input from the beginning, now and whenever" in caplog.text
        assert os.listdir(tmp_path) == []

    def test_damaged_position(self, tmp_path, caplog):
        assert read_and_save(str(tmp_path)) == [0]
        path = tmp_path / "input_worker_0.ckpt-10"
        path.write_bytes(path.read_bytes()[:-1])
        with caplog.at_level(logging.WARNING):
            assert read_and_save(str(tmp_path)) == [0]
        assert "input_worker_0.ckpt-10 is of no use: its content is not what was saved" in (
            caplog.text
        )

    def test_another_input_starts_at_its_beginning(self, tmp_path):
        assert read_and_save(str(tmp_path), num_elements=3) == [0, 1, 2]
        assert read_and_save(str(tmp_path), lambda: tf.data.Dataset.range(20, 30)) == [20]

    def test_the_position_of_the_step_that_the_model_has(self, tmp_path):
        """Without a listener that puts it into the checkpoint, the step tells."""
        for step in (10, 20):
            read_and_save(str(tmp_path), step=step)
        (tmp_path / "model.ckpt-10.index").touch()
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
        assert read_and_save(str(tmp_path), step=11) == [1]

    def test_the_position_of_what_the_session_was_restored_from(self, tmp_path):
        """Whatever the file `checkpoint` says by now."""
        for step in (10, 20):
            read_and_save(str(tmp_path), step=step)
        (tmp_path / "model.ckpt-20.index").touch()
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
        restored = NoteRestored(str(tmp_path / "model.ckpt-10"))
        assert read_and_save(str(tmp_path), step=11, first_hooks=[restored]) == [1]


class TestAbsentWorkers:
    def test_nobody_waits_for_them_at_the_barrier(self):
        sleeps = []
        barrier_op = barrier.BarrierOp(3)
        listener = checkpoint_barrier.BarrierSaverListener(
            barrier_op, is_absent=lambda index: index > 0, sleep=sleeps.append
        )
        with tf.compat.v1.train.MonitoredSession() as session:
            listener.before_save(session, 10)
        assert sleeps == []


class TestInputPositionSaverListener:
    """In a training; see also `tests/training/tables/position_test.py`."""

    @staticmethod
    def save(model_dir, index, num_elements, step=10, ends_well=True):
        """Reads and saves as one of two workers; returns what was read."""
        with tf.Graph().as_default():
            element, initialize = make_input()
            helper = checkpoint_barrier.WorkerCkptHelper(str(model_dir), index, with_model=True)
            basename = str(model_dir / "model.ckpt")
            listener = helper.create_saver_listener(basename, 2) if index == 0 else None
            callback = helper.create_save_iterator_callback()
            hooks = [initialize, helper.create_restorer_hook()]
            session_context = tf.compat.v1.train.SingularMonitoredSession(hooks=hooks)
            with contextlib.suppress(KeyboardInterrupt), session_context as session:
                read = [session.run(element).tolist() for _ in range(num_elements)]
                info = ckpt_hooks_pb2.WorkerCkptInfo(global_step=step)
                checkpoint_barrier.assign_ckpt_info(session.raw_session(), info)
                callback(checkpoint_barrier.SAVE_ACTION, session.raw_session())
                if listener is not None:
                    listener.before_save(session.raw_session(), step)
                    listener.after_save(session.raw_session(), step)
                if not ends_well:
                    raise KeyboardInterrupt
        if listener is not None:
            (model_dir / f"model.ckpt-{step}.index").touch()
            (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
        return read

    def test_positions_of_all_workers_go_into_the_checkpoint(self, tmp_path):
        assert self.save(tmp_path, 1, 3) == [0, 1, 2]
        # Nobody has saved a model yet, so that position is none.
        assert self.save(tmp_path, 1, 2) == [0, 1]
        assert self.save(tmp_path, 0, 4) == [0, 1, 2, 3]
        assert sorted(path.name for path in tmp_path.glob("*input*")) == ["input_worker_1.last"]
        assert self.save(tmp_path, 1, 1) == [2]
        assert self.save(tmp_path, 0, 1) == [4]

    def test_worker_that_has_ended_goes_on_at_its_end(self, tmp_path):
        self.save(tmp_path, 1, 3)
        self.save(tmp_path, 0, 1, step=10)
        # Two checkpoints later it has still been there last.
        self.save(tmp_path, 0, 1, step=20)
        self.save(tmp_path, 0, 1, step=30)
        assert self.save(tmp_path, 1, 1) == [3]

    def test_worker_that_was_killed_goes_on_where_it_was_saved(self, tmp_path):
        self.save(tmp_path, 1, 3, ends_well=False)
        self.save(tmp_path, 0, 1, step=10)
        assert not (tmp_path / "input_worker_1.last").exists()
        self.save(tmp_path, 0, 1, step=20)
        assert (tmp_path / "model.ckpt-20.assets" / "input_worker_1").exists()
        assert self.save(tmp_path, 1, 1) == [3]

    def test_worker_that_comes_again_takes_its_last_position_back(self, tmp_path):
        self.save(tmp_path, 1, 3)
        assert (tmp_path / "input_worker_1.last").exists()
        self.save(tmp_path, 1, 1, ends_well=False)
        assert not (tmp_path / "input_worker_1.last").exists()
