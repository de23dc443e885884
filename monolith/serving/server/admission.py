"""How many requests are answered at once, and that no more begin while the server stops.

Example:
    >>> admission = Admission(limit=1)
    >>> with admission.admit():
    ...     admission.in_flight
    1
"""

import asyncio
import contextlib
from collections.abc import Iterator

from monolith.serving.server import status


class Admission:
    """Lets requests in. Lives in one event loop.

    Args:
        limit: How many at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._is_closed = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a request while the block runs.

        Raises:
            RequestError: There are too many, or the server stops.
        """
        if self._is_closed:
            raise status.RequestError(status.Code.UNAVAILABLE, "The server is stopping.")
        if self._in_flight >= self._limit:
            raise status.RequestError(
                status.Code.RESOURCE_EXHAUSTED,
                f"{self._limit} requests are being answered, which is the limit; try again later.",
            )
        self._in_flight += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._is_empty.set()

    async def close(self, grace_sec: float) -> bool:
        """Lets nobody in any more; returns whether those inside were done in time."""
        self._is_closed = True
        try:
            await asyncio.wait_for(self._is_empty.wait(), grace_sec)
        except asyncio.TimeoutError:
            return False
        return True
