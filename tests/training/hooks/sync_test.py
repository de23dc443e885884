"""Workers that wait for the chief, and the chief that waits for its workers."""

import logging
import threading
import time

import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training import sync_hooks
from monolith.training.hooks import sync

TIMEOUT_SEC = 60
# The device of a plain session, and of the one server of `create_local_server`.
LOCAL = "/job:localhost/task:0"


class CountHook(tf.compat.v1.train.SessionRunHook):
    """Counts how often it gets to the stages of a session."""

    def __init__(self):
        self.created = 0
        self.ended = 0

    def after_create_session(self, session, coord):
        self.created += 1

    def end(self, session):
        self.ended += 1


class RestoreHook(tf.compat.v1.train.SessionRunHook):
    """Stands for a restore that takes until `may_finish`."""

    def __init__(self):
        self.has_begun = threading.Event()
        self.may_finish = threading.Event()

    def after_create_session(self, session, coord):
        self.has_begun.set()
        assert self.may_finish.wait(TIMEOUT_SEC)


class Member(threading.Thread):
    """Runs a chief or a worker in a graph of its own, and keeps what it raises."""

    def __init__(self, body):
        super().__init__(daemon=True)
        self._body = body
        self._failure = None

    def run(self):
        try:
            with tf.Graph().as_default():
                self._body()
        except Exception as error:  # noqa: BLE001 - the test raises it
            self._failure = error

    def finish(self):
        self.join(TIMEOUT_SEC)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure


def make_sleep(waits):
    """A short sleep that tells, through an event, that somebody waits."""

    def sleep(seconds):
        assert seconds == 1
        waits.set()
        time.sleep(0.01)

    return sleep


def test_historical_path():
    assert sync_hooks is sync


@pytest.mark.usefixtures("graph_mode")
class SyncHooksTest(tf.test.TestCase):
    def test_sync_process(self):
        server = tf.distribute.Server.create_local_server()
        restore, chief_count, worker_count = RestoreHook(), CountHook(), CountHook()
        chief_waits, worker_waits = threading.Event(), threading.Event()
        worker_started, worker_may_end = threading.Event(), threading.Event()

        def chief_body():
            helper = sync_hooks.SyncHelper(2, is_chief=True, var_device=LOCAL)
            hook = sync_hooks.ChiefSyncHook(helper, sleep=make_sleep(chief_waits))
            creator = tf.compat.v1.train.ChiefSessionCreator(master=server.target)
            hooks = [restore, hook, chief_count]
            with tf.compat.v1.train.MonitoredSession(creator, hooks=hooks):
                # Without records of the members, a chief that is done first waits for nobody.
                assert worker_started.wait(TIMEOUT_SEC)

        def worker_body():
            helper = sync_hooks.SyncHelper(2, is_chief=False, var_device=LOCAL)
            hook = sync_hooks.WorkerSyncHook(1, helper, sleep=make_sleep(worker_waits))
            creator = tf.compat.v1.train.WorkerSessionCreator(master=server.target)
            with tf.compat.v1.train.MonitoredSession(creator, hooks=[hook, worker_count]):
                worker_started.set()
                assert worker_may_end.wait(TIMEOUT_SEC)

        chief, worker = Member(chief_body), Member(worker_body)
        chief.start()
        self.assertTrue(restore.has_begun.wait(TIMEOUT_SEC))
        worker.start()
        # The worker waits while the chief restores.
        self.assertTrue(worker_waits.wait(TIMEOUT_SEC))
        self.assertEqual(worker_count.created, 0)
        self.assertEqual(chief_count.created, 0)
        restore.may_finish.set()
        # The chief has nothing left to do, and waits while the worker is alive.
        self.assertTrue(chief_waits.wait(TIMEOUT_SEC))
        self.assertEqual((chief_count.created, chief_count.ended), (1, 0))
        self.assertEqual((worker_count.created, worker_count.ended), (1, 0))
        worker_may_end.set()
        worker.finish()
        chief.finish()
        self.assertEqual((chief_count.created, chief_count.ended), (1, 1))
        self.assertEqual((worker_count.created, worker_count.ended), (1, 1))

    def test_hook_helper(self):
        helper = sync_hooks.TrainingHooksHelper(False, 0, 0)
        self.assertEqual(helper.training_hooks, ())
        self.assertEqual(helper.training_chief_hooks, ())
        helper = sync_hooks.TrainingHooksHelper(True, 2, 0)
        self.assertEqual(helper.training_hooks, ())
        (hook,) = helper.training_chief_hooks
        self.assertIsInstance(hook, sync_hooks.ChiefSyncHook)
        with tf.Graph().as_default():
            helper = sync_hooks.TrainingHooksHelper(True, 2, 1, chief_timeout_seconds=5)
            (hook,) = helper.training_hooks
            self.assertIsInstance(hook, sync_hooks.WorkerSyncHook)
            self.assertEqual(helper.training_chief_hooks, ())


