"""Embeddings for columns, and gradients for tables."""

import numpy as np
import pytest
import tensorflow as tf
from support.features import make_ids

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.dry_run import DummyFeatureFactory
from monolith.embedding.features.factory import EmbeddingLayoutFactory, FeatureFactoryFromEmbeddings
from monolith.embedding.features.slices import create_embedding_slices
from monolith.embedding.features.slots import FeatureColumn, FeatureSlotConfig
from monolith.embedding.tables import single
from monolith.proto import embedding_hash_table_pb2


class TestFeatureFactoryFromEmbeddings:
    @pytest.fixture
    def embeddings(self):
        return {"user": tf.constant([[1.0, 4.0], [2.0, 3.0]])}

    @pytest.fixture
    def factory(self, embeddings):
        slices = create_embedding_slices(
            embeddings,
            {"user": make_ids([1, 1])},
            {"user": combiners.ReduceSum()},
            {"user": [1, 1]},
        )
        return FeatureFactoryFromEmbeddings(embeddings, slices)

    def test_lookup(self, factory, embeddings):
        slot = factory.create_feature_slot(FeatureSlotConfig(name="1"))
        first, second = slot.add_feature_slice(1), slot.add_feature_slice(1)
        column = FeatureColumn(slot, "user")
        assert column.embedding_lookup(first).numpy().tolist() == [[1], [2]]
        assert column.embedding_lookup(second).numpy().tolist() == [[4], [3]]
        assert column.get_all_embeddings_concat() is embeddings["user"]

    def test_bias(self, factory):
        slot = factory.create_feature_slot(FeatureSlotConfig(name="1", has_bias=True))
        assert FeatureColumn(slot, "user").get_bias().numpy().tolist() == [[1], [2]]

    def test_feature_that_was_not_declared(self, factory):
        slot = factory.create_feature_slot(FeatureSlotConfig(name="1"))
        column = FeatureColumn(slot, "item")
        with pytest.raises(
            errors.ConfigError,
            match="Feature 'item' was not declared when the features of the model were collected; "
            "declared are 'user'",
        ):
            column.embedding_lookup(slot.add_feature_slice(1))

    def test_slice_that_was_not_declared(self, factory):
        slot = factory.create_feature_slot(FeatureSlotConfig(name="1"))
        column = FeatureColumn(slot, "user")
        with pytest.raises(
            errors.ConfigError,
            match=r"no slice \[0, 2\); its slices are 'user:0_1', 'user:1_2'\.",
        ):
            column.embedding_lookup(slot.add_feature_slice(2))

    def test_apply_gradients_is_up_to_subclasses(self, factory):
        with pytest.raises(
            NotImplementedError, match=r"apply_gradients is not supported in this factory\."
        ):
            factory.apply_gradients([])


class RecordingHashTable:
    """Stands for the table that layouts come from, which is remote."""

    def apply_gradients(self, grads_and_vars, global_step, **kwargs):
        self.call = (grads_and_vars, global_step, kwargs)
        return tf.no_op()


@pytest.mark.usefixtures("graph_mode")
class TestEmbeddingLayoutFactory:
    def test_layouts(self):
        a, b, c = tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)
        factory = EmbeddingLayoutFactory(RecordingHashTable(), {"y": c, "x": [a, b]})
        assert factory.get_layout("y") is c
        assert factory.get_layout("x") == [a, b]
        assert [id(t) for t in factory.flattened_layout()] == [id(a), id(b), id(c)]
        with pytest.raises(AssertionError, match="There is no layout 'z'; there are 'x', 'y'"):
            factory.get_layout("z")

    def test_slots_have_no_embeddings(self):
        factory = EmbeddingLayoutFactory(RecordingHashTable(), {})
        slot = factory.create_feature_slot(FeatureSlotConfig(name="1", has_bias=True))
        assert FeatureColumn(slot, "user").get_bias() is None

    @pytest.mark.parametrize("given", [False, True])
    def test_gradients_go_to_the_table(self, given):
        table, bundle = RecordingHashTable(), {"req_time": tf.constant(7, tf.int64)}
        factory = EmbeddingLayoutFactory(
            table, {}, auxiliary_bundle=bundle, async_function_mgr="manager", async_push=True
        )
        pair = (tf.constant(1.0), tf.constant(2.0))
        own_time = tf.constant(9, tf.int64)
        factory.apply_gradients([pair], req_time=own_time if given else None, grad_scale=2)
        grads_and_vars, global_step, kwargs = table.call
        assert grads_and_vars == [pair]
        assert global_step is tf.compat.v1.train.get_global_step()
        assert kwargs.pop("req_time") is (own_time if given else bundle["req_time"])
        assert kwargs == {
            "auxiliary_bundle": bundle,
            "async_function_mgr": "manager",
            "async_push": True,
            "grad_scale": 2,
        }


