"""Collecting the tables of a model."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.dry_run import DummyFeatureEmbTable, DummyFeatureFactory
from monolith.embedding.features.slots import FeatureColumn, FeatureSlotConfig
from monolith.optimizer import learning_rate


def make_segment(dim, optimizer=None):
    return entry.CombineAsSegment(
        dim, entry.ZerosInitializer(), optimizer or entry.SgdOptimizer(0.1), entry.Fp32Compressor()
    )


@pytest.mark.usefixtures("graph_mode")
class TestDummyFeatureEmbTable:
    def make_table(self, combiner=None, batch_size=4):
        table = DummyFeatureEmbTable(batch_size, entry.CuckooHashTableConfig())
        table.add_feature_slice(make_segment(5))
        table.set_feature_metadata("user", combiner or combiners.ReduceSum())
        return table

    def test_lookup(self):
        assert self.make_table().embedding_lookup("user", 0, 5).shape.as_list() == [4, 5]

    def test_lookup_of_a_sequence(self):
        table = self.make_table(combiners.FirstN(10))
        assert table.embedding_lookup("user", 0, 5).shape.as_list() == [4, 10, 5]

    def test_lookup_of_a_mean(self):
        table = self.make_table(combiners.ReduceMean())
        assert table.embedding_lookup("user", 1, 3).shape.as_list() == [4, 2]

    @pytest.mark.parametrize("batch_size", [None, 0])
    def test_unknown_batch_size(self, batch_size):
        table = self.make_table(batch_size=batch_size)
        assert table.embedding_lookup("user", 0, 5).shape.as_list() == [None, 5]

    def test_gradients_flow_to_the_whole_rows(self):
        table = self.make_table(combiners.FirstN(10))
        rows = table.embedding_lookup("user", None, None)
        loss = tf.reduce_sum(table.embedding_lookup("user", 1, 3) ** 2)
        (gradient,) = tf.gradients(loss, [rows])
        assert gradient.shape.rank == 2
        assert rows is table.embedding_lookup("user", None, None)

    def test_feature_without_column_is_refused(self):
        with pytest.raises(errors.ConfigError, match="Feature 'item' has no column"):
            self.make_table().embedding_lookup("item", 0, 5)

    def test_two_combiners_for_one_feature_are_refused(self):
        with pytest.raises(
            errors.ConfigError, match=r"combiners, ReduceSum\(\) and FirstN\(2\); give the ids"
        ):
            self.make_table().set_feature_metadata("user", combiners.FirstN(2))

    def test_the_same_combiner_twice_is_fine(self):
        self.make_table(combiners.FirstN(2)).set_feature_metadata("user", combiners.FirstN(2))


class TestTableConfig:
    def test_slices_are_merged(self):
        table = DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        table.add_feature_slice(make_segment(5, entry.AdagradOptimizer(0.1, warmup_steps=10)))
        sgd = entry.SgdOptimizer(0.1)
        table.add_feature_slice(make_segment(2, sgd), learning_rate.PolynomialDecay(0.01, 20))
        table.add_feature_slice(make_segment(2, sgd), learning_rate.PolynomialDecay(0.01, 20))
        table.add_feature_slice(make_segment(2, sgd))
        table.set_feature_metadata("user", combiners.ReduceSum())
        config = table.get_table_config()
        assert [s.segment.dim_size for s in config.slice_configs] == [5, 4, 2]
        assert config.unmerged_slice_dims == [5, 2, 2, 2]
        warmup, decay, plain = [s.learning_rate_fn for s in config.slice_configs]
        assert isinstance(warmup, learning_rate.LearningRateFunction)
        assert str(decay) == str(learning_rate.PolynomialDecay(0.01, 20))
        assert plain == pytest.approx(0.1)
        # Asking did not change what was collected.
        assert [s.segment.dim_size for s in table.get_table_config().slice_configs] == [5, 4, 2]

    @pytest.mark.usefixtures("graph_mode")
    def test_warmup_grows_to_the_learning_rate(self):
        table = DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        table.add_feature_slice(make_segment(5, entry.AdagradOptimizer(0.5, warmup_steps=10)))
        rate = table.get_table_config().slice_configs[0].learning_rate_fn()
        step = tf.compat.v1.train.get_or_create_global_step()
        with tf.compat.v1.Session() as session:
            session.run(step.initializer)
            rates = []
            for value in (0, 5, 10, 20):
                session.run(step.assign(value))
                rates.append(session.run(rate))
        np.testing.assert_allclose(rates, [0, 0.25, 0.5, 0.5])

    def test_only_neighbours_are_merged(self):
        table = DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        for dim, optimizer in ((1, "sgd"), (2, "adam"), (3, "sgd")):
            optimizer = entry.SgdOptimizer(0.1) if optimizer == "sgd" else entry.AdamOptimizer(0.1)
            table.add_feature_slice(make_segment(dim, optimizer))
        config = table.get_table_config()
        assert [s.segment.dim_size for s in config.slice_configs] == [1, 2, 3]

    @pytest.mark.parametrize(
        "optimizer",
        [
            entry.BatchSoftmaxOptimizer(0.1),
            entry.AdaGradWithGroupLassoOptimizer(0.1),
            entry.FTRLWithGroupSparsityOptimizer(0.1),
        ],
        ids=lambda optimizer: type(optimizer).__name__,
    )
    def test_slices_that_are_updated_as_a_whole_stay_apart(self, optimizer):
        table = DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        table.add_feature_slice(make_segment(1, optimizer))
        table.add_feature_slice(make_segment(1, optimizer))
        assert len(table.get_table_config().slice_configs) == 2

    def test_optimizer_without_learning_rate_needs_a_function(self):
        table = DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        segment = make_segment(1, entry.MovingAverageOptimizer())
        with pytest.raises(errors.ConfigError, match="'moving_average' has no learning rate"):
            table.add_feature_slice(segment)
        table.add_feature_slice(segment, 0.0)
        assert table.get_table_config().slice_configs[0].learning_rate_fn == 0


@pytest.mark.usefixtures("graph_mode")
class TestDummyFeatureFactory:
    def test_thresholds_and_expire_times(self):
        factory = DummyFeatureFactory(4)
        for slot_id, threshold, days in ((1, 3, 30), (2, 7, 36500)):
            factory.create_feature_slot(
                FeatureSlotConfig(
                    name=f"slot{slot_id}",
                    slot_id=slot_id,
                    occurrence_threshold=threshold,
                    expire_time=days,
                )
            )
        assert factory.slot_to_occurrence_threshold == {1: 3, 2: 7}
        assert factory.slot_to_expire_time == {1: 30, 2: 36500}

    @pytest.mark.parametrize(
        ("settings", "warning"),
        [
            ({"occurrence_threshold": 3}, "occurrence threshold 3 and expire time 36500 have no"),
            ({"expire_time": 30}, "occurrence threshold 0 and expire time 30 have no effect"),
            ({}, ""),
        ],
        ids=str,
    )
    def test_slot_without_id_has_neither(self, caplog, settings, warning):
        factory = DummyFeatureFactory(4)
        factory.create_feature_slot(FeatureSlotConfig(name="u", **settings))
        assert factory.slot_to_occurrence_threshold == {}
        assert factory.slot_to_expire_time == {}
        assert warning in caplog.text
        assert bool(warning) == bool(caplog.records)

    def test_names_are_unique(self):
        factory = DummyFeatureFactory(4)
        factory.create_feature_slot(FeatureSlotConfig(name="u"))
        with pytest.raises(NameError, match=r"Duplicate names for the table\. Name: u"):
            factory.create_feature_slot(FeatureSlotConfig(name="u"))

    def test_slot_without_slices(self):
        factory = DummyFeatureFactory(4)
        factory.create_feature_slot(FeatureSlotConfig(name="u"))
        with pytest.raises(RuntimeError, match=r"u has no slice, pls\. check!"):
            factory.get_table_name_to_table_config()

    def test_shared_embeddings(self):
        factory = DummyFeatureFactory(4)
        table_kind = entry.CuckooHashTableConfig(initial_capacity=9)
        slot = factory.create_feature_slot(
            FeatureSlotConfig(name="item", hashtable_config=table_kind)
        )
        slot.add_feature_slice(3)
        clicked = FeatureColumn(slot, "clicked", combiners.FirstN(2))
        shown = FeatureColumn(slot, "shown")
        config = factory.get_table_name_to_table_config()["item"]
        assert config.feature_names == ["clicked", "shown"]
        assert config.feature_to_combiners == {"clicked": clicked.combiner, "shown": shown.combiner}
        assert config.hashtable_config is table_kind

    def test_apply_gradients_does_nothing(self):
        op = DummyFeatureFactory(4).apply_gradients([(None, None)])
        assert op.type == "NoOp"
