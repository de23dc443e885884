"""Keeps a save and a training step apart, so that a checkpoint is of one moment.

The training loop saves between two steps by itself. A save that somebody else asks for, such as an
operator through the controller, comes from another thread: the gate lets the step under way end,
and the next one begin when the save is done. Then, too, gradients that wait to be pushed during the
next step are pushed first: otherwise a checkpoint would lack in its tables the last step that its
variables have.

Example:
    >>> with tf.Graph().as_default():
    ...     total = tf.Variable(0)
    ...     manager = prefetch.AsyncFunctionMgr()
    ...     step = manager.add_async_function(total.assign_add, (tf.constant(1),))
    ...     gate = StepGate(manager.hooks)
    ...     listener = gate.create_saver_listener()
    ...     with tf.compat.v1.train.SingularMonitoredSession(hooks=gate.hooks) as session:
    ...         session.run(step)
    ...         late = session.raw_session().run(total)
    ...         listener.before_save(session.raw_session(), 1)
    ...         saved = session.raw_session().run(total)
    ...         listener.after_save(session.raw_session(), 1)
    ...         int(late), int(saved)
    (0, 1)
"""

import logging
import threading
from collections.abc import Sequence

import tensorflow as tf

from monolith.tensor import prefetch

logger = logging.getLogger(__name__)

# A step takes that long only if it waits for its input, and that may be long in coming.
_MAX_STEP_SEC = 60.0
_POLL_SEC = 0.1


class StepGate:
    """Lets either a step or a save of another thread through.

    Args:
        pushes: The hooks of what is pushed one step late.
        max_step_sec: How long a save waits for the step under way.
    """

    def __init__(
        self, pushes: Sequence[prefetch.AsyncPushHook] = (), max_step_sec: float = _MAX_STEP_SEC
    ) -> None:
        self._pushes = list(pushes)
        self._max_step_sec = max_step_sec
        self._changed = threading.Condition()
        self._step_thread: int | None = None
        self._num_saves = 0
        self._coord: tf.train.Coordinator | None = None

    @property
    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """The hooks of the pushes, with what tells them and saves apart around them.

        They go before the hooks that save.
        """
        return [_EnterHook(self), *self._pushes, _LeaveHook(self)]

    def create_saver_listener(self) -> tf.compat.v1.train.CheckpointSaverListener:
        """Returns what must guard every save, before any other listener."""
        return _BetweenStepsListener(self)

    def drain(self, session: tf.compat.v1.Session) -> None:
        """Pushes what waits to be; only for the thread that trains, or while the gate is closed."""
        for push in self._pushes:
            push.drain(session)

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_saves == 0)
            self._step_thread = threading.get_ident()

    def _leave(self) -> None:
        with self._changed:
            self._step_thread = None
            self._changed.notify_all()

    def _start(self, coord: tf.train.Coordinator) -> None:
        # The step of a session that failed has not left.
        self._coord = coord
        self._leave()

    def _close(self) -> bool:
        """Keeps steps from beginning; returns whether none is under way."""
        if threading.get_ident() == self._step_thread:
            return True  # Its step is over, or it would not be here.
        with self._changed:
            self._num_saves += 1
            waited_sec = 0.0
            while self._step_thread is not None and waited_sec < self._max_step_sec:
                if self._coord is not None and self._coord.should_stop():
                    break
                self._changed.wait(_POLL_SEC)
                waited_sec += _POLL_SEC
            return self._step_thread is None

    def _open(self) -> None:
        if threading.get_ident() == self._step_thread:
            return
        with self._changed:
            self._num_saves = max(0, self._num_saves - 1)
            self._changed.notify_all()


class _EnterHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, gate: StepGate) -> None:
        self._gate = gate

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._gate._start(coord)

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._gate._enter()


class _LeaveHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, gate: StepGate) -> None:
        self._gate = gate

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._gate._leave()


class _BetweenStepsListener(tf.compat.v1.train.CheckpointSaverListener):
    """Closes the gate for a save, and has everything pushed."""

    def __init__(self, gate: StepGate) -> None:
        self._gate = gate

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        if self._gate._close():
            self._gate.drain(session)
            return
        logger.warning(
            "step %d is saved while a step is under way, which has not ended for %.0f seconds; "
            "what the last step has changed may be in one part of the checkpoint only",
            global_step_value,
            self._gate._max_step_sec,
        )

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._gate._open()
