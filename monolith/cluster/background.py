"""Threads that call TensorFlow and that nobody waits for, except the end of the process.

A thread that comes back from TensorFlow while the interpreter ends takes the whole process down
("terminate called", exit code -6), after a job that went well. So whoever leaves a call to such a
thread has the exit wait for it, for a while: a call that is answered at all is answered by then.

Example:
    >>> class Greeting(BackgroundCall):
    ...     def run(self):
    ...         print("hello")
    >>> greeting = Greeting("greeting")
    >>> greeting.start()
    hello
    >>> greeting.join()
"""

import atexit
import threading
import time
import weakref

# How long the process waits at its end, for all of them together.
EXIT_WAIT_SEC = 5.0

_calls: "weakref.WeakSet[BackgroundCall]" = weakref.WeakSet()


class BackgroundCall(threading.Thread):
    """A daemon thread for which the end of the process waits.

    Args:
        name: What the thread is called.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        _calls.add(self)


def _wait_for_calls() -> None:
    deadline_sec = time.monotonic() + EXIT_WAIT_SEC
    for call in list(_calls):
        if call.is_alive():
            call.join(max(0.0, deadline_sec - time.monotonic()))


# Runs before the interpreter takes itself apart, while daemon threads still may go on.
atexit.register(_wait_for_calls)
