"""The agent's nodes in ZooKeeper as a discovery: part `ps_0`, replica 1 is `ps:0/1` there."""

import logging
from typing import Any

from monolith import errors
from monolith.cluster.discovery_base import ServiceDiscovery, check_registration
from monolith.cluster.zookeeper import KazooException, KazooTimeoutError, MonolithKazooClient
from monolith.serving.agent.config import AgentConfig
from monolith.serving.agent.data_def import AVAILABLE, ReplicaMeta
from monolith.serving.agent.replicas import ReplicaUpdater, ReplicaWatcher

logger = logging.getLogger(__name__)

_ENTRY = "entry"


class AgentDiscovery(ServiceDiscovery):
    """Finds replicas of parts, and makes those of this process known.

    Args:
        zk: A client of ZooKeeper, started; stopped together with this.
        config: Which model.
    """

    def __init__(self, zk: Any, config: AgentConfig) -> None:
        self._zk = zk
        self._watcher = ReplicaWatcher(zk, config)
        self._updater = ReplicaUpdater(zk, config)
        zk.add_listener(self._on_state)
        self._watcher.watch_data()

    @classmethod
    def connect(cls, hosts: str, bzid: str, base_name: str) -> "AgentDiscovery":
        """Connects to ZooKeeper.

        Raises:
            errors.ConfigError: It does not answer.
        """
        client = MonolithKazooClient(hosts)
        try:
            client.start()
        except (KazooException, KazooTimeoutError) as e:
            raise errors.ConfigError(f"ZooKeeper at {hosts} does not answer: {e}.") from e
        return cls(client, AgentConfig(bzid=bzid, base_name=base_name, zk_servers=hosts))

    def register(self, name: str, index: int, addr: str) -> None:
        """Makes this process known as a replica; see `ServiceDiscovery.register`."""
        check_registration(name, index, addr)
        server_type, task = _split(name)
        address = {"address_ipv6": addr} if addr.startswith("[") else {"address": addr}
        self._updater.register(
            ReplicaMeta(
                stat=AVAILABLE,
                model_name=name,
                server_type=server_type,
                task=task,
                replica=index,
                **address,
            )
        )

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Takes that back."""
        self._updater.deregister(*_split(name), index)

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of available replicas, by their numbers."""
        try:
            server_type, task = _split(name)
        except errors.ConfigError:
            return {}  # Such as a unified name, which is none of a part.
        replicas = self._watcher.get_replicas_with_extra_info(server_type, task)
        return {info.replica_id: address for address, info in replicas.items()}

    def close(self) -> None:
        """Ends the session, and with it the nodes of this process."""
        self._watcher.stop()
        self._updater.stop()
        self._zk.stop()
        self._zk.close()

    def _on_state(self, state: str) -> None:
        self._watcher.on_state(state)
        self._updater.on_state(state)


def _split(name: str) -> tuple[str, int]:
    """Returns kind and number of a part."""
    if name == _ENTRY:
        return _ENTRY, 0
    server_type, _, task = name.rpartition("_")
    if server_type not in ("ps", "dense") or not task.isdigit():
        raise errors.ConfigError(
            f"In the agent's layout, models are called entry, ps_0 or dense_0, got {name!r}."
        )
    return server_type, int(task)
