"""Requests over REST, as clients of TensorFlow Serving make them.

Covers monolith/serving/server/rest_api.py.
"""

import base64
import contextlib
import http.client
import json
import re
import socket
import time
from typing import Any

import pytest
from support.serving import make_example, save_model, serving

from monolith.serving.server.config import Batching, Limits, ModelConfig, Security, VersionPolicy


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    save_model(path / "1", factor=2.0)
    save_model(path / "2", factor=3.0)
    return path


class Rest:
    """A client over HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Returns the status and what the answer says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, content, headers or {})
            response = connection.getresponse()
            text = response.read()
            if response.headers["Content-Type"] == "application/json" and method != "HEAD":
                return response.status, json.loads(text)
            return response.status, text
        finally:
            connection.close()

    def post(self, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        return self.ask("POST", path, body, **kwargs)

    def get(self, path: str, **kwargs: Any) -> tuple[int, Any]:
        return self.ask("GET", path, **kwargs)


@pytest.fixture(scope="module")
def rest(models):
    both = ModelConfig(
        name="m", base_path=str(models), policy=VersionPolicy(count=2), labels={"old": 1}
    )
    with serving(models, models=(both,), port=None) as (server, _):
        yield Rest(server.rest_port)


@contextlib.contextmanager
def serving_rest(models, **settings):
    with serving(models, port=None, **settings) as (server, _):
        yield Rest(server.rest_port)


PREDICT = "/v1/models/m:predict"


def test_predict_by_rows_and_by_columns(rest):
    assert rest.post(PREDICT, {"instances": [1.0, 2]}) == (200, {"predictions": [3.0, 6.0]})
    assert rest.post(PREDICT, {"inputs": [1.0, 2]}) == (200, {"outputs": [3.0, 6.0]})
    body = {"signature_name": "pair", "instances": [{"x": 2, "y": 5}, {"x": 1, "y": 1}]}
    assert rest.post(PREDICT, body) == (
        200,
        {"predictions": [{"product": 10.0, "sum": 7.0}, {"product": 1.0, "sum": 2.0}]},
    )
    body = {"signature_name": "pair", "inputs": {"x": [2], "y": [5]}}
    assert rest.post(PREDICT, body) == (200, {"outputs": {"product": [10.0], "sum": [7.0]}})


def test_other_types(rest):
    body = {"signature_name": "text", "instances": ["ab", {"b64": "/w=="}]}
    status, answer = rest.post(PREDICT, body)
    assert status == 200
    assert answer["predictions"] == [
        {"upper": "AB", "raw_bytes": {"b64": base64.b64encode(b"ab\xff").decode()}},
        {"upper": {"b64": "/w=="}, "raw_bytes": {"b64": base64.b64encode(b"\xff\xff").decode()}},
    ]
    assert rest.post(PREDICT, {"signature_name": "ids", "instances": [2**62]}) == (
        200,
        {"predictions": [2**62 + 1]},
    )
    assert rest.post(PREDICT, {"signature_name": "total", "inputs": [1, 2]}) == (
        200,
        {"outputs": 3.0},
    )


def test_versions_and_labels(rest):
    for path, factor in (("/versions/1", 2.0), ("/versions/2", 3.0), ("/labels/old", 2.0)):
        answer = rest.post(f"/v1/models/m{path}:predict", {"instances": [1.0]})
        assert answer == (200, {"predictions": [factor]})


def test_classify_and_regress(rest):
    examples = {"examples": [{"x": 1.0}, {"x": 2}]}
    # The model wants a float; a whole number is an integer in an example.
    body = {"signature_name": "regress", **examples}
    assert rest.post("/v1/models/m:regress", body)[0] == 400
    examples = {"examples": [{"x": 1.0}, {"x": 2.0}]}
    assert rest.post("/v1/models/m:regress", {"signature_name": "regress", **examples}) == (
        200,
        {"results": [3.0, 6.0]},
    )
    assert rest.post("/v1/models/m:classify", {"signature_name": "classify", **examples}) == (
        200,
        {"results": [[["up", 3.0], ["down", -3.0]], [["up", 6.0], ["down", -6.0]]]},
    )
    body = {"signature_name": "regress", "context": {"x": 5.0}, "examples": [{}]}
    assert rest.post("/v1/models/m:regress", body) == (200, {"results": [15.0]})


def test_examples_as_base64(rest):
    """The usual input of an exported model."""
    example = base64.b64encode(make_example(2.0).SerializeToString()).decode()
    body = {"signature_name": "regress", "instances": [{"b64": example}]}
    assert rest.post(PREDICT, body) == (200, {"predictions": [6.0]})
    body = {"signature_name": "regress", "instances": [{"inputs": {"b64": example}}]}
    assert rest.post(PREDICT, body) == (200, {"predictions": [6.0]})


def test_status_and_metadata(rest):
    status, answer = rest.get("/v1/models/m")
    assert status == 200
    assert [
        (version["version"], version["state"], version["status"]["error_code"])
        for version in answer["model_version_status"]
    ] == [("2", "AVAILABLE", "OK"), ("1", "AVAILABLE", "OK")]
    status, answer = rest.get("/v1/models/m/versions/1")
    assert [version["version"] for version in answer["model_version_status"]] == ["1"]
    status, answer = rest.get("/v1/models/m/labels/old/metadata")
    assert status == 200
    assert answer["model_spec"]["version"] == "1"
    definition = answer["metadata"]["signature_def"]["signature_def"]["pair"]
    assert definition["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert definition["method_name"] == "tensorflow/serving/predict"


def test_metrics(rest):
    rest.post(PREDICT, {"instances": [1.0]})
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        status, text = rest.get(path)
        assert status == 200
        assert b'requests_total{api="rest",code="OK",method="Predict",model="m"}' in text
    assert rest.ask("HEAD", "/metrics")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/models/other:predict", {"instances": [1]}, 404, "no model 'other'"),
        ("/v1/models/%6F%74her:predict", {"instances": [1]}, 404, "no model 'other'"),
        ("/v1/models/m/versions/9:predict", {"instances": [1]}, 404, "Version 9"),
        (f"/v1/models/m/versions/{'9' * 30}:predict", {"instances": [1]}, 404, "no version 999"),
        ("/v1/models/m/labels/x:predict", {"instances": [1]}, 404, "labelled 'x'"),
        (PREDICT, {"signature_name": "x", "instances": [1]}, 400, "no signature 'x'"),
        (PREDICT, {"signature_name": 7, "instances": [1]}, 400, "must be a string"),
        (PREDICT, b'{"signature_name": "\\ud800", "instances": [1]}', 400, "no text"),
        (PREDICT, {"instances": ["a"]}, 400, "must be of type float32, got 'a'"),
        (PREDICT, {"instances": [[1], [2]]}, 400, "must be of shape"),
        (PREDICT, {"signature_name": "total", "instances": [1]}, 400, 'send "inputs"'),
        (PREDICT, {"signature_name": "failing", "instances": [float("nan")]}, 400, "bad x"),
        (PREDICT, b"", 400, "not JSON"),
        (PREDICT, b"{", 400, "not JSON"),
        (PREDICT, b"\xff\xfe", 400, "not JSON"),
        (PREDICT, b"[1]", 400, "must be a JSON object"),
        (PREDICT, b"[" * 100_000, 400, "nested too deeply"),
        (PREDICT, b'{"instances": [' + b"9" * 5000 + b"]}", 400, "not JSON|beyond"),
        ("/v1/models/m:classify", {"instances": [1]}, 400, '"examples" must be'),
        ("/v1/models/m:classify", {"examples": [{}]}, 400, "not for 'tensorflow/serving/classify'"),
        ("/v1/models/m:guess", {"instances": [1]}, 404, "There is nothing at"),
        ("/nothing", b"", 404, "There is nothing at /nothing"),
        ("/v1/models/", b"", 404, "There is nothing"),
    ],
)
def test_what_is_refused(rest, path, body, status, message):
    found, answer = rest.post(path, body)
    assert found == status
    assert re.search(message, answer["error"]), answer
    assert list(answer) == ["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PREDICT, 405),
        ("POST", "/v1/models/m", 405),
        ("DELETE", "/v1/models/m", 405),
        ("PUT", "/metrics", 405),
        ("PATCH", PREDICT, 405),
        ("OPTIONS", "/v1/models/m", 405),
        ("BREW", "/v1/models/m", 405),
        ("GET", "/v1/models/x", 404),
        ("GET", "/v1/models/x/metadata", 404),
        ("GET", "/v1/models/m/versions/7", 404),
        ("GET", "/", 404),
    ],
)
def test_methods(rest, method, path, status):
    found, answer = rest.ask(method, path)
    assert found == status
    assert "error" in answer


def test_an_encoding_that_is_not_read(rest):
    status, answer = rest.post(PREDICT, {"instances": [1.0]}, headers={"Content-Encoding": "gzip"})
    assert status == 415
    assert "gzip" in answer["error"]


def test_a_connection_serves_many_requests(rest):
    connection = http.client.HTTPConnection("127.0.0.1", rest.port, timeout=30)
    for number in range(20):
        connection.request("POST", PREDICT, json.dumps({"instances": [number]}))
        response = connection.getresponse()
        assert json.loads(response.read()) == {"predictions": [3.0 * number]}
        # Also after a request that was refused.
        connection.request("POST", PREDICT, "nonsense")
        assert connection.getresponse().read()
    connection.close()


def test_large_requests(models):
    with serving_rest(models, limits=Limits(max_request_bytes=400_000)) as rest:
        # Large enough to be read in a thread.
        status, answer = rest.post(PREDICT, {"instances": [1.25] * 50_000})
        assert (status, len(answer["predictions"])) == (200, 50_000)
        status, answer = rest.post(PREDICT, {"instances": [1.25] * 100_000})
        assert (status, answer) == (413, {"error": "A request may have at most 400000 bytes."})
        # In chunks, without saying how large it is.
        connection = http.client.HTTPConnection("127.0.0.1", rest.port, timeout=30)
        chunks = (b"x" * 50_000 for _ in range(10))
        connection.request("POST", PREDICT, chunks, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        # A client that asks first is told before it has sent anything.
        headers = {"Expect": "100-continue", "Content-Length": str(1 << 30)}
        connection.request("POST", PREDICT, headers=headers)
        assert connection.getresponse().status == 413
        connection.close()
        assert rest.post(PREDICT, {"instances": [1.0]})[0] == 200


def test_a_client_that_goes_on_sending_is_cut_off(models):
    with serving_rest(models, limits=Limits(max_request_bytes=1000)) as rest:
        with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as client:
            client.sendall(
                f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode()
            )
            endless = b"x" * (64 << 20)
            with pytest.raises(ConnectionError):
                client.sendall(endless)
        assert rest.post(PREDICT, {"instances": [1.0]})[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"POST /v1/models/m:pre", id="half_a_line"),
        pytest.param(b"GET /v1/models/m HTTP/1.1\r\nHost:", id="half_a_header"),
        pytest.param(
            f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode(),
            id="half_a_body",
        ),
    ],
)
def test_slow_clients_are_cut_off(models, sent):
    with serving_rest(models, limits=Limits(client_timeout_sec=0.2)) as rest:
        with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as client:
            client.sendall(sent)
            started = time.monotonic()
            assert client.recv(1000) == b""
            assert time.monotonic() - started < 20
        assert rest.post(PREDICT, {"instances": [1.0]})[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/models/m HTTP/9.9\r\n\r\n",
        b"GET /v1/models/m HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http(rest, sent):
    with (
        socket.create_connection(("127.0.0.1", rest.port), timeout=30) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1000), b""))
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert rest.post(PREDICT, {"instances": [1.0]})[0] == 200


def test_tokens(models, tmp_path):
    (tmp_path / "token").write_text("secret")
    with serving_rest(models, security=Security(token_file=str(tmp_path / "token"))) as rest:
        right = {"Authorization": "Bearer secret"}
        assert rest.post(PREDICT, {"instances": [1.0]}, headers=right)[0] == 200
        for headers in ({}, {"Authorization": "Bearer other"}):
            for method, path in (("POST", PREDICT), ("GET", "/v1/models/m"), ("GET", "/metrics")):
                body = {"instances": [1.0]} if method == "POST" else None
                status, answer = rest.ask(method, path, body, headers)
                assert status == 401
                assert "requires a token" in answer["error"]


def test_requests_are_merged(models):
    with serving_rest(models, batching=Batching(max_rows=8)) as rest:
        assert rest.post(PREDICT, {"instances": [1, 2, 3]}) == (
            200,
            {"predictions": [3.0, 6.0, 9.0]},
        )
        assert b'batch_rows_sum{model="m"} 3.0' in rest.get("/metrics")[1]
