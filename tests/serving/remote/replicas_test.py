"""Where the parts of a model are: lists, and discoveries that change and fail."""

import time

import pytest

from monolith import errors
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.serving.remote.replicas import DiscoveredReplicas, StaticReplicas


@pytest.mark.parametrize(
    "replicas", [{"ps_0": []}, {"ps_0": "127.0.0.1:1"}, {"ps_0": ["nowhere"]}], ids=str
)
def test_bad_lists_are_refused(replicas):
    with pytest.raises(errors.ConfigError):
        StaticReplicas(replicas)


def wait_for(source, name, expected):
    deadline_sec = time.monotonic() + 60
    while source.find(name) != expected:
        assert time.monotonic() < deadline_sec, source.find(name)
        time.sleep(0.005)


def test_replicas_come_and_go(tmp_path):
    others = FileServiceDiscovery(str(tmp_path))
    others.register("ps_0", 3, "127.0.0.1:1003")
    source = DiscoveredReplicas(FileServiceDiscovery(str(tmp_path)), poll_sec=0.01)
    try:
        assert source.find("ps_0") == ("127.0.0.1:1003",)
        assert source.find("ps_1") == ()
        others.register("ps_0", 1, "127.0.0.1:1001")
        others.register("ps_1", 0, "127.0.0.1:1000")
        wait_for(source, "ps_0", ("127.0.0.1:1001", "127.0.0.1:1003"))
        wait_for(source, "ps_1", ("127.0.0.1:1000",))
        others.deregister("ps_0", 3, "127.0.0.1:1003")
        wait_for(source, "ps_0", ("127.0.0.1:1001",))
    finally:
        source.close()
        others.close()


def test_discovery_that_cannot_be_asked(tmp_path):
    """What it said last holds."""
    discovery = FileServiceDiscovery(str(tmp_path))
    discovery.register("ps_0", 0, "127.0.0.1:1000")
    source = DiscoveredReplicas(discovery, poll_sec=0.01)
    try:
        assert source.find("ps_0") == ("127.0.0.1:1000",)
        asked = []

        def fail(name):
            asked.append(name)
            raise OSError("away")

        discovery.query = fail
        deadline_sec = time.monotonic() + 60
        while len(asked) < 2 and time.monotonic() < deadline_sec:
            time.sleep(0.005)
        assert source.find("ps_0") == ("127.0.0.1:1000",)
        assert source.find("ps_1") == ()
    finally:
        source.close()
