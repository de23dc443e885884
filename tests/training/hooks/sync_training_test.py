"""What ranks do beside training; with one rank, as the seed's tests have it."""

import datetime
import logging
import os
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf
from support import ranks
from support.jobs import Job
from support.ranks import SumTask
from support.waiting import wait_for

from monolith import errors
from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting
from monolith.core import metrics
from monolith.embedding.tables import single
from monolith.graph import collectives
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.spec import GraphSpec
from monolith.native_training import hvd_lib, sync_training_hooks
from monolith.proto import parameter_sync_pb2
from monolith.serving.sync import client_ops
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import sync_training


@pytest.fixture(autouse=True)
def initialized(monkeypatch):
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init()
    yield
    collectives.shutdown()


@pytest.mark.slow
@pytest.mark.distributed
def test_between_ranks(tmp_path):
    """All hooks in one job; of its two ranks, only rank 0 sees what an operator asks for."""
    (tmp_path / "model-0").mkdir()
    (tmp_path / "model-0" / "dump_3").touch()
    (tmp_path / "model-0" / "ONLINE").touch()
    (tmp_path / "model-0" / "limit_req_time").write_text("1006")
    with Job(tmp_path / "logs") as job:
        members = ranks.start(job, 2, "run_hooks", str(tmp_path), module="support.sync_hooks")
        job.expect_success()
    expected = {
        "dump": ["disable"] * 2 + ["enable", "reset"] + ["disable"] * 3,
        "online": ["enable"] * 6,
        "limit": ["enable", "reset"],
        # The time of rank 0's sixth batch is the limit.
        "steps": 6,
    }
    for rank, found in enumerate(ranks.read_all(tmp_path, "found", 2)):
        assert found == {**expected, "models": [f"ps_{rank}"]}
        assert "table MonolithHashTable_user has 2 rows" in members[rank].log
        assert "have not waited for each other" not in members[rank].log


class EofAwareTaskTest(tf.test.TestCase):
    def train(self, use_dataservice, **settings):
        hvd_lib.init()
        task = SumTask.params().set(name="sum", **settings).instantiate()
        task = sync_training_hooks.EofAwareTask(task, use_dataservice)
        estimator = GraphEstimator(task.create_model_fn(), self.get_temp_dir())
        estimator.train(task.create_input_fn(ModeKeys.TRAIN))
        self.assertEqual(estimator.get_variable_value("global_step"), 6)

    def test_basic(self):
        self.train(False)

    def test_dict(self):
        self.train(False, as_dict=True)

    def test_basic_with_a_data_service(self):
        self.train(True)

    def test_dict_with_a_data_service(self):
        self.train(True, as_dict=True)

    def test_the_task_is_what_it_was(self):
        inner = SumTask.params().set(name="sum").instantiate()
        inner.something = "else"
        task = sync_training_hooks.EofAwareTask(inner)
        assert task.something == "else"
        assert task.p is inner.p
        assert task.ctx is inner.ctx
        assert task.create_serving_input_receiver_fn() is None
        with self.assertRaises(AttributeError):
            _ = task.nothing


@pytest.fixture
def timer():
    return mock.Mock(spec=SecondOrStepTimerWithTideSetting)


def run(hooks, steps):
    """Runs steps of a graph with a global step; returns how many there were."""
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.assign_add(step, 1)
    done = 0
    # Threads of its own: what waits in one must not keep steps from going on, however few threads
    # the first session of the process has asked for.
    config = tf.compat.v1.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=4)
    creator = tf.compat.v1.train.ChiefSessionCreator(config=config)
    with tf.compat.v1.train.MonitoredSession(creator, hooks) as session:
        while not session.should_stop() and done < steps:
            session.run(train_op)
            done += 1
    return done


def at(hour):
    return lambda: datetime.datetime(2026, 1, 1, hour, 30)


