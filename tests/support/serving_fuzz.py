"""Requests that nobody should send, for a prediction server: random, and mutations of good ones.

A seed gives the same requests again. What a server may answer is in `ALLOWED_CODES` and
`ALLOWED_STATUSES`: whatever is wrong with a request, it is not the server's fault.
"""

import asyncio
import collections
import json
import random
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from support.serving import make_example, make_request
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    regression_pb2,
)

Code = grpc.StatusCode
ALLOWED_CODES = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED,
    Code.UNIMPLEMENTED,
}
ALLOWED_STATUSES = {200, 400, 404, 405, 412, 413, 415, 429, 501}

_PREDICTION = "/tensorflow.serving.PredictionService/"
_MODEL = "/tensorflow.serving.ModelService/"
_NUMBERS = [0, 1, 2, 3, -1, 127, 128, 255, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1]
_JSON_VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 1.5, 1e308, 2**63, 2**70, "", "a", "x" * 1000, "\u0000", "\ud800"),
    *([], [[]], {}, {"b64": "YQ=="}, {"b64": "?"}, {"b64": 1}, [1, "a"], [[1], [2, 3]], [None]),
    *({"x": 1}, {"x": [1.0]}, [{"x": 1}, {"y": 2}], float("nan"), float("inf")),
]


