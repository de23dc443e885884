"""Rows go to servers in the form in which these serve them, however that is, and no larger."""

import numpy as np
import pytest
import tensorflow as tf
from support import packed_rows
from tensorflow_serving.apis import predict_pb2

from monolith.embedding import entry
from monolith.embedding.tables import multi, single
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.serving.sync import client_ops

pytestmark = pytest.mark.usefixtures("graph_mode")

# A compressor, its number in a form, the bytes of a number, and the setting that counts.
KINDS = {
    "fp32": (entry.Fp32Compressor(), packed_rows.FP32, 4, None),
    "fp16": (entry.Fp16Compressor(), packed_rows.FP16, 2, None),
    "fixed_r8": (entry.FixedR8Compressor(2.0), packed_rows.FIXED_R8, 1, 2.0),
    "one_bit": (entry.OneBitCompressor(amplitude=0.25), packed_rows.ONE_BIT, 1, 0.25),
}
DIM = 16
NUM_ROWS = 500


def make_config(*segments, serving=False):
    """Returns a table of segments, each of a dim and a compressor."""
    config = proto.EmbeddingHashTableConfig(cuckoo=proto.CuckooEmbeddingHashTableConfig())
    for dim, compressor in segments:
        config.entry_config.segments.append(
            entry.CombineAsSegment(dim, entry.ZerosInitializer(), entry.SgdOptimizer(), compressor)
        )
    if serving:
        config.entry_config.entry_type = proto.EntryConfig.SERVING
    return entry.HashTableConfigInstance(config, [1.0] * len(segments))


def make_set(name, configs, client=None):
    return multi.MultiHashTable.from_configs(configs, sync_client=client, name_suffix=name)


