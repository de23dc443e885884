"""What a request is refused with."""

import grpc
import pytest
import tensorflow as tf

from monolith.serving.server import status


def test_every_code_has_an_http_status():
    statuses = {code: status.to_http_status(code) for code in grpc.StatusCode}
    assert statuses.pop(grpc.StatusCode.OK) == 200
    assert all(400 <= number < 600 for number in statuses.values())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tf.errors.InvalidArgumentError(None, None, "x"), grpc.StatusCode.INVALID_ARGUMENT),
        (tf.errors.ResourceExhaustedError(None, None, "x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (tf.errors.UnavailableError(None, None, "x"), grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_errors_of_a_model_keep_their_code(error, code):
    assert status.from_tensorflow(error).code is code


def test_a_message_is_one_short_line():
    assert status.shorten("cause\nnode a\nnode b") == "cause"
    assert len(status.shorten("x" * 10_000)) < 1100


def test_a_client_is_told_little_of_our_own_errors():
    error = status.to_request_error(KeyError("secret"))
    assert error.code is grpc.StatusCode.INTERNAL
    assert "secret" not in error.message
    refused = status.not_found("no")
    assert status.to_request_error(refused) is refused
