"""Batches of rows that can be read from any place on.

A source gives chunks of rows, each with the place behind it. A batch may end in the middle of a
chunk, or of rows that were shuffled together, so the position behind a batch has more parts: the
place of a chunk, how many of its rows to skip, and, if rows are shuffled, which block of them that
is and how many of it to skip. The order inside a block follows from the pass's seed and the block's
number. So a position is a few integers, however many rows are shuffled, and whoever reads on from
it gets the same batches as somebody who never stopped.

Example:
    >>> class Numbers:
    ...     start = (0,)
    ...     def read(self, place):
    ...         for first in range(place[0], 10, 5):
    ...             yield {"x": np.arange(first, first + 5)}, (first + 5,)
    >>> batching = columns.Batching(batch_size=2, shuffle_rows=4)
    >>> passed = list(read_batches(Numbers(), batching, start_of_pass(Numbers(), seed=3)))
    >>> _, behind_second = passed[1]
    >>> rest = list(read_batches(Numbers(), batching, behind_second))
    >>> [batch["x"].tolist() for batch, _ in rest] == [b["x"].tolist() for b, _ in passed[2:]]
    True
"""

import collections
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from monolith.data import columns

# Where a source can be read from: integers, always as many for one source.
Place = tuple[int, ...]
Chunk = tuple[columns.Columns, Place]


class Rows(Protocol):
    """Something with rows to read.

    Attributes:
        start: The place of the first row.
    """

    start: Place

    def read(self, place: Place) -> Iterator[Chunk]:
        """Yields the rows from `place` on, in chunks, each with the place behind it."""


class Position(NamedTuple):
    """Where a batch begins.

    Attributes:
        seed: Decides the order of the pass, if rows are shuffled.
        block: How many blocks of shuffled rows come before.
        place: The place of a chunk: the first of the block, or the one that the batch begins in.
        skip: How many rows of that chunk come before the block, or before the batch.
        taken: How many rows of the shuffled block come before the batch.
    """

    seed: int
    block: int
    place: Place
    skip: int
    taken: int

    def to_integers(self) -> tuple[int, ...]:
        """Returns all parts in a row."""
        return self.seed, self.block, *self.place, self.skip, self.taken

    @classmethod
    def from_integers(cls, integers: tuple[int, ...]) -> "Position":
        """Makes one of what `to_integers` has returned."""
        seed, block, *place, skip, taken = integers
        return cls(seed, block, tuple(place), skip, taken)


def start_of_pass(rows: Rows, seed: int = 0) -> Position:
    """Returns where the first batch begins."""
    return Position(seed, 0, rows.start, 0, 0)


def read_batches(
    rows: Rows, batching: columns.Batching, position: Position
) -> Iterator[tuple[columns.Columns, Position]]:
    """Yields the batches from `position` on, each with the position behind it."""
    seed, block, place, skip, taken = position
    size, drop = batching.batch_size, batching.drop_remainder
    if batching.shuffle_rows is None:
        for batch, after in regroup(rows.read(place), place, skip, size, drop):
            yield batch, Position(seed, 0, after[:-1], after[-1], 0)
        return
    groups = regroup(rows.read(place), place, skip, batching.shuffle_rows)
    blocks = _shuffle(groups, seed, block)
    for batch, after in regroup(blocks, (block, *place, skip), taken, size, drop):
        block, *place_after, skip, taken = after
        yield batch, Position(seed, block, tuple(place_after), skip, taken)


def regroup(
    chunks: Iterator[Chunk], place: Place, skip: int, size: int, drop_remainder: bool = False
) -> Iterator[Chunk]:
    """Yields the rows of all chunks in groups of one size, each with the place behind it.

    Args:
        chunks: The rows from `place` on.
        place: The place of the first chunk.
        skip: How many rows come before the first group.
        size: Rows of a group; the last one may have fewer.
        drop_remainder: Whether the last one is left out then.

    Yields:
        Groups. The place behind a group is that of a chunk, with how many of its rows to skip as
        one more integer.
    """
    waiting: list[columns.Columns] = []
    num_waiting = 0
    # Chunks that rows are waiting of: the number, among these, of the chunk's first row, which is
    # negative where it is gone already, and the chunk's place.
    origins: collections.deque[tuple[int, Place]] = collections.deque()
    for chunk, after in chunks:
        rows = columns.num_rows(chunk)
        if rows <= skip:
            skip -= rows
            place = after
            continue
        origins.append((num_waiting - skip, place))
        waiting.append(columns.slice_rows(chunk, skip, rows) if skip else chunk)
        num_waiting += rows - skip
        place, skip = after, 0
        if num_waiting < size:
            continue
        joined = columns.concat_rows(waiting)
        end = 0
        for group in columns.cut_rows(joined, 0, num_waiting - num_waiting % size, size):
            end += size
            if end == num_waiting:
                origins.clear()
                yield group, (*place, 0)
                continue
            while len(origins) > 1 and origins[1][0] <= end:
                origins.popleft()
            first, begun = origins[0]
            yield group, (*begun, end - first)
        waiting = [columns.slice_rows(joined, end, num_waiting)] if end < num_waiting else []
        num_waiting -= end
        origins = collections.deque((first - end, begun) for first, begun in origins)
    if num_waiting and not drop_remainder:
        yield columns.concat_rows(waiting), (*place, 0)


def _shuffle(groups: Iterator[Chunk], seed: int, block: int) -> Iterator[Chunk]:
    for rows, after in groups:
        order = np.random.default_rng((seed, block)).permutation(columns.num_rows(rows))
        block += 1
        yield columns.reorder_rows(rows, order), (block, *after)
