"""When to save: every so many seconds or steps, and at another pace outside of the tide.

Example:
    >>> timer = SecondOrStepTimerWithTideSetting(every_steps=10)
    >>> timer.should_trigger_for_step(0)
    True
    >>> _ = timer.update_last_triggered_step(0)
    >>> timer.should_trigger_for_step(9), timer.should_trigger_for_step(10)
    (False, True)
    >>> timer.disable()
    >>> timer.should_trigger_for_step(10)
    False
"""

import time

import tensorflow as tf

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.tide import check_time_of_day, tide_available_now


class SecondOrStepTimerWithTideSetting(tf.compat.v1.train.SecondOrStepTimer):  # type: ignore[misc]
    """TensorFlow's timer that knows the tide, and can be switched off.

    Outside of the tide (see `monolith.checkpoint.tide`) only `tide_every_secs` counts. The tide is
    ignored unless its hours and `tide_every_secs` are all given.

    Args:
        every_secs: Triggers when so many seconds have passed since the last time.
        every_steps: Triggers when so many steps have passed; give this or `every_secs`.
        tide_start_hour: Hour (UTC) at which the tide comes in.
        tide_start_minute: Minute of that hour; None is 0.
        tide_end_hour: Hour (UTC) at which the tide goes out.
        tide_end_minute: Minute of that hour; None is 0.
        tide_every_secs: Seconds between two triggers while there is no tide.
        save_helper: Accepted from callers that pass it; nothing here depends on it.

    Raises:
        ValueError: Both of `every_secs` and `every_steps` are given, or none; or a time of the
            tide is not on a clock.
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        tide_start_hour: int | None = None,
        tide_start_minute: int | None = None,
        tide_end_hour: int | None = None,
        tide_end_minute: int | None = None,
        tide_every_secs: float | None = None,
        save_helper: SaveHelper | None = None,
    ) -> None:
        super().__init__(every_secs=every_secs, every_steps=every_steps)
        self._enabled = True
        self._tide: tuple[int, int, int, int] | None = None
        if tide_start_hour is not None and tide_end_hour is not None:
            start = tide_start_hour, tide_start_minute or 0
            end = tide_end_hour, tide_end_minute or 0
            check_time_of_day("The start of the tide", *start)
            check_time_of_day("The end of the tide", *end)
            self._tide = start + end
        self._tide_every_secs = tide_every_secs
        self._also_every_steps: int | None = None
        self._first_step: int | None = None

    def enable(self) -> None:
        """Lets the timer trigger again."""
        self._enabled = True

    def disable(self) -> None:
        """Keeps the timer from triggering, until `enable`."""
        self._enabled = False

    def also_trigger_every(self, steps: int) -> None:
        """Makes the timer trigger after so many steps as well, whatever its pace and the tide.

        Args:
            steps: How many, counted from the first step at which it has triggered.
        """
        self._also_every_steps = steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that the timer has triggered; returns seconds and steps since the last time."""
        if self._first_step is None:
            self._first_step = step
        elapsed: tuple[float | None, int | None] = super().update_last_triggered_step(step)
        return elapsed

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether it is time: at first always, and never twice at one step."""
        if not self._enabled:
            return False
        if self._count(step) > self._count(self._last_triggered_step):
            return True
        if (
            self._tide is None
            or self._tide_every_secs is None
            or self._last_triggered_step is None
            or tide_available_now(*self._tide)
        ):
            return bool(super().should_trigger_for_step(step))
        if step == self._last_triggered_step:
            return False
        return bool(time.time() >= self._last_triggered_time + self._tide_every_secs)

    def _count(self, step: int | None) -> int:
        """Returns how often the timer should have triggered beside its pace before a step."""
        if self._also_every_steps is None or self._first_step is None or step is None:
            return 0
        return (step - self._first_step) // self._also_every_steps
