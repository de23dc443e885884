"""Ids and rows of many tables in one tensor each."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from monolith.embedding.tables import layout


def test_one_row_of_ids_per_table():
    ids = layout.concat_1d_tensors(
        tf.constant([7, 8], tf.int64), tf.constant([], tf.int64), tf.constant([9], tf.int64)
    )
    assert ids.to_list() == [[7, 8], [], [9]]
    assert ids.row_splits.dtype == tf.int64


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4))
def test_flat_rows_are_cut_again_as_they_were(sizes):
    rows = [np.random.default_rng(0).random([n, dim], np.float32) for n, dim in sizes]
    ids = layout.concat_1d_tensors(*[tf.range(n, dtype=tf.int64) for n, _ in sizes])
    flat = layout.flatten_n_tensors(*map(tf.constant, rows))
    assert flat.shape == [sum(n * dim for n, dim in sizes)]
    parts = layout.get_list_from_flat_value(ids, [dim for _, dim in sizes], flat)
    for part, expected in zip(parts, rows, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.usefixtures("graph_mode")
def test_widths_are_known_in_a_graph():
    ids = tf.compat.v1.ragged.placeholder(tf.int64, 1, [])
    flat = tf.compat.v1.placeholder(tf.float32, [None])
    parts = layout.get_list_from_flat_value(ids, [2, 3], flat)
    assert [part.shape.as_list() for part in parts] == [[None, 2], [None, 3]]


def test_rows_that_do_not_fit_the_ids():
    ids = layout.concat_1d_tensors(tf.constant([7, 8], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError):
        layout.get_list_from_flat_value(ids, [2], tf.zeros([3]))
