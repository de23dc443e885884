"""Sums, means and first rows of the ids of an example, and their gradients."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding.features import combiners
from monolith.native_training import embedding_combiners

# Lengths of the rows of a batch: with and without empty ones, at either end and in the middle.
LENGTHS = [[1, 2], [0, 3, 0, 1, 0], [0, 0], [5], [2, 0, 0, 4]]


def make_ids(lengths) -> tf.RaggedTensor:
    values = tf.range(sum(lengths), dtype=tf.int64)
    return tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))


def make_rows(lengths, dim) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(sum(lengths), dim)).astype(np.float32)


def split_by_example(lengths, rows) -> list[np.ndarray]:
    return np.split(rows, np.cumsum(lengths)[:-1])


def reduce_with_numpy(lengths, rows, reduce) -> np.ndarray:
    empty = np.zeros(rows.shape[1])
    return np.stack([reduce(r, 0) if len(r) else empty for r in split_by_example(lengths, rows)])


def test_historical_path_gives_the_same_module():
    assert embedding_combiners is combiners


class TestReduceSum:
    def test_basic(self):
        ids = tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2])
        result = combiners.ReduceSum().combine(ids, tf.constant([[1.0], [2.0], [3.0]]))
        assert result.numpy().tolist() == [[1], [5]]

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_against_numpy(self, lengths):
        rows = make_rows(lengths, 3)
        result = combiners.ReduceSum().combine(make_ids(lengths), rows)
        np.testing.assert_allclose(result, reduce_with_numpy(lengths, rows, np.sum), rtol=1e-6)

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_gradient_reaches_each_row_of_an_example(self, lengths):
        rows = tf.constant(make_rows(lengths, 2))
        weights = make_rows([len(lengths)], 2)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            combined = combiners.ReduceSum().combine(make_ids(lengths), rows)
            loss = tf.reduce_sum(combined * weights)
        expected = np.repeat(weights, lengths, axis=0)
        np.testing.assert_allclose(tape.gradient(loss, rows), expected)

    def test_has_no_sequence_length(self):
        assert combiners.ReduceSum().max_seq_length == 0


class TestReduceMean:
    def test_basic(self):
        ids = tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 1])
        rows = tf.constant([[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]])
        result = combiners.ReduceMean().combine(ids, rows)
        assert result.numpy().tolist() == [[3, 3], [1, 1]]

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_against_numpy_with_zeros_for_empty_rows(self, lengths):
        rows = make_rows(lengths, 3)
        result = combiners.ReduceMean().combine(make_ids(lengths), rows)
        np.testing.assert_allclose(result, reduce_with_numpy(lengths, rows, np.mean), rtol=1e-6)

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_gradient_is_shared_among_the_rows_of_an_example(self, lengths):
        rows = tf.constant(make_rows(lengths, 2))
        weights = make_rows([len(lengths)], 2)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            combined = combiners.ReduceMean().combine(make_ids(lengths), rows)
            loss = tf.reduce_sum(combined * weights)
        counts = np.repeat(lengths, lengths)[:, np.newaxis]
        expected = np.repeat(weights, lengths, axis=0) / counts
        np.testing.assert_allclose(tape.gradient(loss, rows), expected, rtol=1e-6)

    def test_has_no_sequence_length(self):
        assert combiners.ReduceMean().max_seq_length == 0


class TestFirstN:
    def test_basic(self):
        ids = tf.RaggedTensor.from_row_lengths([1, 2, 3, 4, 5, 6], [1, 2, 3])
        rows = tf.constant([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
        result = combiners.FirstN(2).combine(ids, rows)
        assert result.numpy().tolist() == [[[1], [0]], [[2], [3]], [[4], [5]]]

    @pytest.mark.usefixtures("graph_mode")
    def test_unknown_shape(self):
        placeholder = tf.compat.v1.placeholder
        ids = tf.RaggedTensor.from_row_splits(
            placeholder(tf.int64, [None]), placeholder(tf.int64, [None]), validate=False
        )
        result = combiners.FirstN(2).combine(ids, placeholder(tf.float32, [None, 3]))
        assert result.shape.as_list() == [None, 2, 3]

    @pytest.mark.usefixtures("graph_mode")
    def test_known_batch_size_is_in_the_static_shape(self):
        placeholder = tf.compat.v1.placeholder
        ids = tf.RaggedTensor.from_row_splits(
            placeholder(tf.int64, [None]), placeholder(tf.int64, [5]), validate=False
        )
        result = combiners.FirstN(2).combine(ids, placeholder(tf.float32, [None, 3]))
        assert result.shape.as_list() == [4, 2, 3]

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_against_numpy(self, lengths):
        rows = make_rows(lengths, 2)
        expected = np.zeros((len(lengths), 3, 2))
        for example, own in enumerate(split_by_example(lengths, rows)):
            expected[example, : len(own)] = own[:3]
        result = combiners.FirstN(3).combine(make_ids(lengths), rows)
        np.testing.assert_array_equal(result, expected)

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_gradient_reaches_only_rows_that_are_kept(self, lengths):
        rows = tf.constant(make_rows(lengths, 2))
        weights = np.random.default_rng(4).normal(size=(len(lengths), 3, 2)).astype(np.float32)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = tf.reduce_sum(combiners.FirstN(3).combine(make_ids(lengths), rows) * weights)
        expected = [
            weights[example, i] if i < 3 else np.zeros(2)
            for example, length in enumerate(lengths)
            for i in range(length)
        ]
        gradient = tape.gradient(loss, rows)
        np.testing.assert_array_equal(gradient, np.reshape(expected, (-1, 2)))

    @pytest.mark.usefixtures("graph_mode")
    def test_name_scope(self):
        ids, rows = make_ids([1, 2]), make_rows([1, 2], 2)
        assert combiners.FirstN(2).combine(ids, rows).name.startswith("FirstNCombiner/")
        assert combiners.FirstN(2).combine(ids, rows, name="own").name.startswith("own/")

    def test_max_seq_length(self):
        assert combiners.FirstN(7).max_seq_length == 7

    @pytest.mark.parametrize("seq_length", [0, -1])
    def test_length_must_be_positive(self, seq_length):
        with pytest.raises(AssertionError, match="seq_length must be greater than 0"):
            combiners.FirstN(seq_length)

    @pytest.mark.usefixtures("graph_mode")
    def test_width_must_be_known(self):
        rows = tf.compat.v1.placeholder(tf.float32, [None, None])
        with pytest.raises(errors.ConfigError, match="width that is known when the graph is built"):
            combiners.FirstN(2).combine(make_ids([1, 2]), rows)


ALL = [combiners.ReduceSum(), combiners.ReduceMean(), combiners.FirstN(2)]


@pytest.mark.parametrize("combiner", ALL, ids=str)
class TestEvery:
    def test_dense_ids_are_refused(self, combiner):
        with pytest.raises(errors.ConfigError, match=r"tf\.RaggedTensor.*a dense tensor of shape"):
            combiner.combine(tf.constant([[1], [2]], tf.int64), tf.zeros([2, 1]))

    def test_nested_ids_are_refused(self, combiner):
        ids = tf.ragged.constant([[[1], [2, 3]]], dtype=tf.int64)
        with pytest.raises(errors.ConfigError, match=r"got a ragged tensor of shape \(1, None"):
            combiner.combine(ids, tf.zeros([3, 1]))

    def test_int32_row_splits(self, combiner):
        ids = tf.RaggedTensor.from_row_splits([1, 2], tf.constant([0, 1, 1, 2], tf.int32))
        assert combiner.combine(ids, tf.ones([2, 1])).shape[0] == 3

    def test_no_ids_at_all(self, combiner):
        result = combiner.combine(make_ids([0, 0]), tf.zeros([0, 3]))
        assert result.shape[0] == 2
        assert not result.numpy().any()

    def test_inside_of_a_function(self, combiner):
        ids, rows = make_ids([1, 0, 2]), tf.constant(make_rows([1, 0, 2], 2))
        compiled = tf.function(combiner.combine)
        np.testing.assert_array_equal(compiled(ids, rows), combiner.combine(ids, rows))


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        pytest.param(tf.zeros([2, 3], tf.int64), r"a dense tensor of shape \(2, 3\)", id="dense"),
        pytest.param(
            tf.sparse.eye(2), r"a tf\.SparseTensor \(tf\.RaggedTensor\.from_sparse", id="sparse"
        ),
        pytest.param([[1], [2]], "a list", id="list"),
    ],
)
def test_what_is_not_ragged_is_named(ids, found):
    with pytest.raises(
        errors.ConfigError, match=f"The ids of feature 'user' must be .* got {found}"
    ):
        combiners.require_ragged_ids("user", ids)


def test_missing_feature_is_named():
    with pytest.raises(errors.ConfigError, match="Feature 'user' is used by the model but is not"):
        combiners.require_ragged_ids("user", {}.get("user"))
