"""Replicas in ZooKeeper: who is there, who is available, and what becomes of lost sessions.

Covers monolith/serving/agent/discovery.py.
"""

import pytest
from cluster import fake_kazoo

from monolith import errors
from monolith.agent_service import replica_manager
from monolith.native_training import distributed_serving_ops
from monolith.proto import parameter_sync_pb2
from monolith.serving.agent import data_def, discovery, replicas
from monolith.serving.agent.config import AgentConfig
from monolith.serving.agent.data_def import ReplicaMeta


@pytest.fixture
def server():
    return fake_kazoo.FakeZooKeeper()


@pytest.fixture
def make(server):
    """Makes a watcher, or an updater, with a session of its own."""
    made = []

    def make(kind, **settings):
        zk = server.client()
        zk.start()
        config = AgentConfig(bzid="ads", base_name="ranking", deploy_type="ps", **settings)
        part = kind(zk, config)
        zk.add_listener(part.on_state)
        made.append(part)
        if kind is replicas.ReplicaWatcher:
            part.watch_data()
        part.zk = zk
        return part

    yield make
    for part in made:
        part.stop()


def make_meta(task, replica, **settings):
    return ReplicaMeta(
        **{
            "address": f"localhost:{8500 + 10 * task + replica}",
            "stat": data_def.AVAILABLE,
            "server_type": "ps",
            "task": task,
            "replica": replica,
            **settings,
        }
    )


def test_historical_path():
    assert replica_manager is replicas


def test_replicas_of_many_parts(make):
    watcher = make(replicas.ReplicaWatcher)
    updater = make(replicas.ReplicaUpdater)
    for task in range(20):
        for replica in range(2):
            updater.register(make_meta(task, replica))
    everything = watcher.get_all_replicas("ps")
    assert sorted(everything) == sorted(f"ps:{task}" for task in range(20))
    assert watcher.get_replicas("ps", 1) == ["localhost:8510", "localhost:8511"]
    assert watcher.get_replica("ps", 1, 1) == "localhost:8511"
    assert watcher.get_replica("ps", 1, 2) is None
    assert watcher.get_replicas("entry", 0) == []


def test_a_watcher_that_comes_later(make):
    make(replicas.ReplicaUpdater).register(make_meta(1, 0))
    assert make(replicas.ReplicaWatcher).get_replicas("ps", 1) == ["localhost:8510"]


def test_only_those_that_answer(make):
    watcher, updater = make(replicas.ReplicaWatcher), make(replicas.ReplicaUpdater)
    updater.register(make_meta(0, 0, stat=data_def.LOADING))
    updater.register(make_meta(0, 1, address="0.0.0.0:1"))
    assert watcher.get_replicas("ps", 0) == []
    updater.register(make_meta(0, 0))
    assert watcher.get_replicas("ps", 0) == ["localhost:8500"]
    updater.deregister("ps", 0, 0)
    assert watcher.get_replicas("ps", 0) == []
    updater.deregister("ps", 0, 0)  # It is gone already.


def test_a_process_that_is_gone(make):
    watcher, updater = make(replicas.ReplicaWatcher), make(replicas.ReplicaUpdater)
    updater.register(make_meta(0, 0))
    updater.stop()
    updater.zk.stop()
    assert watcher.get_replicas("ps", 0) == []


def test_a_lost_session_comes_back_with_its_nodes(make):
    watcher, updater = make(replicas.ReplicaWatcher), make(replicas.ReplicaUpdater)
    updater.register(make_meta(0, 0))
    updater.zk.lose_session()
    assert watcher.get_replicas("ps", 0) == []
    updater.zk.connect()
    for _ in range(1000):
        if watcher.get_replicas("ps", 0):
            break
        updater._thread.join(0.01)
    assert watcher.get_replicas("ps", 0) == ["localhost:8500"]


def test_nodes_that_say_nothing(make, caplog):
    watcher = make(replicas.ReplicaWatcher)
    watcher.zk.create("/ads/service/ranking/ps:0/0", b"?", makepath=True)
    assert watcher.get_replicas("ps", 0) == []
    assert "says nothing of a replica" in caplog.text


