"""Merges requests that arrive together, so that the model is called once for all of them.

Requests that arrive while the model is busy are called together when it is free again. Where there
were several, several are about to come: then the first of them is held back for a bounded time
(`max_delay_ms`) until as many are there. So a lone client waits for nobody, and the busier the
server, the more a call does.

Example:
    >>> async def double(pool):
    ...     batcher = Batcher(lambda inputs: [inputs[0] * 2], Batching(), pool)
    ...     return await batcher.run([np.array([1.0, 2.0])], rows=2)
    >>> with CallPool(max_calls=1) as pool:
    ...     asyncio.run(double(pool))[0].tolist()
    [2.0, 4.0]
"""

import asyncio  # noqa: F401 - for the example
import collections
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from monolith.serving.server import merging, status
from monolith.serving.server.answers import Answer
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching

Arrays = Sequence[np.ndarray]
# A request of so many rows is run alone: rows take the time then, and not the call, so that there
# is nothing to gain by waiting for others.
ENOUGH_ROWS = 256
# Called with the number of requests and rows of each call, and how long the first one has waited.
Observer = Callable[[int, int, float], None]


class Batcher:
    """Calls one function for many requests. Thread-safe.

    Args:
        call: The function, from inputs to outputs; what it gives for a row must depend on that row
            of the inputs only.
        config: How requests are merged.
        pool: Runs the calls.
        observe: Is told about each call.
        clock: Returns seconds.
        merger: Puts the inputs of requests together.
    """

    def __init__(
        self,
        call: Callable[[Arrays], list[np.ndarray]],
        config: Batching,
        pool: CallPool,
        observe: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        merger: merging.Merger | None = None,
    ) -> None:
        self._call = call
        self._merger = merger or merging.RowMerger()
        self._config = config
        self._pool = pool
        self._observe = observe or _ignore
        self._clock = clock
        self._lock = threading.Lock()  # Of what follows.
        self._waiting: collections.deque[_Request] = collections.deque()
        self._waiting_rows = 0
        self._expected = 1  # How many requests are worth waiting for.
        self._running = 0
        self._is_held_back = False
        # Outputs that do not have a row per row of the input end merging for good.
        self._is_by_rows = True

    def count_rows(self, inputs: Arrays) -> int:
        """Returns how many rows a request has, 0 if it has to be run alone."""
        return self._merger.count_rows(inputs)

    async def run(
        self, inputs: Arrays, rows: int, deadline_sec: float | None = None
    ) -> list[np.ndarray]:
        """Calls the function for a request.

        Args:
            inputs: The inputs.
            rows: How many rows they have, as the merger counts them.
            deadline_sec: When, by the clock, nobody waits for the answer any more.

        Raises:
            RequestError: The function raised it for this request, too many requests wait, or the
                deadline has passed while this one waited.
        """
        answer = Answer()
        if not self._is_by_rows or rows > self._config.max_rows or rows >= ENOUGH_ROWS:
            self._pool.submit(answer.fill, self._call, inputs)
            return list(await answer)
        request = _Request(inputs, rows, self._clock(), deadline_sec, answer)
        with self._lock:
            if len(self._waiting) >= self._config.max_waiting:
                raise status.RequestError(
                    status.Code.RESOURCE_EXHAUSTED,
                    f"{len(self._waiting)} requests wait for the model already; try again later.",
                )
            self._waiting.append(request)
            self._waiting_rows += rows
        self._start_calls()
        return list(await answer)

    def _start_calls(self) -> None:
        """Begins calls while somebody waits and the model has room."""
        while True:
            with self._lock:
                has_room = self._running < self._config.parallel
                if not (self._waiting and has_room) or self._hold_back():
                    return
                batch, late = self._take()
                self._running += bool(batch)
            for request in late:
                request.answer.fail(
                    status.RequestError(
                        status.Code.DEADLINE_EXCEEDED,
                        "The deadline has passed while the request waited for the model.",
                    )
                )
            if batch:
                self._pool.submit(self._run_batch, batch)

    def _hold_back(self) -> bool:
        """Returns whether the first request still has time to wait for others that may come."""
        delay_sec = self._config.max_delay_ms / 1000
        if len(self._waiting) >= self._expected or self._waiting_rows >= self._config.max_rows:
            return False
        left_sec = self._waiting[0].arrived_sec + delay_sec - self._clock()
        if left_sec <= 0:
            return False
        if not self._is_held_back:
            self._is_held_back = True
            self._pool.call_later(left_sec, self._end_hold)
        return True

    def _end_hold(self) -> None:
        with self._lock:
            self._is_held_back = False
        self._start_calls()

    def _take(self) -> tuple[list["_Request"], list["_Request"]]:
        """Takes waiting requests that fit together, and those that have waited too long."""
        batch: list[_Request] = []
        late: list[_Request] = []
        rows = 0
        now = self._clock()
        while self._waiting:
            request = self._waiting[0]
            if request.deadline_sec is not None and now >= request.deadline_sec:
                late.append(request)
            elif not request.answer.done():  # It is, if the client has gone.
                if batch and rows + request.rows > self._config.max_rows:
                    break
                batch.append(request)
                rows += request.rows
            self._waiting.popleft()
            self._waiting_rows -= request.rows
        return batch, late

    def _run_batch(self, batch: list["_Request"]) -> None:
        """Runs in the pool."""
        results: list[list[np.ndarray] | Exception]
        try:
            results = self._run_merged(batch)
        except Exception as e:  # noqa: BLE001 - it is raised where the request was made
            # Again one by one, so that one bad request does not spoil the others.
            results = [e] if len(batch) == 1 else [self._run_alone(request) for request in batch]
        self._finish(batch, results)

    def _run_merged(self, batch: list["_Request"]) -> list[list[np.ndarray] | Exception]:
        rows = sum(request.rows for request in batch)
        self._observe(len(batch), rows, self._clock() - batch[0].arrived_sec)
        if len(batch) == 1:
            return [self._call(batch[0].inputs)]
        requests = [request.inputs for request in batch]
        outputs = self._call(self._merger.join(requests))
        try:
            return list(self._merger.split(outputs, requests))
        except merging.OutputError:
            self._is_by_rows = False
            raise

    def _run_alone(self, request: "_Request") -> list[np.ndarray] | Exception:
        try:
            return self._call(request.inputs)
        except Exception as e:  # noqa: BLE001 - it is raised where the request was made
            return e

    def _finish(self, batch: list["_Request"], results: list[list[np.ndarray] | Exception]) -> None:
        with self._lock:
            self._running -= 1
            # Whoever gets an answer now may ask again at once.
            self._expected = len(batch) + len(self._waiting)
        # The next call begins while the answers of this one are handed out, if another thread is
        # there to make it.
        self._start_calls()
        for request, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                request.answer.fail(result)
            else:
                request.answer.give(result)


class _Request:
    """A request that waits for its answer."""

    def __init__(
        self,
        inputs: Arrays,
        rows: int,
        arrived_sec: float,
        deadline_sec: float | None,
        answer: Answer,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.arrived_sec = arrived_sec
        self.deadline_sec = deadline_sec
        self.answer = answer


def _ignore(requests: int, rows: int, waited_sec: float) -> None:
    """Observes nothing."""
