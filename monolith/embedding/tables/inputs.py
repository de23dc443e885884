"""Turns what callers hand to a table into tensors of the types that the ops take.

Example:
    >>> to_ids([1, -2]).dtype.name
    'int64'
"""

from typing import Any

import numpy as np
import tensorflow as tf

# A tensor or what `tf.convert_to_tensor` makes one of.
TensorLike = Any


def to_ids(ids: TensorLike) -> tf.Tensor:
    """Returns ids as int64.

    Unsigned NumPy arrays keep their bits. Tensors of another type and floats are refused, since
    rounding would make several ids one.

    Raises:
        TypeError: `ids` is a NumPy array of something else than integers.
        ValueError: `ids` is a tensor of another type than int64.
    """
    _check_kind("ids", ids, "iu", "integers")
    return tf.convert_to_tensor(ids, tf.int64)


def arrange(rows: tf.Tensor, ids: tf.Tensor, dim: int) -> tf.Tensor:
    """Returns the rows of ids, which the ops give as a list, in the shape of the ids and `dim`.

    Example:
        >>> arrange(tf.ones([4, 3]), tf.constant([[1, 2], [3, 4]]), 3).shape.as_list()
        [2, 2, 3]
    """
    shape = ids.shape
    if shape.rank == 1:
        return rows
    if shape.rank == 0:
        # A reshape would take longer than the lookup of one id: its shape becomes a tensor first.
        return tf.squeeze(rows, [0])
    if shape.is_fully_defined():
        return tf.reshape(rows, [*shape, dim])
    arranged = tf.reshape(rows, tf.concat([tf.shape(ids), [dim]], 0))
    arranged.set_shape(shape.concatenate([dim]))
    return arranged


def to_floats(values: TensorLike) -> tf.Tensor:
    """Returns rows or gradients as float32.

    Raises:
        TypeError: `values` is a NumPy array of something else than real numbers.
        ValueError: `values` is a tensor of another type than float32.
    """
    _check_kind("values", values, "iuf", "real numbers")
    return tf.convert_to_tensor(values, tf.float32)


def to_sizes(sizes: TensorLike) -> tf.Tensor:
    """Returns sizes or offsets as int32."""
    _check_kind("sizes", sizes, "iu", "integers")
    # TensorFlow checks everything but NumPy's arrays, of which it cuts off what is too much.
    if isinstance(sizes, np.ndarray | np.generic) and sizes.size > 0:
        largest = np.iinfo(np.int32).max
        if int(sizes.max()) > largest or int(sizes.min()) < -largest - 1:
            raise ValueError(
                f"`sizes` must hold numbers of 32 bits, got a NumPy array with {sizes.min()} to "
                f"{sizes.max()}."
            )
    return tf.convert_to_tensor(sizes, tf.int32)


def to_step(global_step: TensorLike) -> tf.Tensor:
    """Returns a step, which may be a variable, as int64."""
    return tf.cast(global_step, tf.int64)


def to_seconds(time: TensorLike | None) -> tf.Tensor:
    """Returns seconds since 1970 as int64; None, not given, is 0."""
    return tf.constant(0, tf.int64) if time is None else tf.cast(time, tf.int64)


def _check_kind(argument: str, value: TensorLike, kinds: str, expected: str) -> None:
    # TensorFlow checks everything but NumPy's arrays, which it casts without a word. An empty
    # array is of float64 unless somebody has said otherwise.
    is_numpy = isinstance(value, np.ndarray | np.generic)
    if is_numpy and value.size > 0 and value.dtype.kind not in kinds:
        raise TypeError(f"`{argument}` must hold {expected}, got a NumPy array of {value.dtype}.")
