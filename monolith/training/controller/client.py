"""Talking to the controller of a running job.

All a client needs is the model directory: address and token are read from there.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     get_stub_from_model_dir(model_dir)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    monolith.training.controller.files.ControllerNotFoundError: There is no '...
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc

from monolith.cluster import net
from monolith.proto import service_pb2_grpc
from monolith.training.controller import files


def get_stub_from_model_dir(model_dir: str) -> service_pb2_grpc.ControllerStub:
    """Returns a client of the controller that runs in `model_dir`, for the life of the process.

    Every method of the stub is a call, such as `stub.StopTraining(StopTrainingRequest())`, and
    raises `grpc.RpcError` when the controller refuses or is gone.

    Raises:
        files.ControllerNotFoundError: No run with a controller is active in `model_dir`.
        errors.ConfigError: The address is not one, or the token cannot be read.
    """
    return service_pb2_grpc.ControllerStub(_open_channel(model_dir))


@contextlib.contextmanager
def connect(model_dir: str) -> Iterator[service_pb2_grpc.ControllerStub]:
    """Gives a client as `get_stub_from_model_dir` does, and closes its connection at the end."""
    with _open_channel(model_dir) as channel:
        yield service_pb2_grpc.ControllerStub(channel)


def _open_channel(model_dir: str) -> grpc.Channel:
    address = files.read_address(model_dir)
    net.parse_address(address)  # Refuses with a sentence what gRPC would only fail to reach.
    token = files.read_token(model_dir)
    # A proxy for the web is not on the way to a machine of the job.
    channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    if token is None:
        return channel
    return grpc.intercept_channel(channel, _TokenSender(token))


class _CallFields(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _CallDetails(_CallFields, grpc.ClientCallDetails):
    """What gRPC asks of a call, with our metadata."""


class _TokenSender(grpc.UnaryUnaryClientInterceptor):
    """Adds the token to every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (files.AUTHORIZATION_KEY, f"Bearer {token}")

    def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request: Any,
    ) -> Any:
        details = _CallDetails(
            method=client_call_details.method,
            timeout=client_call_details.timeout,
            metadata=[*(client_call_details.metadata or ()), self._metadata],
            credentials=client_call_details.credentials,
            wait_for_ready=client_call_details.wait_for_ready,
            compression=client_call_details.compression,
        )
        return continuation(details, request)
