"""Models, layouts and containers of the unified deployment, as nodes in ZooKeeper.

One process, a container, serves any set of models, each a part of a larger one. Which, a layout
says; which of them answer, the container binds.

| node | says |
| --- | --- |
| `/{bzid}/saved_models/{model}/{sub_graph}` | where the part is, and which versions |
| `/{bzid}/layouts/{layout}/{model}:{sub_graph}` | that containers of the layout serve it |
| `/{bzid}/container_service/{cluster}:{id}` | where a container listens |
| `/{bzid}/binding/{model}/{sub_graph}:{cluster}:{id}` | that it answers for the part |
"""

import abc
import collections
import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from monolith.cluster.zookeeper import (
    KazooException,
    KazooState,
    MonolithKazooClient,
    NodeExistsError,
    NoNodeError,
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T", bound="_Json")


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A part of a model."""

    model_name: str
    sub_graph: str

    def __str__(self) -> str:
        return f"{self.model_name}:{self.sub_graph}"


@dataclasses.dataclass(frozen=True)
class Container:
    """A process that serves parts."""

    ctx_cluster: str
    ctx_id: str

    def __str__(self) -> str:
        return f"{self.ctx_cluster}:{self.ctx_id}"


class _Json:
    """Dataclasses that are written as JSON."""

    def serialize(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()  # type: ignore[call-overload]

    @classmethod
    def deserialize(cls: type[_T], serialized: bytes) -> _T:
        return cls(**json.loads(serialized))


@dataclasses.dataclass(frozen=True)
class SavedModelDeployConfig(_Json):
    """Where a part is, and which of its versions are served."""

    model_base_path: str | None = None
    version_policy: str | None = None


@dataclasses.dataclass(frozen=True)
class ContainerServiceInfo(_Json):
    """Where a container listens."""

    grpc: str | None = None
    http: str | None = None
    archon: str | None = None
    agent: str | None = None
    idc: str | None = None
    debug_info: str | None = None


LayoutCallback = Callable[[list[tuple[SavedModel, SavedModelDeployConfig]]], bool | None]


class SyncBackend(abc.ABC):
    """Tells training who gets updates of rows."""

    @abc.abstractmethod
    def subscribe_model(self, model_name: str) -> None:
        """Says which model is meant."""

    @abc.abstractmethod
    def get_sync_targets(self, sub_graph: str) -> tuple[str, Any]:
        """Returns the name of a part, and the addresses of who serves it."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begins to watch."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends that."""


class AgentBackend(abc.ABC):
    """What a container asks and tells."""

    @abc.abstractmethod
    def register_layout_callback(self, layout_path: str, callback: LayoutCallback) -> None:
        """Has a function called with the parts of a layout, now and when they change."""

    @abc.abstractmethod
    def sync_available_saved_models(
        self, container: Container, saved_models: set[SavedModel]
    ) -> None:
        """Tells which parts a container answers for."""

    @abc.abstractmethod
    def report_service_info(self, container: Container, info: ContainerServiceInfo) -> None:
        """Tells where a container listens."""

    @abc.abstractmethod
    def get_service_map(self) -> dict[str, dict[str, list[ContainerServiceInfo]]]:
        """Returns who answers, by model and part."""

    @abc.abstractmethod
    def get_service_info(self, container: Container) -> ContainerServiceInfo | None:
        """Returns where a container listens."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begins to watch."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends that."""


class CtrlBackend(abc.ABC):
    """What an operator asks and tells."""

    @abc.abstractmethod
    def list_saved_models(self, model_name: str) -> list[SavedModel]:
        """Returns the parts of a model."""

    @abc.abstractmethod
    def decl_saved_model(self, saved_model: SavedModel, config: SavedModelDeployConfig) -> None:
        """Says where a part is."""

    @abc.abstractmethod
    def add_to_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        """Has containers of a layout serve a part."""

    @abc.abstractmethod
    def remove_from_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        """Takes that back."""

    @abc.abstractmethod
    def bzid_info(self) -> dict[str, Any]:
        """Returns all that is known."""

    @abc.abstractmethod
    def start(self) -> None:
        """Connects."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends that."""


class ZKBackend(SyncBackend, AgentBackend, CtrlBackend):
    """All three, over ZooKeeper. Thread-safe.

    Args:
        bzid: Whose models.
        zk_servers: Servers of ZooKeeper.
    """

    def __init__(self, bzid: str, zk_servers: str) -> None:
        self._bzid = bzid
        self._zk: Any = MonolithKazooClient(zk_servers) if zk_servers else None
        self._lock = threading.RLock()
        self._available: set[SavedModel] = set()
        self._is_lost = False
        self._service_map: dict[str, dict[str, list[ContainerServiceInfo]]] = {}
        self._watchers: dict[str, Any] = {}
        # Whose bindings are watched: the models of layouts, and the one that training asks for.
        self._models_of_layout: dict[str, set[str]] = {}
        self._subscribed: str | None = None

    def start(self) -> None:
        self._zk.add_listener(self._on_state)
        self._zk.start()

    def stop(self) -> None:
        self._zk.stop()
        self._zk.close()

    def subscribe_model(self, model_name: str) -> None:
        """Watches who serves a model; there is one of them.

        Raises:
            AssertionError: Another one is watched already.
        """
        if self._subscribed is not None:
            if self._subscribed != model_name:
                raise AssertionError(
                    f"{self._subscribed} is subscribed already, so {model_name} cannot be."
                )
            return
        self._subscribed = model_name
        self._watch_bindings(model_name)

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        model = self._subscribed or ""
        infos = self.get_service_map().get(model, {}).get(sub_graph, [])
        return f"{model}:{sub_graph}", [info.grpc for info in infos if info.grpc]

    def register_layout_callback(self, layout_path: str, callback: LayoutCallback) -> None:
        def on_children(children: list[str]) -> bool | None:
            found = []
            for child in sorted(children):
                model, _, sub_graph = child.partition(":")
                config = self.get_znode(f"/{self._bzid}/saved_models/{model}/{sub_graph}")
                if not sub_graph or config is None:
                    logger.error("layout %s has %s, which nobody declared", layout_path, child)
                    continue
                part = SavedModel(model, sub_graph)
                found.append((part, SavedModelDeployConfig.deserialize(config)))
            with self._lock:
                self._models_of_layout[layout_path] = {part.model_name for part, _ in found}
            for model in sorted({part.model_name for part, _ in found}):
                self._watch_bindings(model)
            return callback(found)

        self._children_watch(layout_path, on_children)

    def sync_available_saved_models(
        self, container: Container, saved_models: set[SavedModel]
    ) -> None:
        if self._is_lost:
            # With the session all nodes are gone; the next call makes those that there should be.
            self._available = set()
            self._zk.restart()
            self._is_lost = False
            return
        for part in sorted(saved_models - self._available, key=str):
            self.create_znode(self._get_binding(part, container), ephemeral=True)
        for part in sorted(self._available - saved_models, key=str):
            self.delete_znode(self._get_binding(part, container))
        self._available = set(saved_models)

    def report_service_info(self, container: Container, info: ContainerServiceInfo) -> None:
        path = f"/{self._bzid}/container_service/{container}"
        self.create_znode(path, info.serialize(), ephemeral=True)

    def get_service_map(self) -> dict[str, dict[str, list[ContainerServiceInfo]]]:
        with self._lock:
            return {model: dict(parts) for model, parts in self._service_map.items()}

    def get_service_info(self, container: Container) -> ContainerServiceInfo | None:
        info = self.get_znode(f"/{self._bzid}/container_service/{container}")
        return None if info is None else ContainerServiceInfo.deserialize(info)

    def list_saved_models(self, model_name: str) -> list[SavedModel]:
        children = self._list(f"/{self._bzid}/saved_models/{model_name}")
        return [SavedModel(model_name, sub_graph) for sub_graph in children]

    def decl_saved_model(self, saved_model: SavedModel, config: SavedModelDeployConfig) -> None:
        path = f"/{self._bzid}/saved_models/{saved_model.model_name}/{saved_model.sub_graph}"
        self.create_znode(path, config.serialize())

    def add_to_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        self.create_znode(f"{layout_path}/{saved_model}")

    def remove_from_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        self.delete_znode(f"{layout_path}/{saved_model}")

    def bzid_info(self) -> dict[str, Any]:
        bindings: dict[SavedModel, list[str]] = collections.defaultdict(list)
        of_container: dict[str, list[str]] = collections.defaultdict(list)
        for model in self._list(f"/{self._bzid}/binding"):
            for child in self._list(f"/{self._bzid}/binding/{model}"):
                sub_graph, _, container = child.partition(":")
                bindings[SavedModel(model, sub_graph)].append(container)
                of_container[container].append(f"{model}:{sub_graph}")
        models = {}
        for model in self._list(f"/{self._bzid}/saved_models"):
            parts = self.list_saved_models(model)
            models[model] = {
                "sub_graphs_total": len(parts),
                "sub_graphs_available": sum(bool(bindings[part]) for part in parts),
                **{
                    part.sub_graph: {
                        "deploy_config": self._read(
                            f"/{self._bzid}/saved_models/{model}/{part.sub_graph}"
                        ),
                        "bindings": sorted(bindings[part]),
                    }
                    for part in parts
                },
            }
        containers = {
            container: {
                "service_info": self._read(f"/{self._bzid}/container_service/{container}"),
                "saved_models": sorted(of_container[container]),
            }
            for container in self._list(f"/{self._bzid}/container_service")
        }
        layouts = {
            layout: self._list(f"/{self._bzid}/layouts/{layout}")
            for layout in self._list(f"/{self._bzid}/layouts")
        }
        return {"model_info": models, "container_info": containers, "layout_info": layouts}

    def create_znode(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        """Makes a node, or changes what it says; an error of ZooKeeper is told to the log."""
        try:
            self._zk.retry(
                self._zk.create, path=path, value=value, ephemeral=ephemeral, makepath=True
            )
        except NodeExistsError:
            self._zk.retry(self._zk.set, path=path, value=value)
        except KazooException:
            logger.exception("could not make %s", path)

    def delete_znode(self, path: str) -> None:
        """Removes a node; an error of ZooKeeper is told to the log."""
        try:
            self._zk.retry(self._zk.delete, path=path)
        except NoNodeError:
            logger.info("%s is already gone", path)
        except KazooException:
            logger.exception("could not remove %s", path)

    def get_znode(self, path: str) -> bytes | None:
        """Returns what a node says, None if there is none."""
        try:
            data: bytes = self._zk.retry(self._zk.get, path)[0]
            return data
        except NoNodeError:
            return None

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._is_lost = True

    def _get_binding(self, part: SavedModel, container: Container) -> str:
        return f"/{self._bzid}/binding/{part.model_name}/{part.sub_graph}:{container}"

    def _list(self, path: str) -> list[str]:
        try:
            return sorted(self._zk.retry(self._zk.get_children, path))
        except NoNodeError:
            return []

    def _read(self, path: str) -> Any:
        data = self.get_znode(path)
        return None if data is None else json.loads(data)

    def _is_wanted(self, model: str) -> bool:
        with self._lock:
            of_layouts = self._models_of_layout.values()
            return model == self._subscribed or any(model in models for models in of_layouts)

    def _watch_bindings(self, model: str) -> None:
        def on_children(children: list[str]) -> bool | None:
            if not self._is_wanted(model):
                with self._lock:
                    self._service_map.pop(model, None)
                return False
            parts: dict[str, list[ContainerServiceInfo]] = {}
            for child in sorted(children):
                sub_graph, cluster, name = child.split(":", 2)
                info = self.get_service_info(Container(cluster, name))
                if info is not None:
                    parts.setdefault(sub_graph, []).append(info)
            with self._lock:
                self._service_map[model] = parts
            return None

        self._children_watch(f"/{self._bzid}/binding/{model}", on_children)

    def _children_watch(self, path: str, function: Callable[[list[str]], bool | None]) -> None:
        """Watches the children of a node, which is made; each path has one live watch."""
        with self._lock:
            watcher = self._watchers.get(path)
            if watcher is not None and not getattr(watcher, "_stopped", False):
                return
            self._zk.ensure_path(path)
            self._watchers[path] = self._zk.ChildrenWatch(path, function)
