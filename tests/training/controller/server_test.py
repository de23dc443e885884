"""The controller of a run: its server in the session, and its client."""

import logging
import os
import pathlib
import stat
import threading

import grpc
import pytest
import tensorflow as tf

from monolith import errors
from monolith.cluster import net
from monolith.native_training import barrier_ops, save_utils
from monolith.native_training.hooks.server import client_lib, constants, server_lib, service_pb2
from monolith.training.controller import client, files, server

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 60


class FailingSaverHook:
    def trigger_save(self, session):
        raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")


@pytest.fixture
def model_dir(tmp_path):
    return str(tmp_path / "model")


@pytest.fixture
def barrier_op():
    return barrier_ops.BarrierOp(1)


@pytest.fixture
def advance():
    step = tf.compat.v1.train.get_or_create_global_step()
    return tf.compat.v1.assign_add(step, 1)


@pytest.fixture(autouse=True)
def _no_threads_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("controller"):
            thread.join(TIMEOUT_SEC)
            assert not thread.is_alive(), thread


def open_session(*hooks):
    return tf.compat.v1.train.MonitoredSession(hooks=hooks)


def get_step(stub):
    return stub.GetTrainingStatus(service_pb2.GetTrainingStatusRequest()).global_step


def make_bare_stub(model_dir, token=None):
    """A client without our client's help; the caller closes the channel."""
    channel = grpc.insecure_channel(
        (pathlib.Path(model_dir) / "controller_server_addr.txt").read_text()
    )
    call = channel.unary_unary(
        "/Controller/GetTrainingStatus",
        request_serializer=service_pb2.GetTrainingStatusRequest.SerializeToString,
        response_deserializer=service_pb2.GetTrainingStatusResponse.FromString,
    )
    metadata = [("authorization", f"Bearer {token}")] if token else []
    return channel, lambda: call(service_pb2.GetTrainingStatusRequest(), metadata=metadata)


def test_historical_paths():
    assert server_lib is server
    assert client_lib is client
    assert constants.SERVER_ADDR_FILENAME == "controller_server_addr.txt"


class ServerTest(tf.test.TestCase):
    def test_basic(self):
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], "test_basic")
        tf.compat.v1.train.get_or_create_global_step()
        barrier_op = barrier_ops.BarrierOp(1)
        saver_hook = save_utils.NoFirstSaveCheckpointSaverHook(model_dir, save_secs=10000)
        hook = server_lib.ServerHook(model_dir, barrier_op, saver_hook)
        with open_session(saver_hook, hook):
            stub = client_lib.get_stub_from_model_dir(model_dir)
            stub.StopTraining(service_pb2.StopTrainingRequest())
            with self.assertRaises(grpc.RpcError) as raised:
                stub.StopTraining(service_pb2.StopTrainingRequest())
            self.assertEqual(raised.exception.code(), grpc.StatusCode.ALREADY_EXISTS)
            self.assertEqual(raised.exception.details(), "Barrier is placed already.")

            status = stub.GetBlockStatus(service_pb2.GetBlockStatusRequest())
            self.assertEqual(list(status.blocked_indices), [0])
            self.assertEqual(list(status.unblocked_indices), [])
            stub.ResumeTraining(service_pb2.ResumeTrainingRequest())
            status = stub.GetBlockStatus(service_pb2.GetBlockStatusRequest())
            self.assertEqual(list(status.blocked_indices), [])
            self.assertEqual(list(status.unblocked_indices), [0])

            self.assertIsNone(tf.train.latest_checkpoint(model_dir))
            stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest())
            self.assertEqual(
                tf.train.latest_checkpoint(model_dir), os.path.join(model_dir, "model.ckpt-0")
            )
            self.assertEqual(get_step(stub), 0)


