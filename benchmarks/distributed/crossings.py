"""What TensorFlow notes of a step: the tensors that cross between processes, and its time.

Counted are the sends of the partitioned graphs, so that nothing is missed that crosses without
being used. Sizes and times are those that TensorFlow's runtime notes of each transfer: from when
the sender has the tensor until the receiver does.
"""

import collections
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

_RECEIVE = "RecvTensor"
_RATE = "learning_rate"
# What crosses, by a part of its name; of several that fit, the first.
KINDS = {
    "ids": ("TensorsTimestamp",),
    "rows": ("HashTableLookup",),
    "gradients of rows": ("OffsetMapGradient",),
    "done": ("HashTableOptimize", "_Adagrad", "AssignAdd"),
    # Small ones cross together: values to the worker, gradients to the servers.
    "dense variables": ("mlp/ReadVariableOp", "together_to_worker"),
    "gradients of dense variables": ("ClipByGlobalNorm", "gradients/", "together_to_servers"),
}
OTHER = "numbers: step, time, rate, barrier"

TABLE, MODEL, TRANSFER, WAITING = "table", "model", "transfer", "waiting"


class Recording:
    """Notes a number of steps.

    Args:
        steps: How many.
    """

    options = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._metadata: list[Any] = []

    @property
    def is_complete(self) -> bool:
        return len(self._metadata) >= self._steps

    def add(self, metadata: Any) -> None:
        """Takes the `RunMetadata` of one step."""
        self._metadata.append(metadata)

    def describe(self) -> list[dict[str, Any]]:
        """Returns what `describe_step` says of each step."""
        return [describe_step(metadata) for metadata in self._metadata]


def describe_step(metadata: Any) -> dict[str, Any]:
    """Returns the tensors that crossed, by kind, with their bytes, and the microseconds.

    A moment in which a table works is the table's, whatever else happens in it; one in which
    another op computes, the model's; of the rest, one in which a tensor travels, the transfer's.
    """
    sizes: dict[str, int] = {}
    spans: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    travel_us = 0
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            start = node.all_start_micros
            if node.node_name == _RECEIVE:
                name = node.timeline_label.split("] ")[-1].split(" from ")[0]
                label = f"{name} to {device.device}"
                sizes[label] = node.output[
                    0
                ].tensor_description.allocation_description.requested_bytes
                travel_us += node.all_end_rel_micros
                spans[TRANSFER].append((start, start + node.all_end_rel_micros))
                continue
            is_table = "HashTableLookup(" in node.timeline_label
            is_table |= "HashTableOptimize(" in node.timeline_label
            begin, end = start + node.op_start_rel_micros, start + node.op_end_rel_micros
            spans[TABLE if is_table else MODEL].append((begin, end))
    tensors: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for graph in metadata.partition_graphs:
        for node in graph.node:
            name, target = _read_crossing(node)
            if name:
                kind = _get_kind(name)
                tensors[kind][0] += 1
                tensors[kind][1] += sizes.get(f"{name} to {target}", 0)
    return {
        "tensors": dict(tensors),
        "us": _divide_time(spans),
        "travel_us": travel_us,
        "bytes": sum(sizes.values()),
        "messages": len(sizes),
    }


def _read_crossing(node: Any) -> tuple[str, str]:
    """Returns the name and the receiver of what a node sends to another process, if it does."""
    if node.op not in ("_Send", "_HostSend"):
        return "", ""
    source, target = (node.attr[name].s.decode() for name in ("send_device", "recv_device"))
    if source.split("/device")[0] == target.split("/device")[0]:
        return "", ""
    return node.attr["tensor_name"].s.decode(), target


def _get_kind(name: str) -> str:
    for kind, parts in KINDS.items():
        if _RATE not in name and any(part in name for part in parts):
            return kind
    return OTHER


def _divide_time(spans: dict[str, list[tuple[int, int]]]) -> dict[str, int]:
    """Returns how much of a step is whose, each moment counted once.

    >>> _divide_time({TABLE: [(2, 4)], MODEL: [(0, 3), (8, 9)], TRANSFER: [(3, 6)]})
    {'table': 2, 'model': 3, 'transfer': 2, 'waiting': 2}
    """
    begin = min(start for kind in spans.values() for start, _ in kind)
    end = max(stop for kind in spans.values() for _, stop in kind)
    owned: dict[str, int] = {}
    taken: list[tuple[int, int]] = []
    for kind in (TABLE, MODEL, TRANSFER):
        before = _measure(taken)
        taken += spans.get(kind, [])
        owned[kind] = _measure(taken) - before
    owned[WAITING] = end - begin - _measure(taken)
    return owned


def _measure(spans: Iterable[tuple[int, int]]) -> int:
    """Returns how long at least one of them lasts."""
    total, until = 0, -1
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, until))
        until = max(until, stop)
    return total
