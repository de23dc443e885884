"""All models of a server."""

import contextlib
import threading

import pytest
from support.serving import QUICK, save_model

from monolith import errors
from monolith.serving.server import status
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import ModelConfig, VersionPolicy
from monolith.serving.server.manager import ModelManager


@pytest.fixture
def paths(tmp_path):
    for name in ("a", "b"):
        for number in (1, 2):
            (tmp_path / name).mkdir(exist_ok=True)
            save_model(tmp_path / name / str(number))
    return tmp_path


def make_config(paths, name: str, directory: str | None = None, **settings) -> ModelConfig:
    return ModelConfig(name=name, base_path=str(paths / (directory or name)), **settings)


@contextlib.contextmanager
def managing(*configs: ModelConfig, **settings):
    with CallPool(max_calls=8) as pool:
        manager = ModelManager(configs, QUICK, pool, **settings)
        manager.start()
        assert manager.wait_until_looked_at(60)
        try:
            yield manager
        finally:
            manager.stop()


def test_models_by_name(paths):
    with managing(make_config(paths, "a"), make_config(paths, "b")) as manager:
        assert manager.is_available
        for name in ("a", "b"):
            with manager.use(name) as version:
                assert version.number == 2
                assert version.model.path == str(paths / name / "2")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("c", status.Code.NOT_FOUND, "There is no model 'c'; there is 'a'"),
        ("", status.Code.INVALID_ARGUMENT, "names no model"),
        ("x" * 5000, status.Code.NOT_FOUND, "There is no model"),
    ],
)
def test_unknown_models(paths, name, code, message):
    with managing(make_config(paths, "a")) as manager:
        with pytest.raises(status.RequestError, match=message) as raised:
            manager.get(name)
        assert raised.value.code is code
        assert len(raised.value.message) < 2000


def test_models_come_and_go(paths):
    changed = threading.Event()
    with managing(make_config(paths, "a"), on_change=changed.set) as manager:
        kept = manager.get("a")
        both = VersionPolicy(count=2)
        changed.clear()
        manager.set_models((make_config(paths, "a", policy=both), make_config(paths, "b")))
        assert changed.is_set()
        assert manager.wait_until_looked_at(60)
        assert manager.get("a") is kept
        with manager.use("b") as version:
            manager.set_models((make_config(paths, "a"),))
            with pytest.raises(status.RequestError):
                manager.get("b")
            # Who began with it goes on.
            assert version.model.signatures
        manager.set_models(())
        assert not manager.models


def test_another_directory_is_another_model(paths):
    with managing(make_config(paths, "a")) as manager:
        before = manager.get("a")
        manager.set_models((make_config(paths, "a", directory="b"),))
        assert manager.wait_until_looked_at(60)
        assert manager.get("a") is not before
        with manager.use("a") as version:
            assert version.model.path == str(paths / "b" / "2")


def test_two_of_one_name(paths):
    with managing(make_config(paths, "a")) as manager:
        with pytest.raises(errors.ConfigError, match="name of its own"):
            manager.set_models((make_config(paths, "a"), make_config(paths, "a")))
        assert list(manager.models) == ["a"]


def test_a_model_without_versions_is_not_available(paths):
    (paths / "c").mkdir()
    with managing(make_config(paths, "a"), make_config(paths, "c")) as manager:
        assert not manager.is_available
        save_model(paths / "c" / "1")
        # It is found without anybody saying so.
        for _ in range(500):
            if manager.is_available:
                break
            threading.Event().wait(0.02)
        assert manager.is_available
