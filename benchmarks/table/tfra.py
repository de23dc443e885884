"""TensorFlow Recommenders Addons: its cuckoo tables, used directly.

The library's own optimizer wrapper keeps value and slot in two tables, and copies more.
"""

import itertools
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding

from benchmarks.table import hashed_peer

_table_numbers = itertools.count()  # A table's name stands for it in the whole process.


class Tfra(hashed_peer.HashedPeer):
    """Cuckoo tables on the CPU."""

    def make_table(self, dim: int) -> dynamic_embedding.CuckooHashTable:
        return dynamic_embedding.CuckooHashTable(
            tf.int64, tf.float32, tf.zeros([dim]), name=f"table_{next(_table_numbers)}"
        )
