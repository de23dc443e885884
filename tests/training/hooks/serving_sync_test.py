"""A training that sends what it changes to a server, which answers with it at once."""

import dataclasses
import os
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support import parts, serving
from support.certificates import make_certificates
from support.row_server import RowServer
from support.waiting import wait_for

from monolith import errors
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.embedding.tables import single
from monolith.graph.spec import GraphSpec
from monolith.proto import parameter_sync_pb2
from monolith.serving.remote.announcing import Announcer
from monolith.serving.server.config import Security
from monolith.serving.sync import targets
from monolith.serving.sync.client_ops import parameter_sync_client_from_config
from monolith.serving.sync.config import SyncConfig
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.estimator import Estimator, RunConfig
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import serving_sync
from monolith.training.runner import RunnerConfig

pytestmark = pytest.mark.usefixtures("graph_mode")

CONFIG = SyncConfig(interval_sec=0.05, dense_interval_sec=0.1, timeout_sec=60)


def train(model_dir, steps, **settings):
    config = RunConfig(is_local=True, model_dir=model_dir, **settings)
    estimator = Estimator(parts.Rating(), config)
    estimator.train(steps=steps)
    return estimator


@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_served_model_follows_its_training(tmp_path, num_ps):
    model_dir = str(tmp_path / "model")
    estimator = train(model_dir, 2, num_ps=num_ps)
    base = os.path.dirname(os.fsdecode(estimator.export_saved_model()))
    columns = parts.cut(parts.make_columns(), 100)[0]
    place = f"file:{tmp_path / 'place'}"
    with serving.serving(base, allow_writes=True) as (server, _):
        address = f"127.0.0.1:{server.port}"
        discovery = FileServiceDiscovery(str(tmp_path / "place"))
        announcer = Announcer(discovery, server.models, address, 0, poll_sec=0.02)
        with announcer, parts.Asker(server.port, "m") as asker:
            before = asker.ask(columns)
            estimator = train(
                model_dir,
                4,
                num_ps=num_ps,
                sync_to=place,
                sync_model="m",
                sync_interval_secs=0.1,
                sync_dense_interval_secs=0.2,
            )
            after = asker.ask(columns)
    expected = np.array(list(estimator.predict()))[:100]
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6)
    assert np.abs(before - after).max() > 1e-3


@pytest.fixture
def secured(tmp_path):
    """What a server asks for, and what clients need."""
    certificates = make_certificates(tmp_path)
    token = tmp_path / "token"
    token.write_text("secret")
    security = Security(
        certificate=certificates.server, key=certificates.server_key, token_file=str(token)
    )
    with open(certificates.authority, "rb") as file:
        trusting = grpc.ssl_channel_credentials(file.read())
    credentials = grpc.composite_channel_credentials(
        trusting, grpc.access_token_call_credentials("secret")
    )
    settings = {"sync_token_file": str(token), "sync_ca_file": certificates.authority}
    return security, credentials, settings


def test_a_server_with_tls_follows_too(tmp_path, secured):
    security, credentials, settings = secured
    model_dir = str(tmp_path / "model")
    estimator = train(model_dir, 2)
    base = os.path.dirname(os.fsdecode(estimator.export_saved_model()))
    columns = parts.cut(parts.make_columns(), 100)[0]
    place = str(tmp_path / "place")
    with serving.serving(base, allow_writes=True, security=security) as (server, _):
        address = f"127.0.0.1:{server.port}"
        announcer = Announcer(FileServiceDiscovery(place), server.models, address, 0, poll_sec=0.02)
        with announcer, parts.Asker(server.port, "m", credentials) as asker:
            estimator = train(
                model_dir,
                4,
                sync_to=f"file:{place}",
                sync_model="m",
                sync_interval_secs=0.1,
                sync_dense_interval_secs=0.2,
                **settings,
            )
            after = asker.ask(columns)
    expected = np.array(list(estimator.predict()))[:100]
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6)