class TestWithTable:
    """From ids to a table and back, in a graph, as a training loop does it."""

    def make_table_config(self, factory, name):
        config = factory.get_table_name_to_table_config()[name]
        table_config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
        for slice_config in config.slice_configs:
            table_config.entry_config.segments.append(slice_config.segment)
        config.hashtable_config.mutate_table(table_config)
        rates = [slice_config.learning_rate_fn for slice_config in config.slice_configs]
        return config, entry.HashTableConfigInstance(table_config, rates)

    @pytest.mark.usefixtures("graph_mode")
    def test_slices_with_settings_of_their_own_are_trained_by_them(self):
        def build(factory):
            slot = factory.create_feature_slot(
                FeatureSlotConfig(
                    name="user",
                    has_bias=True,
                    bias_optimizer=entry.SgdOptimizer(1.0),
                    default_vec_initializer=entry.ConstantsInitializer(2.0),
                    default_vec_optimizer=entry.AdagradOptimizer(0.5, 1.0),
                )
            )
            vector = slot.add_feature_slice(2)
            constant = slot.add_feature_slice(
                1, optimizer=entry.SgdOptimizer(), learning_rate_fn=0.25
            )
            columns = [FeatureColumn(slot, name) for name in ("liked", "seen")]
            loss = 0.0
            for column in columns:  # Both share the rows.
                loss += tf.reduce_sum(column.get_bias())
                loss += tf.reduce_sum(column.embedding_lookup(vector))
                loss += 2 * tf.reduce_sum(column.embedding_lookup(constant))
            rows = [column.get_all_embeddings_concat() for column in columns]
            return rows, tf.gradients(loss, rows)

        dummy = DummyFeatureFactory(batch_size=None)
        build(dummy)
        config, table_config = self.make_table_config(dummy, "user")
        assert config.unmerged_slice_dims == [1, 2, 1]

        table = single.hash_table_from_config(table_config, name_suffix="user")
        ids = {
            "liked": tf.ragged.constant([[7], [], [7, 8]], dtype=tf.int64),
            "seen": tf.ragged.constant([[], [8], []], dtype=tf.int64),
        }
        table = table.assign([7, 8], [[0.0, 2.0, 2.0, 2.0]] * 2)
        embeddings = {name: table.lookup(i.values) for name, i in ids.items()}
        slices = create_embedding_slices(
            embeddings,
            ids,
            config.feature_to_combiners,
            dict.fromkeys(config.feature_names, config.unmerged_slice_dims),
        )
        factory = FeatureFactoryFromEmbeddings(embeddings, slices)
        rows, gradients = build(factory)
        assert all(a is b for a, b in zip(rows, embeddings.values(), strict=True))
        all_ids = tf.concat([i.values for i in ids.values()], 0)
        table = table.apply_gradients(
            all_ids, tf.concat(gradients, 0), tf.constant(0, tf.int64), enable_dedup=True
        )
        with tf.compat.v1.Session() as session:
            result, gradients = session.run((table.lookup([7, 8]), gradients))
        # Each occurrence has a gradient of its own.
        assert gradients[0].tolist() == [[1, 1, 1, 2]] * 3
        assert gradients[1].tolist() == [[1, 1, 1, 2]]
        # Both ids occur twice, so g = 2 per number (4 in the last slice), in one step each:
        # sgd: 0 - 1 * 2; adagrad: 2 - 0.5 * 2 / sqrt(1 + 4); sgd: 2 - 0.25 * 4
        expected = [-2.0, 2 - 1 / np.sqrt(5), 2 - 1 / np.sqrt(5), 1.0]
        np.testing.assert_allclose(result, [expected, expected], rtol=1e-6)