@pytest.mark.usefixtures("graph_mode")
class TestForceDump:
    @pytest.mark.parametrize(
        ("hour", "calls"),
        [
            (17, [mock.call.disable()]),
            (18, [mock.call.enable()]),
            (19, [mock.call.enable()]),
            (20, [mock.call.disable()]),
        ],
    )
    def test_saves_at_night(self, tmp_path, timer, hour, calls):
        tf.compat.v1.train.create_global_step()
        hook = sync_training.SyncTrainingForceDumpHook(str(tmp_path), timer, get_time=at(hour))
        assert run([hook], 3) == 3
        assert timer.mock_calls == calls

    def test_saves_when_asked(self, tmp_path, timer):
        tf.compat.v1.train.create_global_step()
        (tmp_path / "dump_3").touch()
        (tmp_path / "dump_x").touch()
        hook = sync_training.SyncTrainingForceDumpHook(
            str(tmp_path), timer, step_interval=2, get_time=at(3)
        )
        assert run([hook], 8) == 8
        names = [call[0] for call in timer.mock_calls]
        assert names.count("reset") == 1
        at_reset = names.index("reset")
        assert names[at_reset - 1] == "enable"
        assert set(names[: at_reset - 1] + names[at_reset + 1 :]) == {"disable"}

    def test_stops_when_asked(self, tmp_path, timer):
        tf.compat.v1.train.create_global_step()
        (tmp_path / "stop_4").touch()
        hook = sync_training.SyncTrainingForceDumpHook(
            str(tmp_path), timer, step_interval=1, get_time=at(3)
        )
        assert run([hook], 100) == 4

    def test_old_requests_and_missing_directories(self, tmp_path, timer):
        step = tf.compat.v1.train.create_global_step()
        (tmp_path / "stop_4").touch()
        for directory in (tmp_path, tmp_path / "missing"):
            hook = sync_training.SyncTrainingForceDumpHook(
                str(directory), timer, step_interval=1, get_time=at(3)
            )
            with tf.Graph().as_default():
                step = tf.compat.v1.get_variable(
                    "global_step",
                    initializer=tf.constant(50, tf.int64),
                    collections=[tf.compat.v1.GraphKeys.GLOBAL_STEP, "variables"],
                )
                assert run([hook], 5) == 5, step

    def test_interval(self, tmp_path, timer):
        with pytest.raises(errors.ConfigError, match="step_interval must be above 0, got 0"):
            sync_training.SyncTrainingForceDumpHook(str(tmp_path), timer, 0)


@pytest.mark.usefixtures("graph_mode")
def test_saver_control(tmp_path, timer):
    tf.compat.v1.train.create_global_step()
    online = tmp_path / "ONLINE"

    class Toggle(tf.compat.v1.train.SessionRunHook):
        """Puts the file there for some steps."""

        def __init__(self):
            self.steps = 0

        def before_run(self, run_context):
            self.steps += 1
            if self.steps == 3:
                online.touch()
            elif self.steps == 5:
                os.remove(online)

    hook = sync_training.SyncTrainingSaverControlHook(str(tmp_path), timer, step_interval=1)
    run([Toggle(), hook], 6)
    names = [call[0] for call in timer.mock_calls]
    assert "enable" in names
    assert names[0] == names[-1] == "disable"


@pytest.mark.usefixtures("graph_mode")
def test_info(caplog):
    caplog.set_level(logging.INFO)
    tf.compat.v1.train.create_global_step()
    table = single.test_hash_table(1, name_suffix="user")
    assign = table.assign_add(tf.constant([1, 2], tf.int64), [[1.0], [2.0]]).as_op()
    times = iter([0.0, 1.0, 599.0, 600.0, 601.0])
    hook = sync_training.SyncTrainingInfoHook(clock=lambda: next(times))
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(assign)
    lines = [r.getMessage() for r in caplog.records if "rows" in r.getMessage()]
    assert lines == ["table MonolithHashTable_user has 2 rows"] * 2


