"""Small tensors that cross between a worker and a server together, as one message.

A message costs the two processes some 70 microseconds of CPU time, however small it is, as long as
it takes to copy several hundred kilobytes. A network has a dozen variables, most of them small:
their values come as one tensor from each server, and their gradients go as one to each.

Example:
    >>> with tf.Graph().as_default(), tf.device("/job:worker/task:0"):
    ...     kernel, bias = tf.ones([2, 3]), tf.zeros([3])
    ...     sent = send_together([kernel, bias], ["/job:ps/task:0"] * 2)
    ...     [(tensor.shape.as_list(), tensor.device) for tensor in sent]
    [([2, 3], '/job:ps/task:0'), ([3], '/job:ps/task:0')]
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import devices

# What is larger is sent by itself: its copy would take longer than ten messages. Below, a step
# sends as many messages however wide the first layer is.
MAX_BYTES = 2 << 20

_ON_SERVER = re.compile(rf"/job:{devices.PS_JOB_NAME}/")
_READ = "ReadVariableOp"


def send_together(tensors: Sequence[Any], targets: Sequence[str]) -> list[Any]:
    """Returns tensors on the servers that they are for.

    Args:
        tensors: On the current device. Those that are not dense, that are large, or whose shape is
            not known stay as they are.
        targets: The device of each; what is for no server stays as it is.
    """
    result = list(tensors)
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for place, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
        if isinstance(tensor, tf.Tensor) and _is_small(tensor) and _ON_SERVER.search(target or ""):
            groups.setdefault((target, tensor.dtype), []).append(place)
    for (target, _), places in groups.items():
        if len(places) > 1:
            for place, moved in zip(
                places, _move([tensors[place] for place in places], None, target), strict=True
            ):
                result[place] = moved
    return result


def read_together(train_op: tf.Operation) -> None:
    """Has the values of variables that a step reads come as one tensor from each server.

    Changes the graph, in which no session may have run yet. What a step does not need, and what is
    read after something else, is left alone.

    Args:
        train_op: The op of a step.
    """
    step = _find_ancestors(train_op)
    groups: dict[tuple[str, str, tf.DType], list[tuple[tf.Tensor, list[tf.Operation]]]] = {}
    for op in step:
        # A read has no device of its own: TensorFlow places it with its variable.
        if op.type != _READ or op.control_inputs or not _ON_SERVER.search(_get_home(op)):
            continue
        value = op.outputs[0]
        readers = [reader for reader in value.consumers() if reader in step]
        places = {reader.device for reader in readers}
        # One of several places would get what another needs.
        if len(places) == 1 and _is_small(value):
            (place,) = places
            if not _ON_SERVER.search(place):
                groups.setdefault((_get_home(op), place, value.dtype), []).append((value, readers))
    for (home, place, _), reads in groups.items():
        if len(reads) < 2:
            continue
        # By name, so that all workers build the same graph.
        reads.sort(key=lambda read: read[0].name)
        moved = _move([value for value, _ in reads], home, place)
        for (value, readers), arrived in zip(reads, moved, strict=True):
            for reader in readers:
                for number, source in enumerate(reader.inputs):
                    if source is value:
                        reader._update_input(number, arrived)


def _move(tensors: list[tf.Tensor], source: str | None, target: str) -> list[tf.Tensor]:
    """Returns tensors of one type on another device; they cross as one.

    Args:
        tensors: What to move.
        source: Where they are; None: on the current device.
        target: Where to.
    """
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    with tf.name_scope("together_to_servers" if source is None else "together_to_worker"):
        with contextlib.nullcontext() if source is None else _only_on(source):
            packed = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        with _only_on(target):
            # Constants that waited for something here would have that told to the target.
            with tf.control_dependencies(None):
                all_sizes, axis = tf.constant(sizes), tf.constant(0)
                shapes = [tf.constant(tensor.shape.as_list(), tf.int32) for tensor in tensors]
            parts = tf.raw_ops.SplitV(
                value=packed, size_splits=all_sizes, axis=axis, num_split=len(sizes)
            )
            return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


@contextlib.contextmanager
def _only_on(device: str) -> Iterator[None]:
    """Places ops on a device, whatever device or colocation is asked for around it."""
    graph = tf.compat.v1.get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), tf.device(device):
        yield


def _get_home(read: tf.Operation) -> str:
    """Returns the device of the variable that is read."""
    return read.inputs[0].op.device


def _is_small(tensor: tf.Tensor) -> bool:
    if not tensor.shape.is_fully_defined():
        return False
    return tensor.shape.num_elements() * tensor.dtype.size <= MAX_BYTES


def _find_ancestors(target: tf.Operation) -> dict[tf.Operation, None]:
    """Returns an op and all that it needs, in an order that is the same in every process."""
    found: dict[tf.Operation, None] = {}
    waiting: list[tf.Operation] = [target]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found[op] = None
            waiting.extend(_get_needed(op))
    return found


def _get_needed(op: tf.Operation) -> Iterable[tf.Operation]:
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]