@pytest.mark.usefixtures("graph_mode")
class TestSyncHelper:
    def test_restore_status_and_alive_workers(self):
        helper = sync.SyncHelper(4, is_chief=True, var_device=LOCAL)
        with tf.compat.v1.train.MonitoredSession() as session:
            assert not helper.is_restore_done(session)
            helper.mark_restore_done(session)
            assert helper.is_restore_done(session)
            # The restore status, flag 0, is not a worker.
            assert helper.get_alive_workers(session) == []
            helper.start_worker(session, 3)
            helper.start_worker(session, 1)
            assert helper.get_alive_workers(session) == [1, 3]
            assert helper.get_num_alive_workers(session) == 2
            helper.finish_worker(session, 3)
            assert helper.get_alive_workers(session) == [1]
            assert helper.get_num_alive_workers(session) == 1

    def test_variable(self):
        sync.SyncHelper(2, is_chief=True)
        (variable,) = tf.compat.v1.local_variables()
        assert variable.op.name == "monolith_sync_helper/control_var"
        assert variable.device == "/job:chief/task:0"
        assert variable.dtype.base_dtype == tf.bool
        assert variable.shape == [2]

    @pytest.mark.parametrize("index", [-1, 0, 2])
    def test_bad_worker_is_refused(self, index):
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        message = f"below the number of workers, 2; got {index}"
        with pytest.raises(errors.ConfigError, match=message):
            sync.WorkerSyncHook(index, helper)
        with tf.compat.v1.train.MonitoredSession() as session:
            with pytest.raises(errors.ConfigError, match=message):
                helper.start_worker(session, index)
            with pytest.raises(errors.ConfigError, match=message):
                helper.finish_worker(session, index)

    def test_helper_for_a_worker_beyond_the_number_is_refused(self):
        with pytest.raises(errors.ConfigError, match="got 2"):
            sync.TrainingHooksHelper(True, 2, 2)


@pytest.mark.usefixtures("graph_mode")
class TestWaiting:
    def test_chief_gives_up_after_its_timeout_and_names_who_is_missing(self, caplog):
        helper = sync.SyncHelper(4, is_chief=True, var_device=LOCAL)
        now_sec = [100.0]

        def sleep(seconds):
            now_sec[0] += seconds

        hook = sync.ChiefSyncHook(helper, timeout_seconds=90, clock=lambda: now_sec[0], sleep=sleep)
        with (
            caplog.at_level(logging.INFO, logger=sync.__name__),
            tf.compat.v1.train.MonitoredSession() as session,
        ):
            helper.start_worker(session, 1)
            helper.start_worker(session, 3)
            hook.end(session)
        assert now_sec[0] == 190.0
        lines = [record.getMessage() for record in caplog.records]
        # At once, and after a minute.
        assert lines.count("the chief waits for workers [1, 3] to finish") == 2
        assert lines[-1].endswith("90 seconds, workers [1, 3] have not finished")

    def test_worker_goes_when_its_coordinator_stops(self):
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        coord = tf.train.Coordinator()
        hook = sync.WorkerSyncHook(1, helper, sleep=lambda seconds: coord.request_stop())
        with tf.compat.v1.train.MonitoredSession() as session:
            hook.after_create_session(session, coord)
            assert not helper.is_restore_done(session)

    def test_hooks_work_without_a_coordinator(self):
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        with tf.compat.v1.train.MonitoredSession() as session:
            chief = sync.ChiefSyncHook(helper)
            worker = sync.WorkerSyncHook(
                1, helper, sleep=lambda seconds: chief.after_create_session(session, None)
            )
            worker.after_create_session(session, None)  # Waits, until the chief is ready.
            assert helper.is_restore_done(session)
            assert helper.get_alive_workers(session) == [1]

    def test_worker_says_once_a_minute_that_it_waits(self, caplog):
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        now_sec = [0.0]

        def sleep(seconds):
            now_sec[0] += seconds
            if now_sec[0] == 150:
                helper.mark_restore_done(session)

        hook = sync.WorkerSyncHook(1, helper, clock=lambda: now_sec[0], sleep=sleep)
        with (
            caplog.at_level(logging.INFO, logger=sync.__name__),
            tf.compat.v1.train.MonitoredSession() as session,
        ):
            hook.after_create_session(session, tf.train.Coordinator())
        lines = [record.getMessage() for record in caplog.records]
        # At 0, 60 and 120 seconds.
        assert lines.count("worker 1 waits for the chief to restore") == 3


