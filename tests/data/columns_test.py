"""Chunks of any size become batches of one size."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from monolith import errors
from monolith.data import columns
from monolith.data.schema import Dense, Label, RaggedIds, StringIds
from monolith.data.string_ids import hash_string

SCHEMA = [Label("click"), RaggedIds("user"), StringIds("tags"), Dense("price", 2), RaggedIds("m")]


def make_chunk(first, rows):
    """Row i has i % 3 users i * 10 + k, one tag of its own if odd, and so on."""
    numbers = range(first, first + rows)
    tags = [[f"tag {i}".encode()] if i % 2 else [] for i in numbers]
    values = np.empty(sum(map(len, tags)), object)
    values[:] = list(itertools.chain.from_iterable(tags))
    return {
        "click": np.array([i % 2 for i in numbers], np.float32),
        "user": columns.Ragged.from_rows([[i * 10 + k for k in range(i % 3)] for i in numbers]),
        "tags": columns.Ragged(values, np.array([len(t) for t in tags], np.int64)),
        "price": np.array([[i, -i] for i in numbers], np.float32).reshape(-1, 2),
        "m": columns.Ragged.from_rows([[i] for i in numbers]),
    }


def make_chunks(sizes):
    starts = np.cumsum([0, *sizes])
    return [make_chunk(int(start), size) for start, size in zip(starts, sizes, strict=False)]


def make_rows(batches):
    """Returns each row as a tuple of plain values."""
    rows = []
    for batch in batches:
        lists = [
            value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
            for value in (batch[feature.name] for feature in SCHEMA)
        ]
        rows += zip(*lists, strict=True)
    return rows


def expected_row(i):
    users = [i * 10 + k for k in range(i % 3)]
    return (i % 2, users, [hash_string(f"tag {i}")] if i % 2 else [], [i, -i], [i])


@pytest.mark.parametrize("sizes", [[10], [3, 4, 3], [1] * 10, [0, 9, 0, 1], [4, 4, 2]])
def test_rows_keep_their_order_and_values(sizes):
    dataset = columns.make_dataset(
        lambda: iter(make_chunks(sizes)), SCHEMA, columns.Batching(batch_size=4)
    )
    batches = list(dataset)
    assert [len(batch["click"]) for batch in batches] == [4, 4, 2]
    assert list(batches[0]) == [feature.name for feature in SCHEMA]
    assert make_rows(batches) == [expected_row(i) for i in range(10)]


def test_drop_remainder_makes_the_batch_size_static():
    batching = columns.Batching(batch_size=4, drop_remainder=True)
    dataset = columns.make_dataset(lambda: iter(make_chunks([7, 3])), SCHEMA, batching)
    assert dataset.element_spec["user"].shape == [4, None]
    assert dataset.element_spec["price"].shape == [4, 2]
    assert dataset.element_spec["click"].shape == [4]
    assert make_rows(dataset) == [expected_row(i) for i in range(8)]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12), st.booleans())
def test_rebatch_loses_nothing(sizes, batch_size, drop_remainder):
    batches = list(columns.rebatch(iter(make_chunks(sizes)), batch_size, drop_remainder))
    total = sum(sizes)
    if drop_remainder:
        total -= total % batch_size
    assert np.concatenate([[], *(b["price"][:, 0] for b in batches)]).tolist() == [*range(total)]
    users = np.concatenate([np.empty(0, np.int64), *(b["user"].values for b in batches)])
    assert users.tolist() == [u for i in range(total) for u in expected_row(i)[1]]
    assert all(columns.num_rows(b) == batch_size for b in batches[:-1])
    for batch in batches:
        assert batch["user"].lengths.sum() == len(batch["user"].values)


def test_shuffling_moves_whole_rows_within_blocks():
    batching = columns.Batching(batch_size=5, shuffle_rows=20, seed=3)
    make = lambda: columns.make_dataset(lambda: iter(make_chunks([13, 27])), SCHEMA, batching)  # noqa: E731
    dataset = make()
    first, second = make_rows(dataset), make_rows(dataset)
    for rows in (first, second):
        assert sorted(rows[:20], key=lambda r: r[4]) == [expected_row(i) for i in range(20)]
        assert sorted(rows[20:], key=lambda r: r[4]) == [expected_row(i) for i in range(20, 40)]
        assert rows != [expected_row(i) for i in range(40)]
    assert first != second  # every pass has its own order,
    assert make_rows(make()) == first  # and the seed fixes it


@pytest.mark.usefixtures("graph_mode")
def test_works_in_a_graph():
    dataset = columns.make_dataset(
        lambda: iter(make_chunks([3])), SCHEMA, columns.Batching(batch_size=2)
    )
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset.repeat(2)).get_next()
    with tf.compat.v1.Session() as session:
        users = [session.run(batch["user"]).to_list() for _ in range(4)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch["user"])
    assert users == [[[], [10]], [[20, 21]]] * 2


def test_bad_settings_are_refused():
    with pytest.raises(errors.ConfigError, match="batch_size must be positive, got 0"):
        columns.Batching(batch_size=0)
    with pytest.raises(errors.ConfigError, match="shuffle_rows must be positive, got 0; None"):
        columns.Batching(shuffle_rows=0)
