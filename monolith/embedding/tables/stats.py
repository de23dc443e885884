"""What the tables of a graph hold, and what has become of ids since the process began.

For TensorBoard, for logs, and for who wants to know where the memory goes. Asking costs a few
microseconds for each table and slows nobody down.

Example:
    >>> from monolith.embedding.tables import single
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     table = single.test_hash_table(2, name_suffix="user")
    ...     stats = get_stats()
    ...     session.run(table.assign([7, 8], [[1.0, 1.0], [2.0, 2.0]]).as_op())
    ...     found = session.run(stats)
    >>> int(found["user"].rows), int(found["user"].admitted), int(found["user"].held_back)
    (2, 2, 0)
"""

from typing import Any, NamedTuple

import tensorflow as tf

from monolith.embedding.tables import registry
from monolith.native import ops


class TableStats(NamedTuple):
    """Numbers of one table, or of several in the order of their names; int64.

    Tensors, or, when a session has run them, what it returned.

    Attributes:
        rows: How many rows there are now.
        row_bytes: Memory for rows: value, optimizer state, time and id of each, and places that
            rows have left, which others will take. It does not shrink when rows are removed.
        index_bytes: Memory for finding the row of an id.
        admitted: How many rows updates have made: `assign`, `assign_add`, `apply_gradients` and
            `reinitialize`. Rows that a restore has brought are not among them.
        expired: How many rows were removed because they had expired: by `evict`, or by the table
            itself every `feature_evict_every_n_hours`. Rows that a save leaves out for that reason
            stay in memory and are not counted.
        held_back: How often an update got no row for an id because the filter held it back; an id
            that waits for its third occurrence counts twice.
    """

    rows: Any
    row_bytes: Any
    index_bytes: Any
    admitted: Any
    expired: Any
    held_back: Any

    @property
    def memory_bytes(self) -> Any:
        """Memory for rows and index together."""
        return self.row_bytes + self.index_bytes


def read_stats(handle: tf.Tensor) -> TableStats:
    """Returns the numbers of the tables behind a handle, each an int64 vector."""
    return TableStats(*ops.monolith_multi_hash_table_stats(handle))


def by_table(stats: TableStats, num_tables: int) -> list[TableStats]:
    """Returns the numbers of each table as scalars."""
    columns = (tf.unstack(numbers, num_tables) for numbers in stats)
    return [TableStats(*numbers) for numbers in zip(*columns, strict=True)]


def get_stats() -> dict[str, TableStats]:
    """Returns the numbers of all tables of the default graph, by name, to be fetched.

    The parts of a table on several servers are summed. A table of a multi table goes by its own
    name, another by its name without `MonolithHashTable_`; that of merged tables is made of the
    names of all that share it. Should tables of two multi tables have one name, the name of the
    multi table and a slash come first.
    """
    wholes: dict[str, list[registry.Entry]] = {}
    for entry in registry.get_tables():
        wholes.setdefault(entry.shard.table, []).append(entry)
    found: dict[str, list[tuple[str, TableStats]]] = {}
    for whole, parts in wholes.items():
        numbers = []
        for part in parts:
            with tf.device(part.handle.device):
                numbers.append(read_stats(part.handle))
        summed = TableStats(*(tf.add_n(list(column)) for column in zip(*numbers, strict=True)))
        names = _name_tables(whole, parts[0])
        for name, stats in zip(names, by_table(summed, len(names)), strict=True):
            found.setdefault(name, []).append((whole, stats))
    return {
        name if len(entries) == 1 else f"{whole}/{name}": stats
        for name, entries in found.items()
        for whole, stats in entries
    }


def _name_tables(whole: str, part: registry.Entry) -> tuple[str, ...]:
    if part.config.snapshot_format.counts_features:
        return part.config.table_names
    return (whole.removeprefix(registry.SINGLE_NAME_PREFIX),)
