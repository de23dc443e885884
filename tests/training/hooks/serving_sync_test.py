"""A training that sends what it changes to a server, which answers with it at once."""

import dataclasses
import os

import numpy as np
import pytest
from support import parts, serving

from monolith import errors
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.proto import parameter_sync_pb2
from monolith.serving.remote.announcing import Announcer
from monolith.serving.sync import targets
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.estimator import Estimator, RunConfig
from monolith.training.hooks import serving_sync
from monolith.training.runner import RunnerConfig

pytestmark = pytest.mark.usefixtures("graph_mode")


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

    def test_settings_of_a_run_config(self):
        settings = {
            "sync_to": "file:/place",
            "sync_model": "m",
            "sync_interval_secs": 1.5,
            "sync_dense_interval_secs": 2.5,
            "sync_token_file": "/token",
        }
        config = RunConfig(**settings).to_runner_config()
        assert {name: getattr(config, name) for name in settings} == settings
        sync_config = dataclasses.asdict(serving_sync.make_sync_config(config))
        assert sync_config["interval_sec"] == 1.5
        assert sync_config["dense_interval_sec"] == 2.5
        assert sync_config["token_file"] == "/token"


def test_targets_of_backends():
    info = parameter_sync_pb2.ClientConfig.TargetExtraInfo(idc="i", cluster="c", replica_id=2)

    class Backend:
        def get_sync_targets(self, part):
            return part, {"a:1": info}

    assert targets.find_targets(Backend(), "ps_1") == [targets.Target("a:1", "ps_1", "i:c", 2)]
