"""Hash tables that know lookup and insert only: the optimizer is written in TensorFlow ops."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, graph_steps, workload


class HashedPeer(contender.Contender):
    """Values in one table, Adagrad's accumulators in another.

    A step that updates looks up the values, then the accumulators, and writes both back. What it
    writes must be distinct ids, so a batch with duplicates is made unique first, and the gradients
    of equal ids are summed.
    """

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        graph_steps.limit_threads(threads)
        self._values = self.make_table("values")
        self._accumulators = self.make_table("accumulators")
        self._insert_values = self._make_inserter(self._values, workload.INITIAL_VALUE)
        self._insert_state = self._make_inserter(self._accumulators, workload.INITIAL_ACCUMULATOR)

    @abc.abstractmethod
    def make_table(self, name: str) -> Any:
        """Returns an empty table with `lookup` and `insert`."""

    def _make_inserter(self, table: Any, value: float) -> graph_steps.Inserter:
        values = tf.fill([workload.BATCH, self.dim], value)

        def step(ids: tf.Tensor) -> tf.Tensor:
            return graph_steps.needs(values, table.insert(ids, values[: tf.size(ids)]))

        return graph_steps.Inserter(step)

    def insert(self, ids: np.ndarray) -> float:
        seconds = self._insert_values(ids)
        self._insert_state(ids)
        return seconds

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        return self._values.lookup(tf.constant(ids)).numpy()

    def prepare(self, case: workload.Case, ids: np.ndarray) -> contender.Call:
        grads = tf.constant(workload.gradients(case.batch, self.dim))

        def step(ids: tf.Tensor) -> tf.Tensor:
            if case.operation == "lookup":
                return graph_steps.needs(self._values.lookup(ids))
            if case.ids == "unique":
                distinct, rows_of_ids, sums = ids, self._values.lookup(ids), grads
                values = rows_of_ids
            else:
                distinct, at = tf.unique(ids)
                values = self._values.lookup(distinct)
                rows_of_ids = tf.gather(values, at)
                sums = tf.math.unsorted_segment_sum(grads, at, tf.size(distinct))
            if case.operation == "sgd":
                updates = [self._values.insert(distinct, values - workload.LEARNING_RATE * sums)]
            else:
                accumulators = self._accumulators.lookup(distinct) + sums * sums
                moved = values - workload.LEARNING_RATE * sums * tf.math.rsqrt(accumulators)
                updates = [
                    self._values.insert(distinct, moved),
                    self._accumulators.insert(distinct, accumulators),
                ]
            return graph_steps.needs(rows_of_ids, *updates)

        return graph_steps.prepare(step, ids, case.repeated)
