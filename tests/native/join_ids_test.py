"""MonolithJoinIds: values against NumPy, bad splits, shapes that no tensor should have."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native import ops

INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def features(draw):
    """A feature's ids, its splits, and the lengths of its bags."""
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 4), max_size=6))
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return draw_ids(draw, (sum(lengths),)), splits, lengths
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    count = int(np.prod(shape[:-1])) if len(shape) > 1 else shape[0]
    lengths = [shape[-1] if len(shape) > 1 else 1] * count
    return draw_ids(draw, shape), np.zeros(0, np.int64), lengths


def draw_ids(draw, shape):
    size = int(np.prod(shape))
    return np.array(draw(st.lists(INT64, min_size=size, max_size=size)), np.int64).reshape(shape)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(features(), INT64), min_size=1, max_size=5))
def test_agrees_with_numpy(given_features):
    parts, salts = zip(*given_features, strict=True)
    joined, row_splits, counts = ops.monolith_join_ids(
        [ids for ids, _, _ in parts], [splits for _, splits, _ in parts], salts=list(salts)
    )
    expected = [ids.ravel() ^ np.int64(salt) for (ids, _, _), salt in given_features]
    np.testing.assert_array_equal(joined, np.concatenate(expected))
    lengths = [length for _, _, lengths in parts for length in lengths]
    np.testing.assert_array_equal(row_splits, [0, *np.cumsum(lengths, dtype=np.int64)])
    np.testing.assert_array_equal(counts, [len(lengths) for _, _, lengths in parts])


def join(ids, splits, salts=(0,)):
    return ops.monolith_join_ids(
        [np.array(ids, np.int64)], [np.array(splits, np.int64)], salts=list(salts)
    )


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        pytest.param([0, 1], "end with the number of values, 2", id="end"),
        pytest.param([1, 2], "must start with 0", id="start"),
        pytest.param([0, 2, 1, 2], "must not fall, but element 2 is 1 after 2", id="falling"),
        pytest.param([[0, 2]], "rank 1|1 dimension", id="matrix"),
    ],
)
def test_bad_splits(splits, message):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        join([7, 8], splits)


def test_salts_are_one_for_each_feature():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one value for each of 1 features"):
        join([7], [], salts=[1, 2])


def test_bags_without_ids_take_no_memory():
    with pytest.raises(tf.errors.InvalidArgumentError, match="asks for an output of"):
        join(np.zeros([2**40, 0]), [])


def test_static_shapes():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def join_two(ids):
        none = tf.zeros([0], tf.int64)
        joined, row_splits, counts = ops.monolith_join_ids([ids, ids], [none, none], salts=[0, 1])
        assert joined.shape.as_list() == row_splits.shape.as_list() == [None]
        assert counts.shape == [2]
        return counts

    assert join_two(tf.constant([7, 8], tf.int64)).numpy().tolist() == [2, 2]