class TestCalls:
    def test_save_writes_a_checkpoint_before_it_answers(self, model_dir, barrier_op, advance):
        saver_hook = save_utils.NoFirstSaveCheckpointSaverHook(model_dir, save_secs=10000)
        hook = server.ServerHook(model_dir, barrier_op, saver_hook)
        with open_session(saver_hook, hook) as session, client.connect(model_dir) as stub:
            for _ in range(3):
                session.run(advance)
            assert not tf.io.gfile.exists(f"{model_dir}/model.ckpt-3.index")
            stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest())
            reader = tf.train.load_checkpoint(f"{model_dir}/model.ckpt-3")
            assert reader.get_tensor("global_step") == 3
            # The barrier is not part of what is saved.
            assert sorted(reader.get_variable_to_shape_map()) == ["global_step"]

    def test_error_of_a_save_reaches_the_client_and_the_log(
        self, model_dir, barrier_op, advance, caplog
    ):
        hook = server.ServerHook(model_dir, barrier_op, FailingSaverHook())
        with open_session(hook) as session, client.connect(model_dir) as stub:
            with pytest.raises(grpc.RpcError) as raised:
                stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest())
            assert raised.value.code() == grpc.StatusCode.INTERNAL
            message = "The controller could not save a checkpoint: the disk is full"
            assert raised.value.details() == message
            # The run and the controller go on.
            session.run(advance)
            assert get_step(stub) == 1
        assert "the controller could not save a checkpoint" in caplog.text

    def test_run_that_saves_nothing(self, model_dir, barrier_op, advance):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with open_session(hook), client.connect(model_dir) as stub:
            with pytest.raises(grpc.RpcError, match="has no saver hook") as raised:
                stub.SaveCheckpoint(service_pb2.SaveCheckpointRequest())
            assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    def test_run_without_a_global_step(self, model_dir, barrier_op):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with open_session(hook), client.connect(model_dir) as stub:
            with pytest.raises(grpc.RpcError, match="has no global step") as raised:
                get_step(stub)
            assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    def test_status_follows_the_training(self, model_dir, barrier_op, advance):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with open_session(hook) as session, client.connect(model_dir) as stub:
            for expected in range(4):
                assert get_step(stub) == expected
                session.run(advance)

    def test_stop_and_resume_a_worker(self, model_dir, advance):
        asked = threading.Event()
        stubs = []

        def sleep(seconds):
            # Called while the worker waits: what an operator sees, and does, meanwhile.
            status = stubs[0].GetBlockStatus(service_pb2.GetBlockStatusRequest())
            assert (list(status.blocked_indices), list(status.unblocked_indices)) == ([0, 2], [1])
            assert get_step(stubs[0]) == 1
            stubs[0].ResumeTraining(service_pb2.ResumeTrainingRequest())
            asked.set()

        barrier_op = barrier_ops.BarrierOp(3, sleep=sleep)
        server_hook = server.ServerHook(model_dir, barrier_op, None)
        worker_hook = barrier_ops.BarrierHook(2, barrier_op)
        with open_session(server_hook, worker_hook) as session, client.connect(model_dir) as stub:
            stubs.append(stub)
            stub.StopTraining(service_pb2.StopTrainingRequest())
            session.run(advance)
            assert asked.is_set()
            status = stub.GetBlockStatus(service_pb2.GetBlockStatusRequest())
            assert list(status.blocked_indices) == []


