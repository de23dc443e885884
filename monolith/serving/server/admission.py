"""How many requests are answered at once, and that no more begin while the server stops.

Example:
    >>> admission = Admission(limit=1)
    >>> with admission.admit():
    ...     admission.in_flight
    1
"""

import contextlib
import threading
from collections.abc import Iterator

from monolith.serving.server import status


class Admission:
    """Lets requests in. Thread-safe.

    Args:
        limit: How many at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._is_closed = False
        self._is_empty = threading.Condition()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a request while the block runs.

        Raises:
            RequestError: There are too many, or the server stops.
        """
        with self._is_empty:
            if self._is_closed:
                raise status.RequestError(status.Code.UNAVAILABLE, "The server is stopping.")
            if self._in_flight >= self._limit:
                raise status.RequestError(
                    status.Code.RESOURCE_EXHAUSTED,
                    f"{self._limit} requests are being answered, which is the limit; try again "
                    "later.",
                )
            self._in_flight += 1
        try:
            yield
        finally:
            with self._is_empty:
                self._in_flight -= 1
                if not self._in_flight:
                    self._is_empty.notify_all()

    def close(self, grace_sec: float) -> bool:
        """Lets nobody in any more; returns whether those inside were done in time."""
        with self._is_empty:
            self._is_closed = True
            return self._is_empty.wait_for(lambda: not self._in_flight, grace_sec)
