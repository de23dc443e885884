"""TensorFlow Recommenders Addons: its cuckoo tables, saved by `save_to_file_system`.

Its checkpoints call the same function where they are told to write such files; checkpoints that
hold the table as tensors are not measured. Three kinds: a table of values and one of accumulators,
as its optimizers keep them, with the buffer that is its default; the same with a buffer that suits
it better; and value and accumulator in one table, which its optimizers cannot use, but which is
faster to restore.
"""

import itertools
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding

from benchmarks.checkpoint import contender, rows

DEFAULT = "TFRA"
TUNED = "TFRA, smaller buffer"
JOINT = "TFRA, one table"
# Of 65,536 to 8,388,608 keys, what saved 5,000,000 rows fastest; smaller tables like less.
BUFFER_KEYS = {DEFAULT: 4_194_304, TUNED: 1_048_576, JOINT: 1_048_576}

_table_numbers = itertools.count()  # A table's name stands for it in the whole process.


def make_table(dim: int) -> dynamic_embedding.CuckooHashTable:
    name = f"table_{next(_table_numbers)}"
    return dynamic_embedding.CuckooHashTable(tf.int64, tf.float32, tf.zeros([dim]), name=name)


class Tfra(contender.Contender):
    """The tables of all kinds, full at the same time. Tables of one kind are saved in parallel."""

    kinds = (DEFAULT, TUNED, JOINT)
    bytes_per_row = 600

    def fill(self) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(2)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        values, slots = make_table(rows.DIM), make_table(rows.DIM)
        joint = make_table(2 * rows.DIM)
        self._tables = {DEFAULT: [values, slots], TUNED: [values, slots], JOINT: [joint]}
        self._restored: list[dynamic_embedding.CuckooHashTable] = []
        for ids, value, slot in rows.batches(self.rows):
            keys = tf.constant(ids)
            values.insert(keys, tf.constant(value))
            slots.insert(keys, tf.constant(slot))
            joint.insert(keys, tf.constant(np.concatenate([value, slot], axis=1)))
        self._save = {kind: self._make_save(kind) for kind in self.kinds}

    def _make_save(self, kind: str) -> tf.types.experimental.ConcreteFunction:
        def save() -> None:
            for i, table in enumerate(self._tables[kind]):
                table.save_to_file_system(
                    str(self.home(kind)), file_name=f"part_{i}", buffer_size=BUFFER_KEYS[kind]
                )

        return tf.function(save, autograph=False).get_concrete_function()

    def save(self, kind: str) -> None:
        self._save[kind]()

    def make_empty(self, kind: str) -> None:
        for table in self._restored:
            tf.raw_ops.DestroyResourceOp(resource=table.resource_handle)
        dim = rows.DIM * 2 // len(self._tables[kind])
        self._restored = [make_table(dim) for _ in self._tables[kind]]

        def restore() -> None:
            for i, table in enumerate(self._restored):
                table.load_from_file_system(
                    str(self.home(kind)), file_name=f"part_{i}", buffer_size=BUFFER_KEYS[kind]
                )

        self._restore = tf.function(restore, autograph=False).get_concrete_function()

    def restore(self, kind: str) -> None:
        self._restore()

    def check(self, kind: str) -> None:
        ids = tf.constant(rows.sample(self.rows))
        for table, restored in zip(self._tables[kind], self._restored, strict=True):
            assert restored.size().numpy() == self.rows
            np.testing.assert_array_equal(restored.lookup(ids), table.lookup(ids))
