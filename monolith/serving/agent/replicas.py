"""Replicas of the parts of a model, as nodes in ZooKeeper.

The node of a replica is `{path_prefix}/{server_type}:{task}/{replica}`, is gone when its process
is, and says where the process listens and whether the model answers. `ReplicaUpdater` keeps the
nodes of this process, `ReplicaWatcher` knows those of all.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from monolith import errors
from monolith.cluster.zookeeper import KazooState, NodeExistsError, NoNodeError
from monolith.proto import parameter_sync_pb2
from monolith.serving.agent.backends import SyncBackend
from monolith.serving.agent.config import AgentConfig
from monolith.serving.agent.data_def import AVAILABLE, ReplicaMeta
from monolith.serving.agent.naming import ZKPath

logger = logging.getLogger(__name__)

TargetExtraInfo = parameter_sync_pb2.ClientConfig.TargetExtraInfo

_ENTRY = "entry"
_ENTRY_DIGITS = 11
_POLL_SEC = 60.0
_REPAIR_SEC = 10.0


class ReplicaWatcher:
    """Knows all replicas of a model, by watches and by looking again every minute. Thread-safe.

    Args:
        zk: A client of ZooKeeper, started.
        config: Whose replicas.
        use_archon: Whether addresses of the mesh of services are wanted.
        zk_watch_address_family: `ipv4` or `ipv6`.
        poll_sec: How often to look without being told.
    """

    def __init__(
        self,
        zk: Any,
        config: AgentConfig,
        use_archon: bool = False,
        zk_watch_address_family: str = "ipv4",
        poll_sec: float = _POLL_SEC,
    ) -> None:
        self._zk = zk
        self._config = config
        self._use_archon = use_archon
        self._address_family = zk_watch_address_family
        self._poll_sec = poll_sec
        # Above `path_prefix` if only one data centre is asked: replicas say which they are in.
        self._root = f"/{config.bzid}/service/{config.base_name}"
        self._lock = threading.Lock()
        self._replicas: dict[str, ReplicaMeta] = {}
        self._watched: set[str] = set()
        self._is_lost = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="ReplicaWatcher", daemon=True)

    def watch_data(self) -> None:
        """Begins to watch."""
        self._zk.ensure_path(self._root)
        self._watch_children(self._root)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; watches end with the client."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def on_state(self, state: str) -> None:
        """Told by the client of ZooKeeper; while the session is lost, nothing is asked."""
        self._is_lost = state == KazooState.LOST

    def get_all_replicas(
        self, server_type: str, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, list[str]]:
        """Returns the addresses of available replicas by part, such as `ps:0`."""
        found: dict[str, list[str]] = {}
        for path, _, address in self._select(server_type, idc, cluster):
            found.setdefault(path.task or "", []).append(address)
        return found

    def get_replicas(
        self, server_type: str, task: int, idc: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Returns the addresses of the available replicas of one part."""
        return self.get_all_replicas(server_type, idc, cluster).get(f"{server_type}:{task}", [])

    def get_replica(self, server_type: str, task: int, replica: int) -> str | None:
        """Returns the address of one replica, None if it is not available."""
        for path, _, address in self._select(server_type, None, None):
            if path.task == f"{server_type}:{task}" and int(path.replica_id or -1) == replica:
                return address
        return None

    def get_replicas_with_extra_info(
        self, server_type: str, task: int, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, Any]:
        """Returns what is known of the available replicas of one part, by address."""
        return {
            address: TargetExtraInfo(
                idc=path.idc, cluster=path.cluster, replica_id=int(path.replica_id or -1)
            )
            for path, _, address in self._select(server_type, idc, cluster)
            if path.task == f"{server_type}:{task}"
        }

    def to_sync_wrapper(self, client: Any = None) -> "SyncBackendWrapper":
        """Returns what training asks where to send updates.

        Args:
            client: A client of ZooKeeper that ends with it; None: that is the caller's business.
        """
        return SyncBackendWrapper(self, client)

    def _select(
        self, server_type: str, idc: str | None, cluster: str | None
    ) -> list[tuple[ZKPath, ReplicaMeta, str]]:
        if self._config.dc_aware:
            idc, cluster = idc or self._config.idc, cluster or self._config.cluster
        with self._lock:
            replicas = sorted(self._replicas.items())
        selected = []
        for name, meta in replicas:
            path = ZKPath(name)
            address = meta.get_address(self._use_archon, self._address_family)
            if (
                path.server_type == server_type
                and path.ship_in(idc, cluster)
                and meta.stat == AVAILABLE
                and address is not None
            ):
                selected.append((path, meta, address))
        return selected

    def _poll(self) -> None:
        while not self._stopped.wait(self._poll_sec):
            if self._is_lost:
                continue
            try:
                self._look(self._root)
            except Exception:
                logger.warning("could not look for replicas in %s", self._root, exc_info=True)

    def _look(self, path: str) -> None:
        """Reads all nodes below a path, whatever the watches have said."""
        for child in self._zk.get_children(path):
            child_path = f"{path}/{child}"
            if _is_replica(child_path):
                try:
                    self._on_data(child_path, self._zk.get(child_path)[0])
                except NoNodeError:
                    self._on_data(child_path, None)
            else:
                self._look(child_path)

    def _watch_children(self, path: str) -> None:
        with self._lock:
            if path in self._watched:
                return
            self._watched.add(path)
        self._zk.ChildrenWatch(path, lambda children: self._on_children(path, children))

    def _on_children(self, path: str, children: list[str]) -> None:
        paths = {f"{path}/{child}" for child in children}
        with self._lock:
            gone = [
                known
                for known in self._replicas
                if known.rpartition("/")[0] == path and known not in paths
            ]
            for known in gone:
                del self._replicas[known]
                self._watched.discard(known)
        for child in sorted(paths):
            if _is_replica(child):
                self._watch_replica(child)
            else:
                self._watch_children(child)

    def _watch_replica(self, path: str) -> None:
        with self._lock:
            if path in self._watched:
                return
            self._watched.add(path)

        def on_data(data: bytes | None, *unused: Any) -> bool | None:
            self._on_data(path, data)
            # The watch of a node that is gone ends; a new node gets a new one.
            return None if data is not None else False

        self._zk.DataWatch(path, on_data)

    def _on_data(self, path: str, data: bytes | None) -> None:
        try:
            meta = None if data is None else ReplicaMeta.deserialize(data)
        except errors.DataError as e:
            logger.warning("ignoring %s: %s", path, e)
            meta = None
        with self._lock:
            if meta is None:
                self._replicas.pop(path, None)
                if data is None:
                    self._watched.discard(path)
            else:
                self._replicas[path] = meta


