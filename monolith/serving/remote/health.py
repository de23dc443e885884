"""Which replicas answer, as far as calls have shown.

One that has failed is asked last from then on. To see whether it is back, now and then a single
call begins with it: after a second, then after twice that, and so on up to half a minute. So a call
meets at most one server that is known to be gone, however many of them a discovery still lists.

Example:
    >>> health = Health()
    >>> health.note_failure("a:1")
    >>> health.rank(["a:1", "b:1"])
    ['b:1', 'a:1']
    >>> health.note_success("a:1")
    >>> sorted(health.rank(["a:1", "b:1"]))
    ['a:1', 'b:1']
"""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Sequence

_FIRST_SEC = 1.0
_MAX_SEC = 30.0


@dataclasses.dataclass
class _Failed:
    """A replica that has not answered since it failed."""

    wait_sec: float
    probe_at_sec: float
    is_probed: bool = False


class Health:
    """What is known of replicas. Thread-safe.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: dict[str, _Failed] = {}

    def rank(self, addresses: Sequence[str]) -> list[str]:
        """Returns replicas in the order in which a call should try them."""
        ranked = random.sample(addresses, len(addresses))
        if not self._failed:
            return ranked
        with self._lock:
            now_sec = self._clock()
            healthy = [address for address in ranked if address not in self._failed]
            failed = [address for address in ranked if address in self._failed]
            failed.sort(key=lambda address: self._failed[address].probe_at_sec)
            if healthy and failed and self._failed[failed[0]].probe_at_sec <= now_sec:
                probed = failed.pop(0)
                # Other calls do not begin with it meanwhile.
                known = self._failed[probed]
                known.probe_at_sec = now_sec + known.wait_sec
                known.is_probed = True
                return [probed, *healthy, *failed]
            return healthy + failed

    def note_success(self, address: str) -> None:
        """A replica has answered."""
        if address in self._failed:
            with self._lock:
                self._failed.pop(address, None)

    def note_failure(self, address: str) -> None:
        """A replica has failed, or was slower than others."""
        with self._lock:
            now_sec = self._clock()
            known = self._failed.get(address)
            if known is None:
                self._failed[address] = _Failed(_FIRST_SEC, now_sec + _FIRST_SEC)
            elif known.is_probed:
                # Only then: many calls may have failed together.
                known.wait_sec = min(2 * known.wait_sec, _MAX_SEC)
                known.probe_at_sec = now_sec + known.wait_sec
                known.is_probed = False

    def forget(self, address: str) -> None:
        """A replica is not listed any more."""
        with self._lock:
            self._failed.pop(address, None)
