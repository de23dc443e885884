"""Bags of ids: whatever has them, the vectors come back in its shape."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.keras.combining import join, to_bags

VECTORS = tf.constant(np.arange(8.0).reshape(4, 2), tf.float32)
RAGGED = tf.ragged.constant([[10, 11], [], [12, 13, 14], [15]], dtype=tf.int64)


def ids_of(bags):
    return join([bags], [0]).flat_ids.numpy().tolist()


def splits_of(bags):
    return join([bags], [0]).row_splits.numpy().tolist()


@pytest.mark.parametrize("ids", [RAGGED, RAGGED.to_sparse()], ids=["ragged", "sparse"])
def test_uneven_ids(ids):
    bags = to_bags(ids)
    assert ids_of(bags) == [10, 11, 12, 13, 14, 15]
    assert splits_of(bags) == [0, 2, 2, 5, 6]
    np.testing.assert_array_equal(bags.arrange(VECTORS), VECTORS)


def test_one_id_each():
    bags = to_bags(tf.constant([7, 8, 9, 7], tf.int64))
    assert splits_of(bags) == [0, 1, 2, 3, 4]
    assert bags.arrange(VECTORS).shape == [4, 2]


def test_even_ids():
    bags = to_bags(tf.reshape(tf.range(12, dtype=tf.int64), [4, 3]))
    assert ids_of(bags) == list(range(12))
    assert splits_of(bags) == [0, 3, 6, 9, 12]
    assert bags.arrange(VECTORS).shape == [4, 2]
    deeper = to_bags(tf.reshape(tf.range(12, dtype=tf.int64), [2, 2, 3]))
    assert splits_of(deeper) == [0, 3, 6, 9, 12]
    assert deeper.arrange(VECTORS).numpy().tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_two_uneven_dimensions():
    ids = tf.ragged.constant([[[1, 2], []], [], [[3, 4, 5], [6]]], dtype=tf.int64)
    bags = to_bags(ids)
    assert splits_of(bags) == [0, 2, 2, 5, 6]
    assert bags.arrange(VECTORS).to_list() == [[[0, 1], [2, 3]], [], [[4, 5], [6, 7]]]


def test_uneven_lists_of_even_ids():
    ids = tf.RaggedTensor.from_row_lengths(tf.reshape(tf.range(12, dtype=tf.int64), [4, 3]), [1, 3])
    bags = to_bags(ids)
    assert splits_of(bags) == [0, 3, 6, 9, 12]
    assert bags.arrange(VECTORS).to_list() == [[[0, 1]], [[2, 3], [4, 5], [6, 7]]]


def test_no_ids_at_all():
    assert splits_of(to_bags(tf.ragged.constant([[], []], dtype=tf.int64))) == [0, 0, 0]
    assert splits_of(to_bags(tf.zeros([2, 0], tf.int64))) == [0, 0, 0]
    assert splits_of(to_bags(tf.zeros([0, 3], tf.int64))) == [0]
    assert splits_of(to_bags(tf.zeros([0], tf.int64))) == [0]
    none = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [2, 5])
    assert splits_of(to_bags(none)) == [0, 0, 0]


def test_splits_of_32_bits():
    ids = tf.RaggedTensor.from_row_splits(tf.constant([7], tf.int64), tf.constant([0, 1]))
    assert to_bags(ids).row_splits.dtype == tf.int64


def test_several_features():
    pair = tf.constant([7, 8], tf.int64)
    joined = join([to_bags(RAGGED), to_bags(pair), to_bags(RAGGED[:0])], [0, 5, 1])
    assert joined.flat_ids.numpy().tolist() == [*range(10, 16), 7 ^ 5, 8 ^ 5]
    assert joined.row_splits.numpy().tolist() == [0, 2, 2, 5, 6, 7, 8]
    assert joined.counts.numpy().tolist() == [4, 2, 0]


def test_sparse_ids_out_of_order_are_refused():
    ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([7, 8], tf.int64), [2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        to_bags(ids)


def test_static_shapes():
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    def arrange(ids):
        vectors = to_bags(ids).arrange(tf.zeros([tf.shape(ids)[0], 2]))
        assert vectors.shape.as_list() == [None, 2]
        return vectors

    assert arrange(tf.zeros([5, 3], tf.int64)).shape == [5, 2]
