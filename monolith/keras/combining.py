"""How the rows of several ids become one vector: sum, mean, or sum by the root of the number.

Ids are combined along their last dimension: `[batch, n]` gives `[batch, dim]`. A *bag* has the ids
of one such vector. Whether ids are dense, ragged or sparse, a bag without ids gives zeros.

Example:
    >>> ids = tf.ragged.constant([[7], [], [8, 9]], dtype=tf.int64)
    >>> bags = to_bags(ids)
    >>> joined = join([bags, to_bags(tf.constant([[5, 6]], tf.int64))], salts=[0, 0])
    >>> joined.flat_ids.numpy().tolist(), joined.row_splits.numpy().tolist()
    ([7, 8, 9, 5, 6], [0, 1, 1, 3, 5])
    >>> bags.arrange(tf.constant([[1.0], [0.0], [3.0]])).shape.as_list()
    [3, 1]
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from monolith.native import ops

COMBINERS = ("sum", "mean", "sqrtn")


class Bags(NamedTuple):
    """The ids of a feature in bags.

    Attributes:
        ids: All of them, int64, in any shape.
        row_splits: Where each bag begins, and where the last one ends, int64; None if each vector
            along the last dimension is one, or, of a vector, each id.
        arrange: Gives the vectors of the bags, `[bags, dim]`, the shape of the ids with `dim` in
            place of the last dimension.
    """

    ids: tf.Tensor
    row_splits: tf.Tensor | None
    arrange: Callable[[tf.Tensor], Any]


class Joined(NamedTuple):
    """The bags of all features, one after the other.

    Attributes:
        flat_ids: All ids, an int64 vector.
        row_splits: Where each bag begins, and where the last one ends, int64.
        counts: How many bags each feature has, int64.
    """

    flat_ids: tf.Tensor
    row_splits: tf.Tensor
    counts: tf.Tensor


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


def to_single_ids(flat_ids: tf.Tensor) -> Bags:
    """Puts each id of a vector into a bag of its own."""
    return Bags(flat_ids, None, lambda bags: bags)


def join(bags: Sequence[Bags], salts: Sequence[int]) -> Joined:
    """Returns the bags of all features together, by one op however many there are.

    Args:
        bags: Those of each feature.
        salts: What the ids of each are mixed with.
    """
    none = None if all(each.row_splits is not None for each in bags) else tf.zeros([0], tf.int64)
    splits = [none if each.row_splits is None else each.row_splits for each in bags]
    return Joined(*ops.monolith_join_ids([each.ids for each in bags], splits, salts=list(salts)))


def _to_even_bags(ids: tf.Tensor) -> Bags:
    if ids.shape.rank == 1:
        return to_single_ids(ids)

    def arrange(bags: tf.Tensor) -> tf.Tensor:
        dim = bags.shape[-1]
        if ids.shape.rank > 2:
            bags = tf.reshape(bags, tf.concat([tf.shape(ids, tf.int64)[:-1], [dim]], 0))
        bags.set_shape(ids.shape[:-1].concatenate([dim]))
        return bags

    return Bags(ids, None, arrange)
