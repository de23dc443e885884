"""Sends one server the rows that it has yet to get, in a thread of its own.

A server that does not answer costs next to nothing: there is one call to it at a time, and after
one without an answer it is asked a short question first. Only when it answers that, rows are read
and written into messages for it again.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from monolith.serving.sync.channel import REFUSALS, SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import Target

logger = logging.getLogger(__name__)

_MAX_BACKOFF_SEC = 2.0
_PACKED = "_packed"


class Steps(Protocol):
    """Who knows what a server has yet to get; `SyncSteps` of `pusher.py`."""

    def take(self, number: int, target: str, packed: bool) -> list[tuple[str, bytes, int]]:
        """Returns the next calls for a server."""

    def settle(self, number: int, target: str, has_arrived: bool, start_over: bool) -> None:
        """Says what came of them."""


def name_in_part(signature: str, model: str) -> str:
    """Returns what a function of a set of tables is called in a part of a model.

    Without parameter servers the set has no number, and in parts it has that of the first.

    Example:
        >>> name_in_part("MonolithMultiHashTable_/raw_assign", "ps_0")
        'MonolithMultiHashTable_0/raw_assign'
        >>> name_in_part("MonolithMultiHashTable_/raw_assign", "ads")
        'MonolithMultiHashTable_/raw_assign'
    """
    number = model.rpartition("ps_")[2]
    return signature.replace("_/", f"_{number}/") if number != model else signature


class RowSender:
    """Sends one server what it has yet to get, until it is closed.

    Args:
        steps: Knows what that is.
        number: Which of its clients.
        target: The server.
        config: How it is called.
        clock: Returns a time in seconds that never goes back.

    Attributes:
        fresh_as_of_sec: When training was at what the server has now.
    """

    def __init__(
        self,
        steps: Steps,
        number: int,
        target: Target,
        config: SyncConfig,
        clock: Callable[[], float],
    ) -> None:
        self._steps = steps
        self._number = number
        self._channel = SyncChannel(target, config)
        self._target = target.name
        self._clock = clock
        self.fresh_as_of_sec = clock()
        self._gathered_sec = self.fresh_as_of_sec
        self._backoff_sec = 0.0
        self._retry_at_sec = 0.0
        self._takes_packed = True  # Until it says that it does not.
        self._is_silent = False
        self._wakeup = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="sync_sender", daemon=True)
        self._thread.start()

    def wake(self, gathered_sec: float) -> None:
        """Tells it that there may be something to send, which was collected then."""
        self._gathered_sec = gathered_sec
        self._wakeup.set()

    def close(self) -> None:
        """Ends the thread; a call that is on its way is not waited for."""
        self._is_closed = True
        self._wakeup.set()
        self._channel.close()

    def _run(self) -> None:
        while True:
            self._wakeup.wait()
            self._wakeup.clear()
            if self._is_closed:
                return
            if self._clock() < self._retry_at_sec:
                continue
            gathered_sec = self._gathered_sec
            try:
                is_done = self._drain()
            except Exception as e:  # noqa: BLE001 - such as a session that is closed
                if not self._is_closed:
                    logger.warning("%s gets no rows: %s", self._target, str(e).partition("\n")[0])
                is_done = False
            if is_done:
                self.fresh_as_of_sec = gathered_sec
                self._backoff_sec = 0.0
            elif not self._is_closed:
                self._backoff_sec = min(_MAX_BACKOFF_SEC, self._backoff_sec * 2 or 0.1)
                self._retry_at_sec = self._clock() + self._backoff_sec

    def _drain(self) -> bool:
        """Sends until nothing is left; returns whether all of it has arrived."""
        if self._is_silent and not self._channel.answers():
            return False
        while not self._is_closed:
            packed = self._takes_packed
            calls = self._steps.take(self._number, self._target, packed)
            if not calls:
                return True
            has_arrived, start_over = self._send(calls)
            self._steps.settle(self._number, self._target, has_arrived, start_over)
            if not has_arrived and packed == self._takes_packed:
                return False
        return False

    def _send(self, calls: list[tuple[str, bytes, int]]) -> tuple[bool, bool]:
        """Returns whether all calls have arrived, and whether the server is another than before."""
        is_other = False
        for signature, request, num_ids in calls:
            signature = name_in_part(signature, self._channel.target.model)
            is_packed = signature.endswith(_PACKED)
            answer = self._channel.predict(
                signature, request, num_ids, untold=REFUSALS if is_packed else ()
            )
            self._is_silent = answer.is_silence
            if answer.is_other_server:
                is_other = self._takes_packed = True
            if is_packed and answer.code in REFUSALS:
                logger.info(
                    "%s gets its rows as floats, since it does not take them as they are served: "
                    "%s",
                    self._target,
                    answer.details,
                )
                self._takes_packed = False
            if not answer.is_ok:
                return False, is_other
        return True, is_other
