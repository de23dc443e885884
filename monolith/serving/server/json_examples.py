"""`tf.Example`s as JSON, as Classify and Regress take them over REST.

Example:
    >>> example = read_example({"user": [3, 7], "country": "nl"})
    >>> list(example.features.feature["user"].int64_list.value)
    [3, 7]
"""

import base64
import binascii
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2

from monolith.serving.server import status


def read_input(body: Any) -> input_pb2.Input:
    """Reads the examples of a request.

    Raises:
        RequestError: There are none, or a feature is not a number, a string, or a list of these.
    """
    examples = body.get("examples")
    if not isinstance(examples, list) or not examples:
        raise status.invalid('"examples" must be a list with at least one object.')
    result = input_pb2.Input()
    if "context" in body:
        target = result.example_list_with_context
        target.context.CopyFrom(read_example(body["context"]))
    else:
        target = result.example_list
    for example in examples:
        target.examples.append(read_example(example))
    return result


def read_example(features: Any) -> tf.train.Example:
    """Reads one example, an object from the names of features to their values."""
    if not isinstance(features, dict):
        raise status.invalid("An example must be an object from names of features to their values.")
    example = tf.train.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        values = value if isinstance(value, list) else [value]
        kinds = set(map(type, values))
        if not kinds:
            continue
        if kinds == {int}:
            if any(not -(1 << 63) <= number < 1 << 63 for number in values):
                raise status.invalid(f"Feature {name!r} has a number beyond int64.")
            feature.int64_list.value.extend(values)
        elif kinds <= {int, float}:
            try:
                feature.float_list.value.extend(map(float, values))
            except OverflowError as e:
                raise status.invalid(f"Feature {name!r} has a number beyond float32.") from e
        elif kinds <= {str, dict}:
            feature.bytes_list.value.extend(_to_bytes(name, item) for item in values)
        else:
            raise status.invalid(
                f"Feature {name!r} must be numbers or strings, or a list of either."
            )
    return example


def write_classifications(result: classification_pb2.ClassificationResult) -> list[Any]:
    """Returns a list of pairs of label and score for each example."""
    return [
        [[entry.label, entry.score] for entry in classifications.classes]
        for classifications in result.classifications
    ]


def write_regressions(result: regression_pb2.RegressionResult) -> list[float]:
    """Returns a number for each example."""
    return [regression.value for regression in result.regressions]


def _to_bytes(name: str, item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    try:
        if list(item) != ["b64"]:
            raise ValueError('an object must have "b64" and nothing else')
        return base64.b64decode(item["b64"], validate=True)
    except (binascii.Error, ValueError, TypeError) as e:
        raise status.invalid(f"Feature {name!r} is not base64: {e}.") from e
