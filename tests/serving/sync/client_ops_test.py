"""Sync clients and the step that sends what they remember, against servers of this process.

Covers monolith/serving/sync/config.py.
"""

import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from support import multi_tables
from support.row_server import RowServer
from tensorflow.python.ops import resources
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.tables import multi, single
from monolith.native import ops
from monolith.native_training import distributed_serving_ops
from monolith.proto import embedding_hash_table_pb2, parameter_sync_pb2
from monolith.serving.remote.client import CHANNEL_OPTIONS
from monolith.serving.sync import client_ops
from monolith.serving.sync.config import SyncConfig

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_config(*ports, **settings):
    return parameter_sync_pb2.ClientConfig(
        targets=[f"127.0.0.1:{port}" for port in ports],
        model_name="m",
        signature_name="hashtable_assign",
        timeout_in_ms=20000,
        **settings,
    ).SerializeToString()


def read_requests(taken):
    """Returns the calls of a `MonolithParameterSyncTake`: function to inputs as arrays."""
    calls = {}
    for signature, body in zip(taken.signatures, taken.requests, strict=True):
        request = predict_pb2.PredictRequest.FromString(body)
        calls[signature.decode()] = {
            name: tf.make_ndarray(proto) for name, proto in request.inputs.items()
        }
    return calls


def test_a_dummy_server_takes_messages_of_32_mib():
    server = distributed_serving_ops.DummySyncServer("127.0.0.1:0")
    spec = predict_pb2.PredictRequest()
    spec.model_spec.name = "m"
    spec.inputs["t_value"].CopyFrom(tf.make_tensor_proto(np.zeros((8 << 20) - 32, np.float32)))
    assert (32 << 20) - 100 < spec.ByteSize() <= 32 << 20
    with tf.compat.v1.Session() as session:
        address = f"127.0.0.1:{session.run(server.get_port())[0]}"
        with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            assert stub.Predict(spec, timeout=60).model_spec.name == "m"
        session.run(server.shutdown())


def test_parameter_sync_client():
    """The test of the specification: rows go to two servers, and the op returns JSON."""
    servers = [distributed_serving_ops.DummySyncServer("127.0.0.1:0") for _ in range(2)]
    client = distributed_serving_ops.ParameterSyncClient(
        distributed_serving_ops.parameter_sync_client_from_config(name_suffix="spec")
    )
    table = single.test_hash_table(
        3, learning_rate=0.1, sync_client=client.handle, name_suffix="spec"
    )
    ids = tf.constant([0, 0, 1], tf.int64)
    # The gradient of loss = -emb is -1 for each of them.
    rows = table.apply_gradients(ids, tf.fill([3, 3], -1.0), global_step=0).lookup([0, 1])
    config = tf.compat.v1.placeholder(tf.string, [])
    sync = client.create_sync_op(config)
    with tf.compat.v1.Session() as session:
        session.run([server.as_op() for server in servers])
        ports = [session.run(server.get_port())[0] for server in servers]
        np.testing.assert_allclose(session.run(rows), [[0.2] * 3, [0.1] * 3], rtol=1e-6)
        text = session.run(sync, {config: make_config(*ports)})
        assert text.shape == (1,)
        result = json_format.Parse(text[0], parameter_sync_pb2.PushResult())
        assert [(r.status_code, r.update_num, r.target) for r in result.responses] == [
            (0, 2, f"127.0.0.1:{port}") for port in ports
        ]
        assert "update_num" in json.loads(text[0])["responses"][0]  # Not `updateNum`.
        # Nothing was touched since.
        assert not json.loads(session.run(sync, {config: make_config(*ports)})[0]).get("responses")
        # One is gone: its rows wait for it, the other has them.
        assert session.run(servers[0].shutdown()).tolist() == [100]
        session.run(table.apply_gradients([5], [[1.0] * 3], global_step=0).as_op())
        result = json_format.Parse(
            session.run(sync, {config: make_config(*ports)})[0], parameter_sync_pb2.PushResult()
        )
        assert [(r.status_code, r.update_num) for r in result.responses] == [(14, 0), (0, 1)]
        assert result.responses[0].error_message
        session.run(servers[1].shutdown())


