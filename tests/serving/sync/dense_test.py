"""Variables go to servers of models that were exported."""

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from support import serving
from support.proxies import Proxy
from support.waiting import wait_for

from monolith.serving import export_tables
from monolith.serving.server.config import Limits
from monolith.serving.sync.channel import SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.dense import DensePusher, VariableReads
from monolith.serving.sync.targets import ListedTargets

pytestmark = pytest.mark.usefixtures("graph_mode")

CONFIG = SyncConfig(interval_sec=0.05, dense_interval_sec=0.1, timeout_sec=60)


def save_model(path):
    """Saves a model that multiplies `x` by the variable `w`, and lets others set that."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        w = tf.compat.v1.get_variable("w", initializer=2.0)
        session.run(tf.compat.v1.global_variables_initializer())
        builder = tf.compat.v1.saved_model.Builder(str(path))
        predict = tf.compat.v1.saved_model.predict_signature_def({"x": x}, {"output": x * w})
        signatures = {"serving_default": predict, **export_tables.create_variable_signatures()}
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], signatures)
        builder.save()


def push(server, read, config=CONFIG):
    backend = ListedTargets({"m": [f"127.0.0.1:{server.port}"]}, "m")
    return DensePusher(read, backend, config).start()


class Reads:
    """Counts reads of the variables.

    Attributes:
        count: How many there were.
        value: What they found.
    """

    def __init__(self, value=3.0):
        self.count = 0
        self.value = value

    def __call__(self, names):
        self.count += 1
        return {"w": np.float32(self.value)}


@pytest.fixture
def calls(monkeypatch):
    """The methods of calls to servers, as they are made."""
    made = []
    call = SyncChannel.call

    def call_and_note(self, method, *args, **kwargs):
        made.append(method.rpartition("/")[2])
        return call(self, method, *args, **kwargs)

    monkeypatch.setattr(SyncChannel, "call", call_and_note)
    return made


def test_a_server_gets_variables_again_and_again(tmp_path):
    save_model(tmp_path / "1")
    values = {"w": np.float32(3), "other": np.zeros(2)}
    with serving.serving(tmp_path, allow_writes=True) as (server, client):
        assert client.predict([1.0, 2.0]) == [2.0, 4.0]
        pusher = push(server, lambda names: values)
        for factor in (3.0, 5.0):
            values["w"] = np.float32(factor)
            wanted = [factor, 2 * factor]
            wait_for(lambda wanted=wanted: client.predict([1.0, 2.0]) == wanted)
        values["w"] = np.float32(7)
        assert pusher.close()
        assert client.predict([1.0]) == [7.0]


def test_a_token_that_cannot_be_read_just_now_is_read_in_a_later_round(tmp_path, caplog):
    save_model(tmp_path / "m" / "1")
    token = tmp_path / "token"
    sentence = f"{token} cannot be read: No such file or directory."
    config = dataclasses.replace(CONFIG, token_file=str(token))
    with serving.serving(tmp_path / "m", allow_writes=True) as (server, client):
        pusher = push(server, lambda names: {"w": np.float32(3)}, config)
        wait_for(lambda: sentence in caplog.text)
        assert not pusher.close()
        assert caplog.text.count(sentence) == 1
        pusher = push(server, lambda names: {"w": np.float32(5)}, config)
        wait_for(lambda: caplog.text.count(sentence) == 2)
        token.write_text("secret")
        wait_for(lambda: client.predict([1.0]) == [5.0])
        assert pusher.close()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"v": np.float32(1)}, "has variables that this training does not have: w"),
        ({"w": np.zeros(2, np.float32)}, "INVALID_ARGUMENT Input 'w' must be of shape []"),
    ],
)
def test_what_does_not_fit_is_said_once(tmp_path, caplog, values, sentence):
    save_model(tmp_path / "1")
    with serving.serving(tmp_path, allow_writes=True) as (server, client):
        pusher = push(server, lambda names: values)
        wait_for(lambda: sentence in caplog.text, describe=lambda: caplog.text)
        pusher.close()
        assert client.predict([1.0]) == [2.0]
    assert caplog.text.count(sentence) == 1


def test_a_server_may_refuse_and_a_model_may_have_no_variables(tmp_path, caplog):
    save_model(tmp_path / "m" / "1")
    serving.save_model(tmp_path / "plain" / "1")
    for name, sentence in (
        ("m", "This server does not let clients call 'variables_assign'"),
        ("plain", "has no function 'variables_assign'; export it with this version"),
    ):
        with serving.serving(tmp_path / name) as (server, client):
            pusher = push(server, lambda names: {"w": np.float32(3)})
            wait_for(lambda s=sentence: s in caplog.text, describe=lambda: caplog.text)
            pusher.close()
            assert client.predict([1.0]) == [2.0]


def test_nothing_is_read_for_a_server_that_does_not_answer(tmp_path, calls):
    save_model(tmp_path / "1")
    # Once in the time of a test; each look is much sooner.
    config = SyncConfig(interval_sec=0.01, dense_interval_sec=3600, timeout_sec=0.5)
    reads = Reads()
    with (
        serving.serving(tmp_path, allow_writes=True) as (server, client),
        Proxy(f"127.0.0.1:{server.port}") as proxy,
    ):
        backend = ListedTargets({"m": [proxy.address]}, "m")
        proxy.stall()
        with contextlib.closing(DensePusher(reads, backend, config).start()):
            wait_for(lambda: calls.count("GetModelMetadata") >= 3)
            assert reads.count == 0
            assert "Predict" not in calls
            proxy.flow()
            wait_for(lambda: client.predict([1.0]) == [3.0])
            assert reads.count == 1


def test_a_server_that_falls_silent_gets_variables_as_soon_as_it_answers(tmp_path, calls):
    save_model(tmp_path / "1")
    config = SyncConfig(interval_sec=0.01, dense_interval_sec=0.2, timeout_sec=0.5)
    reads = Reads()
    with (
        serving.serving(tmp_path, allow_writes=True) as (server, client),
        Proxy(f"127.0.0.1:{server.port}") as proxy,
    ):
        backend = ListedTargets({"m": [proxy.address]}, "m")
        with contextlib.closing(DensePusher(reads, backend, config).start()):
            wait_for(lambda: client.predict([1.0]) == [3.0])
            proxy.stall()
            asked = calls.count("GetModelMetadata")
            wait_for(lambda: calls.count("GetModelMetadata") >= asked + 1)
            # From here on, there are questions only.
            before = reads.count
            wait_for(lambda: calls.count("GetModelMetadata") >= asked + 4)
            assert reads.count == before
            reads.value = 5.0
            proxy.flow()
            wait_for(lambda: client.predict([1.0]) == [5.0])


def test_a_server_that_refuses_is_asked_again_when_it_is_time(tmp_path, calls):
    save_model(tmp_path / "1")
    reads = Reads()
    looks = []
    with serving.serving(tmp_path) as (server, _):

        class Backend(ListedTargets):
            def get_sync_targets(self, sub_graph):
                looks.append(sub_graph)
                return super().get_sync_targets(sub_graph)

        backend = Backend({"m": [f"127.0.0.1:{server.port}"]}, "m")
        config = SyncConfig(interval_sec=0.01, dense_interval_sec=3600)
        pusher = DensePusher(reads, backend, config).start()
        wait_for(lambda: "Predict" in calls)
        looked = len(looks)
        wait_for(lambda: len(looks) >= looked + 50)
        assert reads.count == 1
        assert not pusher.close()


def test_a_server_that_does_not_answer_holds_up_no_other(tmp_path, calls):
    save_model(tmp_path / "1")
    values = {"w": np.float32(3)}
    with (
        serving.serving(tmp_path, allow_writes=True) as (server, client),
        Proxy(f"127.0.0.1:{server.port}") as proxy,
    ):
        # Twice the same server, and one way to it leads through the proxy.
        backend = ListedTargets({"m": [proxy.address, f"127.0.0.1:{server.port}"]}, "m")
        # Whoever waits for an answer does so for an hour.
        config = SyncConfig(interval_sec=0.05, dense_interval_sec=0.1, timeout_sec=3600)
        pusher = DensePusher(lambda names: values, backend, config).start()
        wait_for(lambda: proxy.num_connections > 0 and calls.count("Predict") >= 4)
        proxy.stall()
        for factor in (5.0, 7.0, 9.0):
            values["w"] = np.float32(factor)
            wait_for(lambda factor=factor: client.predict([1.0]) == [factor])
        values["w"] = np.float32(11)
        assert not pusher.close(flush_sec=0.5)
        wait_for(lambda: client.predict([1.0]) == [11.0])


class TestSeveralMessages:
    """Variables that are too many for one."""

    @pytest.fixture
    def exported(self, tmp_path, monkeypatch):
        """A model that multiplies by `w`, 4 bytes, and adds the sum of `b`, 400 bytes."""
        monkeypatch.setattr(export_tables, "_MAX_ASSIGNED_BYTES", 100)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            w = tf.compat.v1.get_variable("w", initializer=2.0)
            b = tf.compat.v1.get_variable("b", initializer=tf.zeros([100]))
            session.run(tf.compat.v1.global_variables_initializer())
            builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "1"))
            output = x * w + tf.reduce_sum(b)
            predict = tf.compat.v1.saved_model.predict_signature_def({"x": x}, {"output": output})
            signatures = {"serving_default": predict, **export_tables.create_variable_signatures()}
            assert signatures.keys() >= {"variables_assign", "variables_assign/1"}
            builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], signatures)
            builder.save()
        return tmp_path

    @pytest.fixture
    def called(self, monkeypatch):
        """The functions of models that are called; those in `replaced` by another server."""
        predict = SyncChannel.predict

        def predict_and_note(channel, signature, *args, **kwargs):
            made.append(signature)
            answer = predict(channel, signature, *args, **kwargs)
            return dataclasses.replace(answer, is_other_server=len(made) in replaced)

        made, replaced = [], set()
        monkeypatch.setattr(SyncChannel, "predict", predict_and_note)
        return made, replaced

    def test_a_server_gets_all_and_only_those_that_it_has_are_read(self, exported):
        asked = []

        def read(names):
            asked.append(names)
            return {"w": np.float32(3), "b": np.ones(100, np.float32)}

        with serving.serving(exported, allow_writes=True) as (server, client):
            pusher = push(server, read)
            wait_for(lambda: client.predict([1.0]) == [103.0])
            assert pusher.close()
        assert {tuple(names) for names in asked} == {("b", "w")}

    def test_a_server_that_is_replaced_between_them_gets_all_again(self, exported, called):
        made, replaced = called
        replaced.add(2)
        values = {"w": np.float32(3), "b": np.ones(100, np.float32)}
        config = SyncConfig(interval_sec=0.01, dense_interval_sec=3600)
        with (
            serving.serving(exported, allow_writes=True) as (server, _),
            contextlib.closing(push(server, lambda names: values, config)),
        ):
            wait_for(lambda: len(made) >= 4)
        assert made[:4] == ["variables_assign/1", "variables_assign"] * 2

    def test_one_that_is_too_large_for_a_server_is_named(self, exported, called, caplog):
        made, _ = called
        values = {"w": np.float32(3), "b": np.ones(100, np.float32)}
        limits = Limits(max_request_bytes=300)
        with serving.serving(exported, allow_writes=True, limits=limits) as (server, client):
            pusher = push(server, lambda names: values)
            wait_for(lambda: len(made) >= 3)
            assert not pusher.close()
            assert client.predict([1.0]) == [2.0]
        # No variables of two times.
        assert set(made) == {"variables_assign/1"}
        said = [record.getMessage() for record in caplog.records]
        (warning,) = [text for text in said if "RESOURCE" in text or "gets no variables" in text]
        assert "does not take 400 bytes at once, of 'b'; start it with a" in warning


def test_servers_share_a_read(tmp_path):
    save_model(tmp_path / "1")
    reads = Reads()
    with serving.serving(tmp_path, allow_writes=True) as (server, client):
        # Two names of one server.
        addresses = [f"{host}:{server.port}" for host in ("127.0.0.1", "localhost")]
        config = SyncConfig(interval_sec=0.01, dense_interval_sec=3600)
        pusher = DensePusher(reads, ListedTargets({"m": addresses}, "m"), config).start()
        wait_for(lambda: client.predict([1.0]) == [3.0])
        assert pusher.close()
        # At the beginning, and at the end.
        assert reads.count == 2


def test_variables_that_cannot_be_read_are_read_again(tmp_path, caplog):
    save_model(tmp_path / "1")
    tries = []

    def read(names):
        tries.append(0)
        if len(tries) < 3:
            raise RuntimeError("no session\nsince there is none")
        return {"w": np.float32(3)}

    config = SyncConfig(interval_sec=0.01, dense_interval_sec=3600)
    with (
        serving.serving(tmp_path, allow_writes=True) as (server, client),
        contextlib.closing(push(server, read, config)),
    ):
        wait_for(lambda: client.predict([1.0]) == [3.0])
    assert caplog.text.count("gets no variables at the moment: no session\n") == 1


def test_servers_are_kept_while_nobody_can_tell_who_they_are(tmp_path, caplog):
    save_model(tmp_path / "1")
    values = {"w": np.float32(3)}
    problems = []

    class Backend(ListedTargets):
        def get_sync_targets(self, sub_graph):
            if problems:
                raise RuntimeError(problems[0])
            return super().get_sync_targets(sub_graph)

    with serving.serving(tmp_path, allow_writes=True) as (server, client):
        backend = Backend({"m": [f"127.0.0.1:{server.port}"]}, "m")
        pusher = DensePusher(lambda names: values, backend, CONFIG).start()
        wait_for(lambda: client.predict([1.0]) == [3.0])
        problems.append("ZooKeeper is away")
        wait_for(lambda: "nobody new gets variables at the moment: ZooKeeper is" in caplog.text)
        values["w"] = np.float32(5)
        wait_for(lambda: client.predict([1.0]) == [5.0])
        # Somebody may be missing.
        assert not pusher.close()


def test_parts_of_a_variable_are_one():
    partitioner = tf.compat.v1.fixed_size_partitioner(2, axis=1)
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    tf.compat.v1.get_variable("plain", initializer=1.5)
    tf.compat.v1.get_variable(
        "split", [2, 3], initializer=_slices_of(whole), partitioner=partitioner
    )
    reads = VariableReads()
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        values = reads.read(session.run, ["plain", "split"])
        assert reads.read(session.run, ["gone", "plain"]) == {"plain": 1.5}
        assert reads.read(session.run, ["gone"]) == {}
    assert values.keys() == {"plain", "split"}
    assert values["plain"] == 1.5
    np.testing.assert_array_equal(values["split"], whole)


def _slices_of(whole):
    def initialize(shape, dtype, partition_info):
        begin = partition_info.var_offset
        return tf.constant(whole[:, begin[1] : begin[1] + shape[1]], dtype)

    return initialize