class TestLifetime:
    def test_address_is_there_while_the_session_is_open(self, model_dir, barrier_op, advance):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with open_session(hook):
            assert os.path.exists(os.path.join(model_dir, "controller_server_addr.txt"))
            host, port = net.parse_address(files.read_address(model_dir))
            assert host == "127.0.0.1"
            assert port > 0
        assert os.listdir(model_dir) == []
        with pytest.raises(files.ControllerNotFoundError, match="no run with a controller"):
            client.get_stub_from_model_dir(model_dir)

    def test_server_stops_when_the_session_fails(self, model_dir, barrier_op, advance):
        hook = server.ServerHook(model_dir, barrier_op, None)
        stubs = []

        def fail():
            with open_session(hook):
                stubs.append(client.get_stub_from_model_dir(model_dir))
                assert get_step(stubs[0]) == 0
                raise ValueError("bad batch")

        with pytest.raises(ValueError, match="bad batch"):
            fail()
        with pytest.raises(grpc.RpcError) as raised:
            get_step(stubs[0])
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert os.listdir(model_dir) == []

    def test_session_that_is_created_again_has_a_controller(self, model_dir, barrier_op, advance):
        class FailAtStepTwo(tf.compat.v1.train.SessionRunHook):
            failed = False

            def after_run(self, run_context, run_values):
                if not self.failed and steps[-1] == 2:
                    self.failed = True
                    raise tf.errors.AbortedError(None, None, "lost a server")

        steps = [1]
        hooks = server.ServerHook(model_dir, barrier_op, None), FailAtStepTwo()
        with open_session(*hooks) as session:
            session.run(advance)
            first = files.read_address(model_dir)
            steps.append(2)
            session.run(advance)
            assert hooks[1].failed
            assert files.read_address(model_dir) != first
            with client.connect(model_dir) as stub:
                # Without a checkpoint the new session began at 0, and repeated the lost step.
                assert get_step(stub) == 1

    def test_end_leaves_the_address_of_another_controller(self, model_dir, barrier_op, advance):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with open_session(hook):
            files.write_address(model_dir, "10.0.0.1:4711")
        assert files.read_address(model_dir) == "10.0.0.1:4711"

    def test_end_waits_for_a_save_under_way(self, model_dir, barrier_op, advance):
        saving, may_finish = threading.Event(), threading.Event()
        steps_saved = []

        class SlowSaverHook:
            def trigger_save(self, session):
                saving.set()
                assert may_finish.wait(TIMEOUT_SEC)
                steps_saved.append(
                    int(session.run(tf.compat.v1.train.get_global_step(session.graph)))
                )

        class FinishHook(tf.compat.v1.train.SessionRunHook):
            def end(self, session):
                threading.Timer(0.1, may_finish.set).start()

        hook = server.ServerHook(model_dir, barrier_op, SlowSaverHook())
        with open_session(FinishHook(), hook) as session:
            session.run(advance)
            stub = client.get_stub_from_model_dir(model_dir)
            call = stub.SaveCheckpoint.future(service_pb2.SaveCheckpointRequest())
            assert saving.wait(TIMEOUT_SEC)
        assert call.result(TIMEOUT_SEC) == service_pb2.SaveCheckpointResponse()
        assert steps_saved == [1]


class TestListening:
    def test_all_addresses_when_told_so(self, model_dir, barrier_op, advance, caplog):
        hook = server.ServerHook(
            model_dir, barrier_op, None, listen_host="0.0.0.0", require_token=False
        )
        with caplog.at_level(logging.WARNING, logger=server.__name__), open_session(hook):
            host, port = net.parse_address(files.read_address(model_dir))
            assert host == net.get_local_ip()
            files.write_address(model_dir, f"127.0.0.1:{port}")
            with client.connect(model_dir) as stub:
                assert get_step(stub) == 0
        assert "on 0.0.0.0 without a token: whoever reaches this machine can stop" in caplog.text

    @pytest.mark.parametrize("listen_host", ["127.0.0.1", "0.0.0.0"])
    def test_another_address_is_answered_when_told_so_and_always_with_the_token(
        self, model_dir, barrier_op, advance, listen_host
    ):
        """127.0.0.2 stands for the address at which another machine reaches this one."""
        hook = server.ServerHook(model_dir, barrier_op, None, listen_host=listen_host)
        with open_session(hook):
            _, port = net.parse_address(files.read_address(model_dir))
            files.write_address(model_dir, f"127.0.0.2:{port}")
            if listen_host == "127.0.0.1":
                with client.connect(model_dir) as stub, pytest.raises(grpc.RpcError) as caught:
                    get_step(stub)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                return
            with client.connect(model_dir) as stub:
                assert get_step(stub) == 0
            files.remove_token(model_dir)
            with client.connect(model_dir) as stub, pytest.raises(grpc.RpcError) as caught:
                get_step(stub)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_loopback_without_a_token_is_open_to_users_of_the_machine(
        self, model_dir, barrier_op, advance, host, caplog
    ):
        hook = server.ServerHook(model_dir, barrier_op, None, listen_host=host, require_token=False)
        with caplog.at_level(logging.WARNING, logger=server.__name__), open_session(hook):
            assert net.parse_address(files.read_address(model_dir))[0] == host
        assert f"on {host} without a token: every user of this machine can stop" in caplog.text

    def test_needs_no_warning_with_a_token(self, model_dir, barrier_op, advance, caplog):
        hook = server.ServerHook(model_dir, barrier_op, None)
        with caplog.at_level(logging.WARNING, logger=server.__name__), open_session(hook):
            assert net.parse_address(files.read_address(model_dir))[0] == "127.0.0.1"
        assert "token" not in caplog.text

    def test_address_of_another_machine_is_refused(self, model_dir, barrier_op, advance):
        # 192.0.2.0/24 is reserved for documentation, no machine has it.
        hook = server.ServerHook(model_dir, barrier_op, None, listen_host="192.0.2.1")
        message = "cannot listen on '192.0.2.1'; `listen_host` must be an address of this machine"
        with pytest.raises(errors.ConfigError, match=message):
            open_session(hook)
        assert not os.path.exists(model_dir)

    def test_model_directory_that_cannot_be_written(self, model_dir, barrier_op, advance):
        pathlib.Path(model_dir).write_text("a file")
        hook = server.ServerHook(model_dir, barrier_op, None)
        with pytest.raises((OSError, tf.errors.OpError)):
            open_session(hook)


