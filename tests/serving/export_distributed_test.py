"""Exports in parts: what is where, what is called, and what a killed export leaves."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support import jobs
from support.serving import serving
from tensorflow.core.protobuf import saved_model_pb2

from monolith import errors
from monolith.embedding.sharding import factory
from monolith.embedding.tables import snapshots
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import PredictOutput, ServingInputReceiver
from monolith.graph.spec import GraphSpec
from monolith.native import remote_predict
from monolith.native_training.model_export import saved_model_exporters
from monolith.serving import remote, saved_model
from monolith.serving.export import DistributedExporter
from monolith.serving.loading import import_saved_model
from monolith.serving.server.config import ModelConfig
from monolith.testing import generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1

NUM_PS = 2
CONFIGS = {"a": 2, "b": 1}


def make_tables():
    configs = {name: generate_test_hash_table_config(dim=dim) for name, dim in CONFIGS.items()}
    return factory.create_native_multi_hash_table(NUM_PS, configs, [None] * NUM_PS)


def save_checkpoint(model_dir: pathlib.Path, step: int = 7) -> str:
    """Saves rows `[id, id]` of `a` and `[id]` of `b`, and a weight of 10, on two servers."""
    with tf.Graph().as_default():
        v1.train.create_global_step()
        table = make_tables()
        v1.get_variable("w", initializer=10.0)
        ids = np.arange(20)
        rows = {name: np.tile(ids[:, None], dim) for name, dim in CONFIGS.items()}
        filled = table.assign({name: (ids, rows[name].astype(np.float32)) for name in CONFIGS})
        basename = str(model_dir / "model.ckpt")
        listener = snapshots.TableSaverListener(basename)
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
            session.run([entry.table.initializer for entry in snapshots.registry.get_tables()])
            session.run(v1.global_variables_initializer())
            session.run(v1.train.get_global_step().assign(step))
            session.run(filled.as_op())
            listener.before_save(session, step)
            return v1.train.Saver(sharded=True).save(session, basename, step)


def model_fn(features, mode, config):
    assert mode == ModeKeys.PREDICT
    rows = make_tables().lookup({"a": features["a"], "b": features["b"]})
    w = v1.get_variable("w", initializer=0.0)
    total = tf.reduce_sum(rows["a"]) + tf.reduce_sum(rows["b"])
    outputs = {"a": rows["a"], "b": rows["b"], "scaled": w * total}
    return GraphSpec(
        mode, predictions=outputs, export_outputs={"serving_default": PredictOutput(outputs)}
    )


def receiver_fn():
    inputs = {name: v1.placeholder(tf.int64, [None]) for name in CONFIGS}
    return ServingInputReceiver(inputs, inputs)


def make_exporter(model_dir, **settings):
    return DistributedExporter(model_fn, str(model_dir), str(model_dir / "exported"), **settings)


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    # Variables and tables are where servers are when a model is trained; here is one process.
    monkeypatch.setattr(factory.sharded_tables.devices, "ps_device", lambda i: "/cpu:0")
    save_checkpoint(tmp_path)
    return tmp_path


@pytest.fixture
def connected(model_dir):
    """Serves the parts in this process, and connects to them."""

    def start(base):
        models = tuple(
            ModelConfig(name=f"ps_{i}", base_path=str(base / f"ps_{i}")) for i in range(NUM_PS)
        )
        server, _ = stack.enter_context(serving(base, models=models, rest_port=None))
        servers = {model.name: [f"127.0.0.1:{server.port}"] for model in models}
        stack.callback(
            remote.disconnect, remote.connect(servers, remote.RemoteConfig(timeout_ms=30_000))
        )

    with contextlib.ExitStack() as stack:
        yield start


def test_historical_name():
    assert saved_model_exporters.DistributedExporter is DistributedExporter


@pytest.mark.parametrize("shared_embedding", [True, False])
def test_parts(model_dir, connected, shared_embedding):
    dirs = make_exporter(model_dir, shared_embedding=shared_embedding).export_saved_model(
        receiver_fn
    )
    base = model_dir / "exported"
    assert sorted(dirs) == ["entry", "ps_0", "ps_1"]
    (version,) = {os.path.basename(os.fsdecode(path)) for path in dirs.values()}
    assert all(os.listdir(base / name) == [version] for name in dirs)
    assert os.path.exists(base / "ps_0" / version / "assets") == (not shared_embedding)
    connected(base)
    with import_saved_model(dirs["entry"], output_name=None) as infer:
        answer = infer({"a": [3, 4, 3, 99], "b": [19]})
    assert answer["a"].tolist() == [[3, 3], [4, 4], [3, 3], [0, 0]]
    assert answer["b"].tolist() == [[19]]
    assert answer["scaled"] == 10 * (20 + 19)


def test_signatures_of_parts(model_dir):
    dirs = make_exporter(model_dir).export_saved_model(receiver_fn)
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, ["serve"], os.fsdecode(dirs["ps_1"]))
        signatures = meta_graph.signature_def
        assert {"lookup", "raw_lookup"} <= signatures.keys()
        assert "MonolithMultiHashTable_1/raw_assign" in signatures
        assert sorted(signatures["lookup"].inputs) == ["a", "b"]
        assert sorted(signatures["raw_lookup"].inputs) == ["id", "id_split"]
        raw = signatures["raw_lookup"]
        rows = session.run(
            raw.outputs["flat_emb"].name,
            {raw.inputs["id"].name: [3, 4, 5], raw.inputs["id_split"].name: [0, 2, 3]},
        )
    # Id 4 is on the other server.
    assert rows.tolist() == [3, 3, 0, 0, 5]


def test_one_request_for_each_part(model_dir):
    dirs = make_exporter(model_dir).export_saved_model(receiver_fn)
    calls = []

    def send(call):
        calls.append((call.model_name, call.old_model_name, call.task, call.signature_name))
        call.fail(14, "away", default_value=0.0)

    remote_predict.set_sender(send)
    try:
        with import_saved_model(dirs["entry"], output_name=None) as infer:
            infer({"a": np.arange(1000), "b": np.arange(1000)})
    finally:
        remote_predict.set_sender(None)
    assert sorted(calls) == [(f":ps_{i}", f"ps_{i}", i, "raw_lookup") for i in range(NUM_PS)]


def test_dense_only(model_dir):
    dirs = make_exporter(model_dir, dense_only=True).export_saved_model(receiver_fn)
    assert list(dirs) == ["entry"]
    assert os.listdir(model_dir / "exported") == ["entry"]


def test_some_parts(model_dir):
    exporter = make_exporter(model_dir, include_graphs=["ps_1"])
    assert list(exporter.export_saved_model(receiver_fn)) == ["ps_1"]
    exporter = make_exporter(model_dir, include_graphs=["ps_7"])
    with pytest.raises(errors.ConfigError, match="asks for 'ps_7', but the parts of the model are"):
        exporter.export_saved_model(receiver_fn)


def test_versions_named_after_steps(model_dir, caplog):
    exporter = make_exporter(model_dir, global_step_as_timestamp=True)
    first = exporter.export_saved_model(receiver_fn, global_step=7)
    assert {os.path.basename(path) for path in first.values()} == {b"7"}
    assert exporter.export_saved_model(receiver_fn, global_step=7) == first
    assert caplog.text.count("skipping duplicated model exportings") == 3


def test_two_exports_in_one_second(model_dir):
    exporter = make_exporter(model_dir)
    exporter.export_saved_model(receiver_fn)
    exporter.export_saved_model(receiver_fn)
    versions = [sorted(os.listdir(model_dir / "exported" / name)) for name in ("entry", "ps_0")]
    assert versions[0] == versions[1]
    assert len(versions[0]) == 2


@pytest.mark.parametrize("clear", [False, True])
def test_devices_of_the_entry(model_dir, clear):
    def device_model_fn(features, mode, config):
        with tf.device("/device:CPU:0"):
            return model_fn(features, mode, config)

    exporter = DistributedExporter(
        device_model_fn,
        str(model_dir),
        str(model_dir / "exported"),
        clear_entry_devices=clear,
        dense_only=True,
    )
    path = pathlib.Path(os.fsdecode(exporter.export_saved_model(receiver_fn)["entry"]))
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    devices = {node.device for node in saved.meta_graphs[0].graph_def.node} - {""}
    assert bool(devices) == (not clear)


@pytest.mark.parametrize("kind", ["allow_gpu", "with_remote_gpu"])
def test_gpus_are_refused(tmp_path, kind):
    with pytest.raises(errors.ConfigError, match="served on a GPU"):
        make_exporter(tmp_path, **{kind: True})


def test_a_part_that_cannot_be_written_leaves_nothing(model_dir):
    (model_dir / "exported").mkdir()
    (model_dir / "exported" / "entry").write_text("in the way")
    with pytest.raises(errors.ConfigError, match="no directory can be made"):
        make_exporter(model_dir).export_saved_model(receiver_fn)
    for name in ("ps_0", "ps_1"):
        assert os.listdir(model_dir / "exported" / name) == []


def export_and_die(model_dir, moment):
    """Runs in a process that ends before call number `moment` of those that change files."""
    tf.compat.v1.disable_eager_execution()
    factory.sharded_tables.devices.ps_device = lambda i: "/cpu:0"
    left = moment

    def dying(function):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **kwargs)

        return call

    tf.io.gfile.rename = dying(tf.io.gfile.rename)
    tf.io.gfile.makedirs = dying(tf.io.gfile.makedirs)
    saved_model._write = dying(saved_model._write)
    make_exporter(model_dir).export_saved_model(receiver_fn)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_killed_export_shows_no_half(model_dir, connected, tmp_path_factory):
    """What is there is complete, and an entry has its parts."""
    base = model_dir / "exported"
    seen = []
    with jobs.Job(tmp_path_factory.mktemp("logs")) as job:
        for moment in (1, 4, 8, 9, 10):
            member = job.start(
                str(moment), "serving.export_distributed_test", "export_and_die", model_dir, moment
            )
            assert member.wait() == -signal.SIGKILL, member.tail()
            versions = {
                name: {v for v in os.listdir(base / name) if v.isdigit()}
                for name in os.listdir(base)
            }
            for name, numbers in versions.items():
                assert all(os.path.exists(base / name / v / "saved_model.pb") for v in numbers)
            assert versions.get("entry", set()) <= versions.get("ps_0", set())
            seen.append(sum(map(len, versions.values())))
    assert seen[0] == 0
    assert seen[-1] > 0
    dirs = make_exporter(model_dir).export_saved_model(receiver_fn)
    # What they have left is gone, too.
    assert all(v.isdigit() for name in os.listdir(base) for v in os.listdir(base / name))
    connected(base)
    with import_saved_model(dirs["entry"], output_name=None) as infer:
        assert infer({"a": [3], "b": []})["a"].tolist() == [[3, 3]]


_LOADED = """
import sys
import tensorflow as tf
import monolith
from monolith.native import ops  # What an exported model is made of.
from monolith.serving import remote, saved_model

base, version = sys.argv[1:]
parts = [tf.saved_model.load(f"{base}/ps_{i}/{version}") for i in range(2)]
rows = parts[1].signatures["lookup"](a=tf.constant([3, 4], tf.int64), b=tf.constant([5], tf.int64))
print(rows["a"].numpy().tolist(), rows["b"].numpy().tolist())
entry = tf.saved_model.load(f"{base}/entry/{version}").signatures["serving_default"]
ids = tf.constant([3, 4], tf.int64)
try:
    entry(a=ids, b=ids)
except tf.errors.OpError as e:
    print("import monolith.serving.remote" in e.message)
remote.connect({"ps_0": ["127.0.0.1:1"]}, remote.RemoteConfig(default_row=0.5))
print(entry(a=ids, b=ids)["b"].numpy().tolist())
"""


def test_plain_tensorflow_loads_all_parts(model_dir):
    dirs = make_exporter(model_dir).export_saved_model(receiver_fn)
    version = os.path.basename(os.fsdecode(dirs["entry"]))
    command = [sys.executable, "-c", _LOADED, str(model_dir / "exported"), version]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[3.0, 3.0], [0.0, 0.0]] [[5.0]]",
        "True",
        "[[0.5], [0.5]]",
    ]
