"""Examples as JSON."""

import pytest
from tensorflow_serving.apis import classification_pb2, regression_pb2

from monolith.serving.server import json_examples, status


def test_features_of_all_kinds():
    example = json_examples.read_example(
        {"i": 1, "is": [1, 2], "f": 1.5, "mixed": [1, 2.5], "s": "a", "b": {"b64": "/w=="}, "e": []}
    )
    feature = example.features.feature
    assert list(feature["i"].int64_list.value) == [1]
    assert list(feature["is"].int64_list.value) == [1, 2]
    assert list(feature["f"].float_list.value) == [1.5]
    assert list(feature["mixed"].float_list.value) == [1, 2.5]
    assert list(feature["s"].bytes_list.value) == [b"a"]
    assert list(feature["b"].bytes_list.value) == [b"\xff"]
    assert feature["e"].WhichOneof("kind") is None


def test_a_context_for_all_examples():
    alone = json_examples.read_input({"examples": [{"x": 1}, {"x": 2}]})
    assert len(alone.example_list.examples) == 2
    shared = json_examples.read_input({"examples": [{"x": 1}], "context": {"y": 2}})
    assert shared.WhichOneof("kind") == "example_list_with_context"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "must be a list"),
        ({"examples": []}, "at least one"),
        ({"examples": [7]}, "must be an object"),
        ({"examples": [{"x": None}]}, "'x' must be numbers or strings"),
        ({"examples": [{"x": [1, "a"]}]}, "'x' must be numbers or strings"),
        ({"examples": [{"x": True}]}, "'x' must be numbers or strings"),
        ({"examples": [{"x": [[1]]}]}, "'x' must be numbers or strings"),
        ({"examples": [{"x": 1 << 63}]}, "beyond int64"),
        ({"examples": [{"x": [1.0, 10**400]}]}, "beyond float32"),
        ({"examples": [{"x": {"b64": "?"}}]}, "not base64"),
        ({"examples": [{"x": {"b64": 7}}]}, "not base64"),
        ({"examples": [{"x": {"c": "a"}}]}, "not base64"),
        ({"examples": [{"x": 1}], "context": 3}, "must be an object"),
    ],
)
def test_what_is_refused(body, message):
    with pytest.raises(status.RequestError, match=message):
        json_examples.read_input(body)


def test_results():
    classified = classification_pb2.ClassificationResult()
    classified.classifications.add().classes.add(label="a", score=0.5)
    assert json_examples.write_classifications(classified) == [[["a", 0.5]]]
    regressed = regression_pb2.RegressionResult()
    regressed.regressions.add(value=0.5)
    assert json_examples.write_regressions(regressed) == [0.5]
