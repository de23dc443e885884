"""Answers requests of either API: finds the version that has to, and counts what came of it.

The APIs differ in how a request is read and an answer written; everything between is here.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from monolith import errors
from monolith.serving.server import config, predict, status
from monolith.serving.server.admission import Admission
from monolith.serving.server.answers import Answer
from monolith.serving.server.manager import ModelManager
from monolith.serving.server.metrics import ServerMetrics
from monolith.serving.server.security import Tokens
from monolith.serving.server.served import ServedVersion

logger = logging.getLogger(__name__)

_Response = TypeVar("_Response")


class Requests:
    """What a server does with requests. Thread-safe.

    Args:
        models: Who answers.
        admission: How many at once.
        metrics: Takes what is counted.
        tokens: Of which a client must send one.
        limits: What a client may ask.
        allow_reload: Whether clients may change which models are served.
    """

    def __init__(
        self,
        models: ModelManager,
        admission: Admission,
        metrics: ServerMetrics,
        tokens: Tokens,
        limits: config.Limits,
        allow_reload: bool = False,
    ) -> None:
        self.models = models
        self.metrics = metrics
        self.limits = limits
        self._admission = admission
        self._tokens = tokens
        self._allow_reload = allow_reload
        metrics.watch_in_flight(lambda: admission.in_flight)

    async def answer(
        self,
        api: str,
        method: str,
        token: Callable[[], str | None],
        handle: Callable[["Answering"], Awaitable[_Response]],
    ) -> _Response:
        """Runs what answers a request, and counts it.

        Args:
            api: Over which the request came.
            method: What it asks for.
            token: Returns the header `authorization`; called only where one is needed.
            handle: Answers; may say in `Answering` which model was asked.

        Raises:
            RequestError: It cannot be answered, whatever went wrong.
        """
        answering = Answering()
        code = status.Code.OK
        started_sec = time.monotonic()
        try:
            if self._tokens.is_required and not self._tokens.is_allowed(token()):
                raise status.RequestError(
                    status.Code.UNAUTHENTICATED,
                    "The server requires a token: send the header 'authorization: Bearer TOKEN'.",
                )
            return await handle(answering)
        except status.RequestError as e:
            code = e.code
            raise
        except asyncio.CancelledError:
            code = status.Code.CANCELLED
            raise
        except Exception as e:
            logger.exception("a request (%s, %s) failed", api, method)
            error = status.to_request_error(e)
            code = error.code
            raise error from e
        finally:
            self.metrics.count_request(
                api,
                method,
                answering.model if answering.model in self.models.models else "",
                code.name,
                seconds=time.monotonic() - started_sec,
            )

    def get_incarnation(self, name: str) -> str:
        """Returns what tells a model from how it was before; empty if there is none."""
        model = self.models.models.get(name)
        return "" if model is None else model.incarnation

    async def predict(
        self, request: predict_pb2.PredictRequest, deadline_sec: float | None = None
    ) -> predict_pb2.PredictResponse:
        async def run(version: ServedVersion) -> predict_pb2.PredictResponse:
            limit = self.limits.max_request_bytes
            return await predict.run_predict(version, request, limit, deadline_sec)

        return await self.use(request.model_spec, run)

    async def classify(
        self, request: classification_pb2.ClassificationRequest, deadline_sec: float | None = None
    ) -> classification_pb2.ClassificationResponse:
        return await self.use(
            request.model_spec, lambda v: predict.run_classify(v, request, deadline_sec)
        )

    async def regress(
        self, request: regression_pb2.RegressionRequest, deadline_sec: float | None = None
    ) -> regression_pb2.RegressionResponse:
        return await self.use(
            request.model_spec, lambda v: predict.run_regress(v, request, deadline_sec)
        )

    async def multi_inference(
        self, request: inference_pb2.MultiInferenceRequest, deadline_sec: float | None = None
    ) -> inference_pb2.MultiInferenceResponse:
        spec = predict.get_shared_spec(request)
        return await self.use(spec, lambda v: predict.run_multi_inference(v, request, deadline_sec))

    async def get_metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        async def run(
            version: ServedVersion,
        ) -> get_model_metadata_pb2.GetModelMetadataResponse:
            return predict.make_metadata(version, request)

        return await self.use(request.model_spec, run)

    def get_status(
        self, request: get_model_status_pb2.GetModelStatusRequest
    ) -> get_model_status_pb2.GetModelStatusResponse:
        spec = request.model_spec
        model = self.models.get(spec.name)
        number, label = read_version(spec)
        if label is not None:
            number = model.config.labels.get(label, -1)
        by_number = model.get_status()
        response = get_model_status_pb2.GetModelStatusResponse()
        for found in sorted(by_number, reverse=True):
            if number in (None, found):
                entry = response.model_version_status.add(version=found)
                entry.state = by_number[found].state.value
                entry.status.error_code = by_number[found].code.value[0]
                entry.status.error_message = by_number[found].error
        if number is not None and not by_number.keys() & {number}:
            raise status.not_found(
                f"Model {spec.name!r} has no version {label if label is not None else number}."
            )
        return response

    async def reload(
        self, request: model_management_pb2.ReloadConfigRequest, timeout_sec: float | None = None
    ) -> model_management_pb2.ReloadConfigResponse:
        """Serves other models, and waits until what they have is loaded, or is not."""
        if not self._allow_reload:
            raise status.RequestError(
                status.Code.PERMISSION_DENIED,
                "This server does not let clients change its models; start it with --allow-reload.",
            )
        try:
            self.models.set_models(config.from_proto(request.config))
        except errors.ConfigError as e:
            raise status.invalid(str(e)) from e
        looked_at = Answer()
        wait = self.models.wait_until_looked_at
        threading.Thread(target=looked_at.fill, args=(wait, timeout_sec), daemon=True).start()
        if not await looked_at:
            raise status.RequestError(
                status.Code.DEADLINE_EXCEEDED, "Some of the models are still being loaded."
            )
        failed = [name for name, model in self.models.models.items() if not model.is_available]
        if failed:
            raise status.RequestError(
                status.Code.UNAVAILABLE,
                f"No version of {', '.join(map(repr, sorted(failed)))} is available; "
                "GetModelStatus says why.",
            )
        return model_management_pb2.ReloadConfigResponse()

    async def use(
        self, spec: model_pb2.ModelSpec, run: Callable[[ServedVersion], Awaitable[_Response]]
    ) -> _Response:
        """Has the version that a request asks for answer it, if there is room.

        Raises:
            RequestError: There is none, there is no such version, or `run` raised it.
        """
        number, label = read_version(spec)
        with self._admission.admit(), self.models.use(spec.name, number, label) as version:
            return await run(version)


class Answering:
    """What is found out about a request while it is answered.

    Attributes:
        model: The model that it asks for.
    """

    def __init__(self) -> None:
        self.model = ""


def read_version(spec: model_pb2.ModelSpec) -> tuple[int | None, str | None]:
    """Returns the version that a request asks for, by its number or its label."""
    choice: Any = spec.WhichOneof("version_choice")
    if choice == "version":
        return spec.version.value, None
    if choice == "version_label" and spec.version_label:
        return None, spec.version_label
    return None, None
