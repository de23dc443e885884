"""What a request is refused with, the same over gRPC and over HTTP.

Example:
    >>> to_http_status(not_found("There is no model 'ads'.").code)
    404
"""

from collections.abc import Mapping

import tensorflow as tf
from grpc import StatusCode as Code

from monolith.serving.remote.client import is_no_answer

_HTTP_STATUS: Mapping[Code, int] = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.FAILED_PRECONDITION: 412,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
_BY_NUMBER: Mapping[int, Code] = {code.value[0]: code for code in Code}
# What TensorFlow says begins with the cause; whole graphs may follow.
_MAX_MESSAGE = 1024


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        code: In which way.
        message: A sentence for the client.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RequestError:
    """Returns the error of a request that no server could answer as it is."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> RequestError:
    """Returns the error of a request for something that is not here."""
    return RequestError(Code.NOT_FOUND, message)


def to_http_status(code: Code) -> int:
    """Returns the HTTP status of a code, 500 for those that are the server's own fault."""
    return _HTTP_STATUS.get(code, 500)


def from_tensorflow(error: tf.errors.OpError) -> RequestError:
    """Returns what a client is told of an error that running a model has ended with."""
    code = to_code(error.error_code)
    if code is Code.INTERNAL and is_no_answer(error.message):
        # What an op calls unavailable, TensorFlow's executor calls an internal error.
        code = Code.UNAVAILABLE
    return RequestError(code, shorten(error.message))


def to_request_error(error: Exception) -> RequestError:
    """Returns what a client is told of any error; of one that is ours, little."""
    if isinstance(error, RequestError):
        return error
    return RequestError(
        Code.INTERNAL, f"The server failed: {type(error).__name__}; its log says more."
    )


def to_code(number: int) -> Code:
    """Returns the code of a number; gRPC and TensorFlow number them alike."""
    return _BY_NUMBER.get(number, Code.UNKNOWN)


def shorten(message: str) -> str:
    """Returns the first line of a message, at most some hundred characters of it."""
    first = message.strip().split("\n", 1)[0]
    return first if len(first) <= _MAX_MESSAGE else f"{first[:_MAX_MESSAGE]} ..."
