"""Turns what callers hand to a table into tensors of the types that the ops take."""

from typing import Any

import tensorflow as tf

# A tensor or what `tf.convert_to_tensor` makes one of.
TensorLike = Any


def to_ids(ids: TensorLike) -> tf.Tensor:
    """Returns ids as int64; another type of tensor is refused, since a cast could merge ids."""
    return tf.convert_to_tensor(ids, tf.int64)


def to_floats(values: TensorLike) -> tf.Tensor:
    """Returns rows or gradients as float32."""
    return tf.convert_to_tensor(values, tf.float32)


def to_sizes(sizes: TensorLike) -> tf.Tensor:
    """Returns sizes or offsets as int32."""
    return tf.convert_to_tensor(sizes, tf.int32)


def to_step(global_step: TensorLike) -> tf.Tensor:
    """Returns a step, which may be a variable, as int64."""
    return tf.cast(global_step, tf.int64)


def to_seconds(time: TensorLike | None) -> tf.Tensor:
    """Returns seconds since 1970 as int64; None, not given, is 0."""
    return tf.constant(0, tf.int64) if time is None else tf.cast(time, tf.int64)
