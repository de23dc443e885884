"""Tells others which models a server has, for as long as it has them.

A server announces a model once a version of it answers, and takes that back before it stops: who
asks the discovery finds only servers that are ready.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from monolith.cluster.discovery_base import ServiceDiscovery

logger = logging.getLogger(__name__)

_POLL_SEC = 0.2


class Announcer:
    """Keeps the records of one server; a context, for as long as it answers.

    Args:
        discovery: Where the records are; closed at the end.
        models: What has a mapping `models`, from names to what has `is_available`.
        address: Where others reach the server.
        replica: The number of the server among those with the same model.
        poll_sec: How often to look at the models.
    """

    def __init__(
        self,
        discovery: ServiceDiscovery,
        models: Any,
        address: str,
        replica: int,
        poll_sec: float = _POLL_SEC,
    ) -> None:
        self._discovery = discovery
        self._models = models
        self._address = address
        self._replica = replica
        self._poll_sec = poll_sec
        self._announced: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    def __enter__(self) -> "Announcer":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stopped.set()
        self._thread.join()
        for name in sorted(self._announced):
            self._try(self._discovery.deregister, name)
        self._discovery.close()

    def _run(self) -> None:
        while True:
            models: Mapping[str, Any] = self._models.models
            available = {name for name, model in models.items() if model.is_available}
            for name in sorted(available - self._announced):
                if self._try(self._discovery.register, name):
                    logger.info("%s is announced as replica %d", name, self._replica)
                    self._announced.add(name)
            for name in sorted(self._announced - available):
                if self._try(self._discovery.deregister, name):
                    self._announced.discard(name)
            if self._stopped.wait(self._poll_sec):
                return

    def _try(self, change: Any, name: str) -> bool:
        try:
            change(name, self._replica, self._address)
        except Exception as e:  # noqa: BLE001 - whatever the discovery is made of; it is tried again
            logger.warning("could not announce %s at %s: %s", name, self._address, e)
            return False
        return True