def make_others(**changes):
    nothing = {
        "check": lambda: None,
        "has_left": lambda index: False,
        "is_absent": lambda index: False,
        "is_stopping": lambda: False,
    }
    return sync.Others(**{**nothing, **changes})


class Gone(Exception):
    pass


def raise_gone():
    raise Gone


@pytest.mark.usefixtures("graph_mode")
class TestOthers:
    def test_chief_waits_for_a_worker_that_has_not_come_yet(self, caplog):
        helper = sync.SyncHelper(3, is_chief=True, var_device=LOCAL)
        left = {1}
        others = make_others(has_left=lambda index: index in left)
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                left.add(2)

        hook = sync.ChiefSyncHook(helper, others=others, sleep=sleep)
        with (
            caplog.at_level(logging.INFO, logger=sync.__name__),
            tf.compat.v1.train.MonitoredSession() as session,
        ):
            # A worker that was killed has left its flag, but its successor is done.
            helper.start_worker(session, 1)
            hook.end(session)
        assert len(waits) == 3
        assert "the chief waits for workers [2] to finish" in caplog.text

    def test_chief_that_was_told_to_end_does_not_wait_for_long(self, caplog):
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        now_sec = [0.0]

        def sleep(seconds):
            now_sec[0] += seconds

        hook = sync.ChiefSyncHook(
            helper,
            others=make_others(is_stopping=lambda: True),
            clock=lambda: now_sec[0],
            sleep=sleep,
        )
        with tf.compat.v1.train.MonitoredSession() as session:
            hook.end(session)
        assert now_sec[0] == 10
        assert "workers [1] have not finished" in caplog.text

    def test_nobody_waits_when_somebody_is_gone(self):
        others = make_others(check=raise_gone)
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        with tf.compat.v1.train.MonitoredSession() as session:
            with pytest.raises(Gone):
                sync.ChiefSyncHook(helper, others=others).end(session)
            with pytest.raises(Gone):
                sync.WorkerSyncHook(1, helper, others=others).after_create_session(session, None)

    def test_flags_that_a_new_chief_has_not_made_yet(self, caplog):
        server = tf.distribute.Server.create_local_server()
        helper = sync.SyncHelper(2, is_chief=True, var_device=LOCAL)
        init = tf.compat.v1.local_variables_initializer()
        with tf.compat.v1.Session(server.target) as session:

            def make_flags(seconds):
                session.run(init)
                helper.mark_restore_done(session)

            hook = sync.WorkerSyncHook(1, helper, sleep=make_flags)
            hook.end(session)
            assert "worker 1 cannot tell the chief that it is done" in caplog.text
            hook.after_create_session(session, None)
            assert helper.get_alive_workers(session) == [1]

    def test_parts_of_a_worker(self):
        helper = sync.TrainingHooksHelper(True, 2, 1)
        (first,), (last,) = helper.first_and_last_hooks
        calls = []
        (hook,) = helper.training_hooks
        hook.after_create_session = lambda session, coord: calls.append("start")
        hook.end = lambda session: calls.append("end")
        for part in (first, last):
            part.after_create_session(None, None)
        assert calls == ["start"]
        for part in (first, last):
            part.end(None)
        assert calls == ["start", "end"]

    def test_chief_has_no_parts(self):
        assert sync.TrainingHooksHelper(True, 2, 0).first_and_last_hooks == ([], [])
