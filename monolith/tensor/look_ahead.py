"""Batches that were read ahead of training, and that a checkpoint of the input must not lose.

The thread that fills a prefetch queue is always some batches ahead of the training, so how far the
input was read is not how far it was trained on. Here that thread never has a batch in its hands
that would not fit into the queue: whoever holds it finds all batches that are ahead in the queue,
can note them beside the position of the input, and put them back when training goes on there.

A stream may have nothing to read for hours, and who saves cannot wait for that. So of a stream the
thread notes the position before each read: while a read waits, that is the position behind the
batches in the queue.

Example:
    >>> with tf.Graph().as_default():
    ...     dataset = tf.data.Dataset.range(9)
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    ...     number, queue = prefetch.enqueue_dicts_with_queue_return(batch, get_queue_capacity(1))
    ...     hook = LookAheadHook(queue, capacity=1)
    ...     with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
    ...         trained = [int(session.run(number)) for _ in range(3)]
    ...         with hook.held():
    ...             ahead = hook.read(session.raw_session())
    ...         ahead_of_training = [int(batch[0]) for batch in ahead]
    ...         trained, ahead_of_training == [3, 4, 5][: len(ahead)], int(session.run(number))
    ([0, 1, 2], True, 3)
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith.graph import metadata
from monolith.tensor import prefetch
from monolith.tensor.queues import _MultiFIFOQueue

_META_KEY = "look_ahead_hooks"
_POLL_SEC = 0.05
# Where the input ends, the next step waits for nothing but the news of it.
_END_POLL_SEC = 0.002
_HOLD_SEC = 60.0
# How soon after a batch is in the queue its read has ended.
_END_OF_READ_SEC = 0.05


def get_queue_capacity(capacity: int) -> int:
    """Returns how many batches a queue must hold for `capacity` of them to wait in it.

    Beside those, one is being read, and one is about to be taken.
    """
    return capacity + 2 if capacity > 0 else capacity


def get_hooks() -> list["LookAheadHook"]:
    """Returns the hooks that were made in the default graph."""
    return metadata.get_meta(_META_KEY, list)


class LookAheadHook(prefetch.EnqueueHook):
    """Fills a queue as `EnqueueHook` does, and can be held.

    Args:
        q: The queue, of `get_queue_capacity(capacity)`.
        capacity: How many batches wait while one is trained on and one is read.

    Attributes:
        position_before_read: What the function given to `note_positions` has returned before the
            last read.
    """

    def __init__(self, q: _MultiFIFOQueue, capacity: int) -> None:
        super().__init__(q)
        self._capacity = capacity
        self._size = q.size()
        self._take = [tf.nest.flatten(queue.dequeue()) for queue in q.queues]
        self._new = [
            [
                tf.compat.v1.placeholder(dtype, shape)
                for dtype, shape in zip(queue.dtypes, queue.shapes, strict=True)
            ]
            for queue in q.queues
        ]
        self._put = [q.enqueue(new) for q, new in zip(q.queues, self._new, strict=True)]
        self._reading = threading.Lock()
        self._step_begins = threading.Event()
        self._paced: _PacedSession | None = None
        self._read_position: Callable[[tf.compat.v1.Session], Any] | None = None
        self._get_size: Callable[[], int] = lambda: 0
        self._has_put = threading.Event()
        self._has_ended = False
        self.position_before_read: Any = None
        get_hooks().append(self)

    @property
    def num_tensors(self) -> int:
        """How many tensors a batch has."""
        return len(tf.nest.flatten(self._new))

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        super().before_run(run_context)
        self._step_begins.set()

    def note_positions(self, read_position: Callable[[tf.compat.v1.Session], Any]) -> None:
        """Has the thread note where the input stands before each read, as a stream needs it.

        Args:
            read_position: Returns the position.
        """
        self._read_position = read_position

    @contextlib.contextmanager
    def held(self, timeout_sec: float | None = None) -> Iterator[bool]:
        """Keeps the thread from reading; gives False if a read has not ended in time.

        Args:
            timeout_sec: How long that is; None is a minute.
        """
        is_held = self._reading.acquire(timeout=_HOLD_SEC if timeout_sec is None else timeout_sec)
        try:
            yield is_held
        finally:
            if is_held:
                self._reading.release()

    def is_reading(self) -> bool:
        """Returns whether a read goes on, and has not just ended."""
        if not self._reading.acquire(timeout=_END_OF_READ_SEC):
            return True
        self._reading.release()
        return False

    def wait_for_batch(self, timeout_sec: float) -> bool:
        """Waits until a step finds a batch, or the end; returns whether that is so."""
        self._has_put.clear()
        if self._has_ended or self._get_size() > 0:
            return True
        return self._has_put.wait(timeout_sec)

    def read(self, session: tf.compat.v1.Session) -> list[list[np.ndarray]]:
        """Returns the batches in the queue, the oldest first, and leaves them there.

        Only between two steps. If the thread is not held, the batch that it reads may be among
        them, or come to stand before them.
        """
        batches = []
        for _ in range(int(session.run(self._size))):
            batches.append(tf.nest.flatten(session.run(self._take)))
        self.fill(session, batches)
        return batches

    def fill(self, session: tf.compat.v1.Session, batches: Sequence[Sequence[np.ndarray]]) -> None:
        """Puts batches into the queue; no more than there were.

        Raises:
            ValueError: They have other tensors than those of the queue.
            tf.errors.InvalidArgumentError: Their shapes do not fit.
        """
        for batch in batches:
            session.run(self._put, dict(zip(tf.nest.flatten(self._new), batch, strict=True)))

    def _create_threads(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        self._has_ended = False
        self._get_size = get_size = session.make_callable(self._size)
        self._paced = _PacedSession(
            session, lambda enqueue: self._enqueue(session, get_size, coord, enqueue)
        )
        self._runner.create_threads(self._paced, coord=coord, daemon=True, start=True)

    def _enqueue(
        self,
        session: tf.compat.v1.Session,
        get_size: Callable[[], int],
        coord: tf.train.Coordinator,
        enqueue: Callable[[], Any],
    ) -> None:
        """Reads one batch when there is room for it."""
        # A step that begins is going to take one, so the next can be read at the same time.
        about_to_be_taken = 0
        while get_size() > self._capacity + about_to_be_taken:
            about_to_be_taken = int(self._step_begins.wait(_POLL_SEC))
            self._step_begins.clear()
            if coord.should_stop():
                return
        try:
            with self._reading:
                if coord.should_stop():
                    return  # Whoever ends reads that wait may have come by already.
                if self._read_position is not None:
                    self.position_before_read = self._read_position(session)
                enqueue()
            self._has_put.set()
        except tf.errors.OutOfRangeError:
            self._has_ended = True
            self._has_put.set()
            # Now the queue is closed. Nothing could be put into it again, so it must be empty.
            while not self._is_empty(get_size) and not coord.wait_for_stop(_END_POLL_SEC):
                pass
            raise

    def _is_empty(self, get_size: Callable[[], int]) -> bool:
        with self._reading:
            return get_size() == 0


class _PacedSession:
    """A session for a `QueueRunner`, whose enqueues go through a function."""

    def __init__(
        self, session: tf.compat.v1.Session, enqueue: Callable[[Callable[[], Any]], None]
    ) -> None:
        self._session = session
        self._enqueue = enqueue

    def make_callable(self, op: tf.Operation) -> Callable[[], None]:
        enqueue = self._session.make_callable(op)
        return lambda: self._enqueue(enqueue)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.run(*args, **kwargs)