class Fuzzer:
    """Makes requests.

    Args:
        seed: Which ones.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._grpc = list(_make_good_messages())
        self._rest = list(_make_good_bodies())

    def make_grpc(self) -> tuple[str, bytes]:
        """Returns a method and what to send to it."""
        method, message = self._random.choice(self._grpc)
        if self._random.random() < 0.02:
            method = self._random.choice(self._grpc)[0]
        if self._random.random() < 0.3:
            message = type(message).FromString(message.SerializeToString())
            self._change_fields(message)
        content = message.SerializeToString()
        if self._random.random() < 0.6:
            content = self._change_bytes(content)
        return method, content

    def make_rest(self) -> tuple[str, str, bytes]:
        """Returns a method, a path, and what to send along."""
        path, body = self._random.choice(self._rest)
        method = "POST"
        if self._random.random() < 0.1:
            path = self._change_path(path)
        if self._random.random() < 0.1:
            method = self._random.choice(["GET", "PUT", "DELETE", "HEAD", "PATCH"])
        if self._random.random() < 0.6:
            body = json.loads(json.dumps(body))
            self._change_json(body)
        content = json.dumps(body).encode()
        if self._random.random() < 0.4:
            content = self._change_bytes(content)
        return method, path, content

    def _change_bytes(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(self._random.randint(1, 4)):
            position = self._random.randint(0, len(changed))
            what = self._random.randrange(5)
            if what == 0:
                del changed[position:]
            elif what == 1:
                changed[position:position] = self._random.randbytes(self._random.randint(1, 8))
            elif what == 2:
                end = position + self._random.randint(1, 16)
                changed[position:position] = changed[position:end]
            elif position < len(changed):
                if what == 3:
                    changed[position] ^= 1 << self._random.randrange(8)
                else:
                    changed[position] = self._random.randrange(256)
        return bytes(changed)

    def _change_fields(self, message: Any) -> None:
        """Changes a field anywhere inside, to a value that it may have."""
        fields = message.DESCRIPTOR.fields
        field = self._random.choice(fields) if fields else None
        if field is None:
            return
        value = getattr(message, field.name)
        if field.type == field.TYPE_MESSAGE and field.is_repeated:
            if hasattr(value, "keys"):
                keys = sorted(value.keys(), key=str)
                if keys and hasattr(value[keys[0]], "DESCRIPTOR"):
                    self._change_fields(value[self._random.choice(keys)])
            elif len(value) and self._random.random() < 0.8:
                self._change_fields(self._random.choice(value))
            else:
                value.add()
        elif field.type == field.TYPE_MESSAGE:
            self._change_fields(value)
        elif field.is_repeated:
            if len(value) and self._random.random() < 0.3:
                del value[-1:]
            else:
                self._set(lambda new: value.append(new), field)
        else:
            self._set(lambda new: setattr(message, field.name, new), field)

    def _set(self, assign: Any, field: Any) -> None:
        kinds: list[Any] = [
            self._random.choice(_NUMBERS),
            self._random.choice(["", "a", "x", "m", "serving_default", "x" * 5000]),
            self._random.randbytes(self._random.randint(0, 20)),
            self._random.choice([0.0, float("nan"), 1e30]),
            True,
        ]
        self._random.shuffle(kinds)
        for kind in kinds:
            try:
                assign(kind)
                return
            except (TypeError, ValueError):
                continue

    def _change_json(self, body: Any) -> None:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = self._random.choice(keys)
        inner = body[key]
        if isinstance(inner, dict | list) and inner and self._random.random() < 0.7:
            self._change_json(inner)
        elif self._random.random() < 0.15:
            del body[key]
        elif isinstance(body, dict) and self._random.random() < 0.2:
            body[self._random.choice(["x", "b64", "instances", "inputs", "signature_name"])] = inner
        else:
            body[key] = self._random.choice(_JSON_VALUES)

    def _change_path(self, path: str) -> str:
        parts = path.split("/")
        at = self._random.randrange(1, len(parts))
        text = [
            "",
            "..",
            "%00",
            "%ff",
            "versions",
            "9" * 30,
            "x" * 3000,
            "m",
            ":predict",
            "*",
            "?a",
        ]
        parts[at] = self._random.choice(text)
        return "/".join(parts)


async def run_grpc(port: int, fuzzer: Fuzzer, calls: int) -> collections.Counter[Code]:
    """Sends requests over gRPC; returns how often each code came back.

    Raises:
        AssertionError: A code came back that must not; the message has the request.
    """
    counts: collections.Counter[Code] = collections.Counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def worker(number: int) -> None:
            for _ in range(number):
                method, content = fuzzer.make_grpc()
                call = channel.unary_unary(method)(content, timeout=60)
                code, reason = await call.code(), await call.details()
                assert code in ALLOWED_CODES, f"{code}: {reason}\n{method} {content!r}"
                assert code is Code.OK or reason, f"{code} without a reason: {method} {content!r}"
                counts[code] += 1

        await asyncio.gather(*(worker(calls // 8) for _ in range(8)))
    return counts


async def run_rest(port: int, fuzzer: Fuzzer, calls: int) -> collections.Counter[int]:
    """Sends requests over HTTP; returns how often each status came back.

    Raises:
        AssertionError: A status came back that must not; the message has the request.
    """
    counts: collections.Counter[int] = collections.Counter()

    async def worker(number: int) -> None:
        reader = writer = None
        for _ in range(number):
            method, path, content = fuzzer.make_rest()
            if writer is None or writer.is_closing():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            status, is_open = await asyncio.wait_for(_read_answer(reader, method), 60)
            assert status in ALLOWED_STATUSES, f"{status}: {method} {path} {content!r}"
            counts[status] += 1
            if not is_open:
                writer.close()
                writer = None
        if writer is not None:
            writer.close()

    await asyncio.gather(*(worker(calls // 8) for _ in range(8)))
    return counts


async def _read_answer(reader: asyncio.StreamReader, method: str) -> tuple[int, bool]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    body = b""
    if method != "HEAD":
        body = await reader.readexactly(int(headers.get(b"content-length", 0)))
    if status != 200 and body:
        assert json.loads(body)["error"]
    return status, headers.get(b"connection") != b"close"


def _make_good_messages() -> Iterator[tuple[str, Any]]:
    for signature, inputs in (
        ("", {"x": [1.0, 2.0]}),
        ("pair", {"x": [1.0], "y": [2.0]}),
        ("matrix", {"matrix": np.ones([2, 3], np.float32)}),
        ("text", {"text": [b"a", b"b"]}),
        ("ids", {"ids": np.array([1, 2])}),
        ("ragged", {"ids": np.array([1, 2, 3]), "ids_lengths": np.array([2, 0, 1])}),
        ("failing", {"x": [1.0]}),
        ("regress", {"inputs": [make_example(1.0).SerializeToString()]}),
    ):
        request = make_request(inputs, signature=signature)
        yield f"{_PREDICTION}Predict", request
    values = make_request({}, signature="pair")
    for name in ("x", "y"):
        values.inputs[name].dtype = tf.float32.as_datatype_enum
        values.inputs[name].tensor_shape.dim.add(size=3)
        values.inputs[name].float_val.extend([1, 2])
    values.output_filter.append("sum")
    yield f"{_PREDICTION}Predict", values
    classify = classification_pb2.ClassificationRequest()
    classify.model_spec.name = "m"
    classify.model_spec.signature_name = "classify"
    classify.input.example_list.examples.append(make_example(1.0))
    yield f"{_PREDICTION}Classify", classify
    regress = regression_pb2.RegressionRequest()
    regress.model_spec.name = "m"
    regress.model_spec.signature_name = "regress"
    regress.input.example_list_with_context.context.CopyFrom(make_example(1.0))
    regress.input.example_list_with_context.examples.add()
    yield f"{_PREDICTION}Regress", regress
    both = inference_pb2.MultiInferenceRequest(input=classify.input)
    for name, spec in (("classify", classify.model_spec), ("regress", regress.model_spec)):
        both.tasks.add(method_name=f"tensorflow/serving/{name}", model_spec=spec)
    yield f"{_PREDICTION}MultiInference", both
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    yield f"{_PREDICTION}GetModelMetadata", metadata
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    status.model_spec.version.value = 1
    yield f"{_MODEL}GetModelStatus", status
    yield f"{_MODEL}HandleReloadConfigRequest", model_management_pb2.ReloadConfigRequest()
    yield f"{_MODEL}Nothing", status


def _make_good_bodies() -> Iterator[tuple[str, Any]]:
    yield "/v1/models/m:predict", {"instances": [1.0, 2.0]}
    yield "/v1/models/m/versions/1:predict", {"inputs": {"x": [1.0, 2.0]}}
    yield (
        "/v1/models/m:predict",
        {"signature_name": "pair", "instances": [{"x": 1, "y": 2.5}, {"x": 3, "y": 4}]},
    )
    yield (
        "/v1/models/m:predict",
        {"signature_name": "text", "instances": ["a", {"b64": "YQ=="}]},
    )
    yield "/v1/models/m:predict", {"signature_name": "ids", "inputs": [1, 2, 3]}
    yield (
        "/v1/models/m:predict",
        {"signature_name": "ragged", "inputs": {"ids": [1, 2], "ids_lengths": [0, 2]}},
    )
    yield "/v1/models/m:predict", {"signature_name": "matrix", "instances": [[1, 2, 3]]}
    yield "/v1/models/m:predict", {"signature_name": "total", "inputs": [1, 2, 3]}
    yield "/v1/models/m:classify", {"signature_name": "classify", "examples": [{"x": 1.5}]}
    yield (
        "/v1/models/m:regress",
        {"signature_name": "regress", "examples": [{"x": 1.5}], "context": {"y": "a"}},
    )
    yield "/v1/models/m", {}
    yield "/v1/models/m/labels/a/metadata", {}
