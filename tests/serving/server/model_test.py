"""All versions of one model: loading, taking over, leaving out."""

import pathlib
import shutil

import numpy as np
import pytest
from support.serving import make_request, save_model, write_warmup
from tensorflow_serving.apis import prediction_log_pb2

from monolith.serving.server import model as model_module
from monolith.serving.server import status
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Loading, ModelConfig, VersionPolicy
from monolith.serving.server.loaded import LoadError
from monolith.serving.server.metrics import ServerMetrics
from monolith.serving.server.model import Model, State


class Clock:
    def __init__(self) -> None:
        self.now_sec = 0.0

    def __call__(self) -> float:
        return self.now_sec


class Watched:
    """A model whose directory is looked at when a test says so."""

    def __init__(self, path: pathlib.Path, policy: VersionPolicy, **settings) -> None:
        self.path = path
        self.clock = Clock()
        self.metrics = ServerMetrics()
        self.changes = 0
        self._pool = CallPool(max_calls=1)
        self.model = Model(
            ModelConfig(name="m", base_path=str(path), policy=policy, **settings),
            Loading(max_retries=2, retry_sec=60.0),
            self._pool,
            metrics=self.metrics,
            on_change=self._count,
            clock=self.clock,
        )

    def _count(self) -> None:
        self.changes += 1

    def save(self, *numbers: int) -> None:
        for number in numbers:
            save_model(self.path / str(number))

    def damage(self, number: int) -> None:
        (self.path / str(number) / "saved_model.pb").write_bytes(b"nonsense")

    def look(self) -> dict[int, str]:
        self.model.update()
        return {number: s.state.name for number, s in self.model.get_status().items()}

    def which(self, **asked) -> int:
        with self.model.use(**asked) as version:
            return version.number

    def close(self) -> None:
        self.model.stop()
        self._pool.shutdown()


@pytest.fixture
def watch(tmp_path):
    watched = []

    def make(policy: VersionPolicy | None = None, **settings) -> Watched:
        path = tmp_path / "models"
        path.mkdir(exist_ok=True)
        watched.append(Watched(path, policy or VersionPolicy(), **settings))
        return watched[-1]

    yield make
    for one in watched:
        one.close()


def test_the_newest_takes_over(watch):
    watched = watch()
    watched.save(1)
    assert watched.look() == {1: "AVAILABLE"}
    assert watched.which() == 1
    watched.save(2)
    assert watched.look() == {1: "END", 2: "AVAILABLE"}
    assert watched.which() == 2
    assert watched.which(number=2) == 2
    with pytest.raises(status.RequestError, match="Version 1 of model 'm' is not served") as raised:
        watched.which(number=1)
    assert raised.value.code is status.Code.NOT_FOUND
    # Both became available, and the first one was taken out.
    assert watched.changes == 3


def test_requests_keep_the_version_that_they_began_with(watch):
    watched = watch()
    watched.save(1)
    watched.look()
    with watched.model.use() as version:
        watched.save(2)
        assert watched.look() == {1: "UNLOADING", 2: "AVAILABLE"}
        assert watched.which() == 2
        signature = version.model.get_signature("serving_default")
        assert version.number == 1
        version.model.run(signature, ("output",), [np.ones([1], np.float32)])
    assert watched.look() == {1: "END", 2: "AVAILABLE"}


def test_a_broken_version_is_left_out(watch):
    watched = watch()
    watched.save(1)
    watched.look()
    watched.save(2)
    watched.damage(2)
    assert watched.look() == {1: "AVAILABLE", 2: "END"}
    assert watched.which() == 1
    broken = watched.model.get_status()[2]
    assert broken.error
    assert broken.code is status.Code.UNKNOWN
    with pytest.raises(status.RequestError, match=r"Version 2 of model 'm' is not served: ."):
        watched.which(number=2)
    assert b'loads_total{model="m",result="failed"} 1.0' in watched.metrics.render()


def test_an_older_version_takes_the_place_of_a_broken_one(watch):
    watched = watch()
    watched.save(1, 2, 3)
    watched.damage(3)
    assert watched.look() == {2: "AVAILABLE", 3: "END"}
    assert watched.which() == 2


def test_a_broken_version_that_is_replaced_is_loaded(watch):
    watched = watch()
    watched.save(1, 2)
    watched.damage(2)
    watched.look()
    shutil.rmtree(watched.path / "2")
    watched.save(2)
    assert watched.look() == {1: "END", 2: "AVAILABLE"}


