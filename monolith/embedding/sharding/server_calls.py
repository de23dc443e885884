"""How long the calls of parameter servers take, told to the metrics."""

import tensorflow as tf

from monolith.graph import task_context
from monolith.native import logging_ops


def emit_time_of_lookup(i: int, rows: tf.Tensor, start_us: tf.Tensor) -> tf.Tensor:
    """Returns the rows that came from server `i`, after a timer has told how long they took."""
    (rows,), end_us = logging_ops.tensors_timestamp([rows])
    tags = {"model_name": task_context.get().model_name, "ps": str(i)}
    time_ms = tf.cast(end_us - start_us, tf.float32) / 1000.0
    with tf.control_dependencies([logging_ops.emit_timer("embedding_lookup", time_ms, tags)]):
        return tf.identity(rows)
