"""Requests that a model brings along."""

import pytest
from support.serving import make_example, make_request, save_model, write_warmup
from tensorflow_serving.apis import prediction_log_pb2

from monolith.serving.server.loaded import LoadedModel, LoadError
from monolith.serving.server.warmup import warm_up


@pytest.fixture
def model(tmp_path):
    model = LoadedModel.load(save_model(tmp_path / "1"))
    yield model
    model.close()


def make_predict(signature: str = "") -> prediction_log_pb2.PredictionLog:
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(make_request({"x": [1.0]}, signature=signature))
    return log


def make_others() -> list[prediction_log_pb2.PredictionLog]:
    classify, regress, both = (prediction_log_pb2.PredictionLog() for _ in range(3))
    for name, request in (
        ("classify", classify.classify_log.request),
        ("regress", regress.regress_log.request),
    ):
        request.model_spec.signature_name = name
        request.input.example_list.examples.append(make_example(1.0))
        task = both.multi_inference_log.request.tasks.add()
        task.model_spec.signature_name = name
        task.method_name = f"tensorflow/serving/{name}"
    both.multi_inference_log.request.input.example_list.examples.append(make_example(1.0))
    return [classify, regress, both]


def run(model: LoadedModel, max_records: int = 10) -> int:
    return warm_up(model, max_records=max_records, max_bytes=1000)


def test_without_a_file(model):
    assert run(model) == 0


def test_all_kinds_of_requests(model):
    write_warmup(model.path, make_predict(), *make_others())
    assert run(model) == 4


def test_an_empty_file(model):
    write_warmup(model.path)
    assert run(model) == 0


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ([make_predict(), make_predict("nothing")], "Request 2 of .* no signature 'nothing'"),
        ([prediction_log_pb2.PredictionLog()], "Request 1 of .* log of no kind"),
        ([b"\xff\xff"], "cannot be read"),
        ([make_predict()] * 11, "more than 10 requests"),
    ],
)
def test_requests_that_fail_keep_a_model_out(model, logs, message):
    write_warmup(model.path, *logs)
    with pytest.raises(LoadError, match=message):
        run(model)


def test_a_file_that_is_cut_off(model):
    write_warmup(model.path, make_predict())
    path = f"{model.path}/assets.extra/tf_serving_warmup_requests"
    with open(path, "rb+") as file:
        file.truncate(20)
    with pytest.raises(LoadError, match="cannot be read"):
        run(model)


def test_a_request_that_is_too_large(model):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(make_request({"x": [1.0] * 1000}))
    write_warmup(model.path, log)
    with pytest.raises(LoadError, match="the limit of a request is 1000"):
        run(model)
