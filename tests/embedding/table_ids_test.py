"""What may be looked up in a table."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import string_ids
from monolith.embedding import table_ids


@pytest.mark.parametrize(
    "ids",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]], np.uint16),
        np.array([[1, 2], [3, 4]]),
        tf.constant([[1, 2], [3, 4]], tf.int32),
        tf.constant([[1, 2], [3, 4]], tf.int8),
        tf.constant([[1, 2], [3, 4]], tf.uint64),
        tf.constant([[1, 2], [3, 4]], tf.int64),
        tf.Variable([[1, 2], [3, 4]], dtype=tf.int64),
    ],
    ids=lambda ids: f"{type(ids).__name__}_{getattr(getattr(ids, 'dtype', None), 'name', '')}",
)
def test_integers_of_any_type(ids):
    flat, shaped = table_ids.to_flat(ids)
    assert flat.dtype == tf.int64
    assert flat.numpy().tolist() == [1, 2, 3, 4]
    rows = table_ids.restore(tf.reshape(tf.range(8.0), [4, 2]), shaped)
    assert rows.numpy().tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize("ids", [[2**64 - 1], np.array([2**64 - 1], np.uint64)])
def test_all_64_bits_count(ids):
    assert table_ids.to_ids(ids).numpy().tolist() == [-1]
    assert table_ids.to_ids(tf.constant([2**64 - 1], tf.uint64)).numpy().tolist() == [-1]


def test_one_id_and_none():
    flat, shaped = table_ids.to_flat(7)
    assert flat.numpy().tolist() == [7]
    assert table_ids.restore(tf.ones([1, 3]), shaped).shape == [3]
    for none in ([], np.zeros([0]), np.zeros([0, 3]), tf.zeros([0, 3], tf.int64)):
        assert table_ids.to_flat(none)[0].shape == [0]
    assert table_ids.restore(tf.ones([0, 2]), table_ids.to_ids(np.zeros([0, 3]))).shape == [0, 3, 2]


def test_ragged_ids():
    ids = tf.ragged.constant([[[1], [2, 3]], [], [[]]], dtype=tf.int32)
    flat, shaped = table_ids.to_flat(ids)
    assert flat.numpy().tolist() == [1, 2, 3]
    rows = table_ids.restore(tf.constant([[1.0], [2.0], [3.0]]), shaped)
    assert rows.to_list() == [[[[1.0]], [[2.0], [3.0]]], [], [[]]]


def test_ragged_ids_with_even_inner_dimensions():
    ids = tf.RaggedTensor.from_row_lengths([[1, 2], [3, 4], [5, 6]], [2, 0, 1])
    flat, shaped = table_ids.to_flat(ids)
    assert flat.numpy().tolist() == [1, 2, 3, 4, 5, 6]
    rows = table_ids.restore(tf.reshape(tf.range(6.0), [6, 1]), shaped)
    assert rows.to_list() == [[[[0.0], [1.0]], [[2.0], [3.0]]], [], [[[4.0], [5.0]]]]


def test_sparse_ids_are_ragged():
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([7, 8, 9], tf.int32), [3, 2])
    assert table_ids.to_ids(ids).to_list() == [[7, 8], [], [9]]
    with_gaps = tf.sparse.from_dense([[0, 7, 0, 8], [0, 0, 0, 0], [9, 0, 0, 0]])
    assert table_ids.to_ids(with_gaps).to_list() == [[7, 8], [], [9]]
    with pytest.raises(errors.ConfigError, match=r"must have the shape \[batch, ids\]"):
        table_ids.to_ids(tf.SparseTensor([[0, 0, 0]], [7], [1, 1, 1]))


@pytest.mark.parametrize(
    "strings",
    [["a", "ü"], np.array(["a", "ü"]), np.array(["a", "ü"], object), tf.constant(["a", "ü"])],
    ids=["list", "array", "objects", "tensor"],
)
def test_strings_are_hashed_as_everywhere(strings):
    expected = [string_ids.hash_string("a"), string_ids.hash_string("ü")]
    assert table_ids.to_ids(strings).numpy().tolist() == expected
    ragged = tf.ragged.constant([["a"], ["ü", "a"]])
    assert table_ids.to_ids(ragged).to_list() == [expected[:1], [expected[1], expected[0]]]


@pytest.mark.parametrize(
    "ids",
    [1.0, [1.5], np.array([1.0]), tf.constant([1.0]), [True], tf.constant([True]), [None], [{}]],
    ids=str,
)
def test_anything_else_is_refused(ids):
    sentence = r"Ids must be integers( of 64 bits)? or strings, got"
    with pytest.raises(errors.ConfigError, match=sentence):
        table_ids.to_ids(ids)


def test_lists_of_different_lengths():
    with pytest.raises(errors.ConfigError, match=r"make lists of different lengths a tf.ragged"):
        table_ids.to_ids([[1, 2], [3]])


@pytest.mark.parametrize(
    ("ids", "shown"),
    [([2**64], 2**64), ([1, 2**70], 2**70), (None, None), ([7, None], None)],
)
def test_what_is_no_integer_of_64_bits_is_shown(ids, shown):
    with pytest.raises(errors.ConfigError, match=f"of 64 bits or strings, got {shown}\\."):
        table_ids.to_ids(ids)


def test_symbolic_inputs_of_keras():
    with pytest.raises(errors.ConfigError, match=r"use ml.keras.Embedding\(table=...\)"):
        table_ids.to_ids(keras.Input((3,), dtype="int64"))


def test_shapes_that_are_known_late():
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def arrange(ids):
        flat, shaped = table_ids.to_flat(ids)
        rows = table_ids.restore(tf.cast(tf.expand_dims(flat, 1), tf.float32), shaped)
        assert rows.shape.as_list() == [None, 2, 1]
        return rows

    assert arrange(tf.constant([[1, 2]], tf.int64)).numpy().tolist() == [[[1.0], [2.0]]]
