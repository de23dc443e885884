"""Where the parts of a model are served.

Several servers may have the same part: its replicas. They are listed when the process starts, or
found through the discovery of `monolith.cluster`, where number `n` of the service `ps_0` is a
replica of that part.

Example:
    >>> source = StaticReplicas({"ps_0": ["10.0.0.1:8500", "10.0.0.2:8500"]})
    >>> source.find("ps_0")
    ('10.0.0.1:8500', '10.0.0.2:8500')
    >>> source.find("ps_1")
    ()
"""

import abc
import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from monolith import errors
from monolith.cluster import net
from monolith.cluster.discovery_base import ServiceDiscovery

logger = logging.getLogger(__name__)

Addresses = tuple[str, ...]

_POLL_SEC = 1.0
_MIN_POLL_SEC = 0.02


class ReplicaSource(abc.ABC):
    """Knows the addresses of models. Thread-safe."""

    @abc.abstractmethod
    def find(self, name: str) -> Addresses:
        """Returns who serves the model `name`; called for each request, so it must be quick."""

    def refresh(self) -> None:  # noqa: B027 - some have nothing to look at
        """A replica has failed: looks soon whether others have come; does not wait for that."""

    def close(self) -> None:  # noqa: B027 - some have nothing to free
        """Frees what the source holds."""


class StaticReplicas(ReplicaSource):
    """Addresses that do not change.

    Args:
        replicas: Addresses by model.

    Raises:
        errors.ConfigError: A model has none, or it is no address.
    """

    def __init__(self, replicas: Mapping[str, Sequence[str]]) -> None:
        for name, addresses in replicas.items():
            if isinstance(addresses, str) or not addresses:
                raise errors.ConfigError(
                    f"Model {name!r} needs a list of addresses, such as ['10.0.0.1:8500'], got "
                    f"{addresses!r}."
                )
            for address in addresses:
                net.parse_address(address)
        self._replicas = {name: tuple(addresses) for name, addresses in replicas.items()}

    def find(self, name: str) -> Addresses:
        return self._replicas.get(name, ())


class DiscoveredReplicas(ReplicaSource):
    """Addresses that a discovery of `monolith.cluster` knows; asked every second.

    While the discovery cannot be asked, what it said last holds.

    Args:
        discovery: The discovery; closed together with this.
        poll_sec: How often to ask.
    """

    def __init__(self, discovery: ServiceDiscovery, poll_sec: float = _POLL_SEC) -> None:
        self._discovery = discovery
        self._poll_sec = poll_sec
        self._lock = threading.Lock()
        self._known: dict[str, Addresses] = {}
        self._wakeup = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._poll, name="replicas", daemon=True)
        self._thread.start()

    def find(self, name: str) -> Addresses:
        known = self._known.get(name)
        return self._ask(name) if known is None else known

    def refresh(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()
        self._thread.join()
        self._discovery.close()

    def _poll(self) -> None:
        while True:
            if self._wakeup.wait(self._poll_sec):
                # However many calls fail, the discovery is not asked all the time.
                time.sleep(_MIN_POLL_SEC)
            self._wakeup.clear()
            if self._is_closed:
                return
            for name in list(self._known):
                self._ask(name)

    def _ask(self, name: str) -> Addresses:
        try:
            by_index = self._discovery.query(name)
        except Exception as e:  # noqa: BLE001 - whatever the discovery is made of
            logger.warning("cannot ask who serves %s, so it stays as it was: %s", name, e)
            return self._known.get(name, ())
        addresses = tuple(dict.fromkeys(by_index[index] for index in sorted(by_index)))
        with self._lock:
            if self._known.get(name) != addresses:
                logger.info("%s is served by %s", name, ", ".join(addresses) or "nobody")
            self._known[name] = addresses
        return addresses


def make_replica_id(address: str) -> int:
    """Returns the number of a replica that was given none: one of its own for each address.

    Example:
        >>> make_replica_id("10.0.0.1:8500") != make_replica_id("10.0.0.1:8501")
        True
    """
    digest = hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()
    return int(digest[10:17], 16)
