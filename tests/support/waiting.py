"""Waiting for something to happen, and never for a time: machines are busy."""

import time

PATIENCE_SEC = 60.0


def wait_for(condition, timeout_sec=PATIENCE_SEC, describe=None):
    """Asks until the answer is true, and returns it.

    Args:
        condition: What is asked.
        timeout_sec: For how long.
        describe: Says what is wrong if it stays false; by default the last answer does.
    """
    deadline_sec = time.monotonic() + timeout_sec
    while not (answer := condition()):
        assert time.monotonic() < deadline_sec, (
            f"Not within {timeout_sec} s: {answer if describe is None else describe()!r}"
        )
        time.sleep(0.01)
    return answer
