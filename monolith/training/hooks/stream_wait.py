"""A training that waits for a stream waits between two steps.

A step that has begun and waits for its batch stands in the way of everything that happens between
steps: a save waits for the worker, or goes on without knowing how far it has read, and a signal to
stop is noticed with the next batch only, which may be hours away. So with batches that a thread
reads ahead, a step begins when there is one. When the training ends, so does the thread's read.

Example:
    >>> from monolith.tensor import look_ahead, prefetch
    >>> with tf.Graph().as_default():
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
    ...     batch, queue = prefetch.enqueue_dicts_with_queue_return(
    ...         batch, look_ahead.get_queue_capacity(1)
    ...     )
    ...     fill = look_ahead.LookAheadHook(queue, 1)
    ...     wait = StreamWaitHook(fill, [], lambda session: None)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[wait, fill]) as session:
    ...         while not session.should_stop():
    ...             print(int(session.run(batch)))
    0
    1
"""

import threading
from collections.abc import Callable, Sequence

import tensorflow as tf

from monolith.data import sources
from monolith.tensor import look_ahead

_REST_SEC = 0.2


class StreamWaitHook(tf.compat.v1.train.SessionRunHook):
    """Begins a step when there is a batch. Goes before all other hooks that begin something.

    Args:
        queue_hook: Fills the queue that a step takes its batch from.
        streams: What is read.
        on_rest: Called with the session a few times a second while there is no batch.
        is_stopping: Whether training is to end instead of waiting.
        rest_sec: How long is waited between two calls.
    """

    def __init__(
        self,
        queue_hook: look_ahead.LookAheadHook,
        streams: Sequence[sources.Source],
        on_rest: Callable[[tf.compat.v1.Session], None],
        is_stopping: Callable[[], bool] = lambda: False,
        rest_sec: float = _REST_SEC,
    ) -> None:
        self._queue_hook = queue_hook
        self._streams = streams
        self._on_rest = on_rest
        self._is_stopping = is_stopping
        self._rest_sec = rest_sec
        self._coord: tf.train.Coordinator | None = None

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._coord = coord
        # Nobody tells a hook that a session has failed, and its threads are waited for then.
        threading.Thread(target=self._end_reads, args=(coord,), daemon=True).start()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """Waits; called by the session.

        Raises:
            tf.errors.OutOfRangeError: Training is to end.
        """
        while not self._queue_hook.wait_for_batch(self._rest_sec):
            if self._coord is not None and self._coord.should_stop():
                return
            if self._is_stopping():
                # The session takes it as the end of the input: all is pushed and saved.
                raise tf.errors.OutOfRangeError(None, None, "training is told to end")
            self._on_rest(run_context.session)

    def _end_reads(self, coord: tf.train.Coordinator) -> None:
        coord.wait_for_stop()
        while self._queue_hook.is_reading():
            for stream in self._streams:
                stream.end_waits()
