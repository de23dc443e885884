"""Ends training in order when the process is asked to: the hooks that save still do so.

Example:
    >>> with tf.Graph().as_default():
    ...     hook = StopOnSignalHook([signal.SIGUSR2])
    ...     step = tf.constant(1)
    ...     with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
    ...         _ = session.run(step)
    ...         signal.raise_signal(signal.SIGUSR2)
    ...         _ = session.run(step)
    ...         session.should_stop()
    True
"""

import logging
import signal
import threading
import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)


class StopOnSignalHook(tf.compat.v1.train.SessionRunHook):
    """Turns signals into a stop after the step that is going on.

    The first signal only leaves a mark; the second, of an impatient user, does what it would have
    done without the hook: Ctrl-C raises `KeyboardInterrupt`. The handlers from before come back
    when the session ends. In a thread that is not the main one, where Python does not allow
    handlers, the hook does nothing.

    Args:
        signals: The signals.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._received: signal.Signals | None = None
        self._logged = False

    @property
    def received(self) -> signal.Signals | None:
        """The signal that stopped training, None if none did."""
        return self._received

    def begin(self) -> None:
        self._received, self._logged = None, False
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._handle)

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._received is not None:
            coord.request_stop()

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if self._received is None:
            return
        if not self._logged:
            # Not in the handler: it may have interrupted a log line, whose lock it would wait for.
            self._logged = True
            logger.warning(
                "%s: training stops after this step and is saved; once more ends it at once",
                self._received.name,
            )
        run_context.request_stop()

    def end(self, session: tf.compat.v1.Session) -> None:
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Puts the handlers back; for sessions that fail, whose hooks' `end` is not called."""
        while self._previous:
            number, handler = self._previous.popitem()
            # None is a handler that was not set from Python, which cannot be set again either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self._received is None:
            self._received = signal.Signals(number)
            return
        self.restore_handlers()
        signal.raise_signal(number)
