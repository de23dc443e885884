"""Requests over gRPC, as clients of TensorFlow Serving make them.

Covers monolith/serving/server/predict.py, monolith/serving/server/requests.py.
"""

import threading
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.serving import Client, make_example, make_request, save_model, serving
from support.waiting import wait_for
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from monolith.serving.server.config import Batching, Limits, ModelConfig, Security, VersionPolicy
from monolith.serving.server.loaded import LoadedModel

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    save_model(path / "1", factor=2.0)
    save_model(path / "2", factor=3.0)
    return path


@pytest.fixture(scope="module")
def client(models):
    both = ModelConfig(
        name="m",
        base_path=str(models),
        policy=VersionPolicy(count=2),
        labels={"old": 1},
    )
    with serving(models, models=(both,), rest_port=None) as (_, client):
        yield client


def expect(code: Code, message: str = ""):
    return pytest.raises(grpc.RpcError, match=f"(?s){code.name}.*{message}")


def call(client: Client, method: str, content: bytes) -> bytes:
    """Sends bytes as they are."""
    return client.channel.unary_unary(method)(content, timeout=60)


def test_predict(client):
    request = make_request({"x": [1.0, 2.0]})
    response = client.prediction.Predict(request, timeout=60)
    output = response.outputs["output"]
    # Tutorials read the field, other clients call `make_ndarray`.
    assert list(output.float_val) == [3, 6]
    assert tf.make_ndarray(output).tolist() == [3, 6]
    assert response.model_spec.name == "m"
    assert response.model_spec.version.value == 2
    assert response.model_spec.signature_name == "serving_default"


def test_versions_and_labels(client):
    assert client.predict([1.0], version=1) == [2]
    assert client.predict([1.0], version=2) == [3]
    request = make_request({"x": [1.0]})
    request.model_spec.version_label = "old"
    response = client.prediction.Predict(request, timeout=60)
    assert response.model_spec.version.value == 1


def test_several_inputs_and_chosen_outputs(client):
    request = make_request({"x": [2.0], "y": [5.0]}, signature="pair")
    response = client.prediction.Predict(request, timeout=60)
    assert {name: list(o.float_val) for name, o in response.outputs.items()} == {
        "sum": [7],
        "product": [10],
    }
    request.output_filter.append("sum")
    response = client.prediction.Predict(request, timeout=60)
    assert list(response.outputs) == ["sum"]


def test_other_types(client):
    request = make_request({"text": [b"ab"]}, signature="text")
    outputs = client.prediction.Predict(request, timeout=60).outputs
    assert outputs["upper"].string_val == [b"AB"]
    assert outputs["raw_bytes"].string_val == [b"ab\xff"]
    request = make_request({"ids": np.array([2**62])}, signature="ids")
    assert client.prediction.Predict(request, timeout=60).outputs["next"].int64_val == [2**62 + 1]
    request = make_request({"x": [1.0, 2.0]}, signature="total")
    total = client.prediction.Predict(request, timeout=60).outputs["total"]
    assert (list(total.tensor_shape.dim), total.float_val) == ([], [3])


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (make_request({"x": [1.0]}, model="other"), Code.NOT_FOUND, "no model 'other'"),
        (make_request({"x": [1.0]}, model=""), Code.INVALID_ARGUMENT, "names no model"),
        (make_request({"x": [1.0]}, version=9), Code.NOT_FOUND, "Version 9"),
        (make_request({"x": [1.0]}, version=-1), Code.NOT_FOUND, "Version -1"),
        (make_request({"x": [1.0]}, signature="no"), Code.INVALID_ARGUMENT, "signature 'no'"),
        (make_request({"z": [1.0]}), Code.INVALID_ARGUMENT, "'z' is not among them"),
        (make_request({}), Code.INVALID_ARGUMENT, "'x' is missing"),
        (make_request({"x": [[1.0]]}), Code.INVALID_ARGUMENT, "shape"),
        (make_request({"x": [b"a"]}), Code.INVALID_ARGUMENT, "type float32, got string"),
        (
            make_request({"x": [float("nan")]}, signature="failing"),
            Code.INVALID_ARGUMENT,
            "bad x",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Code) else "",
)
def test_what_is_refused(client, request_, code, message):
    with expect(code, message):
        client.prediction.Predict(request_, timeout=60)
    # The server goes on.
    assert client.predict([1.0]) == [3]


