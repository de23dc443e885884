"""The ops that divide ids among servers and bring rows back, against NumPy and numeric slopes."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from monolith.embedding import distribution
from monolith.native import ops


def ids_of(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([value for row in rows for value in row], tf.int64),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def lists(tensors) -> list:
    return [t.to_list() if isinstance(t, tf.RaggedTensor) else t.numpy().tolist() for t in tensors]


def assert_gradients_are_numeric(function, *inputs, delta: float = 1e-2) -> None:
    theoretical, numeric = tf.test.compute_gradient(
        function, [tf.constant(x, tf.float32) for x in inputs], delta=delta
    )
    for exact, approximate in zip(theoretical, numeric, strict=True):
        np.testing.assert_allclose(exact, approximate, rtol=2e-2, atol=2e-2)


def weighted_sum(tensors) -> tf.Tensor:
    """A scalar in which every element counts differently."""
    flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
    return tf.reduce_sum(flat * tf.cast(tf.range(1, tf.size(flat) + 1), tf.float32))


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


class TestMapIdToEmbedding:
    @pytest.mark.parametrize("use_multi_threads", [True, False])
    def test_rows_in_the_shape_of_the_input(self, use_multi_threads):
        rows = distribution.map_id_to_embedding(
            [[1], [2, -3]],
            [[[1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]],
            [[1, -3], [2, 1]],
            use_multi_threads,
        )
        assert rows.numpy().tolist() == [[[1, 1], [3, 3]], [[2, 2], [1, 1]]]

    def test_gradient_sums_rows_per_id(self):
        embeddings = [tf.constant([[1.0, 1.0]]), tf.constant([[2.0, 2.0]])]
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            rows = distribution.map_id_to_embedding([[1], [2]], embeddings, [1, 1, 2])
            loss = -tf.reduce_sum(rows)
        assert lists(tape.gradient(loss, embeddings)) == [[[-2, -2]], [[-1, -1]]]

    def test_gradient_called_directly(self):
        grads = distribution.map_id_to_embedding_gradient_back_prop(
            [[1], [2]], [1, 1, 2], -tf.ones([3, 2])
        )
        assert lists(grads) == [[[-2, -2]], [[-1, -1]]]

    def test_numeric_gradient(self):
        assert_gradients_are_numeric(
            lambda a, b: weighted_sum(
                [distribution.map_id_to_embedding([[4, 5], [6]], [a, b], [[6, 4], [4, 4]])]
            ),
            [[1, 2], [3, 4]],
            [[5, 6]],
        )

    def test_empty(self):
        rows = distribution.map_id_to_embedding([ids_of()], [tf.zeros([0, 3])], ids_of())
        assert rows.shape == (0, 3)

    def test_different_number_of_ids_and_embeddings(self):
        message = "ids length and embeddings lenght must match. 1 vs 2"
        with pytest.raises(ValueError, match=message):
            distribution.map_id_to_embedding([[1]], [[[1.0]], [[2.0]]], [1])

    @pytest.mark.parametrize(
        ("ids", "embeddings", "wanted", "message"),
        [
            ([[1], [2]], [[[1.0]], [[2.0]]], [3], "Unable to map id 3"),
            ([[1], [2]], [[[1.0]], [[2.0, 2.0]]], [1], "equally wide"),
            ([[1, 2]], [[[1.0]]], [1], "one row for each of 2 `ids`"),
            ([[1]], [[1.0]], [1], "one row for each of 1 `ids`"),
        ],
    )
    def test_bad_input(self, ids, embeddings, wanted, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.map_id_to_embedding(ids, embeddings, wanted)

    @pytest.mark.parametrize(
        ("wanted", "grads", "message"),
        [
            ([3], [[1.0]], "Unable to map id 3"),
            ([1, 1], [[1.0, 2.0, 3.0]], "one row for each of 2 elements of `input`"),
            ([1], 1.0, "one row for each of 1 elements"),
        ],
    )
    def test_bad_gradient(self, wanted, grads, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.map_id_to_embedding_gradient_back_prop([[1]], wanted, grads)


class TestGatherEmbeddingsByInput:
    @pytest.mark.parametrize("use_multi_threads", [True, False])
    def test_rows_and_mapping(self, use_multi_threads):
        rows, mapping = distribution.gather_embeddings_by_input(
            [1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[2], [1], [2]], use_multi_threads
        )
        assert rows.numpy().tolist() == [[[2, 2]], [[1, 1]], [[2, 2]]]
        assert mapping.numpy().tolist() == [[1], [0], [1]]

    def test_gradient_called_directly(self):
        grads = np.repeat([[1.0], [2.0], [4.0], [8.0]], 2, axis=1)
        sums = distribution.gather_embeddings_by_ids_gradient_back_prop(
            [2, 3, 1], grads, [1, 0, 1, 2]
        )
        assert sums.numpy().tolist() == [[2, 2], [5, 5], [8, 8]]

    def test_numeric_gradient(self):
        assert_gradients_are_numeric(
            lambda e: weighted_sum(
                [distribution.gather_embeddings_by_input([4, 5], e, [5, 4, 5])[0]]
            ),
            [[1, 2], [3, 4]],
        )

    def test_unknown_id(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Unable to map id 9"):
            distribution.gather_embeddings_by_input([1], [[1.0]], [9])

    def test_not_a_row_for_each_id(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one row for each of 1 `ids`"):
            distribution.gather_embeddings_by_input([1], [[1.0], [2.0]], [1])

    @pytest.mark.parametrize(
        ("grads", "mapping", "message"),
        [
            ([[1.0]], [3], r"`index_mapping` must be within \[0, 3\)"),
            ([[1.0]], [-1], "element 0 is -1"),
            ([[1.0]], [0, 1], "one row for each of 2 elements of `index_mapping`"),
        ],
    )
    def test_bad_gradient(self, grads, mapping, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.gather_embeddings_by_ids_gradient_back_prop([1, 2, 3], grads, mapping)


class TestReorderByIndices:
    @pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
    def test_reversed_inside_a_shard(self, dtype):
        ids = tf.constant([0, 1, 2, 2, 3, 5], dtype)
        ordered, sizes = distribution.reorder_by_indices(ids, tf.cast(ids % 3, tf.int32), 3)
        assert ordered.numpy().tolist() == [3, 0, 1, 5, 2]
        assert sizes.numpy().tolist() == [2, 1, 2]

    def test_empty(self):
        ordered, sizes = distribution.reorder_by_indices(ids_of(), tf.zeros([0], tf.int32), 2)
        assert ordered.shape == (0,)
        assert sizes.numpy().tolist() == [0, 0]

    @pytest.mark.parametrize("shard_ids", [[0, 2], [-1, 0]])
    def test_shard_out_of_range(self, shard_ids):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be within \[0, 2\)"):
            distribution.reorder_by_indices(ids_of(7, 7), shard_ids, 2)

    def test_not_a_shard_for_each_id(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`shard_ids` must have 2"):
            distribution.reorder_by_indices(ids_of(7, 8), [0], 2)


class TestFusedReorderByIndices:
    @pytest.mark.parametrize(
        ("inputs", "num_of_shards", "dims", "expected"),
        [
            pytest.param(
                [[0, 1, 0], [3, 2, 3], [5, 6, 7]],
                2,
                [1, 2, 3],
                (
                    [0, 2, 6, 1, 3, 5, 7],
                    [3, 4],
                    [1, 1, 1, 1, 1, 2],
                    [3, 3, 3],
                    [0, 6, 0, 7, 1, 7, 9, 3, 12],
                ),
                id="two_shards",
            ),
            pytest.param(
                [[2, 3, 1, 2, 7, 2], [5, 8, 4, 4, 5, 11, 6]],
                3,
                [3, 2],
                (
                    [3, 6, 1, 7, 4, 2, 5, 8, 11],
                    [2, 3, 4],
                    [1, 1, 2, 1, 1, 3],
                    [6, 7],
                    [13, 0, 5, 13, 8, 13, 16, 18, 11, 11, 16, 20, 3],
                ),
                id="three_shards",
            ),
        ],
    )
    def test_vectors(self, inputs, num_of_shards, dims, expected):
        result = distribution.fused_reorder_by_indices(inputs, num_of_shards, dims)
        assert tuple(lists(result)) == expected

    def test_negative_ids_go_where_floormod_says(self):
        ids, sizes, *_ = distribution.fused_reorder_by_indices([[-1, -2, -3]], 2, [1])
        assert ids.numpy().tolist() == [-2, -1, -3]
        assert sizes.numpy().tolist() == [1, 2]

    def test_first_of_many_shards_is_empty(self):
        ids, sizes, *_ = distribution.fused_reorder_by_indices([[0, 1, 2, 3, 4]], 5, [1])
        # id mod 4 + 1
        assert ids.numpy().tolist() == [0, 4, 1, 2, 3]
        assert sizes.numpy().tolist() == [0, 2, 1, 1, 1]

    def test_four_shards_are_not_many(self):
        _, sizes, *_ = distribution.fused_reorder_by_indices([[0, 1, 2, 3]], 4, [1])
        assert sizes.numpy().tolist() == [1, 1, 1, 1]

    def test_first_shard_can_be_used(self, monkeypatch):
        monkeypatch.setenv("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", "0")
        _, sizes, *_ = distribution.fused_reorder_by_indices([[0, 1, 2, 3, 4]], 5, [1])
        assert sizes.numpy().tolist() == [1, 1, 1, 1, 1]

    def test_empty(self):
        result = distribution.fused_reorder_by_indices([ids_of(), ids_of()], 2, [1, 2])
        assert lists(result) == [[], [0, 0], [0, 0, 0, 0], [0, 0], []]

    @pytest.mark.parametrize(
        ("dims", "message"),
        [([1], "must have one element for each of the 2 inputs"), ([1, 0], "must be positive")],
    )
    def test_bad_dims(self, dims, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.fused_reorder_by_indices([[1], [2]], 2, dims)


FUSED_OFFSETS = [[13, 0, 5, 13, 8, 13], [16, 18, 11, 11, 16, 20, 3]]
FUSED_DIMS = [3, 2]


class TestFusedGatherEmbeddingsByInput:
    def test_rows(self):
        fused = np.arange(22, dtype=np.float32)
        rows = distribution.fused_gather_embeddings_by_input(fused, FUSED_OFFSETS, FUSED_DIMS)
        for of_slot, offsets, dim in zip(rows, FUSED_OFFSETS, FUSED_DIMS, strict=True):
            assert of_slot.numpy().tolist() == [[o + d for d in range(dim)] for o in offsets]

    @pytest.mark.parametrize("scale", [1, 0.5])
    def test_gradient_called_directly(self, scale):
        grads = [
            np.arange(1, 7)[:, np.newaxis] + [0.1, 0.2, 0.3],
            np.arange(1, 8)[:, np.newaxis] + [0.4, 0.5],
        ]
        result = distribution.fused_gather_embeddings_by_input_gradient(
            22, grads, FUSED_OFFSETS, FUSED_DIMS, scale
        )
        expected = [2.1, 2.2, 2.3, 7.4, 7.5, 3.1, 3.2, 3.3, 5.1, 5.2, 5.3]
        expected += [7.8, 8.0, 11.3, 11.6, 11.9, 6.8, 7.0, 2.4, 2.5, 6.4, 6.5]
        np.testing.assert_allclose(result, np.multiply(scale, expected), rtol=1e-6)

    @pytest.mark.usefixtures("graph_mode")
    def test_static_shape_of_the_gradient(self):
        def shape_for(size):
            grad = distribution.fused_gather_embeddings_by_input_gradient(
                size, [[[1.0]]], [[0]], [1]
            )
            return grad.shape.as_list()

        assert shape_for(22) == [22]
        assert shape_for(tf.compat.v1.placeholder(tf.int32, [])) == [None]

    def test_numeric_gradient(self):
        assert_gradients_are_numeric(
            lambda fused: weighted_sum(
                distribution.fused_gather_embeddings_by_input(fused, [[0, 2, 0], [3]], [2, 1])
            ),
            [1, 2, 3, 4],
        )

    @pytest.mark.parametrize("offset", [-1, 2, 2**31 - 1])
    def test_offset_out_of_range(self, offset):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"at offset {offset}"):
            distribution.fused_gather_embeddings_by_input([1.0, 2.0, 3.0], [[offset]], [2])
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"at offset {offset}"):
            distribution.fused_gather_embeddings_by_input_gradient(
                3, [[[1.0, 2.0]]], [[offset]], [2]
            )

    @pytest.mark.parametrize(
        ("dims", "message"), [([1, 1], "must have M = 1 elements"), ([0], "must be positive")]
    )
    def test_bad_dims(self, dims, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.fused_gather_embeddings_by_input([1.0], [[0]], dims)

    @pytest.mark.parametrize(
        ("size", "grads", "scale", "message"),
        [
            (-1, [[1.0]], 1.0, "must not be negative"),
            (1, [[1.0, 2.0]], 1.0, "must have 1 rows of 1 floats"),
            ([1, 2], [[1.0]], 1.0, "`fused_embeddings_size` must have 1 element"),
            (1, [[1.0]], [1.0, 2.0], "`scale` must have 1 element"),
        ],
    )
    def test_bad_gradient(self, size, grads, scale, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            distribution.fused_gather_embeddings_by_input_gradient(size, [grads], [[0]], [1], scale)


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
            ([[0]], [[1.0, 2.0]], [2**62], "overflow|OOM|too many|out of memory"),
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
        indices = np.arange(2000)
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
            ([0], [[1.0, 1.0]], [2**62], [2], "overflow|OOM|too many|out of memory"),
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


@pytest.mark.usefixtures("graph_mode")
class TestStaticShapes:
    """What a graph knows of results when it knows little of the inputs."""

    def make(self, dtype, shape=None):
        return tf.compat.v1.placeholder(dtype, shape)

    def ids(self, shape=None):
        return self.make(tf.int64, shape)

    def rows(self, shape=None):
        return self.make(tf.float32, shape)

    def test_of_unknown_inputs(self):
        """No shape function may rely on more than it is given."""
        unknown = [
            *distribution.split_by_indices(self.ids(), self.rows(), 2),
            distribution.map_id_to_embedding([self.ids()], [self.rows()], self.ids()),
            *distribution.map_id_to_embedding_gradient_back_prop(
                [self.ids()], self.ids(), self.rows()
            ),
            *distribution.gather_embeddings_by_input(self.ids(), self.rows(), self.ids()),
            distribution.gather_embeddings_by_ids_gradient_back_prop(
                self.ids(), self.rows(), self.make(tf.int32)
            ),
            *distribution.reorder_by_indices(self.ids(), self.make(tf.int32), 2),
            distribution.reduce_sum(self.ids(), self.rows(), self.ids()),
            distribution.reduce_mean(self.ids(), self.rows(), self.ids()),
            distribution.reduce_sqrtn(self.ids(), self.rows(), self.ids()),
            distribution.normalize_merged_split(self.ids(), self.make(tf.int32)),
            *distribution.fused_reorder_by_indices([self.ids()], 3, [1]),
            *distribution.fused_gather_embeddings_by_input(self.rows(), [self.make(tf.int32)], [2]),
        ]
        sizes = [
            None if tensor.shape.rank is None else tensor.shape.num_elements() for tensor in unknown
        ]
        # Only the sizes of shards, and of shards and slots, and the lengths of slots are known.
        assert [size for size in sizes if size is not None] == [2, 3, 3, 1]

    def test_of_known_inputs(self):
        ids, rows = self.ids([4]), self.rows([4, 3])
        assert distribution.split_by_indices(ids, rows, 2)[0].shape.as_list() == [None, 3]
        assert distribution.map_id_to_embedding([ids], [rows], self.ids([2, 5])).shape == [2, 5, 3]
        gathered, mapping = distribution.gather_embeddings_by_input(ids, rows, self.ids([2, 5]))
        assert gathered.shape == [2, 5, 3]
        assert mapping.shape == [2, 5]
        assert distribution.reduce_mean(self.ids([4, 1]), rows, [7]).shape == [7, 3]

    @pytest.mark.parametrize(
        "build",
        [
            lambda t: distribution.split_by_indices(t.ids([3]), t.rows([4]), 2),
            lambda t: distribution.map_id_to_embedding(
                [t.ids(), t.ids()], [t.rows([1, 2]), t.rows([1, 3])], t.ids()
            ),
            lambda t: distribution.gather_embeddings_by_input(t.ids([3]), t.rows([4, 1]), t.ids()),
            lambda t: distribution.reduce_sum(t.ids([3, 1]), t.rows([4, 2]), [1]),
            lambda t: distribution.fused_reduce_sum_and_split(
                t.ids([4]), t.rows([4, 2]), [1], [1, 2]
            ),
            lambda t: distribution.reorder_by_indices(t.ids([3]), t.make(tf.int32, [4]), 2),
            lambda t: distribution.unique_key_with_value_and_offset(
                tf.RaggedTensor.from_row_splits(t.ids([4, 2]), t.ids([3]), validate=False), [1, 2]
            ),
        ],
    )
    def test_mistakes_are_found_when_the_graph_is_built(self, build):
        with pytest.raises(ValueError, match=r"(?i)dimension|shape"):
            build(self)