@pytest.mark.usefixtures("graph_mode")
class TestReqTime:
    def make(self, tmp_path, timer, limit):
        step = tf.compat.v1.train.create_global_step()
        if limit is not None:
            (tmp_path / "limit_req_time").write_text(limit)
        # A batch whose latest example is from 1000 + step.
        times = tf.stack([tf.constant(5, tf.int64), step + 1000])
        tf.compat.v1.add_to_collection("req_time", times)
        return sync_training.ReqTimeControlDumpHook(str(tmp_path), timer, step_interval=1)

    def test_saves_and_stops_at_the_limit(self, tmp_path, timer):
        hook = self.make(tmp_path, timer, "1003\n")
        assert 3 <= run([hook], 50) <= 5
        assert timer.mock_calls == [mock.call.enable(), mock.call.reset()]

    @pytest.mark.parametrize("limit", [None, "9999999", "soon"])
    def test_goes_on_below_it(self, tmp_path, timer, limit):
        assert run([self.make(tmp_path, timer, limit)], 5) == 5
        assert timer.mock_calls == []

    def test_without_any_time(self, tmp_path, timer):
        tf.compat.v1.train.create_global_step()
        (tmp_path / "limit_req_time").write_text("1")
        hook = sync_training.ReqTimeControlDumpHook(str(tmp_path), timer, step_interval=1)
        assert run([hook], 3) == 3


@pytest.mark.usefixtures("graph_mode")
class TestBarrier:
    def test_after_save(self):
        step = tf.compat.v1.train.create_global_step()
        listener = sync_training.SyncTrainingBarrierSaverListener()
        listener.begin()
        with tf.compat.v1.Session() as session:
            session.run(step.initializer)
            listener.after_save(session, 0)

    def test_errors_are_logged(self, caplog):
        listener = sync_training.SyncTrainingBarrierSaverListener()
        session = mock.Mock()
        session.run.side_effect = tf.errors.UnavailableError(None, None, "gone")
        listener.after_save(session, 7)
        assert "have not waited for each other at step 7" in caplog.text


class Client:
    """Sends nothing, but notes that it would.

    Attributes:
        sent: The configs with which it was asked to send.
        hold: While this is cleared, sending takes its time.
    """

    def __init__(self):
        self.sent = []
        self.hold = threading.Event()
        self.hold.set()

    def create_sync_op(self, config):
        return tf.compat.v1.py_func(self._send, [config], tf.string)

    def _send(self, text):
        self.sent.append(text)
        assert self.hold.wait(240)
        return text


class WaitAfterStep(tf.compat.v1.train.SessionRunHook):
    """Goes on when a condition holds for the number of steps."""

    def __init__(self, condition):
        self._condition = condition
        self._steps = 0

    def after_run(self, run_context, run_values):
        self._steps += 1
        deadline_sec = time.monotonic() + 60
        while not self._condition(self._steps):
            assert time.monotonic() < deadline_sec, "it does not happen"
            time.sleep(0.01)


def find_senders():
    return [thread for thread in threading.enumerate() if thread.name == "parameter_sync"]


