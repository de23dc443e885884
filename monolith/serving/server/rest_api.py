"""What each URL of the REST API does, apart from how it travels.

| request | answer |
| --- | --- |
| `POST /v1/models/NAME[/versions/N or /labels/LABEL]:predict` | predictions |
| the same with `:classify` or `:regress` | results |
| `GET /v1/models/NAME[/versions/N or /labels/LABEL]` | the state of each version |
| `GET /v1/models/NAME[/versions/N or /labels/LABEL]/metadata` | the functions of the model |
| `GET /metrics` | metrics for Prometheus |
"""

import asyncio
import dataclasses
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    regression_pb2,
)

from monolith.serving.server import json_examples, json_tensors, metrics, predict, status
from monolith.serving.server.requests import Answering, Requests
from monolith.serving.server.served import ServedVersion

_T = TypeVar("_T")

_MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_CALL = re.compile(_MODEL + r":(predict|classify|regress)", re.IGNORECASE)
_LOOK = re.compile(_MODEL + r"(/metadata)?", re.IGNORECASE)
# The second is where TensorFlow Serving has them.
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")
_MAX_VERSION = (1 << 63) - 1
# Reading less takes no longer than handing it to another thread.
_LARGE_BYTES = 100_000
_METHOD_NOT_ALLOWED = 405
_UNSUPPORTED_MEDIA_TYPE = 415


@dataclasses.dataclass(frozen=True)
class Request:
    """A request, complete.

    Attributes:
        method: Such as `GET`.
        path: The path of the URL, as sent.
        body: What was sent along.
        token: The header `authorization`.
        encoding: The header `content-encoding`.
    """

    method: str
    path: str
    body: bytes = b""
    token: str | None = None
    encoding: str = "identity"


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class RestApi:
    """Answers requests. Lives in one event loop.

    Args:
        requests: What the server does with them.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def answer(self, request: Request) -> Response:
        """Answers a request, whatever it is."""
        if call := _CALL.fullmatch(request.path):
            if request.method != "POST":
                return _refuse_method("POST")
            if request.encoding != "identity":
                error = status.invalid(f"Requests in {request.encoding!r} cannot be read.")
                return make_error(error, _UNSUPPORTED_MEDIA_TYPE)
            name = call[4].capitalize()
            return await self._answer(
                request, name, lambda a: self._call(name, call, request.body, a)
            )
        if request.path in _METRICS:
            return await self._look(request, "Metrics", lambda _: self._get_metrics())
        if look := _LOOK.fullmatch(request.path):
            name = "GetModelMetadata" if look[4] else "GetModelStatus"
            return await self._look(request, name, lambda a: self._describe(look, a))
        return make_error(
            status.not_found(
                f"There is nothing at {status.shorten(request.path)}; models are at "
                "/v1/models/NAME."
            )
        )

    async def _look(self, request: Request, name: str, handle: Any) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _refuse_method("GET, HEAD")
        return await self._answer(request, name, handle)

    async def _answer(self, request: Request, name: str, handle: Any) -> Response:
        try:
            return await self._requests.answer("rest", name, lambda: request.token, handle)
        except status.RequestError as e:
            return make_error(e)

    async def _call(
        self, name: str, match: re.Match[str], content: bytes, answering: Answering
    ) -> Response:
        spec = _read_spec(match, answering)
        body = await _run_if_large(content, _parse, content)
        signature_name = body.get("signature_name", "")
        if not isinstance(signature_name, str):
            raise status.invalid('"signature_name" must be a string.')
        try:
            spec.signature_name = signature_name
        except ValueError as e:  # Half of a pair of surrogates, which JSON can hold.
            raise status.invalid('"signature_name" is no text.') from e
        if name == "Predict":
            return await self._predict(spec, body, content)
        examples = json_examples.read_input(body)
        if name == "Classify":
            classify = classification_pb2.ClassificationRequest(model_spec=spec, input=examples)
            classified = (await self._requests.classify(classify)).result
            return _make_json({"results": json_examples.write_classifications(classified)})
        regress = regression_pb2.RegressionRequest(model_spec=spec, input=examples)
        regressed = (await self._requests.regress(regress)).result
        return _make_json({"results": json_examples.write_regressions(regressed)})

    async def _predict(
        self, spec: model_pb2.ModelSpec, body: dict[str, Any], content: bytes
    ) -> Response:
        async def run(version: ServedVersion) -> Response:
            signature = version.model.get_signature(predict.get_signature_name(spec))
            arrays, form = await _run_if_large(content, json_tensors.read_inputs, body, signature)
            results = await version.run(signature, tuple(signature.outputs), arrays)
            rows = len(body["instances"]) if form is json_tensors.Form.ROWS else 0
            return _make_json(json_tensors.write_outputs(results, form, rows))

        return await self._requests.use(spec, run)

    async def _describe(self, match: re.Match[str], answering: Answering) -> Response:
        spec = _read_spec(match, answering)
        if not match[4]:
            request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec)
            return _make_json(_to_dict(self._requests.get_status(request)))
        metadata = await self._requests.get_metadata(
            get_model_metadata_pb2.GetModelMetadataRequest(
                model_spec=spec, metadata_field=[predict.SIGNATURE_DEF]
            )
        )
        definitions = get_model_metadata_pb2.SignatureDefMap()
        metadata.metadata[predict.SIGNATURE_DEF].Unpack(definitions)
        return _make_json(
            {
                "model_spec": _to_dict(metadata.model_spec),
                "metadata": {predict.SIGNATURE_DEF: _to_dict(definitions)},
            }
        )

    async def _get_metrics(self) -> Response:
        headers = {"Content-Type": metrics.CONTENT_TYPE}
        return Response(200, self._requests.metrics.render(), headers)


def make_error(error: status.RequestError, http_status: int | None = None) -> Response:
    """Makes the answer to a request that was refused."""
    return _make_json({"error": error.message}, http_status or status.to_http_status(error.code))


def _refuse_method(allowed: str) -> Response:
    error = status.invalid(f"The method must be {allowed.replace(', ', ' or ')}.")
    response = make_error(error, _METHOD_NOT_ALLOWED)
    return dataclasses.replace(response, headers={**response.headers, "Allow": allowed})


async def _run_if_large(content: bytes, function: Callable[..., _T], *args: Any) -> _T:
    """Calls a function; if it takes long, in a thread, so that others are answered meanwhile."""
    if len(content) < _LARGE_BYTES:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as e:
        reason = "it is nested too deeply" if isinstance(e, RecursionError) else e
        raise status.invalid(f"The request is not JSON: {reason}.") from e
    if not isinstance(body, dict):
        raise status.invalid("The request must be a JSON object.")
    return body


def _read_spec(match: re.Match[str], answering: Answering) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=urllib.parse.unquote(match[1]))
    answering.model = spec.name
    if match[2]:
        if int(match[2]) > _MAX_VERSION:
            raise status.not_found(f"There is no version {status.shorten(match[2])}.")
        spec.version.value = int(match[2])
    elif match[3]:
        spec.version_label = urllib.parse.unquote(match[3])
    return spec


def _make_json(value: Any, http_status: int = 200) -> Response:
    body = json.dumps(value).encode() + b"\n"
    return Response(http_status, body, {"Content-Type": "application/json"})


def _to_dict(proto: Any) -> Any:
    return json_format.MessageToDict(
        proto, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