def test_rows_go_as_they_are_served_and_as_floats_to_who_does_not_take_that():
    client = client_ops.ParameterSyncClient(
        client_ops.parameter_sync_client_from_config(name_suffix="half")
    )
    segment = entry.CombineAsSegment(
        1, entry.ZerosInitializer(), entry.SgdOptimizer(), entry.Fp16Compressor()
    )
    proto = embedding_hash_table_pb2.EmbeddingHashTableConfig(
        cuckoo=embedding_hash_table_pb2.CuckooEmbeddingHashTableConfig()
    )
    proto.entry_config.segments.append(segment)
    table = single.hash_table_from_config(
        entry.HashTableConfigInstance(proto, [1.0]), sync_client=client.handle, name_suffix="t"
    )
    config = tf.compat.v1.placeholder(tf.string, [])
    sync = client.create_sync_op(config)
    update = table.apply_gradients([7], [[-0.5]], global_step=0).as_op()
    with RowServer() as new, RowServer() as old, tf.compat.v1.Session() as session:
        new.takes_packed = True
        session.run(table.as_op())

        def push():
            session.run(update)
            text = session.run(sync, {config: make_config(new.port, old.port)})[0]
            result = json_format.Parse(text, parameter_sync_pb2.PushResult())
            return [(r.status_code, r.update_num, r.target) for r in result.responses]

        answers = [(0, 1, f"127.0.0.1:{server.port}") for server in (new, old)]
        assert push() == answers
        assert new.rows == old.rows == {7: 0.5}
        assert (new.calls, new.packed, old.calls, old.packed) == (1, 1, 2, 1)
        assert push() == answers
        assert new.rows == old.rows == {7: 1.0}
        assert (new.calls, new.packed, old.calls, old.packed) == (2, 2, 3, 1)
        # Another process may take them.
        old.incarnation, old.takes_packed = "another", True
        assert push() == answers
        assert push() == answers
        assert new.rows == old.rows == {7: 2.0}
        assert old.packed == 2
        # What it refuses whatever the form is an answer.
        old.refusal = "No."
        assert push() == [answers[0], (3, 0, answers[1][2])]


def take(client, session, targets, **settings):
    gathered = ops.monolith_parameter_sync_gather(client, targets)
    with tf.control_dependencies(list(gathered)):
        taken = ops.monolith_parameter_sync_take(client, targets, "hashtable_assign", **settings)
    return session.run((taken, gathered))


def settle(client, session, targets, arrived, start_over=False):
    n = len(targets)
    session.run(
        ops.monolith_parameter_sync_settle(client, targets, [arrived] * n, [start_over] * n)
    )


def test_requests_of_a_set_of_tables():
    """The example of the specification: tables [1, 2] and [3] in one request."""
    client = client_ops.parameter_sync_client_from_config(name_suffix="multi")
    table = multi.MultiHashTable.from_configs(
        multi_tables.make_configs(a=2, b=1), sync_client=client, name_suffix="wire"
    )
    with tf.compat.v1.Session() as session:
        session.run(table.initializer)
        session.run(
            table.assign({"a": ([1, 2], [[1.0, 2.0], [3.0, 4.0]]), "b": ([3], [[5.0]])}).as_op()
        )
        taken, _ = take(client, session, ["x"])
        (name,) = (calls := read_requests(taken))
        assert name == "MonolithMultiHashTable_wire/raw_assign"
        order = np.argsort(calls[name]["id"][:2])
        assert calls[name]["id"][[*order, 2]].tolist() == [1, 2, 3]
        assert calls[name]["id_split"].tolist() == [0, 2, 3]
        values = calls[name]["flat_value"]
        np.testing.assert_array_equal(values[:4].reshape(2, 2)[order], [[1, 2], [3, 4]])
        np.testing.assert_array_equal(values[4:], [5])
        # At most 1.2 times the numbers themselves, once there are a few.
        settle(client, session, ["x"], True)
        ids = np.arange(1000)
        session.run(table.assign({"a": (ids, np.ones([1000, 2], np.float32))}).as_op())
        settle(client, session, ["x"], True, start_over=True)
        taken, _ = take(client, session, ["x"])
        assert taken.num_ids.tolist() == [1001]
        row_bytes = 1000 * (8 + 2 * 4) + (8 + 4)
        assert row_bytes < len(taken.requests[0]) < 1.2 * row_bytes