class TestBackends:
    def test_nothing_is_sent_unless_asked_for(self):
        assert serving_sync.make_backend(CpuTrainingConfig()) is None

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({}, "Business id cannot be none while realtime training."),
            ({"bzid": "b"}, "Base name cannot be none while realtime training."),
        ],
    )
    def test_names_in_zookeeper_are_needed(self, settings, sentence):
        config = RunnerConfig(enable_realtime_training=True, **settings)
        with pytest.raises(AssertionError, match=sentence):
            serving_sync.make_backend(config)

    def test_bad_settings(self):
        with pytest.raises(errors.ConfigError, match="Servers find each other at 'file:DIR'"):
            serving_sync.make_backend(CpuTrainingConfig(sync_to="tape:7"))
        with pytest.raises(errors.ConfigError, match="`interval_sec` must be positive, got 0"):
            serving_sync.make_sync_config(CpuTrainingConfig(sync_interval_secs=0))

    def test_a_job_that_could_send_nothing_does_not_start(self, tmp_path):
        (tmp_path / "empty").touch()
        settings = {"sync_to": f"file:{tmp_path / 'place'}", "num_ps": 1}
        for name, sentence in (
            ("gone", "gone cannot be read: No such file or directory."),
            ("empty", "There is no token in the first line of .*empty"),
        ):
            model_dir, token = tmp_path / f"model-{name}", str(tmp_path / name)
            with pytest.raises(errors.ConfigError, match=sentence):
                train(str(model_dir), 1, sync_token_file=token, **settings)
            assert not list(model_dir.glob("model.ckpt*"))
        (tmp_path / "text").write_text("no certificate")
        for name, sentence in (
            ("gone", "gone cannot be read: No such file or directory."),
            ("text", "There is no certificate in .*text, or one that is damaged; write PEM."),
        ):
            config = CpuTrainingConfig(sync_ca_file=str(tmp_path / name))
            with pytest.raises(errors.ConfigError, match=sentence):
                serving_sync.make_sync_config(config)

    def test_settings_of_a_run_config(self, secured):
        _, _, files = secured
        settings = {
            "sync_to": "file:/place",
            "sync_model": "m",
            "sync_interval_secs": 1.5,
            "sync_dense_interval_secs": 2.5,
            "sync_timeout_secs": 3.5,
            **files,
        }
        config = RunConfig(**settings).to_runner_config()
        assert {name: getattr(config, name) for name in settings} == settings
        sync_config = dataclasses.asdict(serving_sync.make_sync_config(config))
        assert sync_config["interval_sec"] == 1.5
        assert sync_config["dense_interval_sec"] == 2.5
        assert sync_config["timeout_sec"] == 3.5
        assert sync_config["token_file"] == files["sync_token_file"]
        assert sync_config["server_authority"] == files["sync_ca_file"]


class Ends:
    """Stands for what sends, and for who knows the servers; notes in which order they end."""

    def __init__(self):
        self.ended = []

    def make(self, name):
        ended = self.ended

        class Pusher:
            def __init__(self, *unused, **settings):
                pass

            def start(self):
                return self

            def close(self, flush_sec=None):
                ended.append(name)
                raise RuntimeError(f"{name} is broken")

        return Pusher

    def stop(self):
        self.ended.append("backend")


class TestEnds:
    """What one of them raises keeps no other from its end."""

    def test_of_a_job(self, monkeypatch):
        backend = Ends()
        monkeypatch.setattr(serving_sync, "RowPusher", backend.make("rows"))
        monkeypatch.setattr(serving_sync, "DensePusher", backend.make("variables"))
        clients = [parameter_sync_client_from_config(name_suffix=str(i)) for i in range(2)]
        hook = serving_sync.ServingSyncHook(backend, SyncConfig(), clients)
        hook.begin()
        with tf.compat.v1.Session() as session:
            hook.after_create_session(session, None)
            with pytest.raises(RuntimeError, match="is broken"):
                hook.end(session)
        assert backend.ended == ["rows", "rows", "variables", "backend"]

    def test_of_a_server(self, monkeypatch):
        backend = Ends()
        monkeypatch.setattr(serving_sync, "RowPusher", backend.make("rows"))
        with (
            pytest.raises(RuntimeError, match="rows is broken"),
            serving_sync.ServerSync("", 0, backend),
        ):
            pass
        assert backend.ended == ["rows", "backend"]


class FailingHook(tf.compat.v1.train.SessionRunHook):
    """Has a step fail as soon as a server has its row."""

    def __init__(self, server):
        self._server = server

    def after_run(self, run_context, run_values):
        wait_for(lambda: self._server.rows)
        raise RuntimeError("the step is broken")


@pytest.mark.parametrize("rank", [None, 0])
def test_a_training_that_fails_leaves_no_thread(tmp_path, caplog, rank):
    stops = []

    class Backend(targets.ListedTargets):
        def stop(self):
            stops.append(rank)

    def model_fn(features, mode):
        client = parameter_sync_client_from_config(name_suffix="0")
        table = single.test_hash_table(1, sync_client=client, name_suffix="t")
        update = table.apply_gradients([7], [[1.0]], global_step=0).as_op()
        step = tf.compat.v1.train.get_global_step()
        with tf.control_dependencies([update]):
            train_op = tf.compat.v1.assign_add(step, 1)
        hook = serving_sync.ServingSyncHook(backend, CONFIG, [client], rank)
        loss = tf.reduce_sum(features)
        return GraphSpec(mode, loss=loss, train_op=train_op, training_chief_hooks=[hook])

    with RowServer() as server:
        backend = Backend({"m": [server.target.address]}, "m")
        estimator = GraphEstimator(model_fn, tmp_path)
        with pytest.raises(RuntimeError, match="the step is broken"):
            estimator.train(
                lambda: tf.data.Dataset.from_tensor_slices([1.0, 1.0]),
                hooks=[FailingHook(server)],
            )
        # One whose connection has just ended takes a moment.
        wait_for(lambda: not find_sync_threads(), describe=find_sync_threads)
    assert stops == ([] if rank is not None else [None])
    assert "are not sent at the moment" not in caplog.text


def find_sync_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("sync_")]


def test_targets_of_backends():
    info = parameter_sync_pb2.ClientConfig.TargetExtraInfo(idc="i", cluster="c", replica_id=2)

    class Backend:
        def get_sync_targets(self, part):
            return part, {"a:1": info}

    assert targets.find_targets(Backend(), "ps_1") == [targets.Target("a:1", "ps_1", "i:c", 2)]
