"""Sends one server the rows that it has yet to get, in a thread of its own.

A server that does not answer costs next to nothing: there is one call to it at a time, and after
one without an answer it is asked a short question first. Only when it answers that, rows are read
and written into messages for it again. One that has everything is asked, too, each time that there
is nothing to send: it may have been started again, with rows of long ago.
"""

import logging
import re
import threading
from collections.abc import Callable
from typing import Protocol

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from monolith.serving.sync.channel import PACKED, REFUSALS, SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import Target

logger = logging.getLogger(__name__)

_MAX_BACKOFF_SEC = 2.0
_LISTS = ("/raw_list_ids", "hashtable_list_ids/")
# A part is served under its own name, or under the model's and its own.
_PART = re.compile(r"(?:^|:)ps_(\d+)$", re.ASCII)
# With these a model says that it lacks the function.
_UNKNOWN = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Steps(Protocol):
    """Who knows what a server has yet to get; `SyncSteps` of `pusher.py`."""

    def take(self, number: int, target: str, packed: bool) -> list[tuple[str, bytes, int]]:
        """Returns the next calls for a server."""

    def settle(self, number: int, target: str, has_arrived: bool, start_over: bool) -> None:
        """Says what came of them."""

    def compare(
        self, number: int, target: str, ids: np.ndarray, next_place: int, is_known: bool
    ) -> None:
        """Hands over which ids a server has, if it was asked for that."""


def name_in_part(signature: str, model: str) -> str:
    """Returns what a function of a set of tables is called in a part of a model.

    Without parameter servers the set has no number, and in parts it has that of the first.

    Example:
        >>> name_in_part("MonolithMultiHashTable_/raw_assign", "ps_0")
        'MonolithMultiHashTable_0/raw_assign'
        >>> name_in_part("MonolithMultiHashTable_/raw_assign", "apps_rank")  # Is no part.
        'MonolithMultiHashTable_/raw_assign'
    """
    part = _PART.search(model)
    return signature.replace("_/", f"_{part[1]}/") if part else signature


def _is_question(signature: str) -> bool:
    return signature.endswith(_LISTS[0]) or signature.startswith(_LISTS[1])


class RowSender:
    """Sends one server what it has yet to get, until it is closed.

    Args:
        steps: Knows what that is.
        number: Which of its clients.
        target: The server.
        config: How it is called.
        clock: Returns a time in seconds that never goes back.

    Attributes:
        fresh_as_of_sec: When training was at what the server has now, as it has confirmed.
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
        self._lists_ids = True  # The same.
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
        """Sends until nothing is left; returns whether the server has confirmed that it has all."""
        has_confirmed = self._is_silent and self._confirm()
        if self._is_silent:
            return False
        while not self._is_closed:
            packed = self._takes_packed
            calls = self._steps.take(self._number, self._target, packed)
            if not calls and has_confirmed:
                return True
            if not calls:
                has_confirmed = self._confirm()
                if not has_confirmed:
                    return False
            elif _is_question(calls[0][0]):
                has_confirmed = self._compare(calls[0][0], calls[0][1])
                if not has_confirmed:
                    return False
            else:
                has_confirmed, start_over = self._send(calls)
                self._steps.settle(self._number, self._target, has_confirmed, start_over)
                if not has_confirmed and packed == self._takes_packed:
                    return False
        return False

    def _confirm(self) -> bool:
        """Asks whether the server is still there; if it is another one, it gets everything."""
        answer = self._channel.ask()
        self._is_silent = answer.is_silence
        if answer.is_other_server:
            self._start_over()
        return answer.is_ok

    def _start_over(self) -> None:
        self._takes_packed = True
        self._steps.settle(self._number, self._target, has_arrived=True, start_over=True)

    def _compare(self, signature: str, request: bytes) -> bool:
        """Asks which ids the server has, so that it loses rows that are gone.

        Returns:
            Whether it has answered, be it that it does not know.
        """
        signature = name_in_part(signature, self._channel.target.model)
        answer = self._channel.predict(signature, request, 0, untold=_UNKNOWN)
        self._is_silent = answer.is_silence
        if answer.is_other_server:
            self._start_over()
            return True
        ids, next_place = np.zeros(0, np.int64), 0
        if answer.is_ok:
            response = predict_pb2.PredictResponse.FromString(answer.response)
            ids = tf.make_ndarray(response.outputs["id"])
            next_place = int(tf.make_ndarray(response.outputs["next_place"]))
        elif answer.code not in _UNKNOWN:
            return False
        elif self._lists_ids:
            logger.warning(
                "%s keeps rows that went while it was away or that were too many at once, since it "
                "does not say which rows it has; export its model with this version: %s",
                self._target,
                answer.details,
            )
        self._lists_ids = answer.is_ok
        self._steps.compare(self._number, self._target, ids, next_place, answer.is_ok)
        return True

    def _send(self, calls: list[tuple[str, bytes, int]]) -> tuple[bool, bool]:
        """Returns whether all calls have arrived, and whether the server is another than before."""
        is_other = False
        for signature, request, num_ids in calls:
            signature = name_in_part(signature, self._channel.target.model)
            is_packed = signature.endswith(PACKED)
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
