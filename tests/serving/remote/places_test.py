"""Places where servers find each other."""

import pytest
from cluster import fake_kazoo

from monolith import errors
from monolith.serving.agent import discovery as agent
from monolith.serving.remote.places import open_place


def test_files(tmp_path):
    place = open_place(f"file:{tmp_path}")
    try:
        place.register("ps_0", 0, "127.0.0.1:1")
        assert (tmp_path / "ps_0" / "0").read_text() == "127.0.0.1:1"
    finally:
        place.close()


def test_zookeeper(monkeypatch):
    server = fake_kazoo.FakeZooKeeper()
    monkeypatch.setattr(agent, "MonolithKazooClient", server.client)
    place = open_place("zk:10.0.0.1:2181,10.0.0.2:2181/ads/ranking")
    try:
        place.register("ps_0", 7, "127.0.0.1:1")
        assert "/ads/service/ranking/ps:0/7" in server.nodes
        assert place._zk.hosts == "10.0.0.1:2181,10.0.0.2:2181"
    finally:
        place.close()


@pytest.mark.parametrize("place", ["", "file:", "zk:", "zk:host:1", "zk:host:1/a", "zk:h/a/b/c"])
def test_places_that_make_no_sense(place):
    with pytest.raises(errors.ConfigError, match="Servers find each other at"):
        open_place(place)
