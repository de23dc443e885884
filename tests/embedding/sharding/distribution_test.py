"""What the distribution ops say of shapes before they run."""

import pytest
import tensorflow as tf

from monolith.embedding.sharding import distribution


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
