"""Ops that observe a running graph: time stamps, timers, and the memory of a process.

Timers reach the sink of `monolith.core.metrics` in the process where the op is placed, which may
be a parameter server. The health of a machine is asked of the process where its handle is placed.

Example:
    >>> tensors, timestamp_us = tensors_timestamp([tf.constant(7)])
    >>> int(tensors[0]), int(timestamp_us) > 0
    (7, True)
    >>> check_machine_health(machine_info()).numpy()  # Empty: healthy.
    b''
"""

import atexit
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.core import metrics
from monolith.native import ops

FLAGS = flags.FLAGS

_MEM_LIMIT_FLAG = "monolith_default_machine_info_mem_limit"

flags.DEFINE_integer(
    _MEM_LIMIT_FLAG,
    1 << 62,
    "Bytes of memory at which `machine_info` calls a process unhealthy if it is given no limit.",
)


def tensors_timestamp(tensors: Sequence[Any]) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Tells when some tensors were all there.

    Args:
        tensors: Tensors of any types and shapes.

    Returns:
        The same tensors, and the time in microseconds since 1970, an int64 scalar. What depends on
        the returned tensors comes after the time was taken.
    """
    same_tensors, timestamp_us = ops.monolith_tensors_timestamp(
        [tf.convert_to_tensor(tensor) for tensor in tensors]
    )
    return list(same_tensors), timestamp_us


def emit_timer(key: str, value: Any, tags: Mapping[str, str] | None = None) -> tf.Operation | None:
    """Emits a timer whenever it runs; see `monolith.core.metrics` for where it goes.

    Args:
        key: Name of the timer, behind the prefix of `metrics.get_metric_prefix()`.
        value: A scalar number.
        tags: Names and values that monitoring can tell timers apart by; neither may contain
            `=` or `|`.

    Returns:
        The op to run, None when called eagerly.

    Raises:
        errors.ConfigError: A tag cannot be told from its neighbours.
    """
    return ops.monolith_timer_emit(tf.cast(value, tf.float32), key=key, tags=_join_tags(tags or {}))


def machine_info(mem_limit: int | None = None, shared_name: str | None = None) -> tf.Tensor:
    """Makes what `check_machine_health` compares a process with.

    Args:
        mem_limit: Bytes of memory; None takes the flag `monolith_default_machine_info_mem_limit`.
        shared_name: If given, a second handle of this name in the same process is the first one,
            and the first one's limit counts.

    Returns:
        A handle, a scalar of type resource.
    """
    if mem_limit is None:
        # By item, because nobody has to have parsed the command line.
        mem_limit = FLAGS[_MEM_LIMIT_FLAG].value
    return ops.monolith_machine_info(mem_limit=mem_limit, shared_name=shared_name or "")


def check_machine_health(handle: tf.Tensor) -> tf.Tensor:
    """Compares the resident memory of the handle's process with its limit.

    Returns:
        A string scalar: empty if the process is below its limit, else a serialized
        `logging_ops_pb2.MachineHealthResult`.
    """
    return ops.monolith_machine_health_check(handle)


def _join_tags(tags: Mapping[str, str]) -> str:
    for text in (part for tag in tags.items() for part in tag):
        if set("=|") & set(str(text)):
            raise errors.ConfigError(
                f"Names and values of tags must not contain '=' or '|', got {text!r} in {tags!r}."
            )
    return "|".join(f"{name}={value}" for name, value in tags.items())


def _split_tags(joined: str) -> dict[str, str]:
    return dict(tag.split("=") for tag in joined.split("|")) if joined else {}


def _emit(key: bytes, value: float, tags: bytes) -> None:
    """Called by the op, in a thread of TensorFlow."""
    client = metrics.get_cli(metrics.get_metric_prefix())
    client.emit_timer(key.decode(), value, _split_tags(tags.decode()))


_TimerCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_float, ctypes.c_char_p)
_callback = _TimerCallback(_emit)  # Lives as long as the module, and so as long as it is called.


def _connect() -> None:
    library = ctypes.CDLL(str(ops.LIBRARY_PATH))
    library.MonolithSetTimerCallback.argtypes = [_TimerCallback]
    library.MonolithSetTimerCallback.restype = None

    def watch(has_sink: bool) -> None:
        # A call into Python takes as long as a small table's lookup: only if somebody listens.
        library.MonolithSetTimerCallback(_callback if has_sink else _TimerCallback())

    metrics.watch_sink(watch)
    # Threads of TensorFlow outlive the interpreter, and must not call into it then.
    atexit.register(watch, False)


_connect()
