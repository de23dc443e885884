"""Rows that train in fewer bits: `storage` of tables, layers and configs."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

import monolith as ml
from monolith import errors
from monolith.embedding import entry
from monolith.embedding.tables import multi
from monolith.native import ops
from monolith.serving.sync import client_ops
from monolith.testing import generate_test_hash_table_config

COMPACT = ["float16", "int8"]
IDS = np.arange(1, 201)
RNG = np.random.default_rng(7)
VALUES = (RNG.normal(size=(200, 6)) * 10.0 ** RNG.integers(-3, 3, [200, 1])).astype(np.float32)


def get_steps(rows):
    """Returns the distance of neighbours in 8 bits: the least power of two of which 127 suffice."""
    greatest = np.abs(rows).max(axis=-1, keepdims=True).astype(np.float64)
    return 2.0 ** np.ceil(np.log2(greatest / 127))


def round_to(storage, rows):
    """Returns the nearest values that can be stored, by NumPy."""
    if storage == "float16":
        return rows.astype(np.float16).astype(np.float32)
    # Halves go away from zero.
    steps = get_steps(rows)
    return (np.sign(rows) * np.floor(np.abs(rows) / steps + 0.5) * steps).astype(np.float32)


def get_gaps(storage, rows):
    """Returns how far the two storable values around each value are apart, at most."""
    if storage == "float16":
        return np.spacing(np.abs(rows).astype(np.float16)).astype(np.float64)
    return np.broadcast_to(get_steps(rows), rows.shape)


def gradient(ids, values):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids, tf.int64))


@pytest.mark.parametrize("storage", COMPACT)
class TestTable:
    def test_assigned_rows_are_the_nearest(self, storage):
        table = ml.Table("rows", 6, ml.SGD(1.0), storage=storage)
        table.assign(IDS, VALUES)
        rows = table(IDS)
        assert rows.dtype == tf.float32
        np.testing.assert_array_equal(rows.numpy(), round_to(storage, VALUES))
        np.testing.assert_array_equal(table([5000]).numpy(), np.zeros([1, 6]))

    def test_steps_round_to_a_neighbour_and_are_right_on_average(self, storage):
        table = ml.Table("rows", 6, ml.SGD(1.0), storage=storage)
        table.assign(IDS, VALUES)
        before = table(IDS).numpy()
        gradients = (before * RNG.uniform(-0.2, 0.2, before.shape)).astype(np.float32)
        exact = before - gradients
        gaps = get_gaps(storage, exact)
        table.apply_gradients(gradient(IDS, gradients))
        errors_ = table(IDS).numpy() - exact
        assert (np.abs(errors_) <= gaps * 1.001).all()
        # 1200 errors of a deviation below half a gap: their mean has one below gap / 69.
        assert abs((errors_ / gaps).mean()) < 5 / 69

    def test_small_steps_are_not_lost(self, storage):
        table = ml.Table("rows", 1, ml.SGD(1.0), storage=storage)
        table.assign(IDS, np.full([200, 1], 100.0, np.float32))
        # 100 lies between 64 and 127: a step is 1; of float16, 2^-4. Nearest would stay at 100.
        step = 1.0 if storage == "int8" else 2.0**-4
        for _ in range(50):
            table.apply_gradients(gradient(IDS, np.full([200, 1], -step / 100)))
        moved = (table(IDS).numpy() - 100.0) / step
        # 50 roundings with a chance of 0.01: mean 0.5, deviation 0.7 a row, 0.05 of 200 rows.
        assert 0.25 < moved.mean() < 0.75

    def test_rows_take_what_their_values_take(self, storage):
        table = ml.Table("rows", 16, ml.Adagrad(0.1), storage=storage)
        many = np.arange(50_000)
        table.assign(many, np.ones([50_000, 16], np.float32))
        memory = table.memory()
        # Header; values, 17 bytes rounded up to 20; squares of gradients; rounded up to 8.
        one_row = {"float16": 16 + 32 + 64, "int8": (16 + 20 + 64 + 7) // 8 * 8}[storage]
        assert 50_000 * one_row <= memory.row_bytes <= (50_000 + 16 * 64) * one_row

    def test_files_hold_the_stored_values_exactly(self, storage, tmp_path):
        table = ml.Table("rows", 6, ml.Adagrad(0.1), storage=storage)
        table.apply_gradients(gradient(IDS, VALUES))
        table.save(str(tmp_path / "a"))
        loaded = ml.Table.load(str(tmp_path / "a"))
        assert loaded.config.storage == storage
        np.testing.assert_array_equal(loaded(IDS).numpy(), table(IDS).numpy())
        wide = ml.Table("rows", 6, ml.Adagrad(0.1))
        wide.restore(str(tmp_path / "a"))
        np.testing.assert_array_equal(wide(IDS).numpy(), table(IDS).numpy())
        wide.assign(IDS, VALUES)
        wide.save(str(tmp_path / "b"))
        table.restore(str(tmp_path / "b"))
        np.testing.assert_array_equal(table(IDS).numpy(), round_to(storage, VALUES))

    def test_admission_and_expiry(self, storage):
        table = ml.Table(
            "rows", 2, ml.SGD(1.0), admit_after=1, expire_after_days=1, storage=storage
        )
        ones = gradient([7, 8], np.ones([2, 2]))
        table.apply_gradients(ones)
        assert len(table) == 0
        table.apply_gradients(ones)
        assert sorted(table.ids().tolist()) == [7, 8]
        assert table.evict(now=2**31) == 2
        assert len(table) == 0

    def test_exported_rows_are_compressed_from_what_is_stored(self, storage, tmp_path):
        module = tf.Module()
        module.table = ml.Table("rows", 6, ml.SGD(1.0), storage=storage)
        module.table.assign(IDS, VALUES)
        module.look_up = tf.function(
            module.table, input_signature=[tf.TensorSpec([None], tf.int64)]
        )
        tf.saved_model.save(module, str(tmp_path / "saved"))
        loaded = tf.saved_model.load(str(tmp_path / "saved"))
        np.testing.assert_array_equal(loaded.look_up(IDS).numpy(), round_to(storage, VALUES))

    def test_sets_of_tables_and_their_sync(self, storage):
        configs = {name: generate_test_hash_table_config(3) for name in ("wide", "compact")}
        kind = entry.CuckooHashTableConfig(storage=storage)
        kind.mutate_table(configs["compact"].table_config)
        values = VALUES[:, :3]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            client = client_ops.parameter_sync_client_from_config(name_suffix=storage)
            table = multi.MultiHashTable.from_configs(
                configs, sync_client=client, name_suffix=storage
            )
            session.run(table.initializer)
            session.run(table.assign({"wide": (IDS, values), "compact": (IDS, values)}).as_op())
            found = session.run(table.lookup({"wide": IDS, "compact": IDS}))
            with tf.control_dependencies(list(ops.monolith_parameter_sync_gather(client, ["x"]))):
                take = ops.monolith_parameter_sync_take(client, ["x"], "hashtable_assign")
            (request,) = session.run(take.requests)
        np.testing.assert_array_equal(found["wide"], values)
        np.testing.assert_array_equal(found["compact"], round_to(storage, values))
        sent = predict_pb2.PredictRequest.FromString(request).inputs
        ids = tf.make_ndarray(sent["id"])
        rows = tf.make_ndarray(sent["flat_value"]).reshape(400, 3)
        # Tables come in the order of their names, ids in any.
        np.testing.assert_array_equal(rows[:200][np.argsort(ids[:200])], found["compact"])
        np.testing.assert_array_equal(rows[200:][np.argsort(ids[200:])], found["wide"])


class Clicks(ml.Model):
    def __init__(self, storage):
        super().__init__()
        self.embed = ml.Embedding("user", dim=1, storage=storage)

    def call(self, batch):
        return ml.BinaryHead("click", self.embed(batch), batch.get("click"))


def read_clicks():
    users = np.array([1, 2, 3, 4] * 4)
    columns = {"user": users, "click": (users % 2).astype(np.float32)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(4).repeat(20)


def test_a_model_goes_on_in_another_storage():
    bias = None
    for storage in ("float32", "int8"):
        estimator = ml.Estimator(Clicks(storage), "clicks", ml.SGD(1.0), progress=False)
        estimator.train(read_clicks)
        (before, bias) = (bias, ml.load(estimator.export(storage))({"user": [1, 2]})["click"])
    # It went on from where it was: each step moves users who click up, and the others down.
    assert bias[0] > before[0] > 0.5 > before[1] > bias[1]


class TestBadInput:
    @pytest.mark.parametrize("storage", ["int4", "fp16", None, 8, tf.float16])
    @pytest.mark.parametrize(
        "make",
        [
            lambda storage: ml.Table("rows", 2, storage=storage),
            lambda storage: ml.Embedding("user", dim=2, storage=storage),
            lambda storage: ml.keras.Embedding(2, storage=storage),
            lambda storage: entry.CuckooHashTableConfig(storage=storage),
        ],
        ids=["table", "embedding", "keras", "config"],
    )
    def test_unknown_storage(self, make, storage):
        with pytest.raises(errors.ConfigError, match="must be one of 'float32', 'float16', 'int8'"):
            make(storage)

    def test_rows_without_values(self):
        with pytest.raises(errors.ConfigError, match="`dim` of table 'rows' must be"):
            ml.Table("rows", 0, storage="int8")

    def test_a_keras_layer_over_a_table_leaves_it_to_the_table(self):
        table = ml.Table("rows", 2, storage="int8")
        with pytest.raises(errors.ConfigError, match="so `storage` is set there"):
            ml.keras.Embedding(table=table, storage="int8")

    def test_the_core_refuses_numbers_without_a_meaning(self):
        config = generate_test_hash_table_config(2)
        # Protobuf keeps a number that its enum lacks among what it does not know.
        config.table_config.entry_config.MergeFromString(b"\xa0\x06\x09")
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            table = multi.MultiHashTable.from_configs({"a": config})
            with pytest.raises(tf.errors.InvalidArgumentError, match="Unknown storage of rows: 9"):
                session.run(table.initializer)