class TestToken:
    def make_hook(self, model_dir, barrier_op):
        return server.ServerHook(model_dir, barrier_op, None)

    def test_file_can_be_read_by_its_owner_only(self, model_dir, barrier_op, advance):
        path = os.path.join(model_dir, "controller_server_token.txt")
        previous = os.umask(0)
        try:
            with open_session(self.make_hook(model_dir, barrier_op)):
                assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
                assert len(pathlib.Path(path).read_text()) >= 32
                assert sorted(os.listdir(model_dir)) == [
                    "controller_server_addr.txt",
                    "controller_server_token.txt",
                ]
        finally:
            os.umask(previous)
        assert os.listdir(model_dir) == []

    def test_client_that_reads_the_directory_is_let_in(self, model_dir, barrier_op, advance):
        with open_session(self.make_hook(model_dir, barrier_op)) as session:
            session.run(advance)
            with client.connect(model_dir) as stub:
                assert get_step(stub) == 1
                call = stub.GetTrainingStatus.future(service_pb2.GetTrainingStatusRequest())
                assert call.result(TIMEOUT_SEC).global_step == 1
            assert get_step(client.get_stub_from_model_dir(model_dir)) == 1

    @pytest.mark.parametrize("token", [None, "guess", "gu\u00e9ss".encode().hex()])
    def test_others_are_refused(self, model_dir, barrier_op, advance, token):
        with open_session(self.make_hook(model_dir, barrier_op)):
            channel, call = make_bare_stub(model_dir, token)
            with channel, pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert raised.value.details() == (
                "The controller requires the token that is in controller_server_token.txt of the "
                "model directory, and the call carried none or another one; connect with the "
                "model directory."
            )

    def test_refused_call_does_nothing(self, model_dir, barrier_op, advance):
        with open_session(self.make_hook(model_dir, barrier_op)) as session:
            os.rename(f"{model_dir}/{files.SERVER_TOKEN_FILENAME}", f"{model_dir}/elsewhere")
            with client.connect(model_dir) as stub, pytest.raises(grpc.RpcError, match="token"):
                stub.StopTraining(service_pb2.StopTrainingRequest())
            assert barrier_op.is_barrier_removed(session)

    def test_bare_call_with_the_token_is_let_in(self, model_dir, barrier_op, advance):
        with open_session(self.make_hook(model_dir, barrier_op)):
            channel, call = make_bare_stub(model_dir, files.read_token(model_dir))
            with channel:
                assert call().global_step == 0

    def test_every_run_has_its_own(self, model_dir, advance):
        tokens = []
        for prefix in "ab":
            barrier_op = barrier_ops.BarrierOp(1, name_prefix=prefix)
            with open_session(self.make_hook(model_dir, barrier_op)):
                tokens.append(files.read_token(model_dir))
            tf.compat.v1.reset_default_graph()
            tf.compat.v1.train.get_or_create_global_step()
        assert len(set(tokens)) == 2

    def test_old_token_is_removed_by_a_run_without_one(self, model_dir, barrier_op, advance):
        files.write_token(model_dir, "of an earlier run")
        hook = server.ServerHook(model_dir, barrier_op, None, require_token=False)
        with open_session(hook):
            assert files.read_token(model_dir) is None

    def test_remote_directory_is_refused(self, barrier_op):
        with pytest.raises(errors.ConfigError, match=r"local model directory, .* 'hdfs://a/model'"):
            self.make_hook("hdfs://a/model", barrier_op)
