"""Slots, slices and columns.

Covers monolith/native_training/legacy/feature.py.
"""

import dataclasses

import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.slots import (
    FeatureColumn,
    FeatureColumnV1,
    FeatureEmbTable,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)
from monolith.native_training import feature as historical_feature


class RecordingTable(FeatureEmbTable):
    """Keeps what a slot tells its table, and returns what it was asked for."""

    def __init__(self):
        self.slices = []
        self.features = {}

    def add_feature_slice(self, segment, learning_rate_fn=None):
        self.slices.append((segment, learning_rate_fn))

    def set_feature_metadata(self, feature_name, combiner):
        self.features[feature_name] = combiner

    def embedding_lookup(self, feature_name, start, end):
        return (feature_name, start, end)


@pytest.fixture
def table() -> RecordingTable:
    return RecordingTable()


def test_historical_path_gives_the_same_module():
    assert historical_feature.FeatureSlot is FeatureSlot


class TestFeatureSlotConfig:
    def test_defaults(self):
        config = FeatureSlotConfig(slot_id=3)
        assert config.name == "3"
        assert not config.has_bias
        assert (config.occurrence_threshold, config.expire_time) == (0, 36500)
        ftrl = config.bias_optimizer.as_proto().ftrl
        assert (ftrl.initial_accumulator_value, ftrl.beta) == (pytest.approx(1e-6), 1)
        assert config.default_vec_optimizer.as_proto().adagrad.initial_accumulator_value == 1
        assert config.bias_initializer.as_proto().HasField("zeros")
        assert config.bias_compressor.as_proto().HasField("fp32")
        assert config.default_vec_initializer.as_proto().HasField("random_uniform")
        assert config.default_vec_compressor.as_proto().HasField("fp16")
        assert config.bias_learning_rate_fn is None
        assert config.default_vec_learning_rate_fn is None

    def test_order_of_fields(self):
        assert [f.name for f in dataclasses.fields(FeatureSlotConfig)] == [
            "name",
            "has_bias",
            "bias_initializer",
            "bias_optimizer",
            "bias_compressor",
            "bias_learning_rate_fn",
            "default_vec_initializer",
            "default_vec_optimizer",
            "default_vec_compressor",
            "default_vec_learning_rate_fn",
            "hashtable_config",
            "slot_id",
            "occurrence_threshold",
            "expire_time",
            "names_table",  # Not in the original.
        ]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"slot_id": -1}, r"`slot_id` of slot '-1' must lie in \[0, 32767\], got -1"),
            ({"slot_id": 32768}, "must lie in"),
            ({"name": "u", "expire_time": -1}, "`expire_time` of slot 'u' must not be negative"),
            ({"name": "u", "occurrence_threshold": -2}, "must not be negative, got -2"),
        ],
        ids=str,
    )
    def test_settings_that_make_no_sense_are_refused(self, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            FeatureSlotConfig(**settings)

    def test_no_threshold_is_zero(self):
        assert FeatureSlotConfig(slot_id=1, occurrence_threshold=None).occurrence_threshold == 0


class TestFeatureSlot:
    def test_slices_are_consecutive(self, table):
        slot = FeatureSlot(table, FeatureSlotConfig(name="1", has_bias=True))
        first, second = slot.add_feature_slice(5), slot.add_feature_slice(3)
        assert slot.get_bias_slice() == FeatureSlice(slot, 0, 1)
        assert first == FeatureSlice(slot, 1, 6)
        assert second == FeatureSlice(slot, 6, 9)
        assert slot.get_feature_slices() == [slot.get_bias_slice(), first, second]

    def test_each_slice_has_its_own_settings(self, table):
        slot = FeatureSlot(table, FeatureSlotConfig(name="1"))
        slot.add_feature_slice(
            2,
            initializer=entry.ConstantsInitializer(0.5),
            optimizer=entry.AdamOptimizer(0.01),
            compressor=entry.FixedR8Compressor(),
            learning_rate_fn=0.25,
        )
        ((segment, rate),) = table.slices
        assert segment.init_config.constants.constant == 0.5
        assert segment.opt_config.HasField("adam")
        assert segment.comp_config.HasField("fixed_r8")
        assert rate == 0.25

    def test_settings_left_out_are_those_of_the_config(self, table):
        config = FeatureSlotConfig(
            name="1",
            has_bias=True,
            bias_initializer=entry.ConstantsInitializer(2.0),
            bias_optimizer=entry.SgdOptimizer(0.5),
            bias_compressor=entry.OneBitCompressor(),
            default_vec_initializer=entry.ConstantsInitializer(3.0),
            default_vec_optimizer=entry.MomentumOptimizer(0.2),
            default_vec_compressor=entry.FixedR8Compressor(),
            default_vec_learning_rate_fn=0.75,
        )
        FeatureSlot(table, config).add_feature_slice(4)
        (bias, bias_rate), (vector, vector_rate) = table.slices
        assert (bias.dim_size, vector.dim_size) == (1, 4)
        assert bias.init_config.constants.constant == 2
        assert vector.init_config.constants.constant == 3
        assert (bias.opt_config.sgd.learning_rate, bias_rate) == (0.5, 0.75)
        assert vector.opt_config.HasField("momentum")
        assert vector_rate == 0.75
        assert bias.comp_config.HasField("one_bit")
        assert vector.comp_config.HasField("fixed_r8")

    def test_learning_rate_of_the_bias(self, table):
        config = FeatureSlotConfig(name="1", has_bias=True, bias_learning_rate_fn=0.5)
        FeatureSlot(table, config)
        assert table.slices[0][1] == 0.5

    def test_slot_without_bias_has_no_bias_slice(self, table):
        slot = FeatureSlot(table, FeatureSlotConfig(name="1"))
        with pytest.raises(AssertionError, match="Slot '1' has no bias"):
            slot.get_bias_slice()

    def test_slot_number(self, table):
        assert FeatureSlot(table, FeatureSlotConfig(slot_id=12)).slot == 12

    def test_slot_number_of_a_name(self, table):
        slot = FeatureSlot(table, FeatureSlotConfig(name="user"))
        assert slot.name == "user"
        with pytest.raises(errors.ConfigError, match="name of slot 'user' is not a number"):
            _ = slot.slot

    @pytest.mark.parametrize("dim", [0, -1, 2.5])
    def test_width_must_be_a_positive_int(self, table, dim):
        slot = FeatureSlot(table, FeatureSlotConfig(name="1"))
        with pytest.raises(errors.ConfigError, match="must be a positive int"):
            slot.add_feature_slice(dim)


class TestFeatureColumn:
    def make_slot(self, table, name="1"):
        return FeatureSlot(table, FeatureSlotConfig(name=name, has_bias=True))

    def test_registers_itself(self, table):
        slot = self.make_slot(table)
        columns = {FeatureColumn(slot, name) for name in ("clicked", "shown")}
        assert slot.get_feature_columns() == columns
        assert {name: type(c) for name, c in table.features.items()} == {
            "clicked": combiners.ReduceSum,
            "shown": combiners.ReduceSum,
        }

    def test_properties(self, table):
        slot, combiner = self.make_slot(table), FeatureColumn.reduce_mean()
        column = FeatureColumnV1(slot, "shown", combiner)
        assert column.feature_name == "shown"
        assert column.feature_slot is slot
        assert column.combiner is combiner

    def test_combiners(self):
        assert isinstance(FeatureColumn.reduce_sum(), combiners.ReduceSum)
        assert isinstance(FeatureColumn.reduce_mean(), combiners.ReduceMean)
        assert FeatureColumn.first_n(3).max_seq_length == 3

    def test_lookups(self, table):
        slot = self.make_slot(table)
        vector = slot.add_feature_slice(4)
        column = FeatureColumn(slot, "shown")
        assert column.embedding_lookup(vector) == ("shown", 1, 5)
        assert column.get_bias() == ("shown", 0, 1)
        assert column.get_all_embeddings_concat() == ("shown", None, None)
        assert column.get_all_embedding_slices() == [("shown", 0, 1), ("shown", 1, 5)]

    def test_slice_of_another_slot_is_refused(self, table):
        own, other = self.make_slot(table), self.make_slot(table, "2")
        column = FeatureColumn(own, "shown")
        with pytest.raises(
            AssertionError,
            match=r"Slice must come from the dedicated feature slot\. Feature 'shown' belongs to "
            r"slot '1', the slice to slot '2'\.",
        ):
            column.embedding_lookup(other.get_bias_slice())

    def test_size_tensor(self, table):
        column = FeatureColumn(self.make_slot(table), "seen", combiners.FirstN(3))
        assert column.get_size_tensor() is None
        column.set_size_tensor(tf.constant([1, 0, 5]))
        assert column.get_size_tensor().dtype == tf.int32
        assert column.get_size_tensor().numpy().tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]

    @pytest.mark.usefixtures("graph_mode")
    def test_size_tensor_has_a_name(self, table):
        column = FeatureColumn(self.make_slot(table), "seen", combiners.FirstN(3))
        column.set_size_tensor(tf.constant([1, 0, 5]))
        assert column.get_size_tensor().name == "size_tensor:0"

    def test_only_sequences_have_sizes(self, table):
        column = FeatureColumn(self.make_slot(table), "shown")
        with pytest.raises(
            AssertionError, match=r"This function is only supported in a sequence feature."
        ):
            column.set_size_tensor(tf.constant([1]))
