"""Threads that say, again and again, that a service of this process is alive.

Consul and the file discovery take a service for dead when its process has been silent for a
while. One daemon thread per service speaks for it, until somebody ends it with `stop` or the
process exits.

A heartbeat has a key, and there is one per key in a process, whoever started it: starting it
again replaces it, and anybody who knows the key may end it.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Hashable

from monolith.cluster.background import BackgroundCall

logger = logging.getLogger(__name__)

_REPEAT_WARNING_SEC = 60.0
_JOIN_SEC = 1.0

_heartbeats: dict[Hashable, "_Heartbeat"] = {}
_lock = threading.Lock()


def start(
    key: Hashable,
    beat: Callable[[], None],
    *,
    thread_name: str,
    period_sec: float,
    retry_sec: float,
) -> None:
    """Calls `beat` now and every `period_sec` seconds, from a daemon thread.

    Args:
        key: Identifies the heartbeat in this process; one that has the same key is replaced.
        beat: Says that all is well. When it raises, the error is logged (at most once a minute)
            and it is called again after `retry_sec` seconds.
        thread_name: Name of the thread, which log lines mention.
        period_sec: Seconds between two beats.
        retry_sec: Seconds between a beat that failed and the next one.
    """
    heartbeat = _Heartbeat(beat, thread_name, period_sec, retry_sec)
    with _lock:
        previous = _heartbeats.get(key)
        _heartbeats[key] = heartbeat
    if previous is not None:
        previous.stop()
    heartbeat.start()


def stop(key: Hashable) -> None:
    """Ends the heartbeat of `key`, if there is one."""
    with _lock:
        heartbeat = _heartbeats.pop(key, None)
    if heartbeat is not None:
        heartbeat.stop()


@atexit.register
def _stop_all() -> None:
    # Daemon threads do not hold up the exit; ending them here keeps them from running into
    # modules that the interpreter has already torn down.
    with _lock:
        heartbeats = list(_heartbeats.values())
        _heartbeats.clear()
    for heartbeat in heartbeats:
        heartbeat.request_stop()
    # One that hangs in the network, or writes to a slow disk, is waited for as all calls are.
    deadline_sec = time.monotonic() + _JOIN_SEC
    for heartbeat in heartbeats:
        heartbeat.join(max(0.0, deadline_sec - time.monotonic()))


class _Heartbeat(BackgroundCall):
    def __init__(
        self, beat: Callable[[], None], name: str, period_sec: float, retry_sec: float
    ) -> None:
        super().__init__(name)
        self._beat = beat
        self._period_sec = period_sec
        self._retry_sec = retry_sec
        self._stop_requested = threading.Event()
        self._last_warning_sec: float | None = None

    def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                self._beat()
            except Exception:  # noqa: BLE001 - the outermost loop of the thread
                self._warn()
                delay_sec = self._retry_sec
            else:
                self._last_warning_sec = None
                delay_sec = self._period_sec
            self._stop_requested.wait(delay_sec)

    def request_stop(self) -> None:
        self._stop_requested.set()

    def stop(self) -> None:
        self.request_stop()
        # A beat may end its own heartbeat. One that hangs in the network ends by its own timeout,
        # so nobody needs to wait for it.
        if threading.current_thread() is not self:
            self.join(_JOIN_SEC)

    def _warn(self) -> None:
        if self._stop_requested.is_set():
            return
        now_sec = time.monotonic()
        last_sec = self._last_warning_sec
        if last_sec is None or now_sec - last_sec >= _REPEAT_WARNING_SEC:
            self._last_warning_sec = now_sec
            logger.warning(
                "%s failed and is tried again every %g s; without it, others take the service "
                "for dead.",
                self.name,
                self._retry_sec,
                exc_info=True,
            )
