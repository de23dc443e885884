"""Which thread calls a model.

A request that came over gRPC is in one of a few threads that take requests. If another one of
them is left to take the next request, the call happens right there: to hand it to a thread, and
the answer back, takes as long as a small model does. All other calls happen in a pool.

Example:
    >>> with CallPool(max_calls=4) as pool:
    ...     pool.submit(print, "called")
    called
"""

import contextlib
import heapq
import itertools
import logging
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

logger = logging.getLogger(__name__)


class CallPool:
    """Runs calls. Thread-safe.

    Args:
        max_calls: How many at once.
        takers: How many threads take requests and may call models themselves; one of them is
            always left without a call.
    """

    def __init__(self, max_calls: int, takers: int = 1) -> None:
        # Calls in threads that take requests count as well.
        self._max_own = min(takers, max_calls) - 1
        self._own = 0
        self._threads = futures.ThreadPoolExecutor(max_calls - self._max_own, "model")
        self._here = _Here()
        self._lock = threading.Lock()
        self._timer: _Timer | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function soon, in this thread or in another; it must not raise."""
        here = self._here
        if here.is_taker and here.next_call is None and (here.has_place or self._take_place()):
            here.has_place = True
            here.next_call = function, args
        else:
            self._threads.submit(_call, function, args)

    def call_later(self, seconds: float, function: Callable[[], Any]) -> None:
        """Calls a short function after some time, in a thread of its own."""
        with self._lock:
            if self._timer is None:
                self._timer = _Timer()
        self._timer.add(seconds, function)

    @contextlib.contextmanager
    def take_requests(self) -> Iterator[Callable[[], None]]:
        """Makes this thread one that takes requests.

        Yields:
            What has to be called after each request, and makes the calls for it.
        """
        self._here.is_taker = True
        try:
            yield self._make_own_calls
        finally:
            self._here.is_taker = False

    def shutdown(self) -> None:
        """Waits for the calls, and ends the threads."""
        self._threads.shutdown()
        if self._timer is not None:
            self._timer.stop()

    def __enter__(self) -> "CallPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.shutdown()

    def _take_place(self) -> bool:
        with self._lock:
            is_free = self._own < self._max_own
            self._own += is_free
        return is_free

    def _make_own_calls(self) -> None:
        here = self._here
        # A call may end with the wish for another one, so this is a loop and no recursion.
        while (call := here.next_call) is not None:
            here.next_call = None
            _call(*call)
        if here.has_place:
            here.has_place = False
            with self._lock:
                self._own -= 1


class _Here(threading.local):
    """What is known of this thread."""

    is_taker = False
    has_place = False  # It may make calls, and others that follow from them.
    next_call: tuple[Callable[..., Any], tuple[Any, ...]] | None = None


class _Timer:
    """A thread that calls functions when their time has come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = itertools.count()  # Functions cannot be compared.
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="timer", daemon=True)
        self._thread.start()

    def add(self, seconds: float, function: Callable[[], Any]) -> None:
        entry = time.monotonic() + seconds, next(self._numbers), function
        with self._changed:
            heapq.heappush(self._waiting, entry)
            if self._waiting[0] is entry:
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_stopping:
                    return
                left_sec = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left_sec is None or left_sec > 0:
                    self._changed.wait(left_sec)
                    continue
                _, _, function = heapq.heappop(self._waiting)
            _call(function, ())


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        function(*args)
    except Exception:
        # Nobody else would hear of it.
        logger.exception("a call failed")
