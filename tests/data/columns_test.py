"""Columns are cut, joined, reordered, and become tensors."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.rows import SCHEMA, expected_row, make_chunk, make_rows

from monolith import errors
from monolith.data import columns


def to_tensors(chunk, rows=None):
    layout = columns.FeatureLayout(SCHEMA, rows)
    arrays = layout.pack(chunk)
    for array, spec in zip(arrays, layout.signature, strict=True):
        assert spec.shape.is_compatible_with(array.shape)
    return layout.unpack(
        *map(tf.constant, [a.astype(str) if a.dtype == object else a for a in arrays])
    )


@given(st.integers(0, 12), st.data())
def test_cut_and_joined_rows_are_the_same(rows, data):
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    size = data.draw(st.integers(1, 15))
    parts = list(columns.cut_rows(make_chunk(5, rows), start, stop, size))
    assert [columns.num_rows(part) for part in parts[:-1]] == [size] * len(parts[:-1])
    if parts:
        joined = columns.concat_rows(parts)
        assert make_rows([to_tensors(joined)]) == [expected_row(5 + i) for i in range(start, stop)]
    else:
        assert start == stop


def test_some_of_the_rows():
    assert make_rows([to_tensors(columns.slice_rows(make_chunk(0, 9), 3, 7))]) == [
        expected_row(i) for i in range(3, 7)
    ]


def test_reordered_rows_keep_their_values():
    order = np.random.default_rng(0).permutation(20)
    rows = columns.reorder_rows(make_chunk(0, 20), order)
    assert make_rows([to_tensors(rows)]) == [expected_row(i) for i in order]


def test_tensors_are_in_the_order_of_the_schema():
    assert list(to_tensors(make_chunk(0, 2))) == [feature.name for feature in SCHEMA]


def test_no_rows_become_empty_tensors():
    found = to_tensors(make_chunk(0, 0))
    assert found["user"].shape[0] == 0
    assert found["price"].shape == (0, 2)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True, "8"])
def test_bad_batch_sizes_are_refused(batch_size):
    with pytest.raises(errors.ConfigError, match="batch_size must be positive, got"):
        columns.Batching(batch_size=batch_size)


@pytest.mark.parametrize("rows", [0, -5, True, False, 1.5])
def test_bad_numbers_of_shuffled_rows_are_refused(rows):
    message = f"must be positive, as in 100_000, got {rows!r}; None does not shuffle"
    with pytest.raises(errors.ConfigError, match=message):
        columns.Batching(shuffle_rows=rows)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, True])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(errors.ConfigError, match="seed is an integer from 0"):
        columns.Batching(shuffle_rows=5, seed=seed)
