"""Rows of an example combined, and their slices."""

import numpy as np
import pytest
import tensorflow as tf
from support.distribution import assert_gradients_are_numeric, ids_of, lists, weighted_sum

from monolith.embedding.sharding import distribution
from monolith.native import ops

REDUCTIONS = {
    "sum": distribution.reduce_sum,
    "mean": distribution.reduce_mean,
    "sqrtn": distribution.reduce_sqrtn,
}


class TestReductions:
    @pytest.mark.parametrize(
        ("kind", "rows", "expected"),
        [
            ("sum", [[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]], [[6, 6], [1, 1]]),
            ("mean", [[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]], [[3, 3], [1, 1]]),
            ("sqrtn", [[3.0, 3.0], [4.0, 4.0], [4.0, 4.0]], [[5, 5], [4, 4]]),
        ],
    )
    def test_vectors(self, kind, rows, expected):
        result = REDUCTIONS[kind]([[0], [0], [1]], rows, [2])
        assert result.numpy().tolist() == expected

    @pytest.mark.parametrize("kind", REDUCTIONS)
    def test_examples_without_rows_are_zero(self, kind):
        result = REDUCTIONS[kind]([[1]], [[2.0]], [3])
        assert result.numpy().tolist() == [[0], [2], [0]]

    @pytest.mark.parametrize("kind", REDUCTIONS)
    @pytest.mark.parametrize("indices", [[0, 0, 1, 3], [3, 0, 1, 0]], ids=["sorted", "unsorted"])
    def test_numeric_gradient(self, kind, indices):
        rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 2]])
        assert_gradients_are_numeric(
            lambda values: weighted_sum(
                [REDUCTIONS[kind](np.reshape(indices, [-1, 1]), values, [4])]
            ),
            rows,
        )

    def test_gradient_of_sqrtn_is_zero_where_the_norm_is(self):
        rows = tf.constant([[0.0, 3.0], [0.0, 4.0]])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = tf.reduce_sum(distribution.reduce_sqrtn([[0], [0]], rows, [1]))
        np.testing.assert_allclose(tape.gradient(loss, rows), [[0, 0.6], [0, 0.8]], rtol=1e-6)

    @pytest.mark.parametrize("kind", REDUCTIONS)
    @pytest.mark.parametrize(
        ("indices", "rows", "length", "message"),
        [
            ([[2]], [[1.0]], [2], r"`id_indices` must be within \[0, 2\), but element 0 is 2"),
            ([[-1]], [[1.0]], [2], "element 0 is -1"),
            ([[0], [1]], [[1.0]], [2], "`id_indices` must have 1 element"),
            ([[0]], [1.0], [2], "`id_values` must have 2 dimensions"),
            ([[0]], [[1.0]], [2, 3], "`id_dense_shape` must have 1 element"),
            ([[0]], [[1.0]], [-1], "`id_dense_shape` must not be negative"),
            ([[0]], [[1.0, 2.0]], [2**62], "`id_dense_shape` asks for an output of"),
        ],
    )
    def test_bad_input(self, kind, indices, rows, length, message):
        with pytest.raises(tf.errors.OpError, match=f"(?i){message}"):
            REDUCTIONS[kind](indices, rows, length)

    @pytest.mark.parametrize(
        "call",
        [
            lambda indices, grads: ops.monolith_reduce_sum_gradient(indices, grads),
            lambda indices, grads: ops.monolith_reduce_mean_gradient(indices, grads),
            lambda indices, grads: ops.monolith_reduce_square_norm_gradient(
                indices, [[1.0]], grads
            ),
        ],
    )
    def test_bad_gradient(self, call):
        with pytest.raises(tf.errors.InvalidArgumentError, match="element 0 is 2"):
            call([[2]], [[1.0], [2.0]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="`grads` must have 2 dimensions"):
            call([[0]], [1.0])

    def test_gradient_of_sqrtn_needs_its_rows(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`id_values` must have shape"):
            ops.monolith_reduce_square_norm_gradient([[0]], [[1.0], [2.0]], [[1.0]])


class TestFusedReduceSumAndSplit:
    def test_gaps_are_zero_rows(self):
        rows = [[1.0, 4.0], [2.0, 3.0], [5.0, 6.0]]
        slices = distribution.fused_reduce_sum_and_split([1, 3, 3], rows, [5], [1, 1])
        assert lists(slices) == [[[0], [1], [0], [7], [0]], [[0], [4], [0], [9], [0]]]

    def test_static_shapes(self):
        with tf.Graph().as_default():
            rows = tf.compat.v1.placeholder(tf.float32, [None, 3])
            indices = tf.compat.v1.placeholder(tf.int64, [None])
            slices = distribution.fused_reduce_sum_and_split(indices, rows, [4], [1, 2])
        assert [s.shape.as_list() for s in slices] == [[4, 1], [4, 2]]

    @pytest.mark.parametrize("indices", [[0, 0, 2], [2, 0, 2]], ids=["sorted", "unsorted"])
    def test_gradient_concatenates(self, indices):
        rows = np.arange(9, dtype=np.float32).reshape(3, 3)
        assert_gradients_are_numeric(
            lambda values: weighted_sum(
                distribution.fused_reduce_sum_and_split(indices, values, [3], [1, 2])
            ),
            rows,
        )

    @pytest.mark.parametrize(
        ("indices", "batch"),
        [
            pytest.param([0, 1, 2], 3, id="in_order"),
            pytest.param([0, 2, 1], 3, id="another_order"),
            pytest.param([0, 1, 2], 4, id="one_example_without"),
            pytest.param([0, 1, 1], 2, id="one_with_two"),
        ],
    )
    def test_one_slice_of_one_id_for_each_example(self, indices, batch):
        rows = np.arange(6, dtype=np.float32).reshape(3, 2)
        expected = np.zeros([batch, 2], np.float32)
        np.add.at(expected, indices, rows)
        (found,) = distribution.fused_reduce_sum_and_split(indices, rows, [batch], [2])
        np.testing.assert_array_equal(found, expected)
        assert_gradients_are_numeric(
            lambda values: weighted_sum(
                distribution.fused_reduce_sum_and_split(indices, values, [batch], [2])
            ),
            rows,
        )

    def test_gradient_of_one_slice_only(self):
        rows = tf.ones([2, 3])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            _, second = distribution.fused_reduce_sum_and_split([0, 0], rows, [1], [1, 2])
            loss = tf.reduce_sum(second)
        assert tape.gradient(loss, rows).numpy().tolist() == [[0, 1, 1], [0, 1, 1]]

    @pytest.mark.parametrize("is_sorted", [True, False])
    def test_large_batch_like_numpy(self, is_sorted):
        rng = np.random.default_rng(3)
        rows = rng.normal(size=(40_000, 8)).astype(np.float32)
        indices = rng.integers(0, 3000, len(rows))
        if is_sorted:
            indices.sort()
        expected = np.zeros([3000, 8])
        np.add.at(expected, indices, rows)
        slices = distribution.fused_reduce_sum_and_split(indices, rows, [3000], [5, 3])
        np.testing.assert_allclose(np.concatenate(slices, axis=1), expected, rtol=1e-4, atol=1e-4)

    def test_a_result_survives_the_next_call(self):
        """Memory of large outputs is used again only when nobody holds it."""
        rows = np.ones([2000, 32], np.float32)
        indices = np.arange(2000)[::-1]
        call = tf.function(
            lambda r: distribution.fused_reduce_sum_and_split(indices, r, [2000], [32])[0]
        )
        first = call(rows)
        second = call(2 * rows)
        assert set(np.unique(first)) == {1}
        assert set(np.unique(second)) == {2}

    @pytest.mark.parametrize(
        ("indices", "rows", "length", "dims", "message"),
        [
            ([0], [[1.0, 2.0]], [1], [1], "rows of 1 floats|must be 1 but is 2"),
            ([0], [[1.0]], [1], [0], "must be positive"),
            ([5], [[1.0]], [1], [1], r"within \[0, 1\), but element 0 is 5"),
            ([0, 0], [[1.0]], [1], [1], "`id_indices` must have 1 element"),
            ([0], [1.0], [1], [1], "`id_values` must have 2 dimensions"),
            ([0], [[1.0]], [-5], [1], "must not be negative"),
            ([0], [[1.0, 1.0]], [2**62], [2], "`id_dense_shape` asks for an output of"),
        ],
    )
    def test_bad_input(self, indices, rows, length, dims, message):
        with pytest.raises(tf.errors.OpError, match=f"(?i){message}"):
            distribution.fused_reduce_sum_and_split(indices, rows, length, dims)

    @pytest.mark.parametrize(
        ("indices", "grads", "message"),
        [
            ([1], [[[1.0]], [[2.0, 3.0]]], "element 0 is 1"),
            ([0], [[[1.0]], [[2.0]]], "Gradient 1 of `grads` must have shape"),
            ([0], [[1.0], [[2.0, 3.0]]], "Gradient 0 of `grads` must have shape"),
        ],
    )
    def test_bad_gradient(self, indices, grads, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ops.monolith_fused_reduce_sum_and_split_gradient(indices, grads, split_dims=[1, 2])


class TestNormalizeMergedSplit:
    def test_row_splits_of_several_requests(self):
        result = distribution.normalize_merged_split([0, 2, 5, 5, 9, 0, 0, 3, 4], [5, 4])
        assert result.numpy().tolist() == [0, 2, 5, 5, 9, 9, 12, 13]

    def test_no_requests(self):
        result = distribution.normalize_merged_split(ids_of(), tf.zeros([0], tf.int32))
        assert result.numpy().tolist() == [0]

    @pytest.mark.parametrize(
        ("row_split", "sizes", "message"),
        [
            ([0, 1], [3], "must have 3 elements"),
            ([0, 1], [2, 0], "must be positive"),
            ([0, 1], [-1, 3], "must be positive"),
            ([1, 2], [2], "must start with 0"),
            ([0, 2, 1], [3], "must not fall"),
        ],
    )
    def test_bad_input(self, row_split, sizes, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.normalize_merged_split(row_split, sizes)
