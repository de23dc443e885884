"""Workers that come with the tide, and workers that wait until a run has settled.

Spare machines are lent for some hours of the day. `TideStoppingHook` ends a worker when they are
over. `CustomGlobalStepWaiterHook` keeps a worker from starting before the others have made some
steps: a cold model with many workers learns badly.

Example:
    >>> hook = TideStoppingHook(0, 0, 24, 0)
    >>> with tf.Graph().as_default():
    ...     step = tf.constant(1)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         _ = session.run(step)
    ...         session.should_stop()
    False
"""

import logging
import random
import time
from collections.abc import Callable

import tensorflow as tf

from monolith import errors
from monolith.checkpoint.tide import before, check_time_of_day, tide_available_now

logger = logging.getLogger(__name__)

__all__ = ["CustomGlobalStepWaiterHook", "TideStoppingHook", "before", "tide_available_now"]

_POLL_SEC = 0.5
_LOG_EVERY_SEC = 60.0
_MAX_EXTRA_WAIT_SEC = 600.0


class CustomGlobalStepWaiterHook(tf.compat.v1.train.SessionRunHook):
    """Holds back the first step of a worker until the job has reached a global step.

    The worker also starts when the job makes steps but stays below that step for too long, counted
    from the moment at which the global step is seen above 1. Outside of the tide, if one is given,
    it does not start but requests a stop.

    Args:
        wait_until_step: The global step to wait for; 0 or less starts at once.
        tide_start_hour: Hour (UTC) at which the tide comes in; None, with the end, is always.
        tide_start_minute: Minute of that hour; None is 0.
        tide_end_hour: Hour (UTC) at which the tide goes out.
        tide_end_minute: Minute of that hour; None is 0.
        max_non_tide_wait_minute: Minutes after which the worker starts anyway.
        extra_wait_sec: Seconds added to them. None draws 0 to 600, so that workers that have
            waited in vain do not all start at the same moment.
        clock: Returns a time in seconds that never goes back.
        sleep: Waits for some seconds; None is `time.sleep`.

    Raises:
        errors.ConfigError: Only one end of the tide is given, or a time is not on a clock.
    """

    def __init__(
        self,
        wait_until_step: int,
        tide_start_hour: int | None = None,
        tide_start_minute: int | None = None,
        tide_end_hour: int | None = None,
        tide_end_minute: int | None = None,
        max_non_tide_wait_minute: float = 10,
        *,
        extra_wait_sec: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._wait_until_step = wait_until_step
        self._tide = _make_tide(tide_start_hour, tide_start_minute, tide_end_hour, tide_end_minute)
        if extra_wait_sec is None:
            extra_wait_sec = random.uniform(0, _MAX_EXTRA_WAIT_SEC)
        self._max_wait_sec = max_non_tide_wait_minute * 60 + extra_wait_sec
        self._clock = clock
        self._sleep = sleep
        self._worker_is_started = False
        self._global_step: tf.Variable | None = None

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "Global step should be created to use CustomGlobalStepWaiterHook; call "
                "tf.compat.v1.train.get_or_create_global_step() while building the graph."
            )

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        if self._worker_is_started:
            return
        if self._wait_until_step > 0 and not self._wait(run_context):
            return
        self._worker_is_started = True

    def _wait(self, run_context: tf.compat.v1.train.SessionRunContext) -> bool:
        """Returns whether the worker may start; if not, a stop has been requested."""
        logger.info("waiting for global step %d before this worker starts", self._wait_until_step)
        first_step_sec: float | None = None
        last_log_sec = self._clock()
        while True:
            if self._tide is not None and not tide_available_now(*self._tide):
                logger.info("%s, this worker stops before it has started", _describe(self._tide))
                run_context.request_stop()
                return False
            step = int(run_context.session.run(self._global_step))
            if step >= self._wait_until_step:
                logger.info("global step %d is reached, this worker starts", step)
                return True
            now_sec = self._clock()
            if step > 1 and first_step_sec is None:
                first_step_sec = now_sec
            if first_step_sec is not None and now_sec - first_step_sec > self._max_wait_sec:
                logger.warning(
                    "global step is %d, still below %d after %.0f seconds; this worker starts",
                    step,
                    self._wait_until_step,
                    now_sec - first_step_sec,
                )
                return True
            if now_sec - last_log_sec >= _LOG_EVERY_SEC:
                last_log_sec = now_sec
                logger.info("waiting for global step %d, it is %d", self._wait_until_step, step)
            (self._sleep or time.sleep)(_POLL_SEC)


class TideStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Requests a stop at the first step outside of the tide.

    Args:
        tide_start_hour: Hour (UTC) at which the tide comes in.
        tide_start_minute: Minute of that hour.
        tide_end_hour: Hour (UTC) at which the tide goes out.
        tide_end_minute: Minute of that hour.

    Raises:
        errors.ConfigError: A time is not on a clock.
    """

    def __init__(
        self,
        tide_start_hour: int,
        tide_start_minute: int,
        tide_end_hour: int,
        tide_end_minute: int,
    ) -> None:
        tide = _make_tide(tide_start_hour, tide_start_minute, tide_end_hour, tide_end_minute)
        if tide is None:
            raise errors.ConfigError(
                "TideStoppingHook needs tide_start_hour and tide_end_hour, got None for both; "
                "leave the hook out to train at all hours."
            )
        self._tide = tide

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        if not tide_available_now(*self._tide):
            logger.info("%s, this worker stops", _describe(self._tide))
            run_context.request_stop()


def _make_tide(
    start_hour: int | None,
    start_minute: int | None,
    end_hour: int | None,
    end_minute: int | None,
) -> tuple[int, int, int, int] | None:
    if start_hour is None and end_hour is None:
        return None
    if start_hour is None or end_hour is None:
        raise errors.ConfigError(
            f"A tide needs both hours, got tide_start_hour={start_hour} and "
            f"tide_end_hour={end_hour}; give both, or neither for no tide."
        )
    check_time_of_day("The start of the tide", start_hour, start_minute or 0)
    check_time_of_day("The end of the tide", end_hour, end_minute or 0)
    return start_hour, start_minute or 0, end_hour, end_minute or 0


def _describe(tide: tuple[int, int, int, int]) -> str:
    start_hour, start_minute, end_hour, end_minute = tide
    return (
        f"the tide, {start_hour:02}:{start_minute:02} to {end_hour:02}:{end_minute:02} UTC, is out"
    )
