"""Which servers get the changes of a part of a model.

Example:
    >>> backend = ListedTargets({"ps_0": ["10.0.0.1:8500"], "ads": ["10.0.0.2:8500"]}, "ads")
    >>> [target.name for target in find_targets(backend, "ps_0")]  # The part, and all of it.
    ['ps_0@10.0.0.1:8500', 'ads@10.0.0.2:8500']
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.serving.remote.places import open_place
from monolith.serving.remote.replicas import DiscoveredReplicas, ReplicaSource, StaticReplicas

ENTRY = "entry"


class SyncBackend(Protocol):
    """Who knows the servers; `monolith.serving.agent` has others, in ZooKeeper."""

    def subscribe_model(self, model_name: str) -> None:
        """Says which model is meant."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, Any]:
        """Returns the name under which a part is served, and the addresses of who serves it."""

    def start(self) -> None:
        """Begins to watch."""

    def stop(self) -> None:
        """Ends that."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A model on a server.

    Attributes:
        address: Where the server listens.
        model: The name of the model there.
        place: Data centre and cluster of the server, for metrics.
        replica: Its number, for metrics.
    """

    address: str
    model: str
    place: str = "NA"
    replica: int = -1

    @property
    def name(self) -> str:
        """Tells it from others."""
        return f"{self.model}@{self.address}"


class SourceBackend:
    """Servers of parts, and servers of whole models, from where prediction servers look them up.

    Args:
        source: Knows addresses by name; closed at the end.
        model: What a model that was exported as a whole is called.
    """

    def __init__(self, source: ReplicaSource, model: str) -> None:
        self._source = source
        self._model = model

    def subscribe_model(self, model_name: str) -> None:
        """Does nothing: the place has one model."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[Target]]:
        """Returns the servers of a part, and those that have all of it."""
        names = dict.fromkeys([sub_graph, self._model])
        return sub_graph, [
            Target(address, name) for name in names for address in self._source.find(name)
        ]

    def start(self) -> None:
        """Does nothing: the source watches already."""

    def stop(self) -> None:
        """Ends that."""
        self._source.close()


class ListedTargets(SourceBackend):
    """Servers that do not change.

    Args:
        servers: Addresses by name.
        model: What a model that was exported as a whole is called.
    """

    def __init__(self, servers: Mapping[str, Sequence[str]], model: str = "default") -> None:
        super().__init__(StaticReplicas(servers), model)


def open_targets(place: str, model: str = "default") -> SourceBackend:
    """Returns the servers that announce themselves at a place.

    Args:
        place: `file:DIR` or `zk:HOSTS/BZID/NAME`, as for `monolith serve --discovery`.
        model: What a model that was exported as a whole is called, `monolith serve --name`.

    Raises:
        errors.ConfigError: It is neither, or ZooKeeper cannot be reached.
    """
    discovery: ServiceDiscovery = open_place(place)
    return SourceBackend(DiscoveredReplicas(discovery), model)


def find_targets(backend: SyncBackend, part: str) -> list[Target]:
    """Returns who gets the changes of a part, such as `ps_0`, whatever kind the backend is of."""
    model, found = backend.get_sync_targets(part)
    if isinstance(found, dict):
        return [
            Target(
                address,
                model,
                f"{info.idc}:{info.cluster}" if info.idc or info.cluster else "NA",
                int(info.replica_id),
            )
            for address, info in found.items()
        ]
    return [item if isinstance(item, Target) else Target(item, model) for item in found]
