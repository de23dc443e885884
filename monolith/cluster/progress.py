"""One log line for a wait that may be long: when it starts, when it changes, once a minute.

Members of a job wait for each other. An operator who looks at a job that does not start must see
what it waits for, without a line for every poll.

Example:
    >>> import logging
    >>> progress = WaitProgress(logging.getLogger("example"))
    >>> progress.report("Waiting for ps 0.")   # logged
    True
    >>> progress.report("Waiting for ps 0.")   # the same again within a minute
    False
    >>> progress.report("Waiting for ps 1.")   # something changed
    True
"""

import logging
import time
from collections.abc import Callable

_REPEAT_SEC = 60.0


class WaitProgress:
    """Decides which reports of one wait become log lines.

    Args:
        logger: Where the lines go.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._start_sec = clock()
        self._last_message: str | None = None
        self._last_log_sec = 0.0

    def report(self, message: str) -> bool:
        """Says what is still missing; returns whether that was worth a log line."""
        now_sec = self._clock()
        if message == self._last_message and now_sec - self._last_log_sec < _REPEAT_SEC:
            return False
        self._last_message = message
        self._last_log_sec = now_sec
        self._logger.info("%s (waited %.0f s)", message, now_sec - self._start_sec)
        return True
