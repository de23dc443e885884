"""Calls of models on other servers: the op `TfServingRemotePredict`, and who sends its requests.

TensorFlow's wheel brings no gRPC to link an op against. So the op writes the request and reads the
answer in C++, and a function of this process, given to `set_sender`, carries one there and brings
the other back; it decides on servers, deadlines and retries. `monolith.serving.remote` has one.

Example:
    >>> import numpy as np
    >>> def refuse(call):
    ...     call.fail(14, f"nobody serves {call.model_name}", default_value=0.5)
    >>> set_sender(refuse)
    >>> call = dict(model_name="ads:ps_0", task=0, old_model_name="ps_0", output_types=[tf.float32])
    >>> status, why, outputs = call_op(["id"], [[1]], ["rows"], fail_op_on_rpc_error=False, **call)
    >>> int(status), why.numpy(), float(outputs[0])
    (14, b'nobody serves ads:ps_0', 0.5)
    >>> set_sender(None)
"""

import atexit
import ctypes
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from monolith.native import ops

logger = logging.getLogger(__name__)

_INTERNAL = 13


@dataclasses.dataclass(frozen=True)
class RemoteCall:
    """A request that an op waits for; exactly one of `finish` and `fail` must be called.

    Attributes:
        number: Tells it from others.
        model_name: The model, such as `ads:ps_0`.
        old_model_name: The model without what it is a part of, such as `ps_0`.
        task: The number of the part.
        signature_name: Which function of the model.
        version: Which version; negative for the newest.
        deadline_ms: How long the model was told that a call may take.
        request: A serialized `PredictRequest` without its `model_spec`.
    """

    number: int
    model_name: str
    old_model_name: str
    task: int
    signature_name: str
    version: int
    deadline_ms: int
    request: bytes

    def finish(self, response: bytes) -> None:
        """Hands the op a serialized `PredictResponse`; from any thread."""
        _done(self.number, 0, b"", response, len(response), 1, 0.0)

    def fail(self, code: int, message: str, default_value: float | None = None) -> None:
        """Tells the op that there is no answer; from any thread.

        Args:
            code: Status of gRPC.
            message: Why.
            default_value: What each output is, where the op is able to go on; None: it fails.
        """
        text = message.encode(errors="replace").replace(b"\0", b"?")
        fails = default_value is None
        _done(self.number, code, text, b"", 0, int(fails), default_value or 0.0)


def set_sender(send: Callable[[RemoteCall], None] | None) -> None:
    """Has all calls of this process go through `send`, which must not block; None: nobody.

    Returns when no call is in the sender of before.
    """
    global _callback

    def enter(
        number: int,
        model_name: bytes,
        old_model_name: bytes,
        task: int,
        signature_name: bytes,
        version: int,
        deadline_ms: int,
        request: int,
        size: int,
    ) -> None:
        """Called by the op, in a thread of TensorFlow."""
        call = RemoteCall(
            number,
            model_name.decode(errors="replace"),
            old_model_name.decode(errors="replace"),
            task,
            signature_name.decode(errors="replace"),
            version,
            deadline_ms,
            ctypes.string_at(request, size),
        )
        try:
            assert send is not None  # Else this is not set as the callback.
            send(call)
        except Exception as e:  # An op that gets no answer would wait for ever.
            logger.exception("a call of %s could not be sent", call.model_name)
            call.fail(_INTERNAL, f"The call could not be sent: {e}")

    callback = _Callback() if send is None else _Callback(enter)
    _library.MonolithSetRemotePredict(callback)
    _callback = callback  # Lives as long as it may be called.


def remote_predict(
    input_tensor_alias: Sequence[str],
    input_tensors: Sequence[Any],
    output_tensor_alias: Sequence[str],
    model_name: str | None,
    task: int,
    old_model_name: str | None,
    model_version: int = -1,
    fail_op_on_rpc_error: bool = True,
    max_rpc_deadline_millis: int = 30,
    output_types: Sequence[Any] | None = None,
    name: str | None = None,
    signature_name: str = "serving_default",
) -> list[tf.Tensor]:
    """Calls a model on another server; returns its outputs.

    Args:
        input_tensor_alias: What the inputs are called there.
        input_tensors: The inputs.
        output_tensor_alias: The outputs to return.
        model_name: The model.
        task: The number of the part of the model, as in `ps_3`.
        old_model_name: The name of the part alone.
        model_version: Which version; -1 takes the newest.
        fail_op_on_rpc_error: Whether a call without an answer is an error; else each output is a
            scalar then.
        max_rpc_deadline_millis: How long a call may take, unless the server is told otherwise.
        output_types: Types of the outputs; by default all are float32.
        name: Name of the op.
        signature_name: Which function of the model.

    Raises:
        ValueError: There is no model name.
    """
    _, _, outputs = call_op(
        input_tensor_alias,
        input_tensors,
        output_tensor_alias,
        model_name,
        task,
        old_model_name,
        model_version,
        fail_op_on_rpc_error,
        max_rpc_deadline_millis,
        output_types,
        name,
        signature_name,
    )
    return outputs


def call_op(
    input_tensor_alias: Sequence[str],
    input_tensors: Sequence[Any],
    output_tensor_alias: Sequence[str],
    model_name: str | None,
    task: int,
    old_model_name: str | None,
    model_version: int = -1,
    fail_op_on_rpc_error: bool = True,
    max_rpc_deadline_millis: int = 30,
    output_types: Sequence[Any] | None = None,
    name: str | None = None,
    signature_name: str = "serving_default",
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Like `remote_predict`; returns the status of gRPC, its message, and the outputs."""
    if model_name is None:
        raise ValueError("model_name must be specified.")
    code, message, outputs = ops.tf_serving_remote_predict(
        input_tensor_aliases=list(input_tensor_alias),
        input_tensors=list(input_tensors),
        output_tensor_aliases=list(output_tensor_alias),
        model_name=model_name,
        model_version=model_version,
        fail_op_on_rpc_error=fail_op_on_rpc_error,
        max_rpc_deadline_millis=max_rpc_deadline_millis,
        signature_name=signature_name,
        old_model_name=old_model_name or "",
        task=task,
        output_types=list(output_types or [tf.float32] * len(output_tensor_alias)),
        name=name,
    )
    return code, message, list(outputs)


_Callback = ctypes.CFUNCTYPE(
    None,
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_size_t,
)
_callback = _Callback()
_library = ctypes.CDLL(str(ops.LIBRARY_PATH))
_library.MonolithSetRemotePredict.argtypes = [_Callback]
_library.MonolithSetRemotePredict.restype = None
_done = _library.MonolithRemotePredictDone
_done.argtypes = [
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_int32,
    ctypes.c_float,
]
_done.restype = None
# Threads of TensorFlow outlive the interpreter, and must not call into it then.
atexit.register(set_sender, None)
