"""Batches have one size, and whoever reads on from a position gets what somebody else got."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.rows import Chunks

from monolith.data import columns, positions

SIZES = st.lists(st.integers(0, 9), max_size=8).map(tuple)


def read(rows, batching, position):
    """Returns the numbers of the rows of each batch, and the positions behind them."""
    found = list(positions.read_batches(rows, batching, position))
    return [b["price"][:, 0].astype(int).tolist() for b, _ in found], [p for _, p in found]


@given(SIZES, st.integers(1, 12), st.booleans())
def test_nothing_is_lost_and_batches_have_one_size(sizes, batch_size, drop_remainder):
    batching = columns.Batching(batch_size=batch_size, drop_remainder=drop_remainder)
    rows = Chunks(sizes)
    batches, _ = read(rows, batching, positions.start_of_pass(rows))
    total = sum(sizes)
    if drop_remainder:
        total -= total % batch_size
    assert [i for batch in batches for i in batch] == [*range(total)]
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(SIZES, st.integers(1, 12), st.none() | st.integers(1, 20), st.booleans(), st.integers(0, 9))
def test_reading_on_gives_the_same_batches(sizes, batch_size, shuffle_rows, drop_remainder, seed):
    batching = columns.Batching(
        batch_size=batch_size, shuffle_rows=shuffle_rows, drop_remainder=drop_remainder
    )
    rows = Chunks(sizes)
    start = positions.start_of_pass(rows, seed)
    batches, behind = read(rows, batching, start)
    for i, position in enumerate([start, *behind]):
        # As it is saved.
        integers = np.array(position.to_integers()).tolist()
        assert len(integers) == len(start.to_integers())
        rest, _ = read(rows, batching, positions.Position.from_integers(tuple(integers)))
        assert rest == batches[i:]


@given(st.integers(0, 5), st.integers(0, 5), SIZES, st.integers(1, 5))
def test_chunks_may_have_other_sizes_when_they_are_read_again(skip, extra, sizes, batch_size):
    """Rows to skip may be more than the first chunk has: a file's chunks need not be the same."""
    rows = Chunks((skip, extra, *sizes))
    batching = columns.Batching(batch_size=batch_size)
    start = positions.start_of_pass(rows)._replace(skip=min(skip + extra, sum(rows.sizes)))
    batches, _ = read(rows, batching, start)
    assert [i for batch in batches for i in batch] == [*range(start.skip, sum(rows.sizes))]


def test_rows_are_shuffled_within_blocks():
    rows = Chunks((13, 27))
    batching = columns.Batching(batch_size=5, shuffle_rows=20)
    orders = []
    for seed in (3, 4):
        batches, _ = read(rows, batching, positions.start_of_pass(rows, seed))
        order = [i for batch in batches for i in batch]
        assert sorted(order[:20]) == [*range(20)]
        assert sorted(order[20:]) == [*range(20, 40)]
        assert [i - 20 for i in order[20:]] != order[:20]  # Each block has an order of its own,
        orders.append(order)
    assert orders[0] != orders[1]  # and each seed another one.


def test_every_order_of_a_block_is_as_likely():
    rows = Chunks((3,))
    batching = columns.Batching(batch_size=3, shuffle_rows=3)
    counts = {}
    for seed in range(600):
        [batch], _ = read(rows, batching, positions.start_of_pass(rows, seed))
        counts[tuple(batch)] = counts.get(tuple(batch), 0) + 1
    # Binomial, 600 draws with probability 1 / 6: 100 +- 9.1; five standard deviations.
    assert len(counts) == 6
    assert all(100 - 46 < count < 100 + 46 for count in counts.values())
