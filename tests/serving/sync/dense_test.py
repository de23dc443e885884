"""Variables go to servers of models that were exported."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support import serving

from monolith.serving import export_tables
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


def push(server, read):
    backend = ListedTargets({"m": [f"127.0.0.1:{server.port}"]}, "m")
    return DensePusher(read, backend, CONFIG).start()


def test_a_server_gets_variables_again_and_again(tmp_path):
    save_model(tmp_path / "1")
    values = {"w": np.float32(3), "other": np.zeros(2)}
    with serving.serving(tmp_path, allow_writes=True) as (server, client):
        assert client.predict([1.0, 2.0]) == [2.0, 4.0]
        pusher = push(server, lambda: values)
        for factor in (3.0, 5.0):
            values["w"] = np.float32(factor)
            deadline_sec = time.monotonic() + 60
            while client.predict([1.0, 2.0]) != [factor, 2 * factor]:
                assert time.monotonic() < deadline_sec
                time.sleep(0.01)
        values["w"] = np.float32(7)
        assert pusher.close()
        assert client.predict([1.0]) == [7.0]


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
        pusher = push(server, lambda: values)
        deadline_sec = time.monotonic() + 60
        while sentence not in caplog.text:
            assert time.monotonic() < deadline_sec, caplog.text
            time.sleep(0.01)
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
            pusher = push(server, lambda: {"w": np.float32(3)})
            deadline_sec = time.monotonic() + 60
            while sentence not in caplog.text:
                assert time.monotonic() < deadline_sec, caplog.text
                time.sleep(0.01)
            pusher.close()
            assert client.predict([1.0]) == [2.0]


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
        values = reads.read(session.run)
    assert values.keys() == {"plain", "split"}
    assert values["plain"] == 1.5
    np.testing.assert_array_equal(values["split"], whole)


def _slices_of(whole):
    def initialize(shape, dtype, partition_info):
        begin = partition_info.var_offset
        return tf.constant(whole[:, begin[1] : begin[1] + shape[1]], dtype)

    return initialize
