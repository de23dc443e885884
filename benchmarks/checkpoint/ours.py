"""Our table, saved and restored by its TensorFlow ops."""

import threading
import time

import numpy as np
import tensorflow as tf

from benchmarks.checkpoint import contender, rows
from benchmarks.table import graph_steps, ours, workload
from monolith.native import ops

# What a table of 5,000,000 rows gets by itself; said here, so that smaller ones are cut alike.
NUM_FILES = 4
LOOKUP_BATCHES = 64


class Ours(contender.Contender):
    """Value and accumulator in one row. Lookups are on one thread, files on as many as it has."""

    kinds = ("ours",)
    bytes_per_row = 200

    def fill(self) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        self._table = ours.make_table(rows.DIM, "adagrad")
        self._restored: tf.Tensor | None = None
        now = tf.constant(rows.UPDATE_TIME_SEC, tf.int64)
        zero = tf.constant(0, tf.int64)
        for ids, values, _ in rows.batches(self.rows):
            ops.monolith_hash_table_assign(self._table, ids, values, now)
            # The accumulators become the initial one plus the squares, as for everybody.
            ops.monolith_hash_table_optimize(
                self._table, ids, values, tf.constant([workload.LEARNING_RATE]), now, zero
            )
        self._prepare_lookups()

    def save(self, kind: str) -> None:
        ops.monolith_hash_table_save(self._table, str(self.home(kind) / "table"), nshards=NUM_FILES)

    def make_empty(self, kind: str) -> None:
        if self._restored is not None:
            tf.raw_ops.DestroyResourceOp(resource=self._restored)
        self._restored = ours.make_table(rows.DIM, "adagrad")

    def restore(self, kind: str) -> None:
        ops.monolith_hash_table_restore(self._restored, str(self.home(kind) / "table"))

    def restored_bytes(self) -> int:
        """Returns the memory of the restored table: rows and index."""
        stats = ops.monolith_multi_hash_table_stats(self._restored)
        return int(sum(stats.row_bytes.numpy()) + sum(stats.index_bytes.numpy()))

    def check(self, kind: str) -> None:
        ids = rows.sample(self.rows)
        expected = ops.monolith_hash_table_lookup_entry(self._table, ids).numpy()
        found = ops.monolith_hash_table_lookup_entry(self._restored, ids).numpy()
        assert all(expected), "rows are missing in the table"
        np.testing.assert_array_equal(found, expected)
        assert ops.monolith_hash_table_size(self._restored).numpy() == self.rows

    def _prepare_lookups(self) -> None:
        rng = np.random.default_rng(workload.SEED)
        shape = (4, LOOKUP_BATCHES, workload.BATCH)
        ids = workload.ids_of(rng.integers(self.rows, size=shape))

        def step(some: tf.Tensor) -> tf.Tensor:
            found = ops.monolith_hash_table_lookup(self._table, some, dim_size=rows.DIM)
            return graph_steps.needs(found)

        self._lookup = graph_steps.prepare(step, ids, repeated=True)

    def look_up(self, seconds: float) -> float:
        """Returns keys per second of lookups for that long."""
        return self._look_up_until(threading.Event(), seconds)

    def look_up_during_save(self) -> float:
        """Returns keys per second of lookups while the table is saved."""
        saved = threading.Event()
        failures = []

        def save() -> None:
            try:
                self.save("ours")
            except Exception as error:  # noqa: BLE001, raised below
                failures.append(error)
            finally:
                saved.set()

        thread = threading.Thread(target=save)
        thread.start()
        rate = self._look_up_until(saved, float("inf"))
        thread.join()
        if failures:
            raise failures[0]
        return rate

    def _look_up_until(self, stop: threading.Event, seconds: float) -> float:
        calls = 0
        start = time.perf_counter()
        while True:
            self._lookup(calls % 4)
            calls += 1
            elapsed = time.perf_counter() - start
            if stop.is_set() or elapsed >= seconds:
                return calls * LOOKUP_BATCHES * workload.BATCH / elapsed
