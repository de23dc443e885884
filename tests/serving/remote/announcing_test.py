"""Servers that tell others what they have."""

import types

import pytest
from support.waiting import wait_for

from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.serving.remote.announcing import Announcer


class Models:
    def __init__(self, **available):
        self.models = {
            name: types.SimpleNamespace(is_available=is_available)
            for name, is_available in available.items()
        }


@pytest.fixture
def others(tmp_path):
    discovery = FileServiceDiscovery(str(tmp_path))
    yield discovery
    discovery.close()


def test_models_are_announced_while_they_answer(tmp_path, others):
    models = Models(ps_0=True, ps_1=False)
    discovery = FileServiceDiscovery(str(tmp_path))
    with Announcer(discovery, models, "127.0.0.1:1", 3, poll_sec=0.005):
        wait_for(lambda: others.query("ps_0") == {3: "127.0.0.1:1"})
        assert others.query("ps_1") == {}
        models.models["ps_1"].is_available = True
        wait_for(lambda: others.query("ps_1") == {3: "127.0.0.1:1"})
        del models.models["ps_0"]
        wait_for(lambda: others.query("ps_0") == {})
    assert others.query("ps_1") == {}


def test_a_discovery_that_fails_is_tried_again(tmp_path, others, caplog):
    discovery = FileServiceDiscovery(str(tmp_path))
    register, tries = discovery.register, []

    def fail_first(*args):
        tries.append(args)
        if len(tries) < 3:
            raise OSError("no space")
        register(*args)

    discovery.register = fail_first
    with Announcer(discovery, Models(ps_0=True), "127.0.0.1:1", 0, poll_sec=0.005):
        wait_for(lambda: others.query("ps_0") == {0: "127.0.0.1:1"})
    assert "could not announce ps_0 at 127.0.0.1:1: no space" in caplog.text
