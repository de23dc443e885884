"""The unified deployment in ZooKeeper: declare, lay out, bind, find."""

import pytest
from cluster import fake_kazoo

from monolith.agent_service import backends as historical
from monolith.native_training import distributed_serving_ops
from monolith.proto import parameter_sync_pb2
from monolith.serving.agent import backends
from monolith.serving.agent.backends import (
    Container,
    ContainerServiceInfo,
    SavedModel,
    SavedModelDeployConfig,
    ZKBackend,
)

CONTAINER = Container("default", "asdf")
LAYOUT = "/gip/layouts/test_layout/mixed"


@pytest.fixture
def server():
    return fake_kazoo.FakeZooKeeper()


@pytest.fixture
def make(server):
    made = []

    def make():
        backend = ZKBackend("gip", "")
        backend._zk = server.client()
        backend.start()
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.stop()


def declare(backend, *sub_graphs):
    parts = [SavedModel("test_ffm_model", sub_graph) for sub_graph in sub_graphs]
    for part in parts:
        path = f"/models/{part.sub_graph}"
        backend.decl_saved_model(part, SavedModelDeployConfig(path, "latest"))
    return parts


def test_historical_path():
    assert historical is backends


@pytest.mark.parametrize(
    "value",
    [SavedModelDeployConfig("/p", "latest"), ContainerServiceInfo(grpc="a:1", idc="lf")],
    ids=["deploy_config", "service_info"],
)
def test_round_trip(value):
    assert type(value).deserialize(value.serialize()) == value


def test_names():
    assert str(SavedModel("m", "ps_0")) == "m:ps_0"
    assert str(CONTAINER) == "default:asdf"


def test_declared_models_are_listed(make):
    backend = make()
    parts = declare(backend, "entry", "ps_0")
    assert backend.list_saved_models("test_ffm_model") == parts
    assert backend.list_saved_models("other") == []


def test_a_layout_is_followed(make, caplog):
    operator, agent = make(), make()
    entry, part = declare(operator, "entry", "ps_0")
    seen = []
    agent.register_layout_callback(LAYOUT, lambda found: seen.append([p for p, _ in found]))
    operator.add_to_layout(LAYOUT, entry)
    operator.add_to_layout(LAYOUT, part)
    operator.add_to_layout(LAYOUT, SavedModel("nobody", "ps_0"))
    operator.remove_from_layout(LAYOUT, entry)
    assert seen == [[], [entry], [entry, part], [entry, part], [part]]
    assert "nobody:ps_0, which nobody declared" in caplog.text


def test_who_answers(make):
    operator, agent, trainer = make(), make(), make()
    parts = declare(operator, "ps_0", "ps_1")
    trainer.subscribe_model("test_ffm_model")
    trainer.subscribe_model("test_ffm_model")
    assert trainer.get_sync_targets("ps_1") == ("test_ffm_model:ps_1", [])
    agent.report_service_info(CONTAINER, ContainerServiceInfo(grpc="localhost:8888"))
    agent.sync_available_saved_models(CONTAINER, set(parts))
    assert trainer.get_sync_targets("ps_1") == ("test_ffm_model:ps_1", ["localhost:8888"])
    config = parameter_sync_pb2.ClientConfig.FromString(
        distributed_serving_ops.refresh_sync_config(trainer, 1)
    )
    assert (config.model_name, list(config.targets)) == ("test_ffm_model:ps_1", ["localhost:8888"])
    assert (config.signature_name, config.timeout_in_ms) == ("hashtable_assign", 3000)
    info = ContainerServiceInfo(grpc="localhost:8888")
    assert trainer.get_service_map() == {"test_ffm_model": {"ps_0": [info], "ps_1": [info]}}
    assert trainer.get_service_info(Container("default", "other")) is None
    agent.sync_available_saved_models(CONTAINER, {parts[0]})
    assert trainer.get_sync_targets("ps_1") == ("test_ffm_model:ps_1", [])
    with pytest.raises(AssertionError, match="is subscribed already"):
        trainer.subscribe_model("other")


def test_containers_of_a_layout_see_who_answers(make):
    operator, agent = make(), make()
    (part,) = declare(operator, "ps_0")
    operator.add_to_layout(LAYOUT, part)
    agent.register_layout_callback(LAYOUT, lambda found: None)
    agent.report_service_info(CONTAINER, ContainerServiceInfo(grpc="localhost:1"))
    agent.sync_available_saved_models(CONTAINER, {part})
    assert list(agent.get_service_map()["test_ffm_model"]) == ["ps_0"]
    operator.remove_from_layout(LAYOUT, part)
    agent.sync_available_saved_models(CONTAINER, set())
    assert agent.get_service_map() == {}


def test_a_lost_session(make):
    operator, agent = make(), make()
    parts = declare(operator, "ps_0")
    operator.subscribe_model("test_ffm_model")
    agent.report_service_info(CONTAINER, ContainerServiceInfo(grpc="localhost:8888"))
    agent.sync_available_saved_models(CONTAINER, set(parts))
    agent._zk.lose_session()
    assert operator.get_sync_targets("ps_0")[1] == []
    agent.sync_available_saved_models(CONTAINER, set(parts))  # Begins a new session.
    agent.report_service_info(CONTAINER, ContainerServiceInfo(grpc="localhost:8888"))
    agent.sync_available_saved_models(CONTAINER, set(parts))
    assert operator.get_sync_targets("ps_0")[1] == ["localhost:8888"]


def test_everything_at_a_glance(make):
    backend = make()
    entry, part = declare(backend, "entry", "ps_0")
    backend.add_to_layout("/gip/layouts/mixed", part)
    backend.add_to_layout("/gip/layouts/mixed", entry)
    backend.report_service_info(CONTAINER, ContainerServiceInfo(grpc="localhost:8888"))
    backend.sync_available_saved_models(CONTAINER, {part})
    info = backend.bzid_info()
    model = info["model_info"]["test_ffm_model"]
    assert (model["sub_graphs_total"], model["sub_graphs_available"]) == (2, 1)
    assert model["ps_0"]["bindings"] == ["default:asdf"]
    assert model["ps_0"]["deploy_config"]["model_base_path"] == "/models/ps_0"
    (container,) = info["container_info"].values()
    assert container["saved_models"] == ["test_ffm_model:ps_0"]
    assert container["service_info"]["grpc"] == "localhost:8888"
    assert info["layout_info"] == {"mixed": ["test_ffm_model:entry", "test_ffm_model:ps_0"]}
