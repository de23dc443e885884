"""Queues inside the graph: the next batch is prepared, and the last one sent off, during a step.

`enqueue_dicts_with_queue_return` puts a queue between the input and the model, and `EnqueueHook`
fills it from a thread. `AsyncFunctionMgr` does the opposite: it takes work out of a step, such as
sending gradients to parameter servers, and does it during the next one.

Example:
    >>> with tf.Graph().as_default():
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    ...     features, queue = enqueue_dicts_with_queue_return({"id": batch, "source": "range"})
    ...     doubled = features["id"] * 2
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[EnqueueHook(queue)]) as session:
    ...         while not session.should_stop():
    ...             print(session.run(doubled))
    0
    2
    4
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import dependence
from monolith.tensor import nested
from monolith.tensor.input_gate import InputGate
from monolith.tensor.queues import (
    _FIFOQueue,  # noqa: F401
    _GPUCompatiblePaddingFIFOQueue,  # noqa: F401
    _MultiFIFOQueue,
)

logger = logging.getLogger(__name__)

# A thread that has not ended this long after it was told to is worth a line in the log.
_STOP_LOG_SECS = 10.0


class MultiQueueRunner(tf.compat.v1.train.QueueRunner):
    """A `QueueRunner` for several queues that one op fills together.

    At the end of the input the queues are closed and what is in them can still be dequeued. When
    the session stops, or after any other error, enqueues that wait are cancelled; the coordinator
    hears of the error and raises it in the training loop.
    """

    def _init_from_args(
        self,
        queue: Any = None,
        enqueue_ops: Sequence[tf.Operation] | None = None,
        close_op: tf.Operation | None = None,
        cancel_op: tf.Operation | None = None,
        queue_closed_exception_types: tuple[type[Exception], ...] | None = None,
    ) -> None:
        if isinstance(queue, (list, tuple)) and queue:
            if close_op is None:
                close_op = tf.group(*[q.close() for q in queue])
            if cancel_op is None:
                cancel_op = tf.group(*[q.close(cancel_pending_enqueues=True) for q in queue])
            queue = queue[0] if len(queue) == 1 else list(queue)
        super()._init_from_args(
            queue=queue,
            enqueue_ops=enqueue_ops,
            close_op=close_op,
            cancel_op=cancel_op,
            queue_closed_exception_types=queue_closed_exception_types,
        )
        self._enqueue_threads: list[threading.Thread] = []

    @property
    def queue(self) -> Any:
        """The queue, if there is only one."""
        if isinstance(self._queue, list):
            raise NotImplementedError("This runner fills several queues; it has no single one.")
        return self._queue

    @property
    def name(self) -> str:
        """The name of the queue, or of the first one."""
        return self._queue[0].name if isinstance(self._queue, list) else self._queue.name

    def create_threads(
        self,
        sess: tf.compat.v1.Session,
        coord: tf.train.Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        threads = super().create_threads(sess, coord=coord, daemon=daemon, start=False)
        if threads:
            self._enqueue_threads = threads[: len(self.enqueue_ops)]
        if start:
            for thread in threads:
                thread.start()
        return threads

    def _close_on_stop(
        self, sess: tf.compat.v1.Session, cancel_op: tf.Operation, coord: tf.train.Coordinator
    ) -> None:
        enqueue_threads = self._enqueue_threads
        super()._close_on_stop(sess, cancel_op, coord)
        for thread in enqueue_threads:
            thread.join(_STOP_LOG_SECS)
            if thread.is_alive():
                logger.warning(
                    "Queue %s was told to stop %.0f s ago, but its input still computes or waits "
                    "for data; the thread ends with that, or when the session is closed",
                    self.name,
                    _STOP_LOG_SECS,
                )


class EnqueueHook(tf.compat.v1.train.SessionRunHook):
    """Fills a queue from a thread for as long as the session lives.

    An error of the thread is raised in the training loop by the next call of `run` or
    `should_stop`. A call of `run` that already waits for the queue ends with `OutOfRangeError`, as
    at the end of the input; the error is then raised when the session is closed.
    """

    def __init__(self, q: _MultiFIFOQueue) -> None:
        """Makes the ops that the thread needs; `q` has `queues` and an `enqueue_op`."""
        self._runner = MultiQueueRunner(q.queues, [q.enqueue_op])
        self._coord: tf.train.Coordinator | None = None

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._coord is not None:
            # The session before this one never came to life, so nobody has stopped its thread.
            self._coord.request_stop()
        self._coord = coord
        self._create_threads(session, coord)

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._raise_error_of_thread()

    def end(self, session: tf.compat.v1.Session) -> None:
        self._raise_error_of_thread()

    def _create_threads(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        self._runner.create_threads(session, coord=coord, daemon=True, start=True)

    def _raise_error_of_thread(self) -> None:
        if self._coord is not None:
            self._coord.raise_requested_exception()


def enqueue_dicts_with_queue_return(
    tensors: Any, capacity: int = 1, queue_name: str = "prefetch_queue"
) -> tuple[Any, _MultiFIFOQueue | None]:
    """Puts a queue between `tensors` and their users.

    Args:
        tensors: A nested structure as `NestedTensors` takes it; constants in it do not go through
            the queue.
        capacity: How many elements may wait in the queue; 0 for no queue.
        queue_name: Name of the op.

    Returns:
        The same structure with the tensors that come out of the queue, and the queue: hand it to
        an `EnqueueHook`, or run its `enqueue_op`. Without a queue `tensors` itself and `None`.

    Raises:
        ValueError: The capacity is negative, or the structure holds no tensor or a wrong one.
    """
    if capacity == 0:
        return tensors, None
    if capacity < 0:
        raise ValueError(f"The capacity of queue '{queue_name}' must not be negative: {capacity}.")
    nested_tensors = nested.NestedTensors(tensors)
    queue = _MultiFIFOQueue(nested_tensors.get_tensors(), capacity, queue_name)
    # Without control dependencies: to use an element must not run what made it.
    with tf.init_scope():
        dequeued = queue.dequeue()
    return nested_tensors.get_nested_result(dequeued), queue


class AsyncPushHook(tf.compat.v1.train.SessionRunHook):
    """Runs `ops`, which take an element off `queue`, along with each step once there is one.

    What a step enqueues is worked off during the next one, and the rest when the session ends.
    """

    def __init__(self, queue: _MultiFIFOQueue, ops: Any, gate: InputGate | None = None) -> None:
        """Makes a hook for ops that are in the graph already.

        Args:
            queue: The queue.
            ops: Whatever `Session.run` can fetch.
            gate: Holds `ops` back until the input of their step is there; `AsyncFunctionMgr` makes
                it. Without one every step must enqueue an element, or the next one waits for ever,
                and the step that meets the end of the input may lose one.
        """
        self._queue = queue
        self._run_ops = ops
        self._gate = gate
        self._queue_init = False
        self._may_be_lost = False
        self._queue_size: tf.Tensor | None = None

    def begin(self) -> None:
        self._queue_size = self._queue.size()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        # A session that replaces a broken one starts with an empty queue.
        self._queue_init = self._may_be_lost = False

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        if not self._queue_init:
            return None
        if self._gate is None:
            self._may_be_lost = True
            return tf.compat.v1.train.SessionRunArgs(self._run_ops)
        if self._gate.is_fed_by(run_context.original_args.fetches):
            fetches = (self._run_ops, self._gate.open_with_input)
        else:
            # A step that enqueues nothing, so the queue may be empty after it; or another hook
            # runs the enqueue, which must not wait for room in vain.
            fetches = (self._run_ops, self._gate.open_now)
            self._may_be_lost, self._queue_init = True, False
        return tf.compat.v1.train.SessionRunArgs(fetches)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._may_be_lost = False
        if not self._queue_init:
            self._queue_init = run_context.session.run(self._queue_size) > 0

    def drain(self, session: tf.compat.v1.Session) -> None:
        """Works off what is in the queue now, instead of during the next step.

        Only between two steps: a step that is under way takes an element off the queue, too.

        Args:
            session: The session of the run, not the monitored one, which would call this hook.
        """
        fetches = (self._run_ops, self._gate.open_now) if self._gate else self._run_ops
        while session.run(self._queue_size) > 0:
            session.run(fetches)
        self._queue_init = False

    def end(self, session: tf.compat.v1.Session) -> None:
        try:
            self.drain(session)
        except tf.errors.OutOfRangeError:
            self._may_be_lost = True
        if self._may_be_lost:
            logger.warning(
                "The last element of queue %s may be lost: its async ops ran in the step in which "
                "the input ended, or need that input themselves; hand it to them as an argument",
                self._queue.queues[0].name,
            )


class AsyncFunctionMgr:
    """Moves functions of a training step to the time of the next one.

    Example:
        >>> with tf.Graph().as_default():
        ...     total = tf.Variable(0)
        ...     manager = AsyncFunctionMgr()
        ...     enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))
        ...     with tf.compat.v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
        ...         for _ in range(3):
        ...             session.run(enqueue)
        ...             print(session.raw_session().run(total))
        0
        1
        2
    """

    def __init__(self, is_async: bool = True) -> None:
        """Makes a manager; `is_async` is for functions that do not say it themselves."""
        self._is_async = is_async
        self._hooks: list[AsyncPushHook] = []

    @property
    def hooks(self) -> list[AsyncPushHook]:
        """The hooks that a training session needs for the functions added so far."""
        return self._hooks

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Builds `target(*args, **kwargs)`, to be run one step late.

        The function starts when the input of that step is there. So at the end of the input, which
        aborts the step and whatever runs in it, the last arguments are still in the queue.

        Args:
            target: Adds ops to the graph and returns them. Tensors of the step before come through
                its arguments; others that it uses are those of the step that it runs in.
            args: Positional arguments, nested structures as `NestedTensors` takes them.
            kwargs: Keyword arguments, of the same kind.
            is_async: Overrides the manager's setting.
            queue_name: Name of the queue that keeps the arguments until the next step.

        Returns:
            The op that a step has to run to hand over its arguments; what `target` returns if it
            is not asynchronous.

        Raises:
            RuntimeError: The arguments depend on what `target` does.
            ValueError: It returns nothing, or an argument cannot be enqueued.
        """
        args, kwargs = list(args or ()), dict(kwargs or {})
        if not (self._is_async if is_async is None else is_async):
            return target(*args, **kwargs)
        # A token, because without arguments there would be nothing to enqueue.
        (args, kwargs), queue = enqueue_dicts_with_queue_return(
            ([*args, tf.constant(0, name="async_token")], kwargs), queue_name=queue_name
        )
        assert queue is not None
        # Nothing of the step around us: at the end the ops run without a step.
        with tf.control_dependencies(None):
            with tf.control_dependencies([args[-1]]):
                dummy_op = tf.no_op(name="async_begin")
            with tf.control_dependencies([args[-1], dummy_op]):
                run_ops = target(*args[:-1], **kwargs)
        if run_ops is None:
            raise ValueError(f"The async function of queue '{queue_name}' must return its ops.")
        dependence.check_ops_dependence(queue.enqueue_op.name, dummy_op.name)
        dequeued = nested.NestedTensors((args, kwargs)).get_tensors()
        gate = InputGate(queue.enqueue_op, {tensor.op for tensor in dequeued})
        self._hooks.append(AsyncPushHook(queue, run_ops, gate))
        return queue.enqueue_op
