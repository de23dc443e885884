"""How the rows of several ids become one vector: sum, mean, or sum by the root of the number.

Ids are combined along their last dimension: `[batch, n]` gives `[batch, dim]`. A *bag* has the ids
of one such vector. Whether ids are dense, ragged or sparse, a bag without ids gives zeros.

Example:
    >>> ids = tf.ragged.constant([[7], [], [8, 9]], dtype=tf.int64)
    >>> bags = to_bags(ids)
    >>> bags.flat_ids.numpy().tolist(), bags.row_splits.numpy().tolist()
    ([7, 8, 9], [0, 1, 1, 3])
    >>> bags.arrange(tf.constant([[1.0], [0.0], [3.0]])).shape.as_list()
    [3, 1]
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

COMBINERS = ("sum", "mean", "sqrtn")


class Bags(NamedTuple):
    """The ids of a feature in bags.

    Attributes:
        flat_ids: All ids, an int64 vector.
        row_splits: Where each bag begins, and where the last one ends, int64.
        arrange: Gives the vectors of the bags, `[bags, dim]`, the shape of the ids with `dim` in
            place of the last dimension.
    """

    flat_ids: tf.Tensor
    row_splits: tf.Tensor
    arrange: Callable[[tf.Tensor], Any]


def to_bags(ids: Any) -> Bags:
    """Puts ids, an int64 tensor, a ragged one or a sparse matrix, into bags."""
    if isinstance(ids, tf.SparseTensor):
        ids = tf.RaggedTensor.from_value_rowids(ids.values, ids.indices[:, 0], ids.dense_shape[0])
    if not isinstance(ids, tf.RaggedTensor):
        return _to_even_bags(ids)
    if ids.flat_values.shape.rank != 1:
        inner = _to_even_bags(ids.flat_values)
        return inner._replace(arrange=lambda bags: ids.with_flat_values(inner.arrange(bags)))
    *outer, splits = ids.nested_row_splits

    def arrange(bags: tf.Tensor) -> Any:
        if not outer:
            bags.set_shape([ids.shape[0], None])
            return bags
        return tf.RaggedTensor.from_nested_row_splits(bags, outer, validate=False)

    return Bags(ids.flat_values, tf.cast(splits, tf.int64), arrange)


def join_splits(bags: Sequence[Bags]) -> tf.Tensor:
    """Returns the splits of the bags of all features together, one after the other."""
    parts, end = [bags[0].row_splits], bags[0].row_splits[-1]
    for each in bags[1:]:
        splits = each.row_splits + end
        parts.append(splits[1:])
        end = splits[-1]
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _to_even_bags(ids: tf.Tensor) -> Bags:
    if ids.shape.rank == 1:  # One id each.
        splits = tf.range(tf.size(ids, tf.int64) + 1)
        return Bags(ids, splits, lambda bags: bags)
    shape = tf.shape(ids, tf.int64)
    splits = tf.range(tf.reduce_prod(shape[:-1]) + 1) * shape[-1]

    def arrange(bags: tf.Tensor) -> tf.Tensor:
        dim = bags.shape[-1]
        if ids.shape.rank > 2:
            bags = tf.reshape(bags, tf.concat([shape[:-1], [dim]], 0))
        bags.set_shape(ids.shape[:-1].concatenate([dim]))
        return bags

    return Bags(tf.reshape(ids, [-1]), splits, arrange)
