"""One call, as several attempts: the first answer counts.

An attempt goes to one replica. When it fails, the next one goes to another; when it is slow,
another replica is asked as well. Looking rows up changes nothing, so a call may be made twice.
"""

import enum
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from monolith.serving.remote.config import RemoteConfig
from monolith.serving.remote.timers import Timers

# Another replica would say the same.
_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
# How long to wait before a replica that has failed is asked again in the same call.
_BACKOFF_SEC = 0.02


class Kind(enum.Enum):
    """Why an attempt is made."""

    FIRST = "first"
    RETRY = "retry"
    HEDGE = "hedge"


class Attempts:
    """A call under way. Its methods are called by any thread.

    Args:
        rank: Returns the replicas as they are now, the best first; there is at least one.
        send: Begins an attempt, of an address, a time limit in seconds and its kind; returns a
            future of gRPC.
        finish: Called once, with the status, the answer or None, and what was said.
        config: How often to try.
        timeout_sec: How long all attempts together may take.
        timers: Wakes the call up.
    """

    def __init__(
        self,
        rank: Callable[[], Sequence[str]],
        send: Callable[[str, float, Kind], Any],
        finish: Callable[[grpc.StatusCode, bytes | None, str], None],
        config: RemoteConfig,
        timeout_sec: float,
        timers: Timers,
    ) -> None:
        self._rank = rank
        self._untried = list(rank())
        self._tried: list[str] = []
        self._send = send
        self._finish = finish
        self._config = config
        self._deadline_sec = time.monotonic() + timeout_sec
        self._timers = timers
        self._lock = threading.Lock()
        self._retries_left = config.retries
        self._open: set[Any] = set()
        # Attempts that have been decided on and are not open yet.
        self._coming = 1
        self._is_done = False

    def start(self) -> None:
        """Begins the first attempt."""
        hedge_ms = self._config.hedge_ms
        if hedge_ms is not None and len(self._untried) > 1:
            self._timers.after(hedge_ms / 1000, self._hedge)
        self._attempt(Kind.FIRST)

    def _hedge(self) -> None:
        with self._lock:
            if self._is_done or len(self._open) != 1 or self._coming or not self._untried:
                return
            self._coming += 1
        self._attempt(Kind.HEDGE)

    def _attempt(self, kind: Kind) -> None:
        with self._lock:
            self._coming -= 1
            if self._is_done:
                return
            closed: str | None = None
            address = self._choose()
            left_sec = max(0.001, self._deadline_sec - time.monotonic())
            try:
                future = self._send(address, left_sec, kind)
            except ValueError as e:  # The connections were ended meanwhile.
                self._is_done = True
                closed = str(e)
            else:
                self._open.add(future)
        if closed is not None:
            self._finish(grpc.StatusCode.UNAVAILABLE, None, closed)
            return
        # Called at once, if the attempt has ended already.
        future.add_done_callback(self._on_done)

    def _choose(self) -> str:
        """Returns who is asked next: somebody new, while there is."""
        if not self._untried:
            # All have failed; meanwhile, others may have come.
            replicas = list(self._rank())
            self._untried = [address for address in replicas if address not in self._tried]
            self._untried = self._untried or replicas or self._tried[:1]
        address = self._untried.pop(0)
        self._tried.append(address)
        return address

    def _on_done(self, future: Any) -> None:
        code = future.code()
        again = False
        backoff_sec = 0.0
        with self._lock:
            self._open.discard(future)
            if self._is_done:
                return
            left_sec = self._deadline_sec - time.monotonic()
            if code is grpc.StatusCode.OK:
                self._is_done = True
            elif code not in _FINAL and self._retries_left > 0 and left_sec > 0:
                self._retries_left -= 1
                self._coming += 1
                again = True
                if not self._untried:
                    backoff_sec = min(_BACKOFF_SEC, left_sec)
            elif not self._open and not self._coming:
                self._is_done = True
            is_done, others = self._is_done, list(self._open)
        if again and backoff_sec:
            self._timers.after(backoff_sec, functools.partial(self._attempt, Kind.RETRY))
        elif again:
            self._attempt(Kind.RETRY)
        elif is_done:
            response = future.result() if code is grpc.StatusCode.OK else None
            self._finish(code, response, "" if response is not None else future.details() or "")
            for other in others:
                other.cancel()
