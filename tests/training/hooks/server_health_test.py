"""Watching the memory of parameter servers."""

import gc
import threading

import pytest
import tensorflow as tf

from monolith.native import logging_ops
from monolith.native_training.hooks import ps_check_hooks
from monolith.proto import logging_ops_pb2
from monolith.testing import create_test_ps_cluster
from monolith.training.controller import barrier
from monolith.training.hooks import server_health

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60
OUT_OF_MEMORY = logging_ops_pb2.MachineHealthResult.OUT_OF_MEMORY


class Reports:
    """Remembers what was reported."""

    def __init__(self):
        self.reports = []
        self.has_some = threading.Event()

    def __call__(self, results):
        self.reports.append(dict(results))
        self.has_some.set()


def get_threads():
    return [thread for thread in threading.enumerate() if thread.name == "ps_health"]


@pytest.fixture(autouse=True)
def _quick_and_no_threads_left(monkeypatch):
    monkeypatch.setattr(server_health, "_CHECK_INTERVAL_SEC", 0.02)
    yield
    gc.collect()
    for thread in get_threads():
        thread.join(TIMEOUT_SEC)
    assert get_threads() == []


@pytest.fixture
def train():
    return tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)


def make_config(reports, num_ps=1, capacity=1):
    return server_health.Config(
        barrier.BarrierOp(capacity), num_ps, ps_device_fn=lambda index: "", report_fn=reports
    )


def set_limit(session, mem_limit, index=0):
    """What a server does for itself when it starts."""
    name = server_health.get_ps_machine_info_shared_name(index)
    session.run(logging_ops.machine_info(mem_limit=mem_limit, shared_name=name).op)


class LimitHook(tf.compat.v1.train.SessionRunHook):
    """Sets the limit of the local process before the checker's thread asks."""

    def __init__(self, mem_limit):
        self._mem_limit = mem_limit

    def begin(self):
        name = server_health.get_ps_machine_info_shared_name(0)
        info = logging_ops.machine_info(mem_limit=self._mem_limit, shared_name=name)
        self._op = info.op

    def after_create_session(self, session, coord):
        session.run(self._op)


def test_historical_path():
    assert ps_check_hooks is server_health
    assert ps_check_hooks.get_ps_machine_info_shared_name(3) == "ps_machine_info_3"
    assert ps_check_hooks.Config(None, 1).ps_device_fn(2) == "/job:ps/task:2/device:CPU:0"


class PsCheckHooksTest(tf.test.TestCase):
    def test_basic(self):
        reports = Reports()
        config = make_config(reports)
        hook = server_health.PsHealthCheckerHook(config)
        train = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(train)
            self.assertFalse(config.barrier_op.is_barrier_placed(session))
        self.assertEqual(reports.reports, [])

    def test_oom(self):
        reports = Reports()
        config = make_config(reports)
        hooks = [LimitHook(0), server_health.PsHealthCheckerHook(config)]
        train = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            self.assertTrue(reports.has_some.wait(TIMEOUT_SEC))
            for _ in range(3):
                session.run(train)
        self.assertLen(reports.reports, 1)
        self.assertEqual(reports.reports[0][0].status, OUT_OF_MEMORY)

    def test_raise_in_after_create_session(self):
        class RaisingHook(tf.compat.v1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                raise tf.errors.DeadlineExceededError(None, None, "a server is gone")

        hooks = [server_health.PsHealthCheckerHook(make_config(Reports())), RaisingHook()]
        # Nobody closes such a session, or stops its coordinator; the fixture above looks for the
        # thread, which must end all the same.
        with self.assertRaises(tf.errors.DeadlineExceededError):
            tf.compat.v1.train.MonitoredSession(hooks=hooks)

    def test_raise_in_before_run(self):
        class RaisingHook(tf.compat.v1.train.SessionRunHook):
            def before_run(self, run_context):
                raise tf.errors.DeadlineExceededError(None, None, "a server is gone")

        hooks = [server_health.PsHealthCheckerHook(make_config(Reports())), RaisingHook()]
        train = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)

        def run():
            with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
                session.run(train)

        with self.assertRaises(tf.errors.DeadlineExceededError):
            run()
        self.assertEqual(get_threads(), [])


def test_limit_that_a_server_has_set_itself_stops_the_workers(train):
    servers, session_config = create_test_ps_cluster(2)
    reports = Reports()
    with tf.device("/job:ps/task:0"):
        barrier_op = barrier.BarrierOp(1)
    config = server_health.Config(barrier_op, 2, report_fn=reports)
    hook = server_health.PsHealthCheckerHook(config)

    # Server 1 sets its limit itself, before the chief asks.
    with (
        tf.Graph().as_default(),
        tf.device("/job:ps/task:1/device:CPU:0"),
        tf.compat.v1.Session(servers[1].target, config=session_config) as session,
    ):
        set_limit(session, 0, index=1)
    creator = tf.compat.v1.train.ChiefSessionCreator(
        master=servers[0].target, config=session_config
    )
    with tf.compat.v1.train.MonitoredSession(creator, hooks=[hook]) as session:
        assert reports.has_some.wait(TIMEOUT_SEC)
        for thread in get_threads():
            thread.join(TIMEOUT_SEC)  # It has placed the barrier when it is done.
        assert barrier_op.is_barrier_placed(session)
        session.run(train)
    (report,) = reports.reports
    assert list(report) == [1]
    assert report[1].message.startswith("Memory limit exceeded. Current: ")


def test_without_servers_nobody_watches(train):
    hook = server_health.PsHealthCheckerHook(make_config(Reports(), num_ps=0))
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        assert get_threads() == []
        session.run(train)


def test_barrier_of_somebody_else_is_left(train):
    reports = Reports()
    config = make_config(reports)

    class PlaceFirst(tf.compat.v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            config.barrier_op.place_barrier(session, "Save")

    hooks = [LimitHook(0), PlaceFirst(), server_health.PsHealthCheckerHook(config)]
    with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
        assert reports.has_some.wait(TIMEOUT_SEC)
        assert config.barrier_op.is_barrier_placed(session)


def test_report_that_fails_does_not_keep_the_barrier_away(train, caplog):
    def fail(results):
        raise OSError("the pager is down")

    config = make_config(fail)
    hooks = [LimitHook(0), server_health.PsHealthCheckerHook(config)]
    with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
        for thread in get_threads():
            thread.join(TIMEOUT_SEC)
        assert config.barrier_op.is_barrier_placed(session)
    assert "the pager is down" in caplog.text


def test_default_report_is_logged(train, caplog):
    config = server_health.Config(barrier.BarrierOp(1), 1, ps_device_fn=lambda index: "")
    hooks = [LimitHook(0), server_health.PsHealthCheckerHook(config)]
    with tf.compat.v1.train.MonitoredSession(hooks=hooks):
        for thread in get_threads():
            thread.join(TIMEOUT_SEC)
    assert "parameter server 0 is not healthy: Memory limit exceeded" in caplog.text


def test_server_that_cannot_be_asked_is_logged_and_asked_again(monkeypatch, train, caplog):
    reports = Reports()
    hook = server_health.PsHealthCheckerHook(make_config(reports))
    asked = threading.Event()
    check = hook._check
    calls = []

    def fail_twice(session):
        calls.append(session)
        if len(calls) < 3:
            raise tf.errors.UnavailableError(None, None, "connection lost")
        asked.set()
        return check(session)

    monkeypatch.setattr(hook, "_check", fail_twice)
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        assert asked.wait(TIMEOUT_SEC)
        session.run(train)
        calls.clear()
    assert "health is not known: connection lost" in caplog.text
    assert reports.reports == []