def test_an_output_that_is_not_there(client):
    request = make_request({"x": [1.0]})
    request.output_filter.append("nothing")
    with expect(Code.INVALID_ARGUMENT, "no output 'nothing'"):
        client.prediction.Predict(request, timeout=60)


def test_an_unknown_label(client):
    request = make_request({"x": [1.0]})
    request.model_spec.version_label = "new"
    with expect(Code.NOT_FOUND, "labelled 'new'"):
        client.prediction.Predict(request, timeout=60)


@pytest.mark.parametrize(
    "method",
    [
        "PredictionService/Predict",
        "PredictionService/Classify",
        "PredictionService/Regress",
        "PredictionService/MultiInference",
        "PredictionService/GetModelMetadata",
        "ModelService/GetModelStatus",
        "ModelService/HandleReloadConfigRequest",
    ],
)
def test_bytes_that_are_no_message(client, method):
    with expect(Code.INVALID_ARGUMENT, "The request is no tensorflow.serving"):
        call(client, f"/tensorflow.serving.{method}", b"\xff\xff\xff")


def test_a_method_that_is_not_there(client):
    with expect(Code.UNIMPLEMENTED):
        call(client, "/tensorflow.serving.PredictionService/Guess", b"")


def make_input(*xs: float):
    request = classification_pb2.ClassificationRequest()
    request.input.example_list.examples.extend(make_example(x) for x in xs)
    return request.input


def test_classify(client):
    request = classification_pb2.ClassificationRequest(input=make_input(1.0, 2.0))
    request.model_spec.name = "m"
    request.model_spec.signature_name = "classify"
    response = client.prediction.Classify(request, timeout=60)
    assert [
        [(c.label, c.score) for c in row.classes] for row in response.result.classifications
    ] == [[("up", 3), ("down", -3)], [("up", 6), ("down", -6)]]
    assert response.model_spec.version.value == 2


def test_regress(client):
    request = regression_pb2.RegressionRequest(input=make_input(1.0, 2.0))
    request.model_spec.name = "m"
    request.model_spec.signature_name = "regress"
    response = client.prediction.Regress(request, timeout=60)
    assert [r.value for r in response.result.regressions] == [3, 6]


def test_examples_with_a_context(client):
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = "regress"
    examples = request.input.example_list_with_context
    examples.context.CopyFrom(make_example(5.0))
    examples.examples.add()
    examples.examples.append(make_example(1.0))
    response = client.prediction.Regress(request, timeout=60)
    # The first has the feature of the context, the second its own.
    assert [r.value for r in response.result.regressions] == [15, 3]


def test_several_tasks_over_the_same_examples(client):
    request = inference_pb2.MultiInferenceRequest(input=make_input(1.0))
    for name in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{name}")
        task.model_spec.name = "m"
        task.model_spec.signature_name = name
    classified, regressed = client.prediction.MultiInference(request, timeout=60).results
    assert classified.classification_result.classifications[0].classes[0].score == 3
    assert regressed.regression_result.regressions[0].value == 3
    request.tasks[1].model_spec.version.value = 1
    with expect(Code.INVALID_ARGUMENT, "the same model"):
        client.prediction.MultiInference(request, timeout=60)
    request.tasks[1].CopyFrom(request.tasks[0])
    with expect(Code.INVALID_ARGUMENT, "twice"):
        client.prediction.MultiInference(request, timeout=60)
    del request.tasks[1]
    request.tasks[0].method_name = "tensorflow/serving/predict"
    with expect(Code.UNIMPLEMENTED, "A task must be"):
        client.prediction.MultiInference(request, timeout=60)
    del request.tasks[:]
    with expect(Code.INVALID_ARGUMENT, "no tasks"):
        client.prediction.MultiInference(request, timeout=60)


def test_examples_for_the_wrong_function(client):
    request = classification_pb2.ClassificationRequest(input=make_input(1.0))
    request.model_spec.name = "m"
    with expect(Code.INVALID_ARGUMENT, "is for 'tensorflow/serving/predict'"):
        client.prediction.Classify(request, timeout=60)
    request.model_spec.signature_name = "classify"
    request.input.Clear()
    with expect(Code.INVALID_ARGUMENT, "no examples"):
        client.prediction.Classify(request, timeout=60)
    request.input.example_list.examples.add()
    with expect(Code.INVALID_ARGUMENT, "x"):  # The model does not do without the feature.
        client.prediction.Classify(request, timeout=60)


