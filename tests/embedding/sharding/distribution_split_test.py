"""Ids and rows on their way to the servers: split, made unique, filled in."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from support.distribution import ids_of, lists, weighted_sum

from monolith.embedding.sharding import distribution
from monolith.native import ops


def ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([value for row in rows for value in row], tf.int64),
        tf.constant([len(row) for row in rows], tf.int64),
    )


class TestSplitByIndices:
    def test_order_is_kept(self):
        ids = ids_of(0, 1, 2, 2, 3)
        assert lists(distribution.split_by_indices(ids % 3, ids, 3)) == [[0, 3], [1], [2, 2]]

    def test_rows_of_any_shape(self):
        tensor = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
        first, second = distribution.split_by_indices([1, 0, 1, 1], tensor, 2)
        np.testing.assert_array_equal(first, tensor[[1]])
        np.testing.assert_array_equal(second, tensor[[0, 2, 3]])

    def test_empty_input(self):
        first, second = distribution.split_by_indices(ids_of(), tf.zeros([0, 3]), 2)
        assert first.shape == (0, 3)
        assert second.shape == (0, 3)

    def test_gradient_reinterleaves(self):
        tensor = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            first, second = distribution.split_by_indices([1, 0, 1], tensor, 2)
            loss = weighted_sum([first, second])
        # Row 1 comes first; rows 0 and 2 follow it.
        assert tape.gradient(loss, tensor).numpy().tolist() == [[3, 4], [1, 2], [5, 6]]

    def test_gradient_of_empty_input(self):
        tensor = tf.zeros([0, 2])
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = weighted_sum(distribution.split_by_indices(ids_of(), tensor, 3))
        assert tape.gradient(loss, tensor).shape == (0, 2)

    @pytest.mark.parametrize(
        ("indices", "tensor", "message"),
        [
            ([0, 2], [1.0, 2.0], r"`indices` must be within \[0, 2\), but element 1 is 2"),
            ([-1], [1.0], "element 0 is -1"),
            ([0], [1.0, 2.0], "1 `indices`, got shape"),
            ([[0]], [1.0], "`indices` must have 1 dimension"),
            ([0], 1.0, "got shape"),
        ],
    )
    def test_bad_input(self, indices, tensor, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.split_by_indices(indices, tensor, 2)

    def test_bad_gradient(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient 1 of `grads` must have"):
            ops.monolith_split_by_indices_gradient([0, 1], [1.0, 2.0], [[1.0], [1.0, 2.0]])


class TestRaggedSplitByIndices:
    def test_every_split_keeps_all_rows(self):
        num = ragged([[], [], [4, 3, 2], [1], [], []])
        splits, pos = distribution.ragged_split_by_indices([0, 1, 0, 1], num, 2)
        assert lists(splits) == [[[], [], [4, 2], [], [], []], [[], [], [3], [1], [], []]]
        assert lists(pos) == [[[], [], [0, 2], [], [], []], [[], [], [1], [3], [], []]]

    def test_no_values(self):
        splits, pos = distribution.ragged_split_by_indices(ids_of(), ragged([[], []]), 2)
        assert lists(splits) == lists(pos) == [[[], []], [[], []]]

    def test_size_mismatch(self):
        message = "Ragged tensor values size must match indices size. Got 1 v.s. 2"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.ragged_split_by_indices([0, 1], ragged([[7]]), 2)

    @pytest.mark.parametrize("index", [-1, 2])
    def test_index_out_of_range(self, index):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"element 1 is {index}"):
            distribution.ragged_split_by_indices([0, index], ragged([[7, 8]]), 2)

    @pytest.mark.parametrize("splits", [[], [1, 2], [0, 3], [0, 2, 1, 2], [0, 1]])
    def test_bad_row_splits(self, splits):
        with pytest.raises(tf.errors.InvalidArgumentError, match="num_split"):
            ops.monolith_ragged_split_by_indices(
                [0, 0], [7, 8], tf.constant(splits, tf.int64), num_splits=1
            )


KEY = [[], [0, 1, 2, 1, 0], [0, 1, 0], []]

DIMS = [1, 2, 3, 4]


class TestUniqueKeyWithValueAndOffset:
    def test_keys_and_offsets(self):
        result = distribution.unique_key_with_value_and_offset(ragged(KEY), DIMS)
        assert result.unique_key.to_list() == [[], [0, 1, 2], [0, 1], []]
        assert result.value_offset.to_list() == [[], [[0, 8], [2, 6], [4]], [[10, 16], [13]], []]

    def test_without_ids(self):
        result = distribution.unique_key_with_value_and_offset(ragged([[], []]), [1, 2], False)
        assert result.unique_key.to_list() == [[], []]
        assert result.value_offset.to_list() == [[], []]

    @pytest.mark.parametrize("generate_buffer", [True, False])
    def test_as_many_rows_as_dims(self, generate_buffer):
        message = "RaggedKey should have 4 but got 1"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.unique_key_with_value_and_offset(ragged([[1]]), DIMS, generate_buffer)

    @pytest.mark.parametrize("dim", [0, -1])
    def test_bad_dim(self, dim):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`dims` must be positive"):
            distribution.unique_key_with_value_and_offset(ragged([[1]]), [dim])

    @pytest.mark.parametrize("splits", [[0, 3], [1, 2], [0, 1]])
    def test_bad_row_splits(self, splits):
        with pytest.raises(tf.errors.InvalidArgumentError, match="key_split"):
            ops.monolith_unique_key_with_value_and_offset(
                [7, 8], tf.constant(splits, tf.int64), dims=[1], generate_buffer=False
            )

    @hypothesis.given(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from([-(2**63), -1, 0, 1, 5, 2**63 - 1]), max_size=12),
                st.integers(1, 3),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_like_dicts(self, tables):
        rows = [row for row, _ in tables]
        expected_keys = []
        expected_offsets = []
        start = 0
        for row, dim in tables:
            offsets: dict[int, list[int]] = {}
            for key in row:
                offsets.setdefault(key, []).append(start)
                start += dim
            expected_keys.append(list(offsets))
            expected_offsets.append(list(offsets.values()))
        result = distribution.unique_key_with_value_and_offset(
            ragged(rows), [dim for _, dim in tables], generate_buffer=False
        )
        assert result.unique_key.to_list() == expected_keys
        assert result.value_offset.to_list() == expected_offsets

    def test_large_rows_on_several_threads(self):
        rng = np.random.default_rng(1)
        rows = [rng.integers(0, 5000, 50_000) for _ in range(4)]
        result = distribution.unique_key_with_value_and_offset(
            ragged([row.tolist() for row in rows]), [1, 1, 1, 1], generate_buffer=False
        )
        for row, keys in zip(rows, result.unique_key, strict=True):
            assert keys.numpy().tolist() == list(dict.fromkeys(row.tolist()))
        every_offset = np.sort(result.value_offset.flat_values)
        np.testing.assert_array_equal(every_offset, np.arange(200_000))


def fill(value, pos=None, dims=None):
    """Fills a buffer for KEY; by default `value` holds the rows of all its distinct ids."""
    unique = distribution.unique_key_with_value_and_offset(ragged(KEY), DIMS)
    pos = ragged([[], [0, 1, 2], [3, 4], []]) if pos is None else pos
    handle = distribution.fill_with_offset_map(
        pos, value, unique.value_offset, unique.value_buffer, dims or DIMS
    )
    return distribution.finalize_shared_tensor([handle], tf.float32, [None])


class TestFillWithOffsetMap:
    def test_rows_of_all_occurrences(self):
        buffer = fill(tf.range(12, dtype=tf.float32))
        expected = [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
        assert buffer.numpy().tolist() == expected

    def test_gradient(self):
        value = tf.range(12, dtype=tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(fill(value) * tf.range(19, dtype=tf.float32))
        expected = [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]
        assert tape.gradient(loss, value).numpy().tolist() == expected

    def test_gradient_called_directly(self):
        unique = distribution.unique_key_with_value_and_offset(ragged(KEY), DIMS, False)
        grads = distribution.fill_with_offset_map_gradient(
            ragged([[], [2, 0], [4], []]),
            tf.range(19, dtype=tf.float32),
            unique.value_offset,
            DIMS,
        )
        assert grads.numpy().tolist() == [4, 5, 8, 10, 13, 14, 15]

    @pytest.mark.usefixtures("graph_mode")
    def test_two_servers_fill_one_buffer_and_both_get_gradients(self):
        unique = distribution.unique_key_with_value_and_offset(ragged(KEY), DIMS)
        values = [tf.constant([0.0, 1, 4, 5, 6, 7, 8]), tf.constant([2.0, 3, 9, 10, 11])]
        positions = [ragged([[], [0, 2], [3], []]), ragged([[], [1], [4], []])]
        handles = [
            distribution.fill_with_offset_map(
                pos, value, unique.value_offset, unique.value_buffer, DIMS
            )
            for pos, value in zip(positions, values, strict=True)
        ]
        buffer = distribution.finalize_shared_tensor(handles, tf.float32, [None])
        grads = tf.gradients(buffer, values, tf.range(19, dtype=tf.float32))
        with tf.compat.v1.Session() as session:
            for _ in range(2):  # Every step has a buffer of its own.
                filled, first, second = session.run([buffer, *grads])
                expected = [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
                assert filled.tolist() == expected
                assert first.tolist() == [8, 10, 4, 5, 26, 28, 30]
                assert second.tolist() == [8, 10, 13, 14, 15]

    def test_gradient_of_handles_in_a_chain(self):
        first = tf.constant([1.0])
        second = tf.constant([2.0])
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            unique = distribution.unique_key_with_value_and_offset(ragged([[5, 6]]), [1])
            handle = unique.value_buffer
            for pos, value in ((0, first), (1, second)):
                handle = distribution.fill_with_offset_map(
                    ragged([[pos]]), value, unique.value_offset, handle, [1]
                )
            buffer = distribution.finalize_shared_tensor([handle], tf.float32, [2])
            loss = tf.reduce_sum(buffer * [3.0, 4.0])
        assert lists(tape.gradient(loss, [first, second])) == [[3], [4]]

    def test_what_nobody_fills_is_zero(self):
        assert fill([1.0, 2.0], ragged([[], [2], [], []])).numpy().tolist() == [
            *[0, 0, 0, 0, 1, 2],
            *[0] * 13,
        ]

    def test_short_value(self):
        message = r"Value size doesn't match expected size. expected: 12, actual: 11. \nPos split: "
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            fill(tf.range(11, dtype=tf.float32))

    @pytest.mark.parametrize("pos", [-1, 5, 2**62])
    def test_position_out_of_range(self, pos):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"Element 0 of `pos`, {pos}, has"):
            fill([1.0, 2.0], ragged([[], [pos], [], []]))

    def test_rows_that_do_not_fit_into_the_buffer(self):
        # The last id of table 2 begins 3 floats before the end of the buffer.
        with pytest.raises(tf.errors.InvalidArgumentError, match="not inside of the 19 floats"):
            fill([1.0, 2.0, 3.0, 4.0], ragged([[], [], [], [3]]))

    def test_wrong_number_of_rows(self):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=r"rows|Dimension"):
            fill([1.0], ragged([[0]]))

    @pytest.mark.parametrize(
        ("offsets", "offset_splits"),
        [([0], [0, 2]), ([0], [1, 0]), ([-1], [0, 1]), ([9], [0, 1]), ([0], []), ([0], [-1, 1])],
    )
    def test_bad_offset_map(self, offsets, offset_splits):
        buffer = distribution.unique_key_with_value_and_offset(ragged([[7]]), [1]).value_buffer
        arguments = ([0], [0, 1], [1.0], offsets, tf.constant(offset_splits, tf.int64))
        for call in (
            lambda: ops.monolith_fill_with_offset_map(*arguments, buffer, dims=[1]),
            lambda: ops.monolith_fill_with_offset_map_gradient(*arguments, dims=[1]),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="no place in the offset map"):
                call()

    @pytest.mark.parametrize("pos_split", [[0, 2], [1, 1], []])
    def test_bad_pos_splits(self, pos_split):
        with pytest.raises(tf.errors.InvalidArgumentError, match="pos"):
            ops.monolith_fill_with_offset_map_gradient(
                [0], tf.constant(pos_split, tf.int64), [1.0], [0], [0, 1], dims=[1]
            )

    def test_without_a_buffer(self):
        unique = distribution.unique_key_with_value_and_offset(ragged([[7]]), [1], False)
        with pytest.raises(tf.errors.OpError):
            distribution.fill_with_offset_map(
                ragged([[0]]), [1.0], unique.value_offset, unique.value_buffer, [1]
            )


class TestFinalizeSharedTensor:
    def test_handle_is_useless_afterwards(self):
        unique = distribution.unique_key_with_value_and_offset(ragged([[7]]), [1])
        handle = unique.value_buffer
        distribution.finalize_shared_tensor([handle, handle], tf.float32, [None])
        with pytest.raises(tf.errors.FailedPreconditionError, match="finalized already"):
            distribution.finalize_shared_tensor([handle], tf.float32, [None])
        with pytest.raises(tf.errors.FailedPreconditionError, match="finalized already"):
            distribution.fill_with_offset_map(
                ragged([[0]]), [1.0], unique.value_offset, handle, [1]
            )

    def test_handles_of_different_tensors(self):
        handles = [
            distribution.unique_key_with_value_and_offset(ragged([[7]]), [1]).value_buffer
            for _ in range(2)
        ]
        with pytest.raises(tf.errors.InvalidArgumentError, match="All handles must be of one"):
            distribution.finalize_shared_tensor(handles, tf.float32, [None])

    @pytest.mark.parametrize(("dtype", "shape"), [(tf.int64, [None]), (tf.float32, [2])])
    def test_wrong_type_or_shape_leaves_the_tensor(self, dtype, shape):
        handle = distribution.unique_key_with_value_and_offset(ragged([[7]]), [1]).value_buffer
        with pytest.raises(tf.errors.InvalidArgumentError, match="it was asked for as"):
            distribution.finalize_shared_tensor([handle], dtype, shape)
        tensor = distribution.finalize_shared_tensor([handle], tf.float32, [1])
        assert tensor.numpy().tolist() == [0]
