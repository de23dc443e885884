"""How ids and rows of many tables lie in one tensor each.

Ids are a ragged tensor with one row per table; rows are one vector: those of table 0, then those of
table 1 and so on, each as wide as its table.

Example:
    >>> ids = concat_1d_tensors(tf.constant([7, 8], tf.int64), tf.constant([9], tf.int64))
    >>> rows = get_list_from_flat_value(ids, [1, 2], tf.constant([1.0, 2.0, 3.0, 4.0]))
    >>> [matrix.numpy().tolist() for matrix in rows]
    [[[1.0], [2.0]], [[3.0, 4.0]]]
"""

import abc
from collections.abc import Mapping, Sequence

import tensorflow as tf

from monolith.embedding.tables.inputs import TensorLike


def concat_1d_tensors(*tensors: tf.Tensor) -> tf.RaggedTensor:
    """Returns a ragged tensor with one row per vector."""
    row_lengths = tf.stack([tf.size(tensor, tf.int64) for tensor in tensors])
    return tf.RaggedTensor.from_row_lengths(tf.concat(tensors, 0), row_lengths, validate=False)


def flatten_n_tensors(*tensors: tf.Tensor) -> tf.Tensor:
    """Returns the elements of all tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def get_list_from_flat_value(
    key: tf.RaggedTensor, dims: Sequence[int], flat: tf.Tensor
) -> list[tf.Tensor]:
    """Cuts flat rows of several tables into one matrix per table.

    Args:
        key: Ids, one row per table.
        dims: The width of each table's rows.
        flat: The rows of table 0, then those of table 1 and so on, float32.

    Returns:
        For each table a tensor [ids, dim].
    """
    sizes = key.row_lengths() * tf.constant(dims, tf.int64)
    parts = tf.split(flat, sizes, num=len(dims))
    return [tf.reshape(part, [-1, dim]) for part, dim in zip(parts, dims, strict=True)]


class RawMultiTypeHashTable(abc.ABC):
    """Several tables whose ids travel as one ragged tensor, and their rows as one flat one."""

    @abc.abstractmethod
    def get_ragged_id(self, slot_to_id: Mapping[str, TensorLike]) -> tf.RaggedTensor:
        """Returns the ids with one row per table; unknown names are passed over."""

    @abc.abstractmethod
    def get_flat_value(self, slot_to_value: Mapping[str, TensorLike]) -> tf.Tensor:
        """Returns the rows of all tables as one vector; unknown names are passed over."""

    @abc.abstractmethod
    def get_embeddings(self, ragged_id: tf.RaggedTensor, value: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rows of each table, float32 [ids, dim], from a flat vector of them."""

    @abc.abstractmethod
    def raw_lookup(self, ragged_id: tf.RaggedTensor) -> tf.Tensor:
        """Returns the rows of all tables as one vector."""

    @abc.abstractmethod
    def raw_apply_gradients(
        self,
        ragged_id: tf.RaggedTensor,
        flat_grad: tf.Tensor,
        global_step: TensorLike,
        req_time: TensorLike | None = None,
    ) -> "RawMultiTypeHashTable":
        """Updates rows by their optimizers."""

    @abc.abstractmethod
    def raw_assign(
        self,
        ragged_id: tf.RaggedTensor,
        flat_value: tf.Tensor,
        req_time: TensorLike | None = None,
    ) -> "RawMultiTypeHashTable":
        """Overwrites rows."""


class NamedTables(RawMultiTypeHashTable):
    """Tables whose ids and rows are laid out by name.

    A subclass sets `_table_names`, and `_dims`, the widths of the tables' rows, in the same order.
    """

    _table_names: list[str]
    _dims: list[int]

    def get_ragged_id(self, slot_to_id: Mapping[str, TensorLike]) -> tf.RaggedTensor:
        return concat_1d_tensors(*self._in_table_order(slot_to_id, tf.int64))

    def get_flat_value(self, slot_to_value: Mapping[str, TensorLike]) -> tf.Tensor:
        return flatten_n_tensors(*self._in_table_order(slot_to_value, tf.float32))

    def get_embeddings(self, ragged_id: tf.RaggedTensor, value: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = get_list_from_flat_value(ragged_id, self._dims, value)
        return dict(zip(self._table_names, rows, strict=True))

    def _in_table_order(
        self, slot_to_tensor: Mapping[str, TensorLike], dtype: tf.DType
    ) -> list[tf.Tensor]:
        return [
            tf.reshape(tf.convert_to_tensor(slot_to_tensor.get(name, []), dtype), [-1])
            for name in self._table_names
        ]
