"""Slots, slices and columns; collecting a model's tables; embeddings for columns."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.core import devices, export_mode
from monolith.embedding import combiners, entry, feature, hash_tables
from monolith.native_training import feature as historical_feature
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2


def make_segment(dim, optimizer=None):
    return entry.CombineAsSegment(
        dim, entry.ZerosInitializer(), optimizer or entry.SgdOptimizer(0.1), entry.Fp32Compressor()
    )


class RecordingTable(feature.FeatureEmbTable):
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
    assert historical_feature is feature


class TestFeatureSlotConfig:
    def test_defaults(self):
        config = feature.FeatureSlotConfig(slot_id=3)
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
        assert [f.name for f in dataclasses.fields(feature.FeatureSlotConfig)] == [
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
            feature.FeatureSlotConfig(**settings)

    def test_no_threshold_is_zero(self):
        assert (
            feature.FeatureSlotConfig(slot_id=1, occurrence_threshold=None).occurrence_threshold
            == 0
        )


class TestFeatureSlot:
    def test_slices_are_consecutive(self, table):
        slot = feature.FeatureSlot(table, feature.FeatureSlotConfig(name="1", has_bias=True))
        first, second = slot.add_feature_slice(5), slot.add_feature_slice(3)
        assert slot.get_bias_slice() == feature.FeatureSlice(slot, 0, 1)
        assert first == feature.FeatureSlice(slot, 1, 6)
        assert second == feature.FeatureSlice(slot, 6, 9)
        assert slot.get_feature_slices() == [slot.get_bias_slice(), first, second]

    def test_each_slice_has_its_own_settings(self, table):
        slot = feature.FeatureSlot(table, feature.FeatureSlotConfig(name="1"))
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
        config = feature.FeatureSlotConfig(
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
        feature.FeatureSlot(table, config).add_feature_slice(4)
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
        config = feature.FeatureSlotConfig(name="1", has_bias=True, bias_learning_rate_fn=0.5)
        feature.FeatureSlot(table, config)
        assert table.slices[0][1] == 0.5

    def test_slot_without_bias_has_no_bias_slice(self, table):
        slot = feature.FeatureSlot(table, feature.FeatureSlotConfig(name="1"))
        with pytest.raises(AssertionError, match="Slot '1' has no bias"):
            slot.get_bias_slice()

    def test_slot_number(self, table):
        assert feature.FeatureSlot(table, feature.FeatureSlotConfig(slot_id=12)).slot == 12

    def test_slot_number_of_a_name(self, table):
        slot = feature.FeatureSlot(table, feature.FeatureSlotConfig(name="user"))
        assert slot.name == "user"
        with pytest.raises(errors.ConfigError, match="name of slot 'user' is not a number"):
            _ = slot.slot

    @pytest.mark.parametrize("dim", [0, -1, 2.5])
    def test_width_must_be_a_positive_int(self, table, dim):
        slot = feature.FeatureSlot(table, feature.FeatureSlotConfig(name="1"))
        with pytest.raises(errors.ConfigError, match="must be a positive int"):
            slot.add_feature_slice(dim)


class TestFeatureColumn:
    def make_slot(self, table, name="1"):
        return feature.FeatureSlot(table, feature.FeatureSlotConfig(name=name, has_bias=True))

    def test_registers_itself(self, table):
        slot = self.make_slot(table)
        columns = {feature.FeatureColumn(slot, name) for name in ("clicked", "shown")}
        assert slot.get_feature_columns() == columns
        assert {name: type(c) for name, c in table.features.items()} == {
            "clicked": combiners.ReduceSum,
            "shown": combiners.ReduceSum,
        }

    def test_properties(self, table):
        slot, combiner = self.make_slot(table), feature.FeatureColumn.reduce_mean()
        column = feature.FeatureColumnV1(slot, "shown", combiner)
        assert column.feature_name == "shown"
        assert column.feature_slot is slot
        assert column.combiner is combiner

    def test_combiners(self):
        assert isinstance(feature.FeatureColumn.reduce_sum(), combiners.ReduceSum)
        assert isinstance(feature.FeatureColumn.reduce_mean(), combiners.ReduceMean)
        assert feature.FeatureColumn.first_n(3).max_seq_length == 3

    def test_lookups(self, table):
        slot = self.make_slot(table)
        vector = slot.add_feature_slice(4)
        column = feature.FeatureColumn(slot, "shown")
        assert column.embedding_lookup(vector) == ("shown", 1, 5)
        assert column.get_bias() == ("shown", 0, 1)
        assert column.get_all_embeddings_concat() == ("shown", None, None)
        assert column.get_all_embedding_slices() == [("shown", 0, 1), ("shown", 1, 5)]

    def test_slice_of_another_slot_is_refused(self, table):
        own, other = self.make_slot(table), self.make_slot(table, "2")
        column = feature.FeatureColumn(own, "shown")
        with pytest.raises(
            AssertionError,
            match=r"Slice must come from the dedicated feature slot\. Feature 'shown' belongs to "
            r"slot '1', the slice to slot '2'\.",
        ):
            column.embedding_lookup(other.get_bias_slice())

    def test_size_tensor(self, table):
        column = feature.FeatureColumn(self.make_slot(table), "seen", combiners.FirstN(3))
        assert column.get_size_tensor() is None
        column.set_size_tensor(tf.constant([1, 0, 5]))
        assert column.get_size_tensor().dtype == tf.int32
        assert column.get_size_tensor().numpy().tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]

    @pytest.mark.usefixtures("graph_mode")
    def test_size_tensor_has_a_name(self, table):
        column = feature.FeatureColumn(self.make_slot(table), "seen", combiners.FirstN(3))
        column.set_size_tensor(tf.constant([1, 0, 5]))
        assert column.get_size_tensor().name == "size_tensor:0"

    def test_only_sequences_have_sizes(self, table):
        column = feature.FeatureColumn(self.make_slot(table), "shown")
        with pytest.raises(
            AssertionError, match=r"This function is only supported in a sequence feature."
        ):
            column.set_size_tensor(tf.constant([1]))


@pytest.mark.usefixtures("graph_mode")
class TestDummyFeatureEmbTable:
    def make_table(self, combiner=None, batch_size=4):
        table = feature.DummyFeatureEmbTable(batch_size, entry.CuckooHashTableConfig())
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
        table = feature.DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
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
        table = feature.DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
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
        table = feature.DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
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
        table = feature.DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        table.add_feature_slice(make_segment(1, optimizer))
        table.add_feature_slice(make_segment(1, optimizer))
        assert len(table.get_table_config().slice_configs) == 2

    def test_optimizer_without_learning_rate_needs_a_function(self):
        table = feature.DummyFeatureEmbTable(4, entry.CuckooHashTableConfig())
        segment = make_segment(1, entry.MovingAverageOptimizer())
        with pytest.raises(errors.ConfigError, match="'moving_average' has no learning rate"):
            table.add_feature_slice(segment)
        table.add_feature_slice(segment, 0.0)
        assert table.get_table_config().slice_configs[0].learning_rate_fn == 0


@pytest.mark.usefixtures("graph_mode")
class TestDummyFeatureFactory:
    def test_thresholds_and_expire_times(self):
        factory = feature.DummyFeatureFactory(4)
        for slot_id, threshold, days in ((1, 3, 30), (2, 7, 36500)):
            factory.create_feature_slot(
                feature.FeatureSlotConfig(
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
        factory = feature.DummyFeatureFactory(4)
        factory.create_feature_slot(feature.FeatureSlotConfig(name="u", **settings))
        assert factory.slot_to_occurrence_threshold == {}
        assert factory.slot_to_expire_time == {}
        assert warning in caplog.text
        assert bool(warning) == bool(caplog.records)

    def test_names_are_unique(self):
        factory = feature.DummyFeatureFactory(4)
        factory.create_feature_slot(feature.FeatureSlotConfig(name="u"))
        with pytest.raises(NameError, match=r"Duplicate names for the table\. Name: u"):
            factory.create_feature_slot(feature.FeatureSlotConfig(name="u"))

    def test_slot_without_slices(self):
        factory = feature.DummyFeatureFactory(4)
        factory.create_feature_slot(feature.FeatureSlotConfig(name="u"))
        with pytest.raises(RuntimeError, match=r"u has no slice, pls\. check!"):
            factory.get_table_name_to_table_config()

    def test_shared_embeddings(self):
        factory = feature.DummyFeatureFactory(4)
        table_kind = entry.CuckooHashTableConfig(initial_capacity=9)
        slot = factory.create_feature_slot(
            feature.FeatureSlotConfig(name="item", hashtable_config=table_kind)
        )
        slot.add_feature_slice(3)
        clicked = feature.FeatureColumn(slot, "clicked", combiners.FirstN(2))
        shown = feature.FeatureColumn(slot, "shown")
        config = factory.get_table_name_to_table_config()["item"]
        assert config.feature_names == ["clicked", "shown"]
        assert config.feature_to_combiners == {"clicked": clicked.combiner, "shown": shown.combiner}
        assert config.hashtable_config is table_kind

    def test_apply_gradients_does_nothing(self):
        op = feature.DummyFeatureFactory(4).apply_gradients([(None, None)])
        assert op.type == "NoOp"


def make_ids(lengths):
    values = tf.range(sum(lengths), dtype=tf.int64)
    return tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))


def create_slices(rows, ids, combiner, dims):
    slices = feature.create_embedding_slices(
        {"user": rows}, {"user": ids}, {"user": combiner}, {"user": dims}
    )
    return {key: tensor.numpy().tolist() for key, tensor in slices.items()}


class TestCreateEmbeddingSlices:
    def test_reduce_sum(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2], [0, 1, 2])
        slices = create_slices(
            tf.constant([[1.0, 4.0], [2.0, 3.0]]), ids, combiners.ReduceSum(), [1, 1]
        )
        assert slices == {"user:0_1": [[1], [2]], "user:1_2": [[4], [3]]}

    def test_reduce_sum_with_empty_row(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        slices = create_slices(rows, ids, combiners.ReduceSum(), [1, 1])
        assert slices == {"user:0_1": [[1], [0], [5]], "user:1_2": [[2], [0], [8]]}

    def test_reduce_mean(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        slices = create_slices(rows, ids, combiners.ReduceMean(), [1, 1])
        assert slices == {"user:0_1": [[1], [0], [2.5]], "user:1_2": [[2], [0], [4]]}

    def test_first_n(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3, 4], [0, 1, 1, 4])
        rows = tf.constant([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]])
        slices = create_slices(rows, ids, combiners.FirstN(2), [1, 1])
        assert slices["user:0_1"] == [[[1], [0]], [[0], [0]], [[2], [3]]]
        assert slices["user:1_2"] == [[[5], [0]], [[0], [0]], [[6], [7]]]

    def test_several_features(self):
        slices = feature.create_embedding_slices(
            {"a": tf.ones([1, 3]), "b": 2 * tf.ones([2, 1])},
            {"a": make_ids([1]), "b": make_ids([2])},
            {"a": combiners.ReduceMean(), "b": combiners.ReduceSum()},
            {"a": [2, 1], "b": [1]},
        )
        assert sorted(slices) == ["a:0_2", "a:2_3", "b:0_1"]
        assert slices["a:0_2"].numpy().tolist() == [[1, 1]]
        assert slices["b:0_1"].numpy().tolist() == [[4]]

    @pytest.mark.usefixtures("graph_mode")
    def test_exporting_uses_ops_of_tensorflow_and_keeps_the_sum(self):
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            slices = feature.create_embedding_slices(
                {"user": rows}, {"user": ids}, {"user": combiners.ReduceSum()}, {"user": [1, 1]}
            )
        (combined,) = tf.compat.v1.get_collection("monolith_reduced_embs")
        with tf.compat.v1.Session() as session:
            slices, combined = session.run((slices, combined))
        assert combined.tolist() == [[1, 2], [0, 0], [5, 8]]
        assert slices["user:0_1"].tolist() == [[1], [0], [5]]
        assert slices["user:1_2"].tolist() == [[2], [0], [8]]
        types = {op.type for op in tf.compat.v1.get_default_graph().get_operations()}
        assert not any("ReduceSumAndSplit" in t for t in types)

    @pytest.mark.usefixtures("graph_mode")
    @pytest.mark.parametrize(
        ("allowed", "device", "is_fused"),
        [(False, "/GPU:0", True), (True, "/CPU:0", True), (True, "/GPU:0", False)],
    )
    def test_on_a_gpu_ops_of_tensorflow_are_used(self, monkeypatch, allowed, device, is_fused):
        # Only built, not run: there may be no GPU here.
        monkeypatch.setattr(devices, "_GPU_PLACEMENT_ALLOWED", allowed)
        with tf.device(device):
            feature.create_embedding_slices(
                {"user": tf.ones([2, 2])},
                {"user": make_ids([1, 1])},
                {"user": combiners.ReduceSum()},
                {"user": [1, 1]},
            )
        types = {op.type for op in tf.compat.v1.get_default_graph().get_operations()}
        assert ("MonolithFusedReduceSumAndSplit" in types) is is_fused
        assert ("ScatterNd" in types) is not is_fused
        assert not tf.compat.v1.get_collection("monolith_reduced_embs")

    @pytest.mark.usefixtures("graph_mode")
    def test_width_that_is_not_known_is_that_of_the_slices(self):
        rows = tf.compat.v1.placeholder(tf.float32, [None, None])
        for combiner, shape in ((combiners.ReduceSum(), [2, 2]), (combiners.FirstN(3), [2, 3, 2])):
            slices = feature.create_embedding_slices(
                {"user": rows}, {"user": make_ids([1, 1])}, {"user": combiner}, {"user": [2, 1]}
            )
            assert slices["user:0_2"].shape.as_list() == shape

    @pytest.mark.parametrize(
        "combiner", [combiners.ReduceSum(), combiners.ReduceMean(), combiners.FirstN(2)], ids=str
    )
    def test_gradient_by_whole_rows_against_tensorflow(self, combiner):
        lengths, dims = [2, 0, 3, 1], [1, 3, 2]
        rng = np.random.default_rng(5)
        rows = tf.constant(rng.normal(size=(6, 6)).astype(np.float32))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(rows)
            slices = feature.create_embedding_slices(
                {"user": rows}, {"user": make_ids(lengths)}, {"user": combiner}, {"user": dims}
            )
            # The last slice is not used: its part of the row has no gradient.
            ours = tf.reduce_sum(slices["user:0_1"] ** 2) + tf.reduce_sum(slices["user:1_4"] ** 3)
            padded = tf.RaggedTensor.from_row_lengths(rows, lengths).to_tensor()
            if isinstance(combiner, combiners.FirstN):
                combined = padded[:, :2]
            else:
                combined = tf.reduce_sum(padded, 1)
            if isinstance(combiner, combiners.ReduceMean):
                combined /= np.maximum(lengths, 1)[:, np.newaxis]
            plain = tf.reduce_sum(combined[..., :1] ** 2) + tf.reduce_sum(combined[..., 1:4] ** 3)
        assert float(ours) == pytest.approx(float(plain), rel=1e-5)
        gradient = tape.gradient(ours, rows)
        assert gradient.shape == [6, 6]  # For each occurrence of an id.
        expected = tf.convert_to_tensor(tape.gradient(plain, rows))
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
        assert not gradient.numpy()[:, 4:].any()

    def test_dense_ids_are_refused(self):
        with pytest.raises(
            errors.ConfigError,
            match=r"The ids of feature 'user' must be a tf\.RaggedTensor of shape "
            r"\[batch, \(num_ids\)\], got a dense tensor of shape \(2, 1\); make one with",
        ):
            create_slices(tf.ones([2, 1]), tf.zeros([2, 1], tf.int64), combiners.ReduceSum(), [1])

    def test_rows_of_another_width_are_refused(self):
        with pytest.raises(
            errors.ConfigError, match=r"must have shape \[num_ids, 3\], the width of its slices"
        ):
            create_slices(tf.ones([2, 2]), make_ids([1, 1]), combiners.ReduceSum(), [1, 2])

    @pytest.mark.parametrize("missing", range(3))
    def test_feature_that_was_not_declared_is_named(self, missing):
        arguments = [{"user": make_ids([2])}, {"user": combiners.ReduceSum()}, {"user": [1]}]
        arguments[missing] = {}
        with pytest.raises(errors.ConfigError, match="Feature 'user' has embeddings but no"):
            feature.create_embedding_slices({"user": tf.ones([2, 1])}, *arguments)


class TestFeatureFactoryFromEmbeddings:
    @pytest.fixture
    def embeddings(self):
        return {"user": tf.constant([[1.0, 4.0], [2.0, 3.0]])}

    @pytest.fixture
    def factory(self, embeddings):
        slices = feature.create_embedding_slices(
            embeddings,
            {"user": make_ids([1, 1])},
            {"user": combiners.ReduceSum()},
            {"user": [1, 1]},
        )
        return feature.FeatureFactoryFromEmbeddings(embeddings, slices)

    def test_lookup(self, factory, embeddings):
        slot = factory.create_feature_slot(feature.FeatureSlotConfig(name="1"))
        first, second = slot.add_feature_slice(1), slot.add_feature_slice(1)
        column = feature.FeatureColumn(slot, "user")
        assert column.embedding_lookup(first).numpy().tolist() == [[1], [2]]
        assert column.embedding_lookup(second).numpy().tolist() == [[4], [3]]
        assert column.get_all_embeddings_concat() is embeddings["user"]

    def test_bias(self, factory):
        slot = factory.create_feature_slot(feature.FeatureSlotConfig(name="1", has_bias=True))
        assert feature.FeatureColumn(slot, "user").get_bias().numpy().tolist() == [[1], [2]]

    def test_feature_that_was_not_declared(self, factory):
        slot = factory.create_feature_slot(feature.FeatureSlotConfig(name="1"))
        column = feature.FeatureColumn(slot, "item")
        with pytest.raises(
            errors.ConfigError,
            match="Feature 'item' was not declared when the features of the model were collected; "
            "declared are 'user'",
        ):
            column.embedding_lookup(slot.add_feature_slice(1))

    def test_slice_that_was_not_declared(self, factory):
        slot = factory.create_feature_slot(feature.FeatureSlotConfig(name="1"))
        column = feature.FeatureColumn(slot, "user")
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
        factory = feature.EmbeddingLayoutFactory(RecordingHashTable(), {"y": c, "x": [a, b]})
        assert factory.get_layout("y") is c
        assert factory.get_layout("x") == [a, b]
        assert [id(t) for t in factory.flattened_layout()] == [id(a), id(b), id(c)]
        with pytest.raises(AssertionError, match="There is no layout 'z'; there are 'x', 'y'"):
            factory.get_layout("z")

    def test_slots_have_no_embeddings(self):
        factory = feature.EmbeddingLayoutFactory(RecordingHashTable(), {})
        slot = factory.create_feature_slot(feature.FeatureSlotConfig(name="1", has_bias=True))
        assert feature.FeatureColumn(slot, "user").get_bias() is None

    @pytest.mark.parametrize("given", [False, True])
    def test_gradients_go_to_the_table(self, given):
        table, bundle = RecordingHashTable(), {"req_time": tf.constant(7, tf.int64)}
        factory = feature.EmbeddingLayoutFactory(
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
                feature.FeatureSlotConfig(
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
            columns = [feature.FeatureColumn(slot, name) for name in ("liked", "seen")]
            loss = 0.0
            for column in columns:  # Both share the rows.
                loss += tf.reduce_sum(column.get_bias())
                loss += tf.reduce_sum(column.embedding_lookup(vector))
                loss += 2 * tf.reduce_sum(column.embedding_lookup(constant))
            rows = [column.get_all_embeddings_concat() for column in columns]
            return rows, tf.gradients(loss, rows)

        dummy = feature.DummyFeatureFactory(batch_size=None)
        build(dummy)
        config, table_config = self.make_table_config(dummy, "user")
        assert config.unmerged_slice_dims == [1, 2, 1]

        table = hash_tables.hash_table_from_config(table_config, name_suffix="user")
        ids = {
            "liked": tf.ragged.constant([[7], [], [7, 8]], dtype=tf.int64),
            "seen": tf.ragged.constant([[], [8], []], dtype=tf.int64),
        }
        table = table.assign([7, 8], [[0.0, 2.0, 2.0, 2.0]] * 2)
        embeddings = {name: table.lookup(i.values) for name, i in ids.items()}
        slices = feature.create_embedding_slices(
            embeddings,
            ids,
            config.feature_to_combiners,
            dict.fromkeys(config.feature_names, config.unmerged_slice_dims),
        )
        factory = feature.FeatureFactoryFromEmbeddings(embeddings, slices)
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
