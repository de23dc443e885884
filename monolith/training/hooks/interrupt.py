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
import os
import signal
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

logger = logging.getLogger(__name__)

_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
# What a shell adds to the number of the signal that has ended a program.
_SIGNAL_EXIT_CODE = 128
# No signal has the number 0.
_STOP = b"\0"


class StopOnSignalHook(tf.compat.v1.train.SessionRunHook):
    """Turns signals into a stop after the step that is going on.

    The first signal only leaves a mark; the second, of an impatient user, does what it would have
    done without the hook: Ctrl-C raises `KeyboardInterrupt`. The handlers from before come back
    when the session ends. In a thread that is not the main one, where Python does not allow
    handlers, the hook does nothing.

    Args:
        signals: The signals.
        only_default: Whether a signal is left alone that is ignored, as in a job of `nohup`, or
            that the program handles itself. The second one then ends the process at once, also
            in the middle of a long save, or of a step that waits for its input.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        only_default: bool = False,
    ) -> None:
        self._signals = tuple(signals)
        self._only_default = only_default
        self._previous: dict[signal.Signals, Any] = {}
        self._received: signal.Signals | None = None
        self._logged = False
        self._watcher: _Watcher | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The signal that stopped training, None if none did."""
        return self._received

    def begin(self) -> None:
        self._received, self._logged = None, False
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in self._signals:
            if not self._only_default or signal.getsignal(number) in _DEFAULT_HANDLERS:
                self._previous[number] = signal.signal(number, self._handle)
        if self._only_default and self._previous and not _is_interactive():
            self._watcher = _Watcher(tuple(self._previous))

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
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        while self._previous:
            number, handler = self._previous.popitem()
            # None is a handler that was not set from Python, which cannot be set again either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self._received is None:
            self._received = signal.Signals(number)
            if self._only_default and not _is_interactive():
                # Python would call a handler only when the op that is running returns, which may
                # be the one that writes a table; the system does not wait for that.
                for installed in self._previous:
                    signal.signal(installed, signal.SIG_DFL)
            return
        self.restore_handlers()
        signal.raise_signal(number)


class _Watcher:
    """Ends the process at the second signal if Python has not come to handle the first.

    It does so between two ops only, and an op may wait for a batch for hours.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = signals
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if previous != -1:
            signal.set_wakeup_fd(previous)  # Somebody else, such as asyncio, wants to know.
        self._is_set = previous == -1
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Lets signals be; only in the main thread."""
        if self._is_set:
            signal.set_wakeup_fd(-1)
        os.write(self._writer, _STOP)
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        count = 0
        while (received := os.read(self._reader, 1)) not in (_STOP, b""):
            count += received[0] in self._signals
            if count == 2:
                os._exit(_SIGNAL_EXIT_CODE + received[0])


class TrainingInterrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C has stopped a training, and all is saved.

    It can be caught as what it is, a `KeyboardInterrupt`. Where nobody does, the program ends with
    the exit code of one, 130, and without a traceback: nothing has gone wrong.
    """

    def __init__(self) -> None:
        super().__init__("Ctrl-C has stopped the training; it is saved.")
        self.code = _SIGNAL_EXIT_CODE + signal.SIGINT


def end_as_told(number: signal.Signals) -> NoReturn:
    """Ends the program as the signal would have done without a hook, but in order.

    Raises:
        KeyboardInterrupt: It was Ctrl-C; a `TrainingInterrupted`, except in a shell or a notebook.
        SystemExit: It was another one, with the exit code that a shell shows for it.
    """
    if number != signal.SIGINT:
        raise SystemExit(_SIGNAL_EXIT_CODE + number)
    if _is_interactive():
        raise KeyboardInterrupt
    raise TrainingInterrupted


def _is_interactive() -> bool:
    """Returns whether somebody has a shell or a notebook that must survive the second Ctrl-C."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
