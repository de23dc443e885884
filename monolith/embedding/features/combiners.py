"""How the rows of one example's ids become one tensor that a dense network can take.

An example has any number of ids of a feature, none included. A combiner turns their rows,
`[num_ids, dim]` for the whole batch, into a tensor with one entry per example.

Example:
    >>> ids = tf.ragged.constant([[7], [], [8, 9]], dtype=tf.int64)
    >>> rows = tf.constant([[1.0], [2.0], [4.0]])
    >>> ReduceSum().combine(ids, rows).numpy().tolist()
    [[1.0], [0.0], [6.0]]
    >>> ReduceMean().combine(ids, rows).numpy().tolist()
    [[1.0], [0.0], [3.0]]
    >>> FirstN(2).combine(ids, rows).numpy().tolist()
    [[[1.0], [0.0]], [[0.0], [0.0]], [[2.0], [4.0]]]
"""

import abc
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding.sharding import distribution
from monolith.tensor import ragged


class Combiner(abc.ABC):
    """Combines the rows of each example.

    Args:
        max_seq_length: The number of ids an example keeps; 0 if they become one vector.
    """

    def __init__(self, max_seq_length: int) -> None:
        self._max_seq_length = max_seq_length

    @abc.abstractmethod
    def combine(
        self, key: tf.RaggedTensor, embedding: tf.Tensor, name: str | None = None
    ) -> tf.Tensor:
        """Returns the combined rows.

        Args:
            key: The ids of each example, `[batch, (num_ids)]`; only the row lengths are used.
            embedding: The rows of all ids in the order of `key.values`, `[num_ids, dim]`.
            name: Name scope of the ops.

        Raises:
            ConfigError: `key` is not ragged.
        """

    @property
    def max_seq_length(self) -> int:
        return self._max_seq_length

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._max_seq_length or ''})"


class ReduceSum(Combiner):
    """The sum of an example's rows, `[batch, dim]`; zeros without ids."""

    def __init__(self) -> None:
        super().__init__(max_seq_length=0)

    def combine(
        self, key: tf.RaggedTensor, embedding: tf.Tensor, name: str | None = None
    ) -> tf.Tensor:
        require_ragged_ids("key", key)
        with tf.name_scope(name or "ReduceSumCombiner"):
            return distribution.reduce_sum(*_rows_by_example(key, embedding))


class ReduceMean(Combiner):
    """The mean of an example's rows, `[batch, dim]`; zeros without ids."""

    def __init__(self) -> None:
        super().__init__(max_seq_length=0)

    def combine(
        self, key: tf.RaggedTensor, embedding: tf.Tensor, name: str | None = None
    ) -> tf.Tensor:
        require_ragged_ids("key", key)
        with tf.name_scope(name or "ReduceMeanCombiner"):
            return distribution.reduce_mean(*_rows_by_example(key, embedding))


class FirstN(Combiner):
    """The rows of an example's first ids, `[batch, seq_length, dim]`, with zeros after the last.

    Args:
        seq_length: How many ids are kept; must be positive.
    """

    def __init__(self, seq_length: int) -> None:
        if not seq_length > 0:
            raise AssertionError(f"seq_length must be greater than 0, got {seq_length}.")
        super().__init__(max_seq_length=seq_length)

    def combine(
        self, key: tf.RaggedTensor, embedding: tf.Tensor, name: str | None = None
    ) -> tf.Tensor:
        require_ragged_ids("key", key)
        with tf.name_scope(name or "FirstNCombiner"):
            embedding = tf.convert_to_tensor(embedding)
            dim = embedding.shape.with_rank(2)[1]
            if dim is None:
                raise errors.ConfigError(
                    "FirstN needs rows of a width that is known when the graph is built, got shape "
                    f"{embedding.shape}; call `set_shape` on them first."
                )
            return _keep_first(key, embedding, self._max_seq_length, dim)


def require_ragged_ids(name: str, ids: Any) -> None:
    """Checks that `ids` can be the ids of a feature.

    Args:
        name: What to call them in the error.
        ids: What was given.

    Raises:
        ConfigError: They are missing (None), not ragged, or have more than one ragged dimension.
    """
    if isinstance(ids, tf.RaggedTensor) and ids.values.shape.rank in (1, None):
        return
    if ids is None:
        raise errors.ConfigError(
            f"Feature '{name}' is used by the model but is not in the batch; let the input "
            "function return its ids, or do not create its column."
        )
    raise errors.ConfigError(
        f"The ids of feature '{name}' must be a tf.RaggedTensor of shape [batch, (num_ids)], got "
        f"{_describe(ids)}; make one with tf.RaggedTensor.from_tensor or tf.io.RaggedFeature."
    )


def _describe(ids: Any) -> str:
    if isinstance(ids, tf.RaggedTensor):
        return f"a ragged tensor of shape {ids.shape}"
    if isinstance(ids, tf.SparseTensor):
        return "a tf.SparseTensor (tf.RaggedTensor.from_sparse converts it)"
    if tf.is_tensor(ids):
        return f"a dense tensor of shape {ids.shape}"
    return f"a {type(ids).__name__}"


def _rows_by_example(
    key: tf.RaggedTensor, embedding: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the example of each row, `[num_ids, 1]`, the rows, and the number of examples."""
    return tf.expand_dims(ragged.fused_value_rowids(key), 1), embedding, num_examples(key)


def _keep_first(key: tf.RaggedTensor, embedding: tf.Tensor, seq_length: int, dim: int) -> tf.Tensor:
    # Not `RaggedTensor.to_tensor`, whose gradient is tf.IndexedSlices: tables take one gradient per
    # id, zero for those left out. These get a column of their own, which is cut off.
    rowids = ragged.fused_value_rowids(key)
    starts = tf.gather(tf.cast(key.row_starts(), tf.int64), rowids)
    positions = tf.range(tf.shape(rowids, tf.int64)[0], dtype=tf.int64) - starts
    indices = tf.stack([rowids, tf.minimum(positions, seq_length)], axis=1)
    shape = tf.concat([num_examples(key), [seq_length + 1, dim]], 0)
    kept = tf.scatter_nd(indices, embedding, shape)[:, :seq_length]
    kept.set_shape([key.shape[0], seq_length, dim])
    return kept


def num_examples(key: tf.RaggedTensor) -> tf.Tensor:
    """Returns the number of rows of `key` as the reducing ops take it, int64 `[1]`."""
    return tf.reshape(key.nrows(out_type=tf.int64), [1])
