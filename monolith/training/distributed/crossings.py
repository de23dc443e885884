"""How many tensors a step sends between its worker and the parameter servers.

Each is one request: who needs a tensor asks the process that has it. A step can tell what it
sends, as the graphs of its parts (`output_partition_graphs`); what runs beside it, because a queue
looks rows up ahead of the step, is counted in the graph as it was built.

Example:
    >>> with tf.Graph().as_default() as graph, tf.device("/job:worker/task:0"):
    ...     ids = tf.constant([1, 2]) + 1
    ...     with tf.device("/job:ps/task:0"):
    ...         rows = tf.negative(ids)
    ...     loss = tf.reduce_sum(rows)
    >>> count_built([loss.op])
    2
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import devices

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_ENQUEUE = re.compile(r"Queue.*Enqueue.*")
_SENDS = ("_Send", "_HostSend")


def count(graph: tf.Graph, partitions: Sequence[Any]) -> int:
    """Returns how many tensors cross for a step, in it and in the queues that feed it.

    Args:
        graph: The graph of the worker, complete.
        partitions: `partition_graphs` of one step.
    """
    names = {node.name for partition in partitions for node in partition.node}
    beside = [
        op for op in graph.get_operations() if _ENQUEUE.fullmatch(op.type) and op.name not in names
    ]
    return count_sent(partitions) + count_built(beside)


def count_sent(partitions: Sequence[Any]) -> int:
    """Returns how many tensors a step that has run has sent from one process to another."""
    return sum(
        _get_task(node.attr["send_device"].s.decode())
        != _get_task(node.attr["recv_device"].s.decode())
        for partition in partitions
        for node in partition.node
        if node.op in _SENDS
    )


def count_built(targets: Iterable[tf.Operation]) -> int:
    """Returns how many tensors cross, by the graph as it was built, when all targets run once.

    A tensor that several ops of a server need is sent once.
    """
    crossings: set[tuple[str, int | None]] = set()
    seen: set[str] = set()
    waiting = list(targets)
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        here = _get_server(op)
        for tensor in op.inputs:
            if _get_server(tensor.op) != here:
                crossings.add((tensor.name, here))
            waiting.append(tensor.op)
        for before in op.control_inputs:
            # That an op is done is told by an empty tensor.
            if _get_server(before) != here:
                crossings.add((f"^{before.name}", here))
            waiting.append(before)
    return len(crossings)


def _get_task(device: str) -> tuple[str, str] | None:
    found = _TASK.search(device)
    return (found[1], found[2]) if found else None


def _get_server(op: tf.Operation) -> int | None:
    """Returns the number of the server that an op is on, None for one of the worker."""
    task = _get_task(op.device)
    return int(task[1]) if task is not None and task[0] == devices.PS_JOB_NAME else None
