"""Messages of several partitions in one order, that of their times.

A broker keeps an order inside of a partition only. A consumer hands out what comes first over the
network, so that the same place read twice gives other batches. Here partitions are merged by the
times of their messages: what is written later comes later, and a training that was killed reads
first again what it had read when it was killed.
"""

import collections
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeOrder(Generic[T]):
    """Holds back messages until none of another partition can come before them.

    Args:
        num_partitions: How many there are.

    Example:
        >>> order = TimeOrder(2)
        >>> order.add(0, 30, "c")
        >>> order.add(1, 20, "b")
        >>> order.add(1, 40, "d")
        >>> list(order.take(9, is_at_end=lambda partition: False))
        [(1, 'b'), (0, 'c')]
        >>> list(order.take(9, is_at_end=lambda partition: True))
        [(1, 'd')]
    """

    def __init__(self, num_partitions: int) -> None:
        self._waiting = [collections.deque[tuple[int, T]]() for _ in range(num_partitions)]
        # The time of the first message of each partition that has one.
        self._heads: list[tuple[int, int]] = []

    def add(self, partition: int, time_ms: int, message: T) -> None:
        """Takes the next message of a partition."""
        if not self._waiting[partition]:
            heapq.heappush(self._heads, (time_ms, partition))
        self._waiting[partition].append((time_ms, message))

    def count(self, partition: int) -> int:
        """Returns how many messages of a partition wait."""
        return len(self._waiting[partition])

    def find_missing(self, is_at_end: Callable[[int], bool]) -> Sequence[int]:
        """Returns the partitions whose next message is not known, though there may be one."""
        empty = (i for i, waiting in enumerate(self._waiting) if not waiting)
        return [partition for partition in empty if not is_at_end(partition)]

    def take(self, most: int, is_at_end: Callable[[int], bool]) -> Iterator[tuple[int, T]]:
        """Yields messages with their partitions, as far as their order is certain.

        Of equal times that of the lower partition comes first.

        Args:
            most: How many at most.
            is_at_end: Whether a partition had no further message when it was asked last.
        """
        if self.find_missing(is_at_end):
            return
        for _ in range(most):
            if not self._heads:
                return
            _, partition = heapq.heappop(self._heads)
            waiting = self._waiting[partition]
            _, message = waiting.popleft()
            if waiting:
                heapq.heappush(self._heads, (waiting[0][0], partition))
            yield partition, message
            if not waiting and not is_at_end(partition):
                return
