"""What `monolith serve` does for models in parts: find other servers, and be found."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monolith import errors
from monolith.serving.remote.announcing import Announcer
from monolith.serving.remote.places import open_place
from monolith.serving.remote.replicas import DiscoveredReplicas, ReplicaSource, make_replica_id

if TYPE_CHECKING:
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.server import PredictionServer

_ANYWHERE = ("0.0.0.0", "::", "[::]")


def find_servers(
    servers: Sequence[str] | None, place: str | None
) -> ReplicaSource | Mapping[str, Sequence[str]] | None:
    """Returns where the parts of models are served.

    Args:
        servers: Each `NAME=ADDRESS,ADDRESS`.
        place: Where they are announced, in place of a list.

    Raises:
        errors.ConfigError: Both are given, or one makes no sense.

    Example:
        >>> find_servers(["ps_0=127.0.0.1:8500,127.0.0.1:8600"], None)
        {'ps_0': ['127.0.0.1:8500', '127.0.0.1:8600']}
    """
    if place is not None:
        if servers:
            raise errors.ConfigError("Give either --servers or --discovery, and not both.")
        return DiscoveredReplicas(open_place(place))
    if not servers:
        return None
    by_name: dict[str, list[str]] = {}
    for text in servers:
        name, _, addresses = text.partition("=")
        if not name or not addresses:
            raise errors.ConfigError(
                f"Servers are given as NAME=ADDRESS,ADDRESS, such as ps_0=10.0.0.1:8500; got "
                f"{text!r}."
            )
        by_name.setdefault(name, []).extend(addresses.split(","))
    return by_name


def make_announcer(
    server: "PredictionServer",
    config: "ServerConfig",
    place: str | None,
    advertise: str | None,
    replica: int | None,
) -> contextlib.AbstractContextManager[Any]:
    """Returns what announces the models of a server; nothing, if there is no place for that.

    Raises:
        errors.ConfigError: Others could not reach it.
    """
    if place is None:
        if advertise is not None or replica is not None:
            raise errors.ConfigError(
                "--advertise and --replica are for servers that announce themselves; give "
                "--discovery, too."
            )
        return contextlib.nullcontext()
    if server.port is None:
        raise errors.ConfigError("Others call a server over gRPC; leave --no-grpc out.")
    if advertise is None:
        if config.host in _ANYWHERE:
            raise errors.ConfigError(
                f"A server that listens on {config.host} has no address to announce; give "
                "--advertise HOST:PORT."
            )
        advertise = f"{config.host}:{server.port}"
    if replica is None:
        replica = make_replica_id(advertise)
    return Announcer(open_place(place), server.models, advertise, replica)