def test_rows_that_the_filter_holds_back_are_not_sent_and_removed_rows_are():
    client = client_ops.parameter_sync_client_from_config(name_suffix="filter")
    table = single.test_hash_table(
        1,
        enable_hash_filter=True,
        occurrence_threshold=2,
        sync_client=client,
        name_suffix="filtered",
        expire_time=1,
    )
    day = 24 * 60 * 60
    with tf.compat.v1.Session() as session:
        session.run(table.as_op())

        def update(ids, time):
            grads = [[1.0]] * len(ids)
            session.run(table.apply_gradients(ids, grads, global_step=0, req_time=time).as_op())

        take(client, session, ["x"])  # Nothing yet.
        update([1], day)
        taken, gathered = take(client, session, ["x"])
        assert (taken.num_ids.size, gathered.outstanding.tolist()) == (0, [0])
        for _ in range(3):
            update([1, 2], day)
        update([3], day)
        taken, _ = take(client, session, ["x"])
        calls = read_requests(taken)
        assert sorted(calls["hashtable_assign"]["MonolithHashTable_filtered_id"]) == [1, 2]
        assert calls["hashtable_assign"]["MonolithHashTable_filtered_value"].shape == (2, 1)
        settle(client, session, ["x"], True)
        update([2], 10 * day)
        evicted = ops.monolith_hash_table_evict(table.table, 10 * day).evicted
        assert session.run(evicted) == 1
        taken, _ = take(client, session, ["x", "late"])
        assert taken.target_index.tolist() == [0, 0, 1, 1]
        own, late = (
            read_requests(
                taken._replace(signatures=taken.signatures[rows], requests=taken.requests[rows])
            )
            for rows in (slice(0, 2), slice(2, 4))
        )
        # Who comes later hears of the removal, too: its export may have the row.
        for calls in (own, late):
            assert calls["hashtable_assign"]["MonolithHashTable_filtered_id"].tolist() == [2]
            assert calls["hashtable_remove"] == {"MonolithHashTable_filtered_id": [1]}


def test_rows_of_a_set_that_the_filter_holds_back_are_not_sent():
    client = client_ops.parameter_sync_client_from_config(name_suffix="filtered_set")
    thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
        default_occurrence_threshold=1
    ).SerializeToString()
    table = multi.MultiHashTable.from_configs(
        multi_tables.make_configs(a=1, b=1),
        hash_filter=filters.create_hash_filter(300, 5, thresholds),
        sync_client=client,
        name_suffix="filtered_set",
    )
    ids = {"a": ([1, 2, 2], [[1.0]] * 3), "b": ([3], [[1.0]])}
    with tf.compat.v1.Session() as session:
        session.run(resources.initialize_resources(resources.shared_resources()))
        take(client, session, ["x"])
        session.run(table.apply_gradients(ids, 0).as_op())
        taken, gathered = take(client, session, ["x"])
        # Only 2 has come twice.
        assert gathered.outstanding.tolist() == [1]
        (calls,) = read_requests(taken).values()
        assert (calls["id"].tolist(), calls["id_split"].tolist()) == ([2], [0, 1, 1])
        settle(client, session, ["x"], True)
        session.run(table.apply_gradients(ids, 1).as_op())
        (calls,) = read_requests(take(client, session, ["x"])[0]).values()
        assert (sorted(calls["id"]), calls["id_split"].tolist()) == ([1, 2, 3], [0, 2, 3])


def test_what_has_not_arrived_is_taken_again():
    client = client_ops.parameter_sync_client_from_config(name_suffix="again")
    table = single.test_hash_table(1, sync_client=client, name_suffix="again")
    with tf.compat.v1.Session() as session:
        session.run(table.as_op())
        session.run(table.apply_gradients([7], [[1.0]], global_step=0).as_op())
        for arrived in (False, False, True):
            taken, _ = take(client, session, ["x"])
            assert taken.num_ids.tolist() == [1]
            settle(client, session, ["x"], arrived)
        assert take(client, session, ["x"])[0].num_ids.size == 0


def test_ids_beyond_the_capacity_become_a_walk():
    client = ops.monolith_parameter_sync_client(shared_name="small", capacity=4)
    table = single.test_hash_table(1, sync_client=client, name_suffix="small")
    with tf.compat.v1.Session() as session:
        session.run(table.as_op())
        take(client, session, ["x"])
        session.run(table.apply_gradients(range(9), [[1.0]] * 9, global_step=0).as_op())
        taken, gathered = take(client, session, ["x"])
        assert (gathered.outstanding.tolist(), gathered.is_caught_up.tolist()) == ([0], [False])
        assert taken.num_ids.tolist() == [9]
        # At most 30 bytes: two rows of 8 + 4 bytes in each message.
        settle(client, session, ["x"], True, start_over=True)
        taken, _ = take(client, session, ["x"], max_bytes=30, max_requests=9)
        assert taken.num_ids.tolist() == [2, 2, 2, 2, 1]


