"""What TensorFlow itself offers: a hash table, and an array that cannot tell ids apart."""

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, graph_steps, hashed_peer, workload


class DenseHash(hashed_peer.HashedPeer):
    """tf.lookup.experimental.DenseHashTable."""

    def make_table(self, name: str) -> tf.lookup.experimental.DenseHashTable:
        # Two of 2^64 ids cannot be stored; none of the workload is one of these.
        return tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([self.dim]), empty_key=0, deleted_key=-1
        )


class Variable(contender.Contender):
    """A tf.Variable with tf.nn.embedding_lookup: a plain gather, no hashing.

    The sparse updates take duplicates as they come.
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
        rate = tf.constant(workload.LEARNING_RATE)

        def step(ids: tf.Tensor) -> tf.Tensor:
            rows = tf.nn.embedding_lookup(self._values, ids)
            if case.operation == "lookup":
                return graph_steps.needs(rows)
            with tf.control_dependencies([rows]):
                if case.operation == "sgd":
                    update = tf.raw_ops.ResourceScatterSub(
                        resource=self._values.handle, indices=ids, updates=rate * grads
                    )
                else:
                    update = tf.raw_ops.ResourceSparseApplyAdagradV2(
                        var=self._values.handle,
                        accum=self._accumulators.handle,
                        lr=rate,
                        epsilon=0.0,
                        grad=grads,
                        indices=ids,
                    )
            return graph_steps.needs(rows, update)

        return graph_steps.prepare(step, ids, case.repeated)
