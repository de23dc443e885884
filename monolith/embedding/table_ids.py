"""What may be looked up in an `ml.Table`: ids of any shape and integer type, ragged, sparse, text.

Example:
    >>> flat, ids = to_flat(np.array([[1, 2], [3, 4]], np.int32))
    >>> flat.numpy().tolist(), restore(tf.ones([4, 3]), ids).shape.as_list()
    ([1, 2, 3, 4], [2, 2, 3])
"""

from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import string_ids
from monolith.embedding.tables.inputs import arrange

# What a caller hands to a table.
Ids = Any


def to_ids(ids: Ids) -> tf.Tensor | tf.RaggedTensor:
    """Returns ids as int64: a tensor of the same shape, or a ragged one.

    Integers of other types are cast, uint64 bit by bit; strings are hashed as
    `monolith.data.string_ids` does it; a sparse matrix becomes ragged, without its gaps.

    Raises:
        ConfigError: They are neither integers nor strings.
    """
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(_to_int64(ids.flat_values))
    if isinstance(ids, tf.SparseTensor):
        if ids.shape.rank not in (2, None):
            raise errors.ConfigError(
                f"Sparse ids must have the shape [batch, ids], got {ids.shape}; use a ragged "
                "tensor for more dimensions."
            )
        # Not `from_sparse`, which wants the ids of an example to have no gap before them.
        return tf.RaggedTensor.from_value_rowids(
            _to_int64(ids.values), ids.indices[:, 0], ids.dense_shape[0]
        )
    if tf.is_tensor(ids):
        return _to_int64(ids)
    return _convert(ids)


def to_flat(ids: Ids) -> tuple[tf.Tensor, Any]:
    """Returns all ids as one int64 vector, and as `to_ids` does, for `restore`."""
    ids = to_ids(ids)
    if isinstance(ids, tf.RaggedTensor):
        flat = ids.flat_values
        return (flat if flat.shape.rank == 1 else tf.reshape(flat, [-1])), ids
    return (ids if ids.shape.rank == 1 else tf.reshape(ids, [-1])), ids


def restore(rows: tf.Tensor, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
    """Gives the rows of flat ids, `[n, dim]`, the shape of `ids` and one dimension more."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(restore(rows, ids.flat_values))
    return arrange(rows, ids, rows.shape[-1])


def _to_int64(ids: tf.Tensor) -> tf.Tensor:
    dtype = ids.dtype
    if dtype == tf.int64:
        return tf.convert_to_tensor(ids)  # A variable is read.
    if dtype == tf.string:
        return string_ids.hash_strings(ids)
    if dtype == tf.uint64:
        return tf.bitcast(ids, tf.int64)
    if dtype.is_integer and not dtype.is_quantized:
        return tf.cast(ids, tf.int64)
    raise _refuse(dtype.name)


def _convert(ids: Any) -> tf.Tensor:
    """From what is not a tensor: arrays, lists, numbers, strings."""
    if type(ids).__name__ == "KerasTensor":
        raise errors.ConfigError(
            "A table cannot be part of a Keras model by itself; use ml.keras.Embedding(table=...)."
        )
    try:
        array = np.asarray(ids)
    except ValueError as e:  # Lists of different lengths.
        raise errors.ConfigError(
            f"The ids cannot be made a tensor: {e}; make lists of different lengths a "
            "tf.ragged.constant."
        ) from e
    if array.dtype.kind in "iu":
        return tf.convert_to_tensor(array.astype(np.int64))
    if array.size == 0 and array.dtype.kind == "f":  # NumPy takes an empty list for floats.
        return tf.zeros(array.shape, tf.int64)
    if array.dtype.kind in "USO" and all(isinstance(x, str | bytes) for x in array.flat):
        return string_ids.hash_strings(array)
    if array.dtype == object:  # NumPy has no type for it.
        others = [x for x in array.flat if not isinstance(x, int) or not -(2**63) <= x < 2**64]
        raise errors.ConfigError(
            f"Ids must be integers of 64 bits or strings, got {(others or array.tolist())[0]!r}."
        )
    raise _refuse(str(array.dtype))


def _refuse(found: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"Ids must be integers or strings, got {found}; floats would be rounded, and several ids "
        "would become one."
    )
