"""The gRPC side: `PredictionService` and `ModelService` of TensorFlow Serving, and health checks.

Requests are read here and not by gRPC, which would answer one that is no message with the status
of a fault of the server, and would read it before it is known who sent it.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from monolith import errors
from monolith.serving.server import security, status
from monolith.serving.server.config import ServerConfig
from monolith.serving.server.requests import Answering, Requests

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"

# Beyond those that are answered: who is told that there are too many, and who asks for the health.
_SPARE_REQUESTS = 256


class GrpcServer:
    """Answers gRPC requests. Must be made in a running event loop, and lives there.

    Args:
        config: Where to listen, and with what limits.
        requests: Answers.

    Raises:
        errors.ConfigError: The port cannot be listened on, or a file of TLS cannot be used.
    """

    def __init__(self, config: ServerConfig, requests: Requests) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.limits.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would each get some of the requests.
                ("grpc.so_reuseport", 0),
                # A client that is gone without a word is noticed, and its requests with it.
                ("grpc.keepalive_time_ms", int(1000 * config.limits.client_timeout_sec)),
                ("grpc.keepalive_timeout_ms", int(1000 * config.limits.client_timeout_sec)),
            ],
            # Beyond that, requests would pile up in memory.
            maximum_concurrent_rpcs=config.limits.max_concurrent + _SPARE_REQUESTS,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers(tuple(_make_handlers(requests)))
        self.port = _listen(self._server, config)

    async def start(self) -> None:
        await self._server.start()

    async def set_serving(self, is_serving: bool) -> None:
        """Tells who asks for the server's health how it is."""
        state = health_pb2.HealthCheckResponse.SERVING
        if not is_serving:
            state = health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", PREDICTION_SERVICE, MODEL_SERVICE):
            await self._health.set(service, state)

    async def stop(self, grace_sec: float) -> None:
        """Takes no more requests, and gives those that are being answered some time."""
        await self._server.stop(grace_sec)


def _listen(server: grpc.aio.Server, config: ServerConfig) -> int:
    host = f"[{config.host}]" if ":" in config.host and "[" not in config.host else config.host
    address = f"{host}:{config.port}"
    credentials = security.make_grpc_credentials(config.security)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as e:
        raise errors.ConfigError(
            f"gRPC cannot listen on {address}: is another server there, or the address one of "
            "another machine?"
        ) from e
    return int(port)


def _make_handlers(requests: Requests) -> list[Any]:
    async def get_status(request: Any, deadline_sec: float | None) -> Any:
        return requests.get_status(request)

    async def get_metadata(request: Any, deadline_sec: float | None) -> Any:
        return await requests.get_metadata(request)

    async def reload(request: Any, deadline_sec: float | None) -> Any:
        left_sec = None if deadline_sec is None else deadline_sec - time.monotonic()
        return await requests.reload(request, left_sec)

    prediction = [
        _Method("Predict", predict_pb2.PredictRequest, requests.predict),
        _Method("Classify", classification_pb2.ClassificationRequest, requests.classify),
        _Method("Regress", regression_pb2.RegressionRequest, requests.regress),
        _Method("MultiInference", inference_pb2.MultiInferenceRequest, requests.multi_inference),
        _Method("GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest, get_metadata),
    ]
    model = [
        _Method("GetModelStatus", get_model_status_pb2.GetModelStatusRequest, get_status),
        _Method("HandleReloadConfigRequest", model_management_pb2.ReloadConfigRequest, reload),
    ]
    return [
        grpc.method_handlers_generic_handler(
            service, {method.name: method.make_handler(requests) for method in methods}
        )
        for service, methods in ((PREDICTION_SERVICE, prediction), (MODEL_SERVICE, model))
    ]


class _Method:
    """A method of a service.

    Args:
        name: Its name.
        request_class: The message that it takes.
        run: Answers a request, before a deadline by `time.monotonic`.
    """

    def __init__(
        self,
        name: str,
        request_class: Any,
        run: Callable[[Any, float | None], Awaitable[Any]],
    ) -> None:
        self.name = name
        self._request_class = request_class
        self._run = run

    def make_handler(self, requests: Requests) -> grpc.RpcMethodHandler:
        async def handle(content: bytes, context: grpc.aio.ServicerContext) -> bytes:
            async def answer(answering: Answering) -> bytes:
                request = self._parse(content)
                answering.model = _get_model(request)
                response = await self._run(request, _get_deadline(context))
                return bytes(response.SerializeToString())

            try:
                return await requests.answer("grpc", self.name, lambda: _get_token(context), answer)
            except status.RequestError as e:
                error = e
            await context.abort(error.code, error.message)  # Raises.
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(handle)

    def _parse(self, content: bytes) -> Any:
        try:
            return self._request_class.FromString(content)
        except message.DecodeError as e:
            name = self._request_class.DESCRIPTOR.full_name
            raise status.invalid(f"The request is no {name}.") from e


def _get_model(request: Any) -> str:
    if isinstance(request, inference_pb2.MultiInferenceRequest):
        return str(request.tasks[0].model_spec.name) if request.tasks else ""
    spec = getattr(request, "model_spec", None)
    return "" if spec is None else str(spec.name)


def _get_deadline(context: grpc.aio.ServicerContext) -> float | None:
    left_sec = context.time_remaining()
    return None if left_sec is None else time.monotonic() + left_sec


def _get_token(context: grpc.aio.ServicerContext) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == security.HEADER:
            return str(value)
    return None
