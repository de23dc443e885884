"""A barrier at which all workers of a job stop between two steps, until it is removed.

The chief places it, for a checkpoint in which all workers must be at rest, or because an operator
asked for a pause. Each worker carries a `BarrierHook`, which looks at the barrier after every step
and waits there. The chief itself, index 0, never waits: somebody must be left to remove it.

Example:
    >>> with tf.Graph().as_default():
    ...     barrier_op = BarrierOp(capacity=1)
    ...     with tf.compat.v1.train.MonitoredSession() as session:
    ...         barrier_op.place_barrier(session)
    ...         blocked = barrier_op.get_blocked_indices(session)
    ...         barrier_op.remove_barrier(session)
    ...         blocked, barrier_op.is_none_blocked(session)
    ([0], True)
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from monolith import errors
from monolith.training.config import flags

logger = logging.getLogger(__name__)

BarrierCallback = Callable[[str, tf.compat.v1.Session], None]

_PLACED = 0
_LOG_EVERY_SEC = 60.0


class BarrierAlreadyPlacedError(errors.MonolithError):
    """The barrier is placed already; whoever placed it must remove it first."""


class BarrierOp:
    """The barrier of a job, shared by its processes.

    Element 0 of a boolean vector says that the barrier is placed, element i that worker i waits
    at it. The vector and the action are made anew by the chief; a worker that starts leaves both
    alone.

    Within one process any thread may call any method. Only one process, the chief, places it.

    Args:
        capacity: Number of workers, the chief included.
        is_chief: Whether this process is the chief.
        wait_seconds: Seconds between two looks of a waiting worker.
        name_prefix: Tells several barriers of one job apart.
        barrier_callbacks: Called as `callback(action, session)`: in the process that places the
            barrier, and in each worker that arrives at it.
        sleep: Waits for some seconds; None is `time.sleep`.
        clock: Returns a time in seconds that never goes back; only log lines depend on it.

    Raises:
        errors.ConfigError: `capacity` is not positive.
    """

    def __init__(
        self,
        capacity: int,
        is_chief: bool = True,
        wait_seconds: float = 1,
        name_prefix: str = "default",
        barrier_callbacks: Sequence[BarrierCallback] | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_seconds = wait_seconds
        self._callbacks = list(barrier_callbacks or [])
        self._sleep = sleep
        self._clock = clock
        self._place_lock = threading.Lock()
        scope = f"monolith_barrier/{name_prefix}"
        self._flags = flags.SharedFlags(f"{scope}/barrier_var", capacity, is_chief=is_chief)
        self._action = tf.compat.v1.get_variable(
            f"{scope}/barrier_op_action",
            shape=[],
            dtype=tf.string,
            initializer=tf.compat.v1.constant_initializer(""),
            trainable=False,
            use_resource=True,
            collections=flags.get_shared_collections(is_chief),
        )
        self._action_value = tf.compat.v1.placeholder(tf.string, [])
        self._set_action = self._action.assign(self._action_value, read_value=False)
        self._read_action = self._action.read_value()

    @property
    def capacity(self) -> int:
        """Number of workers, the chief included."""
        return self._flags.size

    @property
    def barrier_placed_tensor(self) -> tf.Tensor:
        """Whether the barrier is placed, a boolean scalar."""
        return self._flags.first

    def place_barrier(self, session: tf.compat.v1.Session, action: str = "") -> None:
        """Places the barrier, then calls the callbacks.

        Args:
            session: Where to place it.
            action: Tells the callbacks, here and in the workers, what it is placed for.

        Raises:
            BarrierAlreadyPlacedError: It is placed already; nothing was changed.
        """
        with self._place_lock:
            if self.is_barrier_placed(session):
                raise BarrierAlreadyPlacedError(
                    "The barrier is placed already; remove it before it is placed again."
                )
            # The action goes first: a worker that sees the barrier must see what it is for.
            session.run(self._set_action, {self._action_value: action})
            self._flags.set(session, _PLACED, True)
        logger.info("the barrier is placed, action %r", action)
        self._call_back(action, session)

    def remove_barrier(self, session: tf.compat.v1.Session) -> None:
        """Removes the barrier, whether or not it is placed; workers go on at their next look."""
        self._flags.set(session, _PLACED, False)
        logger.info("the barrier is removed")

    def is_barrier_placed(self, session: tf.compat.v1.Session) -> bool:
        """Returns whether the barrier is placed."""
        return self._flags.get(session, _PLACED)

    def is_barrier_removed(self, session: tf.compat.v1.Session) -> bool:
        """Returns whether the barrier is not placed."""
        return not self.is_barrier_placed(session)

    def wait_until_barrier_removed(self, session: tf.compat.v1.Session, index: int) -> None:
        """Waits at the barrier as worker `index`, after calling the callbacks with its action.

        Others see that it waits when the callbacks are done: a checkpoint holds what they push, and
        the position that they save. (The original says so before, and its checkpoints may not.)

        Raises:
            ValueError: `index` is the chief's or beyond the capacity.
        """
        if not 0 < index < self.capacity:
            raise ValueError(_describe_bad_index(index, self.capacity))
        try:
            action = session.run(self._read_action).decode()
            logger.info("worker %d waits at the barrier, action %r", index, action)
            self._call_back(action, session)
            self._flags.set(session, index, True)
            self._poll_until_removed(session, index)
        except BaseException:
            # A worker that has failed does not wait. If the session itself is lost, so is the flag.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self._flags.set(session, index, False)
            raise
        self._flags.set(session, index, False)
        logger.info("worker %d leaves the barrier", index)

    def is_all_blocked(self, session: tf.compat.v1.Session) -> bool:
        """Returns whether the barrier is placed and every worker waits at it."""
        return not self.get_unblocked_indices(session)

    def is_none_blocked(self, session: tf.compat.v1.Session) -> bool:
        """Returns whether the barrier is removed and no worker waits any more."""
        return not self.get_blocked_indices(session)

    def get_unblocked_indices(self, session: tf.compat.v1.Session) -> list[int]:
        """Returns the workers that do not wait; 0 is among them while no barrier is placed."""
        return self._flags.find(session, False)

    def get_blocked_indices(self, session: tf.compat.v1.Session) -> list[int]:
        """Returns the workers that wait; 0 is among them while a barrier is placed."""
        return self._flags.find(session, True)

    def _poll_until_removed(self, session: tf.compat.v1.Session, index: int) -> None:
        last_log_sec = self._clock()
        while self.is_barrier_placed(session):
            if self._clock() - last_log_sec >= _LOG_EVERY_SEC:
                last_log_sec = self._clock()
                logger.info("worker %d still waits at the barrier", index)
            (self._sleep or time.sleep)(self._wait_seconds)

    def _call_back(self, action: str, session: tf.compat.v1.Session) -> None:
        for callback in self._callbacks:
            callback(action, session)


class BarrierHook(tf.compat.v1.train.SessionRunHook):
    """Makes one worker wait between two steps while the barrier is placed.

    Args:
        index: Which worker this is; 0 is the chief, which does not wait.
        barrier_op: The barrier of the job.

    Raises:
        ValueError: `index` is negative or beyond the capacity.
    """

    def __init__(self, index: int, barrier_op: BarrierOp) -> None:
        if not 0 <= index < barrier_op.capacity:
            raise ValueError(_describe_bad_index(index, barrier_op.capacity))
        self._index = index
        self._barrier_op = barrier_op

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._barrier_op.barrier_placed_tensor)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if run_values.results and self._index > 0:
            self._barrier_op.wait_until_barrier_removed(run_context.session, self._index)


def _describe_bad_index(index: int, capacity: int) -> str:
    return f"Index [{index}] must be non-negative and less than capacity [{capacity}]. "
