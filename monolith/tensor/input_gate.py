"""Holds work of an earlier step back until the input of the current step is there.

The end of the input is an error, and an error aborts the whole step: also what it does on another
machine, or in a loop, for the step before it. An op that has taken an element off a queue by then
loses it. Behind a gate it starts only in a step that has its input, and so will not end that way.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from monolith.tensor.queues import _GPUCompatiblePaddingFIFOQueue


class InputGate:
    """A gate before ops that take elements off a queue.

    Attributes:
        open_with_input: Lets them through once, when the input of the step is there.
        open_now: Lets them through once.
    """

    def __init__(self, enqueue_op: tf.Operation, dequeue_ops: Iterable[tf.Operation]) -> None:
        """Changes `dequeue_ops` to wait at the gate, for steps that run `enqueue_op`."""
        self._enqueue_op = enqueue_op
        self._enqueues: dict[tuple[str, ...], bool] = {}
        inputs = _find_inputs(enqueue_op)
        with tf.control_dependencies(None), tf.device("/device:CPU:0"):
            # Tickets, because ops without an effect are optimized away. As many as come: a step
            # that fails may leave one behind.
            tickets = _GPUCompatiblePaddingFIFOQueue(-1, [tf.bool], [()], name="input_gate")
            self.open_now = tickets.enqueue(True)
            with tf.control_dependencies(inputs):
                self.open_with_input = tickets.enqueue(True)
            passed = tickets.dequeue()
        for op in dequeue_ops:
            op._add_control_input(passed.op)

    def is_fed_by(self, fetches: Any) -> bool:
        """Returns whether a step with these fetches runs the enqueue op, and so has an input."""
        try:
            ops = _get_fetched_ops(fetches, self._enqueue_op.graph)
        except (TypeError, ValueError):
            return False  # Something that only the session knows how to fetch.
        key = tuple(op.name for op in ops)
        if key not in self._enqueues:
            self._enqueues[key] = self._enqueue_op in _find_ancestors(ops)
        return self._enqueues[key]


def _find_inputs(op: tf.Operation) -> list[tf.Operation]:
    """Returns the ops that bring something new into the step of `op`: a batch, a random number."""
    ancestors = _find_ancestors([op])
    inputs: list[tf.Operation] = []
    behind_inputs: set[tf.Operation] = set()
    for candidate in op.graph.get_operations():  # In the order in which they were made.
        if candidate not in ancestors:
            continue
        if any(before in behind_inputs for before in _get_predecessors(candidate)):
            behind_inputs.add(candidate)
        elif _brings_something_new(candidate):
            inputs.append(candidate)
            behind_inputs.add(candidate)
    return inputs


def _brings_something_new(op: tf.Operation) -> bool:
    if not op.op_def.is_stateful or op.type in ("ReadVariableOp", "QueueEnqueueV2"):
        return False
    is_handle = bool(op.outputs) and all(output.dtype == tf.resource for output in op.outputs)
    return not is_handle


def _get_fetched_ops(fetches: Any, graph: tf.Graph) -> list[tf.Operation]:
    composites = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)
    ops = []
    for fetch in tf.nest.flatten(fetches):
        # Not for variables: one that `assign` returns stands for the assignment, not for its parts.
        is_composite = isinstance(fetch, composites)
        for part in tf.nest.flatten(fetch, expand_composites=True) if is_composite else [fetch]:
            element = graph.as_graph_element(part)
            ops.append(getattr(element, "op", element))
    return ops


def _find_ancestors(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    pending = list(ops)
    ancestors: set[tf.Operation] = set()
    while pending:
        op = pending.pop()
        if op not in ancestors:
            ancestors.add(op)
            pending += _get_predecessors(op)
    return ancestors


def _get_predecessors(op: tf.Operation) -> list[tf.Operation]:
    return [tensor.op for tensor in op.inputs] + list(op.control_inputs)
