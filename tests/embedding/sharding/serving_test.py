"""Tables of an exported model: compressed rows that are looked up and assigned, never trained."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding import entry
from monolith.embedding.tables import multi
from monolith.embedding.tables import single as hash_tables
from monolith.graph import export_mode
from monolith.proto import embedding_hash_table_pb2

RNG_SEED = 7


def make_config(dim: int, *compressors: entry.Compressor) -> entry.HashTableConfigInstance:
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig(cuckoo={})
    for compressor in compressors:
        config.entry_config.segments.append(
            entry.CombineAsSegment(
                dim, entry.ConstantsInitializer(0.5), entry.SgdOptimizer(), compressor
            )
        )
    return entry.HashTableConfigInstance(config, [1.0] * len(compressors))


@pytest.fixture
def make_table(request):
    """Makes tables for serving, or for training, that go after the test."""
    tables = []

    def make(config, serving: bool = True) -> hash_tables.HashTable:
        name = f"{request.node.name}_{len(tables)}"
        if serving:
            with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
                table = hash_tables.hash_table_from_config(config, name_suffix=name)
        else:
            table = hash_tables.hash_table_from_config(config, name_suffix=name)
        tables.append(table)
        return table

    yield make
    for table in tables:
        tf.raw_ops.DestroyResourceOp(resource=table.table)


def served(make_table, compressor, values) -> np.ndarray:
    """What a lookup gives for values after compression."""
    values = np.asarray(values, np.float32)
    table = make_table(make_config(len(values), compressor)).assign([1], [values])
    return table.lookup([1]).numpy()[0]


def sample(limit: float) -> np.ndarray:
    return np.random.default_rng(RNG_SEED).uniform(-limit, limit, 500).astype(np.float32)


class TestCompressors:
    def test_fp32_is_exact(self, make_table):
        values = sample(1000.0)
        np.testing.assert_array_equal(served(make_table, entry.Fp32Compressor(), values), values)

    def test_fp16_is_the_nearest_half(self, make_table):
        values = np.concatenate([sample(1000.0), sample(1e-6), [65504.0, 1e-8, 0.0]])
        expected = values.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(served(make_table, entry.Fp16Compressor(), values), expected)

    @pytest.mark.parametrize("fixed_range", [1.0, 5.0])
    def test_fixed_r8_is_off_by_half_a_step(self, make_table, fixed_range):
        step = fixed_range / 128
        values = sample(fixed_range - step)
        result = served(make_table, entry.FixedR8Compressor(fixed_range), values)
        assert np.abs(result - values).max() <= step / 2 * 1.0001
        steps = result / step
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)

    def test_fixed_r8_cuts_off_and_rounds_away_from_zero(self, make_table):
        step = 5 / 128
        values = [100.0, -100.0, 1.4 * step, 1.6 * step, -1.4 * step, -1.6 * step, np.nan]
        result = served(make_table, entry.FixedR8Compressor(5.0), values)
        expected = [127 * step, -128 * step, step, 2 * step, -step, -2 * step, 0]
        np.testing.assert_allclose(result, expected, rtol=1e-6)

    def test_one_bit_keeps_the_sign(self, make_table):
        values = [100, 0.1, 1e-5, 0, -1e-5, -0.1, -100]
        result = served(make_table, entry.OneBitCompressor(amplitude=1.0), values)
        assert result.tolist() == [1, 1, 1, -1, -1, -1, -1]
        result = served(make_table, entry.OneBitCompressor(), values)
        np.testing.assert_allclose(np.abs(result), 0.05, rtol=1e-6)

    def test_segments_are_compressed_apart(self, make_table):
        config = make_config(1, entry.OneBitCompressor(amplitude=0.5), entry.Fp32Compressor())
        table = make_table(config).assign([1], [[0.123, 0.123]])
        np.testing.assert_allclose(table.lookup([1]), [[0.5, 0.123]], rtol=1e-6)


class TestServingTable:
    def test_assign_add_starts_from_zeros(self, make_table):
        # Not from the initializer, which is for training.
        table = make_table(make_config(2, entry.Fp32Compressor()))
        table = table.assign_add([1], [[1.0, 2.0]]).assign_add([1], [[1.0, 1.0]])
        assert table.lookup([1, 2]).numpy().tolist() == [[2, 3], [0, 0]]

    def test_training_is_refused(self, make_table, tmp_path):
        table = make_table(make_config(2, entry.Fp32Compressor())).assign([1], [[1.0, 2.0]])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="ServingEntryAccessor doesn't support Optimize"
        ) as info:
            table.apply_gradients([1], [[1.0, 1.0]], 0)
        assert table.name in info.value.message
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="ServingEntryAccessor doesn't support Save"
        ) as info:
            table.save(str(tmp_path / "t"))
        assert table.name in info.value.message
        with pytest.raises(tf.errors.InvalidArgumentError, match="Save"):
            table.lookup_entry([1])
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a single table for training"):
            table.save_as_tensor(0, 1, 10, 0)
        assert table.lookup([1]).numpy().tolist() == [[1, 2]]

    def test_restores_what_training_saved(self, make_table, tmp_path):
        config = make_config(3, entry.Fp16Compressor())
        ids = np.arange(-50, 50)
        rows = np.random.default_rng(RNG_SEED).normal(size=[100, 3]).astype(np.float32)
        make_table(config, serving=False).assign(ids, rows).save(str(tmp_path / "t"))
        table = make_table(config).restore(str(tmp_path / "t"))
        expected = rows.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(table.lookup(ids), expected)
        assert table.size().numpy() == 100

    def test_snapshot_of_another_dim_is_refused(self, make_table, tmp_path):
        compressor = entry.Fp16Compressor()
        make_table(make_config(3, compressor), serving=False).assign([1], [[1.0] * 3]).save(
            str(tmp_path / "t")
        )
        table = make_table(make_config(2, compressor)).assign([5], [[1.0, 2.0]])
        with pytest.raises(tf.errors.InvalidArgumentError, match=table.name):
            table.restore(str(tmp_path / "t"))
        assert table.lookup([5]).numpy().tolist() == [[1, 2]]

    def test_zero_rows_can_be_left_out(self, make_table, tmp_path):
        config = make_config(1, entry.Fp32Compressor())
        ids = np.arange(3000)
        values = (ids % 2).astype(np.float32)[:, np.newaxis]
        make_table(config, serving=False).assign(ids, values).save(str(tmp_path / "t"))
        config.table_config.skip_zero_embedding = True
        table = make_table(config).assign(ids, values)
        assert table.size().numpy() == 1500
        np.testing.assert_array_equal(table.lookup(ids), values)
        table = table.assign([1], [[0.0]])  # A zero row erases the id.
        assert table.size().numpy() == 1499
        assert table.restore(str(tmp_path / "t")).size().numpy() == 1500

    def test_multi_table(self, make_table, tmp_path, request):
        configs = {"a": make_config(2, entry.Fp16Compressor())}
        training = multi.MultiHashTable.from_configs(
            configs, name_suffix=f"{request.node.name}_training"
        )
        training.assign({"a": ([1], [[0.1, 0.2]])}).save(str(tmp_path / "t"))
        with export_mode.enter_export_mode(export_mode.ExportMode.DISTRIBUTED):
            serving = multi.MultiHashTable.from_configs(
                configs, name_suffix=f"{request.node.name}_serving"
            )
        rows = serving.restore(str(tmp_path / "t")).lookup({"a": [1]})["a"].numpy()
        assert rows.tolist() == np.array([[0.1, 0.2]], np.float16).tolist()
        with pytest.raises(tf.errors.InvalidArgumentError, match="doesn't support Optimize"):
            serving.apply_gradients({"a": ([1], [[1.0, 1.0]])}, 0)


class TestTrainingReadsAsServingWill:
    """With lossy compressors, training looks up what serving will serve."""

    def test_fixed_r8_reads_rounded_values_and_keeps_exact_ones(self, make_table, tmp_path):
        step = 1 / 128
        table = make_table(make_config(1, entry.FixedR8Compressor()), serving=False)
        table = table.assign([1], [[1.4 * step]])
        np.testing.assert_allclose(table.lookup([1]), [[step]], rtol=1e-6)
        dump = embedding_hash_table_pb2.EntryDump.FromString(table.lookup_entry([1]).numpy()[0])
        np.testing.assert_allclose(dump.num, [1.4 * step], rtol=1e-6)
        # The gradient goes to the exact value: 1.4 steps and another 0.2.
        table = table.apply_gradients([1], [[-0.2 * step]], 0)
        np.testing.assert_allclose(table.lookup([1]), [[2 * step]], rtol=1e-6)

    def test_one_bit_reads_through_a_tanh(self, make_table):
        table = make_table(make_config(1, entry.OneBitCompressor(1000, 0.1)), serving=False)
        table = table.assign([1, 2], [[1.0], [2.0]])
        np.testing.assert_allclose(table.lookup([1, 2]), [[0.07615941], [0.09640275]], rtol=1e-6)
        table = table.apply_gradients([2], [[1.0]], 1)
        # d/dw 0.1 * tanh(w) at 2 is 0.00706508.
        dump = embedding_hash_table_pb2.EntryDump.FromString(table.lookup_entry([2]).numpy()[0])
        np.testing.assert_allclose(dump.num, [2 - 0.00706508], rtol=1e-6)
