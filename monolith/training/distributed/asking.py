"""Asking a discovery that may be away for a while.

Consul, ZooKeeper or a shared disk may be restarted while a job runs, and just then a worker may
look for a server that has moved. Whoever asks again and again anyway takes an error for the answer
that nobody is there, and has a time after which it gives up.

Example:
    >>> from monolith.cluster.discovery import TfConfigServiceDiscovery
    >>> cluster = {"ps": ["10.0.0.1:2222"], "chief": ["10.0.0.2:2222"]}
    >>> task = {"type": "chief", "index": 0}
    >>> query = PatientQuery(TfConfigServiceDiscovery({"cluster": cluster, "task": task}))
    >>> query("ps")
    {0: '10.0.0.1:2222'}
"""

import logging
import time
from collections.abc import Callable

from monolith import errors
from monolith.cluster.discovery import MLPServiceDiscovery
from monolith.cluster.discovery_base import ServiceDiscovery

logger = logging.getLogger(__name__)

_REPEAT_SEC = 60.0


class PatientQuery:
    """Asks who is registered; while the discovery does not answer, nobody is.

    Args:
        discovery: Who is asked.
        lists_dead: Whether MLP, which knows only who was planned, names those that do not listen,
            too; otherwise it waits for them.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        discovery: ServiceDiscovery,
        *,
        lists_dead: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discovery = discovery
        self._lists_dead = lists_dead
        self._clock = clock
        self._warned_sec: float | None = None

    def __call__(self, name: str) -> dict[int, str]:
        """Returns the addresses known for `name`, by index.

        Raises:
            errors.ConfigError: The discovery cannot be used as it was set up.
        """
        try:
            if self._lists_dead and isinstance(self._discovery, MLPServiceDiscovery):
                return self._discovery.query(name, skip_port_check=True)
            return self._discovery.query(name) or {}
        except errors.ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - any discovery, with errors of its own
            self._warn(name, error)
            return {}

    def _warn(self, name: str, error: Exception) -> None:
        # Not whenever the text changes: some have the time in it, or the address of an object.
        now_sec = self._clock()
        if self._warned_sec is not None and now_sec - self._warned_sec < _REPEAT_SEC:
            return
        self._warned_sec = now_sec
        logger.warning(
            "%s does not say who is registered as %s: %s: %s",
            self._discovery.describe(),
            name,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
