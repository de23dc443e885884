"""What TensorFlow itself offers: a hash table, and an array that cannot tell ids apart."""

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, graph_steps, hashed_peer, workload


class DenseHash(hashed_peer.HashedPeer):
    """tf.lookup.experimental.DenseHashTable."""

    def make_table(self, dim: int) -> tf.lookup.experimental.DenseHashTable:
        # Two of 2^64 ids cannot be stored; the workload has neither of these.
        return tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([dim]), empty_key=0, deleted_key=-1
        )


class Variable(contender.Contender):
    """A tf.Variable with tf.nn.embedding_lookup and TensorFlow's sparse updates.

    A plain gather, no hashing. The updates take duplicates as they come.
    """

    wants_places = True

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        graph_steps.limit_threads(threads)
        self._values = tf.Variable(tf.fill([rows, dim], workload.INITIAL_VALUE))
        self._accumulators = tf.Variable(tf.fill([rows, dim], workload.INITIAL_ACCUMULATOR))

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        return tf.gather(self._values, ids).numpy()

    def prepare(self, case: workload.Case, ids: np.ndarray) -> contender.Call:
        grads = tf.constant(workload.gradients(case.batch, self.dim))

        def step(ids: tf.Tensor) -> tf.Tensor:
            if case.operation == "lookup":
                return graph_steps.needs(tf.nn.embedding_lookup(self._values, ids))
            return self._train(case, ids, grads)

        return graph_steps.prepare(step, ids, case.repeated)

    def _train(self, case: workload.Case, ids: tf.Tensor, grads: tf.Tensor) -> tf.Tensor:
        rows = tf.nn.embedding_lookup(self._values, ids)
        with tf.control_dependencies([rows]):
            if case.operation == "sgd":
                update = tf.raw_ops.ResourceScatterSub(
                    resource=self._values.handle,
                    indices=ids,
                    updates=workload.LEARNING_RATE * grads,
                )
            else:
                update = tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=self._values.handle,
                    accum=self._accumulators.handle,
                    lr=workload.LEARNING_RATE,
                    epsilon=0.0,
                    grad=grads,
                    indices=ids,
                )
        return graph_steps.needs(rows, update)


class VariableByHand(Variable):
    """The same arrays with the optimizer written out: gather, compute, overwrite.

    Faster than TensorFlow's own sparse updates, but only right for distinct ids.
    """

    def _train(self, case: workload.Case, ids: tf.Tensor, grads: tf.Tensor) -> tf.Tensor:
        distinct, at, sums = graph_steps.sum_by_id(case, ids, grads)
        values = tf.nn.embedding_lookup(self._values, distinct)
        if case.operation == "sgd":
            moved = values - workload.LEARNING_RATE * sums
            updates = [_overwrite(self._values, distinct, moved)]
        else:
            accumulators = tf.nn.embedding_lookup(self._accumulators, distinct)
            moved, accumulators = graph_steps.adagrad(values, accumulators, sums)
            updates = [
                _overwrite(self._values, distinct, moved),
                _overwrite(self._accumulators, distinct, accumulators),
            ]
        rows = values if at is None else tf.gather(values, at)
        return graph_steps.needs(rows, *updates)


def _overwrite(variable: tf.Variable, ids: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
