"""Primus against a real gRPC server of its protocol, in this process, over a Unix socket."""

import concurrent.futures
import contextlib
import logging
import threading
import unittest
from unittest import mock

import grpc
import pytest

from monolith.cluster import primus
from monolith.proto import primus_am_service_pb2 as pb2
from monolith.proto import primus_am_service_pb2_grpc as pb2_grpc

_STATES = pb2.CreateSavepointStatusResponse


class FakeAppMaster(pb2_grpc.AppMasterServiceServicer):
    """Remembers what it was asked, and answers what a test has set."""

    def __init__(self):
        self.requests = []
        self.deadlines_sec = []
        self.create_response = pb2.CreateSavepointResponse(code=0, savepoint_id="sp-1")
        self.status_responses = []
        self.error = None

    def _record(self, request, context):
        self.requests.append(request)
        self.deadlines_sec.append(context.time_remaining())
        if self.error is not None:
            context.abort(self.error, "told to fail")

    def kill(self, request, context):
        self._record(request, context)
        return pb2.KillResponse()

    def succeed(self, request, context):
        self._record(request, context)
        return pb2.SucceedResponse()

    def createSavepoint(self, request, context):
        self._record(request, context)
        return self.create_response

    def createSavepointStatus(self, request, context):
        self._record(request, context)
        return self.status_responses.pop(0)


@contextlib.contextmanager
def serve(address, servicer):
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        server = grpc.server(pool)
        pb2_grpc.add_AppMasterServiceServicer_to_server(servicer, server)
        server.add_insecure_port(address)
        server.start()
        try:
            yield server
        finally:
            server.stop(None).wait()


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch, tmp_path):
    """No variables of the machine the tests run on, sockets below tmp_path, no channel left."""
    for name in ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PRIMUS_AM_RPC_HOST", "PRIMUS_AM_RPC_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    channels = {}
    monkeypatch.setattr(primus, "_CHANNEL_MAP", channels)
    yield
    for channel in channels.values():
        channel.close()


@pytest.fixture
def app_master(monkeypatch):
    """A running application master that the environment points to."""
    servicer = FakeAppMaster()
    with serve("unix:am.sock", servicer):
        monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
        monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "am.sock")
        yield servicer


@pytest.fixture
def no_app_master(monkeypatch):
    """The environment points to a socket nobody listens on."""
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "nobody.sock")


class YarnRuntimeTest(unittest.TestCase):
    @mock.patch.dict("os.environ", {"YARN_INET_ADDR": "1.2.3.4"})
    def test_get_local_host_overwrite(self):
        self.assertEqual(primus.get_local_host(), "1.2.3.4")

    @mock.patch.dict("os.environ", {"CLOUDNATIVE_INET_ADDR": "1.2.3.4,5.6.7.8"})
    def test_get_local_host_overwrite_by_cloudnative(self):
        self.assertEqual(primus.get_local_host(), "1.2.3.4")

    def test_get_local_host_basic(self):
        with mock.patch("monolith.cluster.net.get_local_ip", return_value="10.9.8.7"):
            self.assertEqual(primus.get_local_host(), "10.9.8.7")
        self.assertTrue(primus.get_local_host())

    @mock.patch.dict(
        "os.environ", {"PRIMUS_AM_RPC_HOST": "unix", "PRIMUS_AM_RPC_PORT": "test_kill"}
    )
    def test_kill(self):
        servicer = FakeAppMaster()
        with serve("unix:test_kill", servicer):
            self.assertIs(primus.maybe_kill_application("the reason"), True)
        (request,) = servicer.requests
        self.assertEqual(
            request,
            pb2.KillRequest(
                exit_code=1,
                diagnose="the reason",
                graceful_shutdown_timeout_ms={"value": 20000},
            ),
        )
        self.assertLessEqual(servicer.deadlines_sec[0], 10.5)  # gRPC rounds up on the wire
        self.assertGreater(servicer.deadlines_sec[0], 5)

    @mock.patch.dict(
        "os.environ", {"PRIMUS_AM_RPC_HOST": "unix", "PRIMUS_AM_RPC_PORT": "test_finish"}
    )
    def test_finish(self):
        servicer = FakeAppMaster()
        with serve("unix:test_finish", servicer):
            self.assertIs(primus.maybe_finish_application(), True)
        (request,) = servicer.requests
        self.assertEqual(request, pb2.SucceedRequest(graceful_shutdown_timeout_ms={"value": 20000}))
        self.assertLessEqual(servicer.deadlines_sec[0], 10.5)  # gRPC rounds up on the wire
        self.assertGreater(servicer.deadlines_sec[0], 5)

    @mock.patch.dict(
        "os.environ", {"PRIMUS_AM_RPC_HOST": "unix", "PRIMUS_AM_RPC_PORT": "test_save_primus"}
    )
    def test_save_primus(self):
        servicer = FakeAppMaster()
        servicer.status_responses = [
            pb2.CreateSavepointStatusResponse(create_savepoint_state=_STATES.SUCCEEDED)
        ]
        with serve("unix:test_save_primus", servicer):
            self.assertIs(primus.create_primus_save_point("hdfs:/save/point"), True)
        self.assertEqual(
            servicer.requests,
            [
                pb2.CreateSavepointRequest(savepoint_dir="hdfs:/save/point"),
                pb2.CreateSavepointStatusRequest(savepoint_restore_id="sp-1"),
            ],
        )