def test_metadata(client):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "m"
    response = client.prediction.GetModelMetadata(request, timeout=60)
    definitions = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(definitions)
    assert definitions.signature_def["pair"].inputs["x"].dtype == tf.float32.as_datatype_enum
    assert response.model_spec.version.value == 2
    for fields in ([], ["other"]):
        request.ClearField("metadata_field")
        request.metadata_field.extend(fields)
        with expect(Code.INVALID_ARGUMENT, "metadata"):
            client.prediction.GetModelMetadata(request, timeout=60)


def test_status_of_versions(client):
    assert client.get_states() == {1: "AVAILABLE", 2: "AVAILABLE"}
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    request.model_spec.version.value = 1
    (only,) = client.model.GetModelStatus(request, timeout=60).model_version_status
    assert (only.version, only.status.error_code) == (1, 0)
    request.model_spec.version_label = "old"
    (only,) = client.model.GetModelStatus(request, timeout=60).model_version_status
    assert only.version == 1
    request.model_spec.version.value = 9
    with expect(Code.NOT_FOUND, "no version 9"):
        client.model.GetModelStatus(request, timeout=60)
    with expect(Code.NOT_FOUND, "no model"):
        client.get_states("other")


def test_health(client):
    stub = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", "tensorflow.serving.PredictionService"):
        response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    with expect(Code.NOT_FOUND):
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)


def test_health_without_a_model(tmp_path):
    (tmp_path / "models").mkdir()
    with serving(tmp_path / "models", rest_port=None) as (_, client):
        stub = health_pb2_grpc.HealthStub(client.channel)
        check = health_pb2.HealthCheckRequest()
        assert stub.Check(check).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with expect(Code.UNAVAILABLE, "holds no version"):
            client.predict([1.0])
        save_model(tmp_path / "models" / "1")
        updates = stub.Watch(check, timeout=60)
        for update in updates:
            if update.status == health_pb2.HealthCheckResponse.SERVING:
                break
        assert client.predict([1.0]) == [2]
        updates.cancel()


def test_clients_may_not_change_the_models_unless_they_may(client, models, tmp_path):
    request = model_management_pb2.ReloadConfigRequest()
    with expect(Code.PERMISSION_DENIED, "--allow-reload"):
        client.model.HandleReloadConfigRequest(request, timeout=60)
    (tmp_path / "none").mkdir()
    with serving(models, rest_port=None, allow_reload=True) as (_, other):
        added = request.config.model_config_list.config.add(name="n", base_path=str(models))
        added.model_platform = "tensorflow"
        response = other.model.HandleReloadConfigRequest(request, timeout=60)
        assert response.status.error_code == 0
        assert other.predict([1.0], model="n") == [3]
        with expect(Code.NOT_FOUND):
            other.predict([1.0])
        added.base_path = str(tmp_path / "none")
        with expect(Code.UNAVAILABLE, "No version of 'n' is available"):
            other.model.HandleReloadConfigRequest(request, timeout=60)
        added.model_platform = "other"
        with expect(Code.INVALID_ARGUMENT, "platform 'other'"):
            other.model.HandleReloadConfigRequest(request, timeout=60)


def test_a_request_that_is_too_large(models):
    limits = Limits(max_request_bytes=10_000)
    with serving(models, rest_port=None, limits=limits) as (_, client):
        with expect(Code.RESOURCE_EXHAUSTED):
            client.predict([1.0] * 10_000)
        # Few bytes, which stand for many.
        bomb = predict_pb2.PredictRequest()
        bomb.model_spec.name = "m"
        bomb.inputs["x"].dtype = tf.float32.as_datatype_enum
        bomb.inputs["x"].tensor_shape.dim.add(size=1 << 40)
        bomb.inputs["x"].float_val.append(1.0)
        with expect(Code.RESOURCE_EXHAUSTED, "the limit of a request is 10000"):
            client.prediction.Predict(bomb, timeout=60)
        # The limit is for all inputs together.
        two = make_request({"x": [1.0], "y": [1.0]}, signature="pair")
        for name in ("x", "y"):
            two.inputs[name].tensor_shape.dim[0].size = 2000
        with expect(Code.RESOURCE_EXHAUSTED, "the limit of a request"):
            client.prediction.Predict(two, timeout=60)
        assert client.predict([1.0] * 100) == [3] * 100


