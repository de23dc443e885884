"""How many ids of each slot a checkpoint holds, in the text file `ckpt.info-STEP` beside it.

Example:
    >>> import tempfile
    >>> from monolith.embedding.tables import single
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     table = single.test_hash_table(1)
    ...     fill = table.assign_add([1, 2, 1 << 48], [[0.0], [0.0], [0.0]]).as_op()
    ...     listener = FidSlotCountSaverListener(model_dir)
    ...     with tf.compat.v1.Session() as session:
    ...         session.run(fill)
    ...         listener.before_save(session, 7)
    ...     with open(f"{model_dir}/ckpt.info-7") as file:
    ...         sorted(text_format.Parse(file.read(), ckpt_info_pb2.CkptInfo()).slot_counts.items())
    [(0, 2), (1, 1)]
"""

import logging
import os
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith.embedding.tables import iteration, registry, single
from monolith.proto import ckpt_info_pb2

logger = logging.getLogger(__name__)

_MAX_SLOT = 102400
_TIMEOUT_IN_MS = 30 * 60 * 1000


class FidSlotCountSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Counts the ids of each slot in all hash tables of the graph before a save.

    Make it after the tables. If saves of some tables count rows by feature it does nothing: that
    goes to the same file. Slots beyond the last, 102399, are counted as the last.

    Args:
        model_dir: Where the file goes.

    Raises:
        ValueError: The default graph has no tables.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._counters: list[_DeviceCounter] = []
        tables = registry.get_tables()
        if any(entry.config.snapshot_format.counts_features for entry in tables):
            return
        if not tables:
            raise ValueError(
                "Unable to find hash tables. It may be caused by creating the listener before "
                "calling model_fn"
            )
        by_device: dict[str, list[Any]] = {}
        for entry in tables:
            by_device.setdefault(entry.handle.device, []).append(entry.table)
        self._counters = [_DeviceCounter(*item) for item in by_device.items()]

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Counts, and writes the file; called by the saver hook."""
        if not self._counters:
            return
        options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)

        def run(fetches: Any) -> Any:
            return session.run(fetches, options=options)

        run([counter.reset_op for counter in self._counters])
        run([counter.count_op for counter in self._counters])
        totals = sum(run([counter.counts for counter in self._counters]))
        info = ckpt_info_pb2.CkptInfo(
            slot_counts={int(slot): int(totals[slot]) for slot in np.flatnonzero(totals)}
        )
        tf.io.gfile.makedirs(self._model_dir)
        path = os.path.join(self._model_dir, f"ckpt.info-{global_step_value}")
        file_io.atomic_write_string_to_file(path, text_format.MessageToString(info))
        logger.info("counted %d ids in %d slots", totals.sum(), len(info.slot_counts))


class _DeviceCounter:
    """The counts of the tables on one device, kept there, so that no ids travel."""

    def __init__(self, device: str, tables: list[Any]) -> None:
        with tf.device(device):
            # In no collection: it is neither saved nor initialized with the model.
            counter = tf.compat.v1.Variable(
                lambda: tf.zeros([_MAX_SLOT], tf.int64),
                trainable=False,
                collections=[],
                use_resource=True,
                name="fid_slot_counter",
            )
            self.reset_op = counter.initializer
            self.counts = counter.read_value()

            def add(rows: tf.Tensor) -> None:
                slots = tf.minimum(single.extract_slot_from_entry(rows), _MAX_SLOT - 1)
                counter.scatter_add(tf.IndexedSlices(tf.ones_like(slots, tf.int64), slots))

            # One after the other: TensorFlow adds without a lock.
            visited: list[tf.Tensor] = []
            for table in tables:
                with tf.control_dependencies(visited[-1:]):
                    visited.append(iteration.iterate_table_and_apply(table, add))
            self.count_op = tf.group(visited)
