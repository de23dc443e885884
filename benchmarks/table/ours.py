"""Our table, through its TensorFlow ops."""

import itertools

import numpy as np
import tensorflow as tf

from benchmarks.table import contender, graph_steps, time_split, workload
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2

_table_numbers = itertools.count()  # A table's name stands for it in the whole process.


def make_table(dim: int, optimizer: str) -> tf.Tensor:
    """Returns the handle of an empty table."""
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    segment = config.entry_config.segments.add(dim_size=dim)
    segment.init_config.zeros.SetInParent()
    segment.comp_config.fp32.SetInParent()
    if optimizer == "adagrad":
        segment.opt_config.adagrad.initial_accumulator_value = workload.INITIAL_ACCUMULATOR
    else:
        segment.opt_config.sgd.SetInParent()
    name = f"{optimizer}_{next(_table_numbers)}"
    return ops.monolith_hash_table(
        ops.monolith_dummy_hash_filter(shared_name=f"{name}_filter"),
        ops.monolith_dummy_sync_client(shared_name=f"{name}_sync"),
        config=config.SerializeToString(),
        shared_name=name,
    )


class Ours(contender.Contender):
    """Value and optimizer state in one row; lookups are measured on the table with Adagrad.

    The gradients of equal ids are summed before a step of Adagrad, as the peers do; "adagrad
    apart" is one step for each of them, which is the default of the op.
    """

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        graph_steps.limit_threads(threads)
        self._tables = {name: make_table(dim, name) for name in ("adagrad", "sgd")}
        self._tables["lookup"] = self._tables["adagrad"]
        self._insert = {name: self._make_inserter(name) for name in ("adagrad", "sgd")}

    def _make_inserter(self, operation: str) -> graph_steps.Inserter:
        values = tf.fill([workload.BATCH, self.dim], workload.INITIAL_VALUE)
        now = tf.constant(0, tf.int64)

        def step(ids: tf.Tensor) -> tf.Tensor:
            table = self._tables[operation]
            done = ops.monolith_hash_table_assign(table, ids, values[: tf.size(ids)], now)
            return graph_steps.needs(values, done)

        return graph_steps.Inserter(step)

    def insert(self, ids: np.ndarray) -> float:
        return self._insert["adagrad"](ids)

    def insert_other(self, ids: np.ndarray) -> None:
        self._insert["sgd"](ids)

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        rows = ops.monolith_hash_table_lookup(self._tables[operation], ids, dim_size=self.dim)
        return rows.numpy()

    def prepare(self, case: workload.Case, ids: np.ndarray) -> contender.Call:
        if case in time_split.CASES:
            return graph_steps.prepare(self._make_part(case), ids, case.repeated)
        summed = case.operation == "adagrad" and case.ids == "zipf"
        table = self._tables[case.operation.removesuffix(" apart")]
        grads = tf.constant(workload.gradients(case.batch, self.dim))
        rates = tf.constant([workload.LEARNING_RATE])
        zero = tf.constant(0, tf.int64)

        def step(ids: tf.Tensor) -> tf.Tensor:
            rows = ops.monolith_hash_table_lookup(table, ids, dim_size=self.dim)
            if case.operation == "lookup":
                return graph_steps.needs(rows)
            with tf.control_dependencies([rows]):
                done = ops.monolith_hash_table_optimize(
                    table, ids, grads, rates, zero, zero, enable_dedup=summed
                )
            return graph_steps.needs(rows, done)

        return graph_steps.prepare(step, ids, case.repeated)

    def _make_part(self, case: workload.Case) -> graph_steps.Step:
        """Returns the step of a case that shows where the time goes."""
        table = self._tables["adagrad"]
        if case.operation == "lookup in an empty table":
            table = make_table(self.dim, "adagrad")
        grads = tf.constant(workload.gradients(case.batch, self.dim))
        rates = tf.constant([workload.LEARNING_RATE])
        zero = tf.constant(0, tf.int64)
        nothing = tf.zeros([0], tf.int64)

        def step(ids: tf.Tensor) -> tf.Tensor:
            if case.operation == "adagrad only":
                done = ops.monolith_hash_table_optimize(table, ids, grads, rates, zero, zero)
                return graph_steps.needs(grads, done)
            if case.operation == "lookup nothing":
                rows = ops.monolith_hash_table_lookup(table, nothing, dim_size=self.dim)
                return graph_steps.needs(grads, rows)
            return graph_steps.needs(ops.monolith_hash_table_lookup(table, ids, dim_size=self.dim))

        return step