def test_tokens(models, tmp_path):
    (tmp_path / "tokens").write_text("first\n\n  second \n")
    security = Security(token_file=str(tmp_path / "tokens"))
    with serving(models, rest_port=None, security=security) as (_, client):
        request = make_request({"x": [1.0]})
        for token in ("first", "second"):
            metadata = [("authorization", f"Bearer {token}")]
            client.prediction.Predict(request, timeout=60, metadata=metadata)
        for metadata in (
            None,
            [("authorization", "Bearer third")],
            [("authorization", "first")],
            [("other", "Bearer first")],
        ):
            with expect(Code.UNAUTHENTICATED, "requires a token"):
                client.prediction.Predict(request, timeout=60, metadata=metadata)
        with expect(Code.UNAUTHENTICATED):
            client.get_states()
        # Whoever looks after the server does not know the token.
        health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest())


def test_a_deadline_that_has_passed(models, monkeypatch):
    """The model answers when nobody waits any more, and then the next one."""
    let_go = threading.Event()
    run = LoadedModel.run

    def run_late(*args, **kwargs):
        assert let_go.wait(60)
        return run(*args, **kwargs)

    with serving(models, rest_port=None, batching=Batching(parallel=1)) as (_, client):
        monkeypatch.setattr(LoadedModel, "run", run_late)
        with expect(Code.DEADLINE_EXCEEDED):
            client.prediction.Predict(make_request({"x": [1.0]}), timeout=0.05)
        let_go.set()
        assert client.predict([1.0]) == [3]


def test_many_requests_at_once(models):
    with serving(models, rest_port=None, batching=Batching(max_rows=16)) as (_, client):
        requests = {
            n: client.prediction.Predict.future(make_request({"x": [float(n)] * (1 + n % 3)}))
            for n in range(200)
        }
        for n, future in requests.items():
            outputs = future.result(timeout=60).outputs["output"].float_val
            assert list(outputs) == [3.0 * n] * (1 + n % 3)


def test_more_requests_than_are_answered_at_once(models):
    limits = Limits(max_concurrent=1)
    with serving(models, rest_port=None, limits=limits) as (_, client):
        codes = set()
        for _ in range(50):
            futures = [
                client.prediction.Predict.future(make_request({"x": [1.0]}), timeout=60)
                for _ in range(20)
            ]
            codes |= {future.code() for future in futures}
            if len(codes) > 1:
                break
        assert codes == {Code.OK, Code.RESOURCE_EXHAUSTED}
        assert client.predict([1.0]) == [3]


def test_requests_are_counted_under_names_that_the_server_knows(models):
    with serving(models) as (server, client):
        client.predict([1.0])
        for name in ("x", "y"):
            with expect(Code.NOT_FOUND):
                client.predict([1.0], model=name)
        text = server._metrics.render().decode()
        assert 'requests_total{api="grpc",code="OK",method="Predict",model="m"} 1.0' in text
        assert 'code="NOT_FOUND",method="Predict",model=""} 2.0' in text


def test_nobody_is_in_flight_when_all_is_answered(models):
    with serving(models) as (server, client):
        client.predict([1.0])
        url = f"http://127.0.0.1:{server.rest_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            assert b"monolith_serving_requests_in_flight 0.0" in response.read()


def test_clients_that_send_nothing_do_not_hinder_others(models):
    limits = Limits(max_concurrent=4)
    let_go = threading.Event()

    def wait():
        let_go.wait(60)
        return
        yield

    with serving(models, limits=limits, rest_port=None) as (server, client):
        slow = Client(server.port)
        method = slow.channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        calls = [method.future(wait()) for _ in range(50)]
        try:
            for _ in range(20):
                assert client.predict([1.0]) == [3]
            assert not any(call.done() for call in calls)
        finally:
            for call in calls:
                call.cancel()
            let_go.set()
        slow.close()


def test_stopping_lets_requests_end(models):
    with serving(models, rest_port=None) as (_, client):
        client.predict([1.0])
        futures = [client.prediction.Predict.future(make_request({"x": [1.0]})) for _ in range(20)]
        wait_for(lambda: any(future.done() for future in futures))
    for future in futures:
        assert future.code() in (Code.OK, Code.UNAVAILABLE, Code.CANCELLED)
