"""Where servers of a model find each other, as an operator writes it.

Example:
    >>> open_place("tape:7")
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: Servers find each other at 'file:DIR' or 'zk:HOSTS/BZID/NAME', \
got 'tape:7'.
"""

from monolith import errors
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.discovery_file import FileServiceDiscovery

# A server that has said nothing for so long is gone; until then, calls to it are made elsewhere.
_STALE_SEC = 30.0


def open_place(place: str) -> ServiceDiscovery:
    """Returns the discovery at a place.

    Args:
        place: `file:DIR`, a directory that all servers see, or `zk:HOSTS/BZID/NAME`, the nodes of
            the agent in ZooKeeper, below `/BZID/service/NAME`.

    Raises:
        errors.ConfigError: It is neither, or ZooKeeper cannot be reached.
    """
    kind, _, rest = place.partition(":")
    if kind == "file" and rest:
        return FileServiceDiscovery(rest, stale_after_secs=_STALE_SEC)
    if kind == "zk":
        hosts, _, path = rest.partition("/")
        bzid, _, name = path.partition("/")
        if hosts and bzid and name and "/" not in name:
            # Kazoo is an optional part.
            from monolith.serving.agent.discovery import AgentDiscovery

            return AgentDiscovery.connect(hosts, bzid, name)
    raise errors.ConfigError(
        f"Servers find each other at 'file:DIR' or 'zk:HOSTS/BZID/NAME', got {place!r}."
    )