class ReplicaUpdater:
    """Keeps the nodes of the replicas of this process, until it is stopped. Thread-safe.

    Args:
        zk: A client of ZooKeeper, started.
        config: Whose replicas.
        repair_sec: How often to make sure that they are there.
    """

    def __init__(self, zk: Any, config: AgentConfig, repair_sec: float = _REPAIR_SEC) -> None:
        self._zk = zk
        self._config = config
        self._repair_sec = repair_sec
        self._lock = threading.Lock()
        self._nodes: dict[str, ReplicaMeta] = {}
        self._wakeup = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._repair, name="ReplicaUpdater", daemon=True)
        self._thread.start()

    def get_path(self, server_type: str, task: int, replica: int) -> str:
        """Returns the node of a replica."""
        name = str(replica).zfill(_ENTRY_DIGITS) if server_type == _ENTRY else str(replica)
        return f"{self._config.path_prefix}/{server_type}:{task}/{name}"

    def register(self, meta: ReplicaMeta) -> None:
        """Makes the node of a replica, or changes what it says, and keeps it."""
        path = self.get_path(meta.server_type or "", meta.task, meta.replica)
        with self._lock:
            self._nodes[path] = meta
        self._write(path, meta)

    def deregister(self, server_type: str, task: int, replica: int) -> None:
        """Removes the node of a replica."""
        path = self.get_path(server_type, task, replica)
        with self._lock:
            self._nodes.pop(path, None)
        try:
            self._zk.retry(self._zk.delete, path=path)
        except NoNodeError:
            logger.info("%s is already gone", path)

    def on_state(self, state: str) -> None:
        """Told by the client of ZooKeeper; nodes end with a session, and come with the next."""
        if state == KazooState.CONNECTED:
            self._wakeup.set()

    def stop(self) -> None:
        """Ends the thread; the nodes end with the client."""
        self._is_stopped = True
        self._wakeup.set()
        self._thread.join()

    def _write(self, path: str, meta: ReplicaMeta) -> None:
        value = meta.serialize()
        try:
            self._zk.retry(
                self._zk.create,
                path=path,
                value=value,
                ephemeral=True,
                makepath=True,
                sequence=False,
            )
        except NodeExistsError:
            self._zk.retry(self._zk.set, path=path, value=value)

    def _repair(self) -> None:
        while True:
            self._wakeup.wait(self._repair_sec)
            self._wakeup.clear()
            if self._is_stopped:
                return
            with self._lock:
                nodes: Mapping[str, ReplicaMeta] = dict(self._nodes)
            for path, meta in nodes.items():
                try:
                    self._write(path, meta)
                except Exception:
                    logger.warning("could not write %s", path, exc_info=True)


class SyncBackendWrapper(SyncBackend):
    """Tells training which replicas of a part get updates.

    Args:
        watcher: Knows them.
        client: A client of ZooKeeper that ends with it; None: that is the caller's business.
    """

    def __init__(self, watcher: ReplicaWatcher, client: Any = None) -> None:
        self._watcher = watcher
        self._client = client

    def subscribe_model(self, model_name: str) -> None:
        """Does nothing: the watcher has one model."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, dict[str, Any]]:
        """Returns the name of a part, such as `ps_1`, and what is known of its replicas.

        The part without a number, `entry`, has the variables.

        Raises:
            errors.ConfigError: It is no name of a part.
        """
        server_type, _, task = sub_graph.rpartition("_")
        if sub_graph == _ENTRY:
            server_type, task = _ENTRY, "0"
        if not server_type or not task.isdigit():
            raise errors.ConfigError(f"A part is called 'entry' or 'ps_0', got {sub_graph!r}.")
        replicas = self._watcher.get_replicas_with_extra_info(server_type, int(task))
        return sub_graph, replicas

    def start(self) -> None:
        """Begins to watch."""
        self._watcher.watch_data()

    def stop(self) -> None:
        """Ends that."""
        self._watcher.stop()
        if self._client is not None:
            self._client.stop()
            self._client.close()


def _is_replica(path: str) -> bool:
    return ZKPath(path).replica_id is not None
