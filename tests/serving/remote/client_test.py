"""Calls over real connections: servers that answer, are slow, refuse, or are not there.

Covers monolith/serving/remote/attempts.py and monolith/serving/remote/metrics.py.
"""

import threading
import time
from concurrent import futures

import grpc
import numpy as np
import prometheus_client
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from monolith import errors
from monolith.native import remote_predict
from monolith.serving import remote

NOWHERE = "127.0.0.1:1"  # Nobody listens on a port that only the system may use.


class Replica(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers with its number, as it is told to."""

    def __init__(self, number):
        self.number = number
        self.requests = []
        self.metadata = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.code = None
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Predict(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.go_on.wait(60)
        if self.code is not None:
            context.abort(self.code, f"replica {self.number} says no")
        response = predict_pb2.PredictResponse()
        response.outputs["rows"].CopyFrom(tf.make_tensor_proto([float(self.number)]))
        return response

    def stop(self):
        self.go_on.set()
        self._server.stop(0).wait(60)


@pytest.fixture
def replicas():
    made = [Replica(number) for number in range(2)]
    yield made
    for replica in made:
        replica.stop()


@pytest.fixture
def connect():
    """Connects; returns the registry of what is counted."""

    def connect(*addresses, source=None, **settings):
        registry = prometheus_client.CollectorRegistry()
        config = remote.RemoteConfig(**{"timeout_ms": 30_000, "hedge_ms": None, **settings})
        remote.connect(source or {"ps_0": addresses}, config, registry)
        return registry

    yield connect
    remote.disconnect()


def ask(**kwargs):
    """Returns the number of the replica that has answered."""
    outputs = remote_predict.remote_predict(
        ["id"], [np.array([1])], ["rows"], "ads:ps_0", 0, "ps_0", **kwargs
    )
    return float(outputs[0].numpy().reshape([-1])[0])


def count(registry, name, **labels):
    labels = {"model": "ps_0", **labels}
    return registry.get_sample_value(f"monolith_serving_remote_{name}_total", labels) or 0


def test_request_names_the_model(replicas, connect):
    registry = connect(replicas[1].address)
    assert ask(signature_name="lookup", model_version=7) == 1
    assert ask() == 1
    first, second = (request.model_spec for request in replicas[1].requests)
    assert (first.name, first.signature_name, first.version.value) == ("ps_0", "lookup", 7)
    assert not second.HasField("version")
    assert count(registry, "calls", code="OK") == 2


def test_unified_names_come_first(replicas, connect):
    """Where models of several names are served, a part is known by both."""
    servers = {"ps_0": [replicas[0].address], "ads:ps_0": [replicas[1].address]}
    connect(source=remote.StaticReplicas(servers))
    assert ask() == 1
    assert replicas[1].requests[0].model_spec.name == "ads:ps_0"


def test_replicas_share_the_work(replicas, connect):
    connect(*(replica.address for replica in replicas))
    assert {ask() for _ in range(50)} == {0, 1}


class TestRetries:
    def test_another_replica_is_asked(self, replicas, connect):
        registry = connect(NOWHERE, replicas[1].address)
        assert [ask() for _ in range(20)] == [1] * 20
        # The one that failed is left alone for a second, not asked by each call.
        assert 1 <= count(registry, "retries") <= 10

    @pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "NOT_FOUND"])
    def test_errors_of_one_replica(self, replicas, connect, code):
        replicas[0].code = grpc.StatusCode[code]
        connect(*(replica.address for replica in replicas))
        assert [ask() for _ in range(5)] == [1] * 5

    def test_errors_that_all_replicas_would_give(self, replicas, connect):
        for replica in replicas:
            replica.code = grpc.StatusCode.INVALID_ARGUMENT
        connect(*(replica.address for replica in replicas))
        with pytest.raises(tf.errors.InvalidArgumentError, match="ps_0 did not answer: replica"):
            ask()
        assert sum(len(replica.requests) for replica in replicas) == 1

    def test_so_many_and_no_more(self, replicas, connect):
        replicas[0].code = grpc.StatusCode.UNAVAILABLE
        registry = connect(replicas[0].address, retries=3)
        with pytest.raises(tf.errors.UnavailableError, match="replica 0 says no"):
            ask()
        assert len(replicas[0].requests) == 4
        assert count(registry, "retries") == 3
        assert count(registry, "calls", code="UNAVAILABLE") == 1


class TestHedging:
    def test_slow_replica(self, replicas, connect):
        replicas[0].go_on.clear()
        registry = connect(*(replica.address for replica in replicas), hedge_ms=20)
        assert [ask() for _ in range(50)] == [1] * 50
        # Then it is left alone for a second.
        assert 1 <= count(registry, "hedges") <= 10

    def test_not_without_another_replica(self, replicas, connect):
        registry = connect(replicas[0].address, hedge_ms=1)
        replicas[0].go_on.clear()
        threading.Timer(0.1, replicas[0].go_on.set).start()
        assert ask() == 0
        assert count(registry, "hedges") == 0
        assert len(replicas[0].requests) == 1

    def test_hedge_and_first_fail(self, replicas, connect):
        """The last one to fail ends the call."""
        for replica in replicas:
            replica.go_on.clear()
            replica.code = grpc.StatusCode.UNAVAILABLE
        connect(*(replica.address for replica in replicas), hedge_ms=5, retries=0)
        threading.Timer(0.2, lambda: [replica.go_on.set() for replica in replicas]).start()
        with pytest.raises(tf.errors.UnavailableError, match="says no"):
            ask()
        assert sum(len(replica.requests) for replica in replicas) == 2


class TestDeadline:
    def test_of_the_settings(self, replicas, connect):
        replicas[0].go_on.clear()
        connect(replicas[0].address, timeout_ms=50)
        start_sec = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError):
            ask(max_rpc_deadline_millis=10**6)
        assert time.monotonic() - start_sec < 30

    def test_of_the_model(self, replicas, connect):
        replicas[0].go_on.clear()
        connect(replicas[0].address, timeout_ms=None)
        with pytest.raises(tf.errors.DeadlineExceededError):
            ask(max_rpc_deadline_millis=20)


class TestDefaultRows:
    def test_instead_of_an_error(self, connect):
        registry = connect(NOWHERE, default_row=0.5)
        assert ask(fail_op_on_rpc_error=False) == 0.5
        assert count(registry, "default_rows") == 1

    def test_nobody_is_known(self, connect):
        registry = connect(source=remote.StaticReplicas({}), default_row=0.0)
        assert ask(fail_op_on_rpc_error=False) == 0
        assert count(registry, "default_rows") == 1

    def test_unless_the_op_must_not_go_on(self, connect):
        connect(source=remote.StaticReplicas({}), default_row=0.0)
        with pytest.raises(
            tf.errors.UnavailableError,
            match=r"remote servers\. model_name=ads:ps_0,signature_name=serving_default",
        ):
            ask()


class TestSecurity:
    def test_token(self, replicas, connect, tmp_path):
        (tmp_path / "token").write_text("secret\nother\n")
        connect(replicas[0].address, token_file=str(tmp_path / "token"))
        assert ask() == 0
        assert replicas[0].metadata[0]["authorization"] == "Bearer secret"

    def test_bad_files(self, connect, tmp_path):
        (tmp_path / "empty").write_text("")
        with pytest.raises(errors.ConfigError, match="no token in the first line"):
            connect(NOWHERE, token_file=str(tmp_path / "empty"))
        with pytest.raises(errors.ConfigError, match="cannot be read: No such file"):
            connect(NOWHERE, server_authority=str(tmp_path / "missing"))


class TestEnd:
    def test_calls_under_way_end_with_the_connection(self, replicas, connect):
        """An op that nobody answers would hold up its session for ever."""
        replicas[0].go_on.clear()
        connect(replicas[0].address, retries=5)
        failed = []

        def fail():
            with pytest.raises(tf.errors.OpError) as error:
                ask()
            failed.append(error)

        threads = [threading.Thread(target=fail) for _ in range(5)]
        for thread in threads:
            thread.start()
        while len(replicas[0].requests) < 5:
            time.sleep(0.005)
        remote.disconnect()
        for thread in threads:
            thread.join(60)
        assert len(failed) == 5

    def test_only_who_is_connected_is_disconnected(self, replicas):
        first = remote.connect({"ps_0": [replicas[0].address]})
        second = remote.connect({"ps_0": [replicas[1].address]})
        try:
            remote.disconnect(first)
            assert ask() == 1
        finally:
            remote.disconnect(second)
        with pytest.raises(tf.errors.FailedPreconditionError):
            ask()

    def test_connections_to_servers_that_are_gone(self, replicas, connect):
        listed = {"ps_0": (replicas[0].address,)}

        class Source(remote.ReplicaSource):
            def find(self, name):
                return listed.get(name, ())

        client = remote.connect(Source(), remote.RemoteConfig(timeout_ms=30_000))
        assert ask() == 0
        listed["ps_0"] = (replicas[1].address,)
        assert ask() == 1
        assert list(client._channels) == [replicas[1].address]