@pytest.mark.usefixtures("graph_mode")
class TestParameterSync:
    def test_config_is_refreshed(self):
        tf.compat.v1.train.create_global_step()
        client = Client()
        backend = mock.Mock()
        backend.get_sync_targets.side_effect = [("m", ["a:1"]), ("m", ["a:1", "b:1"])]
        times = iter([0.0, 50.0, 100.0])
        hook = sync_training.ParameterSyncHook(backend, 3, client=client, clock=lambda: next(times))
        run([hook, WaitAfterStep(lambda steps: len(client.sent) == steps)], 3)
        backend.get_sync_targets.assert_called_with("ps_3")
        configs = [parameter_sync_pb2.ClientConfig.FromString(text) for text in client.sent]
        assert [list(c.targets) for c in configs] == [["a:1"], ["a:1"], ["a:1", "b:1"]]
        assert {(c.model_name, c.signature_name, c.timeout_in_ms) for c in configs} == {
            ("m", "hashtable_assign", 3000)
        }

    def test_no_step_waits_for_a_server(self):
        tf.compat.v1.train.create_global_step()
        client = Client()
        client.hold.clear()
        sent_before_the_end = []

        class AtTheEnd(tf.compat.v1.train.SessionRunHook):
            def end(self, session):
                sent_before_the_end.extend(client.sent)
                client.hold.set()

        backend = mock.Mock(get_sync_targets=lambda name: ("m", ["a:1"]))
        hook = sync_training.ParameterSyncHook(backend, 3, client=client, flush_sec=60)
        # What is sent after the first step takes until all steps are over.
        first = WaitAfterStep(lambda steps: client.sent)
        assert run([AtTheEnd(), hook, first], 50) == 50
        assert len(sent_before_the_end) == 1
        # All the others are sent at once.
        assert len(client.sent) == 2

    def test_the_end_waits_for_a_time_only(self, caplog):
        tf.compat.v1.train.create_global_step()
        client = Client()
        client.hold.clear()
        backend = mock.Mock(get_sync_targets=lambda name: ("m", ["a:1"]))
        hook = sync_training.ParameterSyncHook(backend, 3, client=client, flush_sec=0.1)

        class Release(tf.compat.v1.train.SessionRunHook):
            def end(self, session):
                client.hold.set()

        assert run([hook, Release()], 2) == 2
        assert "the last rows of this training were not sent in 0.1 s" in caplog.text

    def test_a_training_that_fails_leaves_no_thread(self, tmp_path):
        client = Client()
        backend = mock.Mock(get_sync_targets=lambda name: ("m", ["a:1"]))

        class FailingHook(tf.compat.v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                wait_for(lambda: client.sent)
                raise RuntimeError("the step is broken")

        def model_fn(features, mode):
            step = tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1)
            return GraphSpec(mode, loss=tf.reduce_sum(features), train_op=step)

        hook = sync_training.ParameterSyncHook(backend, 3, client=client)
        with pytest.raises(RuntimeError, match="the step is broken"):
            GraphEstimator(model_fn, tmp_path).train(
                lambda: tf.data.Dataset.from_tensor_slices([1.0]), hooks=[hook, FailingHook()]
            )
        wait_for(lambda: not find_senders())

    def test_what_goes_wrong_is_said_once_and_stops_nothing(self, caplog):
        tf.compat.v1.train.create_global_step()
        client = Client()
        answers = [RuntimeError("nobody\nat home")] * 3 + [("m", ["a:1"])]
        backend = mock.Mock()
        backend.get_sync_targets.side_effect = answers
        hook = sync_training.ParameterSyncHook(backend, 3, client=client)
        tries = WaitAfterStep(lambda steps: backend.get_sync_targets.call_count >= steps)
        assert run([hook, tries], 4) == 4
        assert len(client.sent) == 1
        assert caplog.text.count("rows are not sent at the moment: nobody\n") == 1

    def test_extra_info(self):
        info = parameter_sync_pb2.ClientConfig.TargetExtraInfo(idc="i", cluster="c", replica_id=2)
        backend = mock.Mock(get_sync_targets=lambda name: ("m", {"a:1": info}))
        config = parameter_sync_pb2.ClientConfig.FromString(
            sync_training.refresh_sync_config(backend, 0)
        )
        assert list(config.targets_extra_info) == [info]

    def test_rows_of_the_tables_of_the_part_are_sent(self):
        tf.compat.v1.train.create_global_step()
        server = client_ops.DummySyncServer("127.0.0.1:0")
        with tf.compat.v1.Session() as session:
            port = int(session.run(server.get_port())[0])
        client = client_ops.parameter_sync_client_from_config(name_suffix="3")
        table = single.test_hash_table(1, sync_client=client, name_suffix="hooked")
        update = table.apply_gradients([7], [[1.0]], global_step=0).as_op()
        sent = []

        class Sink:
            def emit(self, kind, name, value, tags):
                if name.endswith("parameter_sync_fid_count"):
                    sent.append((value, tags["status"], tags["idc"], tags["replica_id"]))

            def flush(self):
                pass

        info = parameter_sync_pb2.ClientConfig.TargetExtraInfo(idc="i", cluster="c", replica_id=2)
        backend = mock.Mock(get_sync_targets=lambda name: ("m", {f"127.0.0.1:{port}": info}))
        hook = sync_training.ParameterSyncHook(backend, 3)
        metrics.set_sink(Sink())
        wait = WaitAfterStep(lambda steps: len(sent) == steps)
        try:
            with tf.compat.v1.train.MonitoredSession(hooks=[hook, wait]) as session:
                session.run(update)
                session.run(update)
        finally:
            metrics.set_sink(None)
        assert sent == [(1, "OK", "i:c", "2")] * 2
        with tf.compat.v1.Session() as session:
            session.run(server.shutdown())
