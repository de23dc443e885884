"""Calls functions later, all of them on one thread.

Example:
    >>> timers = Timers()
    >>> done = threading.Event()
    >>> timers.after(0.001, done.set)
    >>> done.wait(10)
    True
    >>> timers.close()
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Timers:
    """Functions that wait for their time. Thread-safe; the functions must be quick."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="remote-timers", daemon=True)
        self._thread.start()

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        """Has a function called after so many seconds; at once, if this is closed."""
        with self._changed:
            if not self._is_closed:
                # The number decides between equal times: functions cannot be compared.
                entry = (time.monotonic() + seconds, next(self._numbers), function)
                heapq.heappush(self._waiting, entry)
                if self._waiting[0] is entry:
                    self._changed.notify()
                return
        function()

    def close(self) -> None:
        """Calls what still waits now, and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (function := self._wait()) is not None:
            try:
                function()
            except Exception:
                logger.exception("a timer failed")

    def _wait(self) -> Callable[[], object] | None:
        with self._changed:
            while True:
                left_sec = None
                if self._waiting:
                    left_sec = self._waiting[0][0] - time.monotonic()
                    if left_sec <= 0 or self._is_closed:
                        return heapq.heappop(self._waiting)[2]
                elif self._is_closed:
                    return None
                self._changed.wait(left_sec)