def take(session, client, **settings):
    gathered = ops.monolith_parameter_sync_gather(client, ["x"])
    with tf.control_dependencies(list(gathered)):
        taken = ops.monolith_parameter_sync_take(client, ["x"], "hashtable_assign", **settings)
    result = session.run(taken)
    session.run(ops.monolith_parameter_sync_settle(client, ["x"], [False], [False]))
    request = predict_pb2.PredictRequest.FromString(result.requests[0])
    inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
    return result.signatures[0].decode(), inputs, len(result.requests[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_row_costs_what_it_takes_to_serve_it(kind):
    compressor, number, value_bytes, setting = KINDS[kind]
    client = client_ops.parameter_sync_client_from_config(name_suffix=kind)
    trained = make_set(f"{kind}_trained", {"t": make_config((DIM, compressor))}, client)
    served = make_set(f"{kind}_served", {"t": make_config((DIM, compressor), serving=True)})
    rng = np.random.default_rng(7)
    rows = rng.uniform(-3, 3, [NUM_ROWS, DIM]).astype(np.float32)
    ids = np.arange(NUM_ROWS) << 40
    with tf.compat.v1.Session() as session:
        session.run([trained.initializer, served.initializer])
        session.run(trained.assign({"t": (ids, rows)}).as_op())
        signature, inputs, num_bytes = take(session, client, packed=True)
        # The bar: 1.2 times the row as it is served, and its id.
        assert num_bytes <= 1.2 * NUM_ROWS * (8 + DIM * value_bytes)
        if kind == "fp32":
            assert signature == "MonolithMultiHashTable_fp32_trained/raw_assign"
            assert sorted(inputs) == ["flat_value", "id", "id_split"]
            return
        assert signature == f"MonolithMultiHashTable_{kind}_trained/raw_assign_packed"
        assert inputs["form"].tolist() == [packed_rows.make_form(number, DIM, setting)]
        sent = inputs["id"] >> 40
        expected = packed_rows.pack(number, rows[sent], 2.0)
        np.testing.assert_array_equal(inputs["packed"].reshape(NUM_ROWS, -1), expected)
        # Served from there, each is what it would be if it had come as floats.
        unpacked = ops.monolith_table_unpack_rows(
            served.handle, inputs["id_split"], inputs["packed"], inputs["form"]
        )
        taken_up = session.run(unpacked)
        read = []
        for values in (taken_up, rows[sent].ravel()):
            ragged = tf.RaggedTensor.from_row_splits(inputs["id"], inputs["id_split"])
            session.run(served.raw_assign(ragged, values).as_op())
            read.append(session.run(served.lookup({"t": tf.constant(inputs["id"])})["t"]))
        assert read[0].tobytes() == read[1].tobytes()
        # Who does not take that gets floats.
        signature, inputs, _ = take(session, client)
        assert signature.endswith("/raw_assign")
        assert inputs["flat_value"].dtype == np.float32


@pytest.mark.parametrize(
    ("kind", "fewest"), [("fp32", 7), ("fp16", 15), ("fixed_r8", 24), ("one_bit", 24)]
)
def test_a_message_keeps_the_bar_from_so_many_rows_on(kind, fewest):
    compressor, _, value_bytes, _ = KINDS[kind]
    client = client_ops.parameter_sync_client_from_config(name_suffix=f"{kind}_few")
    table = make_set(f"{kind}_few", {"t": make_config((DIM, compressor))}, client)
    with tf.compat.v1.Session() as session:
        session.run(table.initializer)
        session.run(table.assign({"t": (np.arange(fewest) << 40, np.ones([fewest, DIM]))}).as_op())
        _, _, num_bytes = take(session, client, packed=True)
    row_bytes = fewest * (8 + DIM * value_bytes)
    assert row_bytes + 84 <= num_bytes <= min(row_bytes + 116, 1.2 * row_bytes)


def test_rows_of_several_tables_and_segments():
    parts = [(1, entry.Fp32Compressor()), (3, entry.Fp16Compressor())]
    client = client_ops.parameter_sync_client_from_config(name_suffix="mixed")
    configs = {"a": make_config(*parts), "b": make_config((2, entry.Fp16Compressor()))}
    table = make_set("mixed", configs, client)
    rows = {"a": ([5], [[0.1, 1, 2, 3]]), "b": ([6, 7], [[4, 5], [6, 7]])}
    with tf.compat.v1.Session() as session:
        session.run(table.initializer)
        session.run(table.assign(rows).as_op())
        _, inputs, _ = take(session, client, packed=True)
        # Of each row 4 + 3 * 2 bytes, filled up to 12, and 2 * 2.
        assert inputs["packed"].shape == (1 * 12 + 2 * 4,)
        unpacked = ops.monolith_table_unpack_rows(
            table.handle, inputs["id_split"], inputs["packed"], inputs["form"]
        )
        values = session.run(unpacked)
    by_id = {6: [4, 5], 7: [6, 7]}
    in_order = [n for key in inputs["id"][1:] for n in by_id[key]]
    np.testing.assert_array_equal(values, np.float32([0.1, 1, 2, 3, *in_order]))


class TestSingleTables:
    def test_each_has_inputs_of_its_own(self):
        client = client_ops.parameter_sync_client_from_config(name_suffix="single")
        config = make_config((2, entry.Fp16Compressor()))
        table = single.hash_table_from_config(config, sync_client=client, name_suffix="one")
        with tf.compat.v1.Session() as session:
            session.run(table.as_op())
            session.run(table.assign([9], [[1.0, 2.0]]).as_op())
            signature, inputs, _ = take(session, client, packed=True)
        assert signature == "hashtable_assign_packed"
        assert inputs["MonolithHashTable_one_id"].tolist() == [9]
        # 1 and 2 as float16 are 0x3C00 and 0x4000.
        assert bytes(inputs["MonolithHashTable_one_packed"]) == b"\x00\x3c\x00\x40"
        form = packed_rows.make_form(packed_rows.FP16, 2)
        assert inputs["MonolithHashTable_one_form"].tolist() == [form]


class TestRefusals:
    @pytest.fixture
    def table(self):
        return make_set("refusing", {"t": make_config((2, entry.Fp16Compressor()))})

    @pytest.mark.parametrize(
        ("inputs", "problem"),
        [
            ({"form": [1]}, "Rows of table t have come in another form than it serves them in"),
            ({"form": []}, "`form` must have 1 element, one for each table"),
            ({"packed": np.zeros(5, np.uint8)}, "need 4 bytes, but `packed` has 5"),
            ({"id_split": [0, 2]}, "need 8 bytes, but `packed` has 4"),
            ({"id_split": [0, 2**62]}, "but `packed` has 4"),
            ({"id_split": [1, 0]}, "`id_split` must start with 0"),
            ({"id_split": [0]}, "`id_split` must have 2 elements"),
        ],
    )
    def test_rows_that_do_not_fit(self, table, inputs, problem):
        good = {
            "id_split": [0, 1],
            "packed": np.zeros(4, np.uint8),
            "form": [packed_rows.make_form(packed_rows.FP16, 2)],
        }
        given = {**good, **inputs}
        types = {"id_split": tf.int64, "packed": tf.uint8, "form": tf.int64}
        tensors = {name: tf.constant(given[name], types[name]) for name in good}
        with tf.compat.v1.Session() as session:
            session.run(table.initializer)
            with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
                session.run(ops.monolith_table_unpack_rows(table.handle, **tensors))
