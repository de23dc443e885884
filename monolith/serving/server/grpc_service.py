"""The gRPC side: `PredictionService` and `ModelService` of TensorFlow Serving, and health checks.

Requests are read here and not by gRPC, which would answer one that is no message with the status
of a fault of the server, and would read it before it is known who sent it.
"""

import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf import message
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from monolith.serving.server import incarnation, security, status
from monolith.serving.server.answers import Running
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import ServerConfig
from monolith.serving.server.grpc_core import Call, CoreServer, Handler
from monolith.serving.server.grpc_health import Health
from monolith.serving.server.requests import Answering, Requests

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"

# Threads that take requests, of which one is always left without a call of a model. More of them
# would wait for each other, as Python runs one at a time.
THREADS = max(2, min(4, os.cpu_count() or 1))
# Beyond those that are answered: who is told that there are too many, and who asks for the health.
_SPARE_REQUESTS = 256


class GrpcServer:
    """Answers gRPC requests.

    Args:
        config: Where to listen, and with what limits.
        requests: Answers.
        pool: Calls models.

    Raises:
        errors.ConfigError: The port cannot be listened on, or a file of TLS cannot be used.
    """

    def __init__(self, config: ServerConfig, requests: Requests, pool: CallPool) -> None:
        # Beyond that, requests would pile up in memory.
        most = config.limits.max_concurrent + _SPARE_REQUESTS
        self._health = Health(("", PREDICTION_SERVICE, MODEL_SERVICE), most)
        self._server = CoreServer(
            {**self._health.handlers, **_make_handlers(requests)},
            pool,
            THREADS,
            most,
            options=[
                ("grpc.max_receive_message_length", config.limits.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would each get some of the requests.
                ("grpc.so_reuseport", 0),
                # A client that is gone without a word is noticed, and its requests with it.
                ("grpc.keepalive_time_ms", int(1000 * config.limits.client_timeout_sec)),
                ("grpc.keepalive_timeout_ms", int(1000 * config.limits.client_timeout_sec)),
            ],
        )
        host = f"[{config.host}]" if ":" in config.host and "[" not in config.host else config.host
        try:
            credentials = security.make_grpc_credentials(config.security)
            self.port = self._server.listen(f"{host}:{config.port}", credentials)
        except BaseException:
            self._server.stop(0)
            raise

    def start(self) -> None:
        self._server.start()

    def set_serving(self, is_serving: bool) -> None:
        """Tells who asks for the server's health how it is."""
        self._health.set_serving(is_serving)

    def stop(self, grace_sec: float) -> None:
        """Takes no more requests, and gives those that are being answered some time."""
        self._server.stop(grace_sec)


def _make_handlers(requests: Requests) -> dict[str, Handler]:
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
    return {
        f"/{service}/{method.name}": method.make_handler(requests)
        for service, methods in ((PREDICTION_SERVICE, prediction), (MODEL_SERVICE, model))
        for method in methods
    }


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
        run: Callable[[Any, float | None], Coroutine[Any, Any, Any]],
    ) -> None:
        self.name = name
        self._request_class = request_class
        self._run = run

    def make_handler(self, requests: Requests) -> Handler:
        def handle(call: Call, content: bytes) -> None:
            model = ""

            async def answer(answering: Answering) -> bytes:
                nonlocal model
                request = self._parse(content)
                answering.model = model = _get_model(request)
                response = await self._run(request, _get_deadline(call))
                return bytes(response.SerializeToString())

            def send(answer: bytes, error: BaseException | None) -> None:
                if error is None:
                    asked = call.get_header(incarnation.ASK)
                    own = requests.get_incarnation(model) if asked is not None else ""
                    call.answer(answer, incarnation.make_metadata(own))
                elif isinstance(error, status.RequestError):
                    call.refuse(error.code, error.message)
                else:  # Nobody waits for it.
                    call.refuse(status.Code.CANCELLED, "The request was given up.")

            running = Running(
                requests.answer(
                    "grpc", self.name, lambda: call.get_header(security.HEADER), answer
                ),
                send,
            )
            call.notice_gone(running.cancel)
            running.go_on()

        return handle

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


def _get_deadline(call: Call) -> float | None:
    left_sec = call.left_sec
    return None if left_sec is None else time.monotonic() + left_sec
