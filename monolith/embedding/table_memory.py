"""What an `ml.Table` takes in memory.

Example:
    >>> memory = TableMemory(rows=1000, row_bytes=32_000, index_bytes=8_000)
    >>> memory.total_bytes, memory.bytes_per_row
    (40000, 40.0)
    >>> print(memory)
    1,000 rows in 40,000 bytes, 40.0 bytes per row
"""

from typing import NamedTuple

from monolith.embedding.tables.stats import TableStats


class TableMemory(NamedTuple):
    """The memory of a table, without that of its admission counts.

    Attributes:
        rows: How many rows there are.
        row_bytes: Memory for rows: value, optimizer state, time and id of each, and places that
            rows have left, which others will take. It does not shrink when rows are removed.
        index_bytes: Memory for finding the row of an id.
    """

    rows: int
    row_bytes: int
    index_bytes: int

    @property
    def total_bytes(self) -> int:
        """Memory for rows and index together."""
        return self.row_bytes + self.index_bytes

    @property
    def bytes_per_row(self) -> float:
        """All memory by the number of rows; 0 while there are none."""
        return self.total_bytes / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows in {self.total_bytes:,} bytes, "
            f"{self.bytes_per_row:,.1f} bytes per row"
        )


def of_stats(stats: TableStats) -> TableMemory:
    """Returns the memory of the one table whose numbers these are, vectors of one element."""
    return TableMemory(*(int(numbers[0]) for numbers in stats[:3]))
