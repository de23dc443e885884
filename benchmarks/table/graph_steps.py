"""Steps repeated inside one TensorFlow graph, and one call per step: the same for all who use it.

Works with the TensorFlow of every environment.
"""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, workload

# Adds one step on ids [batch] to the graph; returns a scalar that needs all of it.
Step = Callable[[tf.Tensor], tf.Tensor]


def limit_threads(threads: int) -> None:
    """Call before TensorFlow has done anything."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def needs(rows: tf.Tensor, *updates: tf.Operation) -> tf.Tensor:
    """Returns a scalar that keeps a lookup and the updates after it from being optimized away."""
    with tf.control_dependencies(updates):
        return tf.identity(rows[0, 0])


def repeat(step: Step, steps: int, batch: int | None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of ids [steps, batch] that runs the steps one after another.

    The steps are laid out in the graph instead of looped over, which costs less.
    """

    def run(ids: tf.Tensor) -> tf.Tensor:
        last = tf.constant(0.0)
        for one in tf.unstack(ids, num=steps):
            with tf.control_dependencies([last]):
                last = step(one)
        return last

    signature = tf.TensorSpec([steps, batch], tf.int64)
    return tf.function(run, autograph=False).get_concrete_function(signature)


def prepare(step: Step, ids: np.ndarray, repeated: bool) -> contender.Call:
    """Returns the call that a case of a TensorFlow contender makes."""
    _, steps, batch = ids.shape
    if repeated:
        function = repeat(step, steps, batch)
        calls = [tf.constant(one) for one in ids]
        return lambda i: function(calls[i])

    function = repeat(step, 1, batch)
    batches = [[tf.constant(one[s : s + 1]) for s in range(steps)] for one in ids]

    def call(i: int) -> None:
        for one in batches[i]:
            function(one)

    return call


def sum_by_id(
    case: workload.Case, ids: tf.Tensor, grads: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """Returns distinct ids, where each of `ids` stands among them, and the sums of gradients.

    Ids that are distinct already are returned as they are, with None for the positions.
    """
    if case.ids == "unique":
        return ids, None, grads
    distinct, at = tf.unique(ids)
    return distinct, at, tf.math.unsorted_segment_sum(grads, at, tf.size(distinct))


def adagrad(
    values: tf.Tensor, accumulators: tf.Tensor, grads: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns new values and accumulators."""
    accumulators = accumulators + grads * grads
    return values - workload.LEARNING_RATE * grads * tf.math.rsqrt(accumulators), accumulators


class Inserter:
    """Adds ids in batches, several steps to a call where there are enough."""

    def __init__(self, step: Step) -> None:
        self._steps = workload.INSERT_KEYS_PER_CALL // workload.BATCH
        self._many = repeat(step, self._steps, workload.BATCH)
        self._one = repeat(step, 1, None)

    def __call__(self, ids: np.ndarray) -> float:
        """Returns the seconds it took."""
        whole = len(ids) // workload.INSERT_KEYS_PER_CALL * workload.INSERT_KEYS_PER_CALL
        many = [tf.constant(p) for p in ids[:whole].reshape(-1, self._steps, workload.BATCH)]
        ones = [
            tf.constant(ids[None, at : at + workload.BATCH])
            for at in range(whole, len(ids), workload.BATCH)
        ]
        start = time.perf_counter()
        for part in many:
            self._many(part)
        for part in ones:
            self._one(part)
        return time.perf_counter() - start