def test_cloudnative_wins_over_yarn(monkeypatch):
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "fd00::1")
    monkeypatch.setenv("YARN_INET_ADDR", "1.2.3.4")
    assert primus.get_local_host() == "fd00::1"


@pytest.mark.parametrize("name", ["CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"])
def test_empty_address_is_refused_and_the_variable_named(monkeypatch, name):
    monkeypatch.setenv(name, "")
    with pytest.raises(AssertionError, match=f"must not be empty, but {name} gave ''"):
        primus.get_local_host()


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [("10.0.0.1", "80", "10.0.0.1:80"), ("unix", "a.sock", "unix:a.sock")]
    + [(None, "80", ""), ("10.0.0.1", None, ""), (None, None, ""), ("", "80", "")],
)
def test_app_master_needs_host_and_port(monkeypatch, host, port, expected):
    for name, value in (("PRIMUS_AM_RPC_HOST", host), ("PRIMUS_AM_RPC_PORT", port)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert primus._get_primus_am_host() == expected


def test_without_app_master_nothing_is_done(caplog):
    caplog.set_level(logging.DEBUG)
    assert primus.maybe_kill_application("reason") is False
    assert "Current framework doesn't support kill. Ignore killing..." in caplog.text
    caplog.clear()
    assert primus.maybe_finish_application() is None
    assert primus.create_primus_save_point("dst") is None
    assert not caplog.records
    assert not primus._CHANNEL_MAP


def test_unreachable_app_master_is_logged_not_raised(no_app_master, caplog):
    assert primus.maybe_kill_application("reason") is False
    assert primus.maybe_finish_application() is None
    assert primus.create_primus_save_point("dst") is False
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "UNAVAILABLE" in caplog.text


def test_app_master_that_refuses_is_logged_not_raised(app_master, caplog):
    app_master.error = grpc.StatusCode.PERMISSION_DENIED
    assert primus.maybe_kill_application("reason") is False
    assert primus.maybe_finish_application() is None
    assert primus.create_primus_save_point("dst") is False
    assert caplog.text.count("PERMISSION_DENIED, told to fail") == 3


def test_app_master_that_hangs_costs_one_timeout(app_master, monkeypatch):
    monkeypatch.setattr(primus, "_CONTROL_RPC_TIMEOUT_SEC", 0.2)
    release = threading.Event()
    app_master._record = lambda request, context: release.wait(30)
    try:
        assert primus.maybe_kill_application("reason") is False
        assert primus.maybe_finish_application() is None
    finally:
        release.set()


def test_savepoint_polls_until_it_is_taken(app_master, caplog):
    caplog.set_level(logging.INFO)
    app_master.status_responses = [
        pb2.CreateSavepointStatusResponse(create_savepoint_state=state)
        for state in (_STATES.PENDING, _STATES.RUNNING, _STATES.RUNNING, _STATES.SUCCEEDED)
    ]
    sleeps = []
    assert primus.create_primus_save_point("dst", sleep=sleeps.append) is True
    assert sleeps == [5, 5, 5]
    assert len(app_master.requests) == 1 + 4
    # One line for each thing that changed, none for the poll that brought no news.
    assert caplog.text.count("Waiting for Primus savepoint sp-1 in dst, now PENDING.") == 1
    assert caplog.text.count("Waiting for Primus savepoint sp-1 in dst, now RUNNING.") == 1


def test_refused_savepoint_is_not_polled(app_master, caplog):
    app_master.create_response = pb2.CreateSavepointResponse(code=7, message="disk full")
    assert primus.create_primus_save_point("dst") is False
    assert len(app_master.requests) == 1
    assert "code 7, disk full" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            pb2.CreateSavepointStatusResponse(
                create_savepoint_state=_STATES.FAILED, message="lost"
            ),
            id="failed",
        ),
        pytest.param(
            pb2.CreateSavepointStatusResponse(code=3, message="lost"),
            id="error_code_with_the_default_state_pending",
        ),
        pytest.param(
            pb2.CreateSavepointStatusResponse(create_savepoint_state=9, message="lost"),
            id="state_of_a_newer_protocol",
        ),
    ],
)
def test_failed_savepoint(app_master, caplog, answer):
    app_master.status_responses = [answer]
    assert primus.create_primus_save_point("dst") is False
    assert "lost" in caplog.text


def test_one_channel_per_address_for_all_threads():
    with mock.patch.object(grpc, "insecure_channel", side_effect=lambda addr: mock.Mock()) as make:
        start = threading.Barrier(16)

        def get_channel(addr):
            start.wait()
            return primus._get_channel(addr)

        with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
            channels = list(pool.map(get_channel, ["unix:a", "unix:b"] * 8))
    assert make.call_count == 2
    assert len(set(map(id, channels))) == 2
    assert primus._get_channel("unix:a") is channels[0]
