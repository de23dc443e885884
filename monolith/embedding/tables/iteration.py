"""Walking over all rows of a table in small portions, without writing files.

Example:
    >>> from monolith.embedding.tables import single
    >>> table = single.test_hash_table(1).assign_add([1, 2, 3], [[1.0], [2.0], [3.0]])
    >>> count = tf.Variable(0)
    >>> int(iterate_table_and_apply(table, lambda rows: count.assign_add(tf.size(rows)), limit=2))
    3
    >>> int(count)
    3
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from monolith import errors

if TYPE_CHECKING:
    from monolith.embedding.tables import single


def infer_dim_size(config: Any) -> int:
    """Returns the width of a table's rows: the sum of its segments' dims.

    Args:
        config: An `EmbeddingHashTableConfig`, or an `entry.HashTableConfigInstance` around one.
    """
    table_config = getattr(config, "table_config", config)
    return sum(segment.dim_size for segment in table_config.entry_config.segments)


def iterate_table_and_apply(
    table: "single.HashTable",
    apply_fn: Callable[[tf.Tensor], Any],
    limit: int = 1000,
    nshards: int = 4,
    name: str = "IterateTable",
) -> tf.Tensor:
    """Calls `apply_fn` with all rows of a table, `limit` at a time.

    The walk is a `tf.function`: one op in a graph, and done on return when called eagerly. Rows
    that are in the table all the while are visited exactly once; others may write meanwhile.

    Args:
        table: The table.
        apply_fn: Gets serialized `EntryDump`s with their ids, a string vector of at most `limit`.
        limit: The most rows at a time; positive.
        nshards: Number of parts the table is walked in; positive.
        name: Name scope of the op.

    Returns:
        The number of rows visited, an int64 scalar; in a graph, run it or depend on it.
    """
    for argument, value in (("limit", limit), ("nshards", nshards)):
        if value <= 0:
            raise errors.ConfigError(f"`{argument}` must be positive, got {value}.")

    def iterate() -> tf.Tensor:
        total = tf.constant(0, tf.int64)
        for shard in tf.range(nshards):
            offset = tf.constant(0, tf.int64)
            rows_found = tf.constant(limit, tf.int64)
            # A portion that is not full is the last one of its shard. Not `==`, which compares
            # identities in a graph that was made while eager execution is on.
            while tf.equal(rows_found, limit):
                offset, rows = table.save_as_tensor(shard, nshards, limit, offset)
                apply_fn(rows)
                rows_found = tf.size(rows, tf.int64)
                total += rows_found
        return total

    with tf.name_scope(name):
        return tf.function(iterate)()
