"""The batches as a `tf.data.Dataset`: read and cut ahead of the step, for all that use TensorFlow.

Works with every TensorFlow: ours, and that of the peers.
"""

import tensorflow as tf

from benchmarks.criteo import workload


def make_dataset(path: str) -> tf.data.Dataset:
    """Returns dicts of the slots `c0` to `c25`, `numbers` and `label`, again and again."""
    keys_bytes = workload.SLOTS * workload.BATCH * 8

    def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
        keys = tf.io.decode_raw(tf.strings.substr(record, 0, keys_bytes), tf.int64)
        rest = workload.RECORD_BYTES - keys_bytes
        floats = tf.io.decode_raw(tf.strings.substr(record, keys_bytes, rest), tf.float32)
        count = workload.NUMBERS * workload.BATCH
        batch = {
            f"c{slot}": keys[slot * workload.BATCH : (slot + 1) * workload.BATCH]
            for slot in range(workload.SLOTS)
        }
        batch["numbers"] = tf.reshape(floats[:count], [workload.BATCH, workload.NUMBERS])
        batch["label"] = floats[count:]
        return {
            name: tf.ensure_shape(t, [workload.BATCH, *t.shape[1:]]) for name, t in batch.items()
        }

    records = tf.data.FixedLengthRecordDataset(path, workload.RECORD_BYTES)
    # Kept as they are used, so that files and parsing are nobody's step; then over and over.
    return records.map(parse).cache().repeat().prefetch(2)
