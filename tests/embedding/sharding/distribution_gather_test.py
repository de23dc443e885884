"""Rows on their way back to the ids that asked for them."""

import numpy as np
import pytest
import tensorflow as tf
from support.distribution import assert_gradients_are_numeric, ids_of, lists, weighted_sum

from monolith.embedding.sharding import distribution


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

    @pytest.mark.parametrize("make", [tf.constant, np.asarray], ids=["tensor", "array"])
    def test_gradient_takes_an_int64_mapping(self, make):
        grads = np.repeat([[1.0], [2.0], [4.0], [8.0]], 2, axis=1)
        sums = distribution.gather_embeddings_by_ids_gradient_back_prop(
            [2, 3, 1], grads, make([1, 0, 1, 2], "int64")
        )
        assert sums.numpy().tolist() == [[2, 2], [5, 5], [8, 8]]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be within \[0, 3\)"):
            distribution.gather_embeddings_by_ids_gradient_back_prop(
                [2, 3, 1], grads, make([1, 0, 2**32, 2], "int64")
            )

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
