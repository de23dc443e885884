"""What the chief of a job tells others than its members; such jobs run in this process."""

import time

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from support import counting

from monolith.cluster import primus
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.core import metrics
from monolith.training import cpu
from monolith.training.runner import RunnerConfig

pytestmark = pytest.mark.usefixtures("graph_mode")


class FakeClient:
    """Notes what is emitted."""

    def __init__(self):
        self.emitted = []

    def emit_store(self, name, value, tagkv=None):
        self.emitted.append((name, value, tagkv))

    emit_timer = emit_counter = emit_store

    def flush(self):
        self.emitted.append("flush")

    def find(self, name):
        return [e[1:] for e in self.emitted if e[0] == name]


@pytest.fixture
def client(monkeypatch):
    client = FakeClient()
    monkeypatch.setattr(metrics, "get_cli", lambda prefix: client)
    return client


@pytest.fixture
def told(monkeypatch):
    """What Primus is told."""
    told = []
    monkeypatch.setattr(primus, "maybe_finish_application", lambda: told.append("finished"))
    monkeypatch.setattr(primus, "maybe_kill_application", told.append)
    return told


@pytest.fixture
def train(tmp_path):
    """Returns a function that is the only process of a job."""

    def train(hooks=(), steps=None, name=None, num_batches=6, **settings):
        model_dir = str(tmp_path / "model")
        config = RunnerConfig(num_ps=0, num_workers=1, model_dir=model_dir, **settings)
        task = counting.Settings(model_dir=model_dir, num_batches=num_batches)
        params = counting.CountingTask.params().set(settings=task)
        params.train.steps = steps
        if name is not None:
            params.metrics.deep_insight_name = name
        discovery = FileServiceDiscovery(str(tmp_path / "discovery"))
        try:
            cpu.distributed_train(config, discovery, params, user_hooks=hooks)
        finally:
            discovery.close()
        return int(tf.train.latest_checkpoint(model_dir).rpartition("-")[2])

    return train


class FailingHook(tf.compat.v1.train.SessionRunHook):
    def before_run(self, run_context):
        raise ValueError("No such step.")


class TestScheduler:
    def test_end_of_a_job(self, train, told):
        assert train() == 6
        assert told == ["finished"]

    def test_failure(self, train, told):
        with pytest.raises(ValueError, match=r"No such step\."):
            train([FailingHook()])
        assert told == ["No such step."]


class TestMetrics:
    def test_time_until_all_members_are_there(self, train, client):
        train(name="movies", submit_time_secs=int(time.time()) - 100, cluster_type="k8s")
        ((seconds, tags),) = client.find("container_ready_elapsed_time.all")
        assert 100 <= seconds < 200
        assert tags == {"model_name": "movies", "cluster_type": "k8s"}

    def test_not_of_a_job_that_nobody_has_named(self, train, client):
        train(submit_time_secs=1)
        assert client.find("container_ready_elapsed_time.all") == []

    def test_signs_of_life(self, client):
        before_sec = int(time.time())
        thread = cpu._MetricsHeartBeatThread(interval=0.01)
        thread.start()
        while len(client.emitted) < 3:
            time.sleep(0.01)
        thread.stop()
        *running, stopped, last = client.emitted
        assert {e[0] for e in [*running, stopped]} == {"training_heart_beat"}
        assert {e[2]["type"] for e in running} == {"running"}
        assert stopped[2] == {"type": "stopped"}
        assert last == "flush"
        assert all(before_sec <= e[1] <= time.time() for e in [*running, stopped])

    def test_signs_of_life_of_a_job(self, train, client):
        train()
        assert [tags["type"] for _, tags in client.find("training_heart_beat")] == [
            "running",
            "stopped",
        ]


def test_flag_about_alerts_of_the_chief_alone(train):
    with flagsaver.flagsaver(monolith_chief_alert_proto="user"):
        train()
        assert flags.FLAGS["monolith_alert_proto"].value == "user"


def test_steps_count_from_the_checkpoint_that_was_asked_for(train):
    assert train(save_checkpoints_steps=4, num_batches=10) == 10
    assert train(restore_ckpt="model.ckpt-4", steps=3, num_batches=10) == 7
    # Once: then it goes on from where it was.
    assert train(restore_ckpt="model.ckpt-4", steps=2, num_batches=10) == 9