def test_other_data_centres(make, monkeypatch):
    monkeypatch.setenv("TCE_INTERNAL_IDC", "lf")
    monkeypatch.setenv("TCE_LOGICAL_CLUSTER", "default")
    make(replicas.ReplicaUpdater, dc_aware=True).register(make_meta(0, 0))
    monkeypatch.setenv("TCE_INTERNAL_IDC", "hl")
    make(replicas.ReplicaUpdater, dc_aware=True).register(make_meta(0, 1))
    watcher = make(replicas.ReplicaWatcher, dc_aware=True)
    assert watcher.get_replicas("ps", 0) == ["localhost:8501"]
    assert watcher.get_replicas("ps", 0, idc="lf", cluster="default") == ["localhost:8500"]
    (info,) = watcher.get_replicas_with_extra_info("ps", 0).values()
    assert (info.idc, info.cluster, info.replica_id) == ("hl", "default", 1)


def test_polling_finds_what_no_watch_has_told(make, server):
    watcher = make(replicas.ReplicaWatcher)
    make(replicas.ReplicaUpdater).register(make_meta(1, 0))
    watcher._replicas.clear()
    watcher._look("/ads/service/ranking")
    assert watcher.get_replicas("ps", 1) == ["localhost:8510"]


def test_who_gets_updates(make):
    watcher = make(replicas.ReplicaWatcher)
    make(replicas.ReplicaUpdater).register(make_meta(1, 0, address="localhost:8500"))
    wrapper = watcher.to_sync_wrapper()
    wrapper.subscribe_model("ranking")
    name, targets = wrapper.get_sync_targets("ps_1")
    assert name == "ps_1"
    assert list(targets) == ["localhost:8500"]
    assert targets["localhost:8500"].replica_id == 0
    config = parameter_sync_pb2.ClientConfig.FromString(
        distributed_serving_ops.refresh_sync_config(wrapper, 1)
    )
    assert (config.model_name, list(config.targets)) == ("ps_1", ["localhost:8500"])
    assert list(config.targets_extra_info) == [targets["localhost:8500"]]
    assert wrapper.get_sync_targets("entry") == ("entry", {})
    entry = make_meta(0, 3, server_type="entry", address="localhost:8600")
    make(replicas.ReplicaUpdater).register(entry)
    name, targets = wrapper.get_sync_targets("entry")
    assert (name, list(targets)) == ("entry", ["localhost:8600"])
    assert targets["localhost:8600"].replica_id == 3
    for name in ("ranking", "ps_x", "_1"):
        with pytest.raises(errors.ConfigError, match=f"is called 'entry' or 'ps_0', got '{name}'"):
            wrapper.get_sync_targets(name)


def test_a_client_ends_with_what_training_asks(server):
    zk = server.client()
    zk.start()
    config = AgentConfig(bzid="ads", base_name="ranking", deploy_type="ps")
    wrapper = replicas.ReplicaWatcher(zk, config).to_sync_wrapper(zk)
    wrapper.start()
    assert zk.client_id is not None
    wrapper.stop()
    assert zk.client_id is None


class TestDiscovery:
    @pytest.fixture
    def make_discovery(self, server):
        made = []

        def make():
            zk = server.client()
            zk.start()
            made.append(discovery.AgentDiscovery(zk, AgentConfig(bzid="ads", base_name="ranking")))
            return made[-1]

        yield make
        for one in made:
            one.close()

    def test_parts_find_each_other(self, make_discovery):
        first, second = make_discovery(), make_discovery()
        first.register("ps_0", 3, "127.0.0.1:1")
        first.register("entry", 0, "[::1]:2")
        assert second.query("ps_0") == {3: "127.0.0.1:1"}
        assert second.query("entry") == {0: "[::1]:2"}
        first.deregister("ps_0", 3, "127.0.0.1:1")
        assert second.query("ps_0") == {}

    def test_names_without_a_place_in_the_layout(self, make_discovery):
        assert make_discovery().query("ads:ps_0") == {}
        with pytest.raises(errors.ConfigError, match="called entry, ps_0 or dense_0, got 'other'"):
            make_discovery().register("other", 0, "127.0.0.1:1")
