"""Hash tables that know lookup and insert only: the optimizer is written in TensorFlow ops."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, graph_steps, workload


class HashedPeer(contender.Contender):
    """A table of values for lookup and SGD, and one of value and accumulator for Adagrad.

    With both in one row, Adagrad is one lookup and one insert: 1.7 times as fast as with a table
    for each. What a step inserts must be distinct ids, so a batch with duplicates is made unique
    first, and the gradients of equal ids are summed; a batch of unique ids goes straight in.
    """

    grows_by = 2.0  # A new array of twice the size beside the old one.

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        graph_steps.limit_threads(threads)
        self._values = self.make_table(dim)
        self._pairs = self.make_table(2 * dim)
        value = np.full([workload.BATCH, dim], workload.INITIAL_VALUE, np.float32)
        accumulator = np.full_like(value, workload.INITIAL_ACCUMULATOR)
        self._insert_values = self._make_inserter(self._values, value)
        self._insert_pairs = self._make_inserter(
            self._pairs, np.concatenate([value, accumulator], axis=1)
        )

    @abc.abstractmethod
    def make_table(self, dim: int) -> Any:
        """Returns an empty table with `lookup` and `insert`."""

    def _make_inserter(self, table: Any, rows: np.ndarray) -> graph_steps.Inserter:
        values = tf.constant(rows)

        def step(ids: tf.Tensor) -> tf.Tensor:
            return graph_steps.needs(values, table.insert(ids, values[: tf.size(ids)]))

        return graph_steps.Inserter(step)

    def insert(self, ids: np.ndarray) -> float:
        return self._insert_values(ids)

    def insert_other(self, ids: np.ndarray) -> None:
        self._insert_pairs(ids)

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        table = self._pairs if operation == "adagrad" else self._values
        return table.lookup(tf.constant(ids))[:, : self.dim].numpy()

    def prepare(self, case: workload.Case, ids: np.ndarray) -> contender.Call:
        grads = tf.constant(workload.gradients(case.batch, self.dim))

        def step(ids: tf.Tensor) -> tf.Tensor:
            if case.operation == "lookup":
                return graph_steps.needs(self._values.lookup(ids))
            distinct, at, sums = graph_steps.sum_by_id(case, ids, grads)
            if case.operation == "sgd":
                values = self._values.lookup(distinct)
                update = self._values.insert(distinct, values - workload.LEARNING_RATE * sums)
            else:
                values, accumulators = tf.split(self._pairs.lookup(distinct), 2, axis=1)
                moved, accumulators = graph_steps.adagrad(values, accumulators, sums)
                update = self._pairs.insert(distinct, tf.concat([moved, accumulators], axis=1))
            rows = values if at is None else tf.gather(values, at)
            return graph_steps.needs(rows, update)

        return graph_steps.prepare(step, ids, case.repeated)