def test_a_broken_version_is_tried_again_some_times(watch):
    watched = watch()
    watched.save(1)
    watched.damage(1)
    failures = b'loads_total{model="m",result="failed"} %d.0'
    watched.look()
    watched.look()
    assert failures % 1 in watched.metrics.render()
    for expected in (2, 3, 3):
        watched.clock.now_sec += 61
        watched.look()
        assert failures % expected in watched.metrics.render()


def test_a_cause_that_goes_away(watch, monkeypatch):
    """A version that fails once, with all its files as they are, comes with the next attempt."""
    watched = watch()
    watched.save(1, 2)

    def fail(path, **kwargs):
        raise LoadError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(model_module.LoadedModel, "load", fail)
        assert watched.look() == {1: "END", 2: "END"}
        with pytest.raises(
            status.RequestError, match="version 2 cannot be loaded: the disk is away"
        ) as raised:
            watched.which()
        assert raised.value.code is status.Code.UNAVAILABLE
    watched.clock.now_sec += 61
    watched.look()
    assert watched.which() == 2


def test_a_version_that_cannot_answer_its_own_requests_is_left_out(watch):
    watched = watch()
    watched.save(1, 2)
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(make_request({"y": [1.0]}))
    write_warmup(str(watched.path / "2"), log)
    assert watched.look() == {1: "AVAILABLE", 2: "END"}
    assert "tf_serving_warmup_requests failed" in watched.model.get_status()[2].error


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        (VersionPolicy(count=2), {2, 3}),
        (VersionPolicy(count=None), {1, 2, 3}),
        (VersionPolicy(count=None, versions=frozenset([1, 3])), {1, 3}),
    ],
)
def test_policies(watch, policy, available):
    watched = watch(policy)
    watched.save(1, 2, 3)
    assert watched.look() == dict.fromkeys(available, "AVAILABLE")
    for number in available:
        assert watched.which(number=number) == number
    assert watched.which() == max(available)


def test_labels(watch):
    watched = watch(VersionPolicy(count=2), labels={"stable": 1, "canary": 2, "gone": 9})
    watched.save(1, 2)
    watched.look()
    assert watched.which(label="stable") == 1
    assert watched.which(label="canary") == 2
    for label in ("other", "gone"):
        with pytest.raises(status.RequestError) as raised:
            watched.which(label=label)
        assert raised.value.code is status.Code.NOT_FOUND


def test_what_is_loaded_stays_when_the_directory_goes(watch):
    watched = watch()
    watched.save(1)
    watched.look()
    shutil.rmtree(watched.path)
    assert watched.look() == {1: "AVAILABLE"}
    watched.path.mkdir()
    assert watched.look() == {1: "AVAILABLE"}
    watched.save(2)
    assert watched.look() == {1: "END", 2: "AVAILABLE"}


def test_a_deleted_version_goes_if_another_one_answers(watch):
    watched = watch(VersionPolicy(count=2))
    watched.save(1, 2)
    watched.look()
    shutil.rmtree(watched.path / "2")
    assert watched.look() == {1: "AVAILABLE", 2: "END"}


def test_nothing_to_serve(watch):
    watched = watch()
    assert watched.look() == {}
    with pytest.raises(status.RequestError, match="holds no version of the model") as raised:
        watched.which()
    assert raised.value.code is status.Code.UNAVAILABLE
    shutil.rmtree(watched.path)
    watched.look()
    with pytest.raises(status.RequestError, match="cannot be read"):
        watched.which()


def test_versions_that_are_gone_are_forgotten(watch, monkeypatch):
    monkeypatch.setattr(model_module, "_MAX_ENDED", 2)
    watched = watch()
    for number in range(1, 6):
        watched.save(number)
        watched.look()
        shutil.rmtree(watched.path / str(number))
    watched.save(6)
    watched.look()
    ended = [n for n, s in watched.model.get_status().items() if s.state is State.END]
    assert ended == [4, 5]


def test_another_policy_while_it_runs(watch):
    watched = watch()
    watched.save(1, 2)
    watched.look()
    config = watched.model.config
    both = VersionPolicy(count=2)
    watched.model.reconfigure(
        ModelConfig(name="m", base_path=config.base_path, policy=both, labels={"old": 1})
    )
    assert watched.look() == {1: "AVAILABLE", 2: "AVAILABLE"}
    assert watched.which(label="old") == 1
    with pytest.raises(ValueError, match="another model"):
        watched.model.reconfigure(ModelConfig(name="m", base_path="elsewhere"))