class TestRefusals:
    def test_kinds_of_tables_are_not_mixed(self):
        client = client_ops.parameter_sync_client_from_config(name_suffix="mixed")
        one = single.test_hash_table(1, sync_client=client, name_suffix="mixed")
        sets = [
            multi.MultiHashTable.from_configs(
                multi_tables.make_configs(a=1), sync_client=client, name_suffix=name
            )
            for name in ("first", "second")
        ]
        with tf.compat.v1.Session() as session:
            session.run(one.as_op())
            with pytest.raises(tf.errors.InvalidArgumentError, match="HashTable is set"):
                session.run(sets[0].initializer)
        with tf.compat.v1.Session() as session:
            session.run(sets[0].initializer)
            with pytest.raises(tf.errors.AlreadyExistsError, match="a mtable resource already"):
                session.run(sets[1].initializer)
            with pytest.raises(tf.errors.InvalidArgumentError, match="MultiHashTable is set"):
                session.run(one.as_op())

    def test_bad_configs(self):
        bad = ops.monolith_parameter_sync_client(config=b"\x0a\xff", shared_name="bad")
        client = client_ops.ParameterSyncClient(
            client_ops.parameter_sync_client_from_config(name_suffix="good")
        )
        with tf.compat.v1.Session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="Unable to parse config"):
                session.run(bad)
            with pytest.raises(tf.errors.OpError, match="Unable to parse config"):
                session.run(client.create_sync_op(b"\x0a\xff"))

    def test_a_dummy_remembers_nothing(self):
        dummy = client_ops.create_dummy_sync_client()
        gather = ops.monolith_parameter_sync_gather(dummy, ["x"])
        remembers_nothing = pytest.raises(
            tf.errors.InvalidArgumentError, match="which remembers nothing"
        )
        with tf.compat.v1.Session() as session, remembers_nothing:
            session.run(gather)

    def test_a_dummy_server_wants_rows(self):
        server = client_ops.create_dummy_sync_server("127.0.0.1:0")
        with tf.compat.v1.Session() as session:
            channel = client_ops.SyncChannel(
                client_ops.Target(f"127.0.0.1:{session.run(server.get_port())[0]}", "m"),
                SyncConfig(timeout_sec=20),
            )
            request = predict_pb2.PredictRequest()
            request.inputs["odd"].CopyFrom(tf.make_tensor_proto(1))
            answer = channel.predict("hashtable_assign", request.SerializeToString(), 1)
            assert answer.details == "An input ends with '_id' or '_value', got 'odd'."
            channel.close()
            session.run(server.shutdown())

    def test_settings(self):
        for name in ("interval_sec", "dense_interval_sec", "timeout_sec"):
            with pytest.raises(errors.ConfigError, match=f"`{name}` must be positive, got 0"):
                SyncConfig(**{name: 0})
        with pytest.raises(errors.ConfigError, match="`flush_sec` must not be negative"):
            SyncConfig(flush_sec=-1)


def test_clients_of_servers():
    with tf.Graph().as_default():
        assert [c.device for c in client_ops.create_parameter_sync_clients(2)] == [
            "/job:ps/task:0/device:CPU:0",
            "/job:ps/task:1/device:CPU:0",
        ]
        (client,) = client_ops.create_parameter_sync_clients(0)
        assert client.op.get_attr("shared_name") == b"MonolithSyncClient_"


@pytest.mark.parametrize(
    ("around", "python_device"),
    [("/job:worker/task:1", "/job:worker/task:1"), (None, "/job:ps/task:0/device:CPU:0")],
    ids=["said", "unsaid"],
)
def test_rows_of_a_server_are_sent_by_the_process_that_is_said_around(around, python_device):
    (client,) = client_ops.create_parameter_sync_clients(1)
    known = set(tf.compat.v1.get_default_graph().get_operations())
    with tf.device(around):
        client_ops.ParameterSyncClient(client).create_sync_op(make_config())
    made = set(tf.compat.v1.get_default_graph().get_operations()) - known
    # Another process cannot call functions of this one.
    assert {op.device for op in made if op.type == "PyFunc"} == {python_device}
    native = {op.device for op in made if op.type.startswith("MonolithParameterSync")}
    assert native == {"/job:ps/task:0/device:CPU:0"}
