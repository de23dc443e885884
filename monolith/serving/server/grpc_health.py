"""Tells over gRPC how the server is: the service `grpc.health.v1.Health`."""

import threading
from collections.abc import Iterable

import grpc
from google.protobuf import message
from grpc_health.v1 import health_pb2

from monolith.serving.server.grpc_core import Call, Handler

_SERVICE = "/grpc.health.v1.Health/"
_Status = health_pb2.HealthCheckResponse


class Health:
    """The state of services. Thread-safe.

    Args:
        services: Their names; all are as well or unwell as the server is.
        max_watching: How many clients may be told about changes.
    """

    def __init__(self, services: Iterable[str], max_watching: int) -> None:
        self._services = frozenset(services)
        self._max_watching = max_watching
        self._lock = threading.Lock()
        self._status = _Status.NOT_SERVING
        self._watches: set[_Watch] = set()

    @property
    def handlers(self) -> dict[str, Handler]:
        """What answers, by the path of the method."""
        return {f"{_SERVICE}Check": self._check, f"{_SERVICE}Watch": self._watch}

    def set_serving(self, is_serving: bool) -> None:
        with self._lock:
            self._status = _Status.SERVING if is_serving else _Status.NOT_SERVING
            watches = list(self._watches)
            status = self._status
        for watch in watches:
            watch.tell(status)

    def _check(self, call: Call, content: bytes) -> None:
        service = _read_service(call, content)
        if service is None:
            return
        if service in self._services:
            call.answer(_Status(status=self._status).SerializeToString())
        else:
            call.refuse(grpc.StatusCode.NOT_FOUND, f"There is no service {service!r}.")

    def _watch(self, call: Call, content: bytes) -> None:
        service = _read_service(call, content)
        if service is None:
            return
        watch = _Watch(call)
        if service not in self._services:
            watch.tell(_Status.SERVICE_UNKNOWN)
            return
        with self._lock:
            is_full = len(self._watches) >= self._max_watching
            if not is_full:
                self._watches.add(watch)
            status = self._status
        if is_full:
            call.refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._max_watching} clients watch already, which is the limit.",
            )
            return
        watch.tell(status)
        call.notice_gone(lambda: self._forget(watch))

    def _forget(self, watch: "_Watch") -> None:
        with self._lock:
            self._watches.discard(watch)


class _Watch:
    """A client that is told about changes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._told: int | None = None
        self._newest: int | None = None
        self._is_sending = False

    def tell(self, status: int) -> None:
        with self._lock:
            self._newest = status
        self._send()

    def _send(self) -> None:
        with self._lock:
            if self._is_sending or self._told == self._newest:
                return
            self._is_sending = True
            self._told = self._newest
        self._call.send(_Status(status=self._told).SerializeToString(), self._on_sent)

    def _on_sent(self) -> None:
        with self._lock:
            self._is_sending = False
        self._send()


def _read_service(call: Call, content: bytes) -> str | None:
    """Returns the service that is asked for; None if the call has been refused."""
    try:
        return str(health_pb2.HealthCheckRequest.FromString(content).service)
    except message.DecodeError:
        call.refuse(
            grpc.StatusCode.INVALID_ARGUMENT,
            "The request is no grpc.health.v1.HealthCheckRequest.",
        )
        return None
