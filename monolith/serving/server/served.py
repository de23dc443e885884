"""A version that answers requests, for as long as somebody uses it.

Requests hold on to the version that they began with. When a newer one takes over, the old one is
given back only after the last of them has its answer.
"""

import threading
from collections.abc import Callable, Mapping

import numpy as np

from monolith.serving.server import merging, status
from monolith.serving.server.answers import Answer
from monolith.serving.server.batching import Batcher
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching
from monolith.serving.server.loaded import LoadedModel
from monolith.serving.server.signature import Signature

# A client may ask for any subset of the outputs; requests of so many of them are merged.
_MAX_BATCHERS = 64

# Called with the number of requests and rows of each call, and how long the first one has waited.
Observer = Callable[[int, int, float], None]


class ServedVersion:
    """A version of a model. Thread-safe.

    Args:
        number: The version.
        model: The model in memory.
        pool: Runs the model.
        batching: How requests are merged; None: each is run alone.
        observe: Is told about each call of the model.
        allow_writes: Whether functions that change tables may be called.
    """

    def __init__(
        self,
        number: int,
        model: LoadedModel,
        pool: CallPool,
        batching: Batching | None = None,
        observe: Observer | None = None,
        allow_writes: bool = False,
    ) -> None:
        self.number = number
        self._model = model
        self._pool = pool
        self._batching = batching
        self._observe = observe
        self._allow_writes = allow_writes
        self._lock = threading.Lock()
        self._users = 0
        self._batchers: dict[tuple[str, tuple[str, ...]], Batcher | None] = {}

    @property
    def model(self) -> LoadedModel:
        return self._model

    @property
    def is_used(self) -> bool:
        return self._users > 0

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1

    async def run(
        self,
        signature: Signature,
        outputs: tuple[str, ...],
        arrays: Mapping[str, np.ndarray],
        deadline_sec: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Calls a function of the model.

        Args:
            signature: The function.
            outputs: What to return.
            arrays: Its inputs.
            deadline_sec: When, by `time.monotonic`, nobody waits for the answer any more.

        Raises:
            RequestError: The function is not for clients, the inputs do not fit, the model ended
                with an error, or the request had to wait for too long.
        """
        if signature.name in self._model.writing and not self._allow_writes:
            raise status.RequestError(
                status.Code.PERMISSION_DENIED,
                f"This server does not let clients call {signature.name!r}, which changes or lists "
                "the rows of the model's tables; start it with --allow-writes.",
            )
        inputs = signature.complete(arrays)
        batcher, rows = self._find_batcher(signature, outputs, inputs)
        if batcher is None:
            answer = Answer()
            self._pool.submit(answer.fill, self._model.run, signature, outputs, inputs)
            values = await answer
        else:
            values = await batcher.run(inputs, rows, deadline_sec)
        return dict(zip(outputs, values, strict=True))

    def close(self) -> None:
        """Gives the memory back; nobody may use it."""
        self._batchers.clear()
        self._model.close()

    def _find_batcher(
        self, signature: Signature, outputs: tuple[str, ...], inputs: list[np.ndarray]
    ) -> tuple[Batcher | None, int]:
        """Returns what merges a request, and how many rows it has; None if it has to be alone."""
        if self._batching is None:
            return None, 0
        key = signature.name, outputs
        if key not in self._batchers:
            with self._lock:
                if key not in self._batchers:
                    if len(self._batchers) >= _MAX_BATCHERS:
                        return None, 0
                    made = self._make_batcher(signature, outputs, self._batching)
                    self._batchers[key] = made
        batcher = self._batchers[key]
        rows = 0 if batcher is None else batcher.count_rows(inputs)
        return (batcher, rows) if rows else (None, 0)

    def _make_batcher(
        self, signature: Signature, outputs: tuple[str, ...], batching: Batching
    ) -> Batcher | None:
        merger = merging.make_merger(signature, outputs, self._model.signatures)
        if merger is None:
            return None
        return Batcher(
            lambda merged: self._model.run(signature, outputs, merged),
            batching,
            self._pool,
            self._observe,
            merger=merger,
        )
