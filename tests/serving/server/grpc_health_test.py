"""How the server is, as told over gRPC."""

import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.grpc_core import CoreServer
from monolith.serving.server.grpc_health import Health

LONG_SEC = 60
Status = health_pb2.HealthCheckResponse


@contextlib.contextmanager
def running(max_watching=10):
    health = Health(["", "a"], max_watching)
    with CallPool(max_calls=1) as pool:
        server = CoreServer(health.handlers, pool, threads=2, max_silent=10)
        port = server.listen("127.0.0.1:0", None)
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield health, channel
        server.stop(grace_sec=0)


def request(service=""):
    return health_pb2.HealthCheckRequest(service=service)


def test_check():
    with running() as (health, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(request(), timeout=LONG_SEC).status == Status.NOT_SERVING
        health.set_serving(True)
        for service in ("", "a"):
            assert stub.Check(request(service), timeout=LONG_SEC).status == Status.SERVING
        with pytest.raises(grpc.RpcError, match=r"(?s)NOT_FOUND.*no service 'b'"):
            stub.Check(request("b"), timeout=LONG_SEC)
        for name in ("Check", "Watch"):
            method = channel.unary_unary(f"/grpc.health.v1.Health/{name}")
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                method(b"\xff", timeout=LONG_SEC)


def test_watch():
    with running() as (health, channel):
        updates = health_pb2_grpc.HealthStub(channel).Watch(request("a"), timeout=LONG_SEC)
        for is_serving, status in (
            (None, Status.NOT_SERVING),
            (True, Status.SERVING),
            (False, Status.NOT_SERVING),
        ):
            if is_serving is not None:
                health.set_serving(is_serving)
                health.set_serving(is_serving)  # No change, no message.
            assert next(updates).status == status
        updates.cancel()


def test_a_service_that_may_come():
    with running() as (_, channel):
        updates = health_pb2_grpc.HealthStub(channel).Watch(request("b"), timeout=LONG_SEC)
        assert next(updates).status == Status.SERVICE_UNKNOWN
        updates.cancel()


def test_not_too_many_watch():
    with running(max_watching=1) as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        first = stub.Watch(request(), timeout=LONG_SEC)
        next(first)
        with pytest.raises(grpc.RpcError, match=r"(?s)RESOURCE_EXHAUSTED.*1 clients watch"):
            next(stub.Watch(request(), timeout=LONG_SEC))
        first.cancel()
        # Its place is free again, once the server has noticed.
        for _ in range(1000):
            updates = stub.Watch(request(), timeout=LONG_SEC)
            with contextlib.suppress(grpc.RpcError):
                assert next(updates).status == Status.NOT_SERVING
                break
        else:
            pytest.fail("the place is not free")
