"""Coroutines that wait for answers, without an event loop of their own.

What answers a request is a coroutine, because it has to wait for the model. Over REST it runs in
an event loop. Over gRPC it needs none: it begins in the thread that has the request, stops where
it waits, and goes on in the thread that brings what it waits for. So no thread is woken only to
hand something on.

Example:
    >>> async def double(answer):
    ...     return 2 * await answer
    >>> answer = Answer()
    >>> running = Running(double(answer), lambda value, error: print(value))
    >>> running.go_on()  # Stops at once, for there is no answer yet.
    >>> answer.fill(lambda: 21)
    42
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from typing import Any


class Answer(futures.Future):
    """What a coroutine waits for, in an event loop or in `Running`. Thread-safe."""

    def fill(self, function: Callable[..., Any], *args: Any) -> None:
        """Makes what a function returns or raises the answer, if somebody still waits for it."""
        if self.done():
            return
        try:
            value = function(*args)
        except Exception as e:  # noqa: BLE001 - it is raised where the answer is awaited
            self.fail(e)
        else:
            self.give(value)

    def give(self, value: Any) -> None:
        """Gives the answer; whoever has been told that nobody waits does not get it."""
        with contextlib.suppress(futures.InvalidStateError):
            self.set_result(value)

    def fail(self, error: Exception) -> None:
        """Raises an error where the answer is awaited."""
        with contextlib.suppress(futures.InvalidStateError):
            self.set_exception(error)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            if _is_in_event_loop():
                return (yield from asyncio.wrap_future(self).__await__())
            yield self
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()


class Running:
    """A coroutine that goes on in whatever thread brings what it waits for.

    Args:
        coroutine: Waits for nothing but `Answer`s.
        done: Called once with what it returns and what it raises, one of which is None.
    """

    def __init__(
        self,
        coroutine: Coroutine[Answer, None, Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._awaited: Answer | None = None
        self._is_cancelled = False

    def go_on(self, awaited: object = None) -> None:
        """Runs it until it has to wait; called to begin, and then with each answer."""
        self._awaited = None  # It holds on to this object, and both would wait for the collector.
        try:
            answer = self._coroutine.send(None)
        except StopIteration as e:
            self._done(e.value, None)
        except BaseException as e:  # noqa: BLE001 - whoever made it is told
            self._done(None, e)
        else:
            self._awaited = answer
            if self._is_cancelled:
                answer.cancel()
            answer.add_done_callback(self.go_on)

    def cancel(self) -> None:
        """Raises `asyncio.CancelledError` where it waits, now or the next time."""
        self._is_cancelled = True
        awaited = self._awaited
        if awaited is not None:
            awaited.cancel()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
