"""A look into a running process: SIGUSR1 prints the stack of its main thread.

Importing this module installs the handler; a handler that was there before still runs, first.
"""

import os
import signal
import sys
import threading
import traceback
import types

_STDERR_FILE_DESCRIPTOR = 2


def print_stack_trace(sig: int, frame: types.FrameType | None) -> None:
    """Prints the stack that leads to `frame`; has the form of a signal handler."""
    stack = traceback.format_stack(frame)
    try:
        for line in stack:
            print(line)
        sys.stdout.flush()
    except RuntimeError:
        # The signal interrupted another write to stdout, which does not allow a nested one. The
        # error would surface at that place in the program and end it.
        os.write(_STDERR_FILE_DESCRIPTOR, "\n".join(stack).encode(errors="replace"))


def add_siguser1_handler() -> None:
    """Makes SIGUSR1 call its previous handler, if there is one, and then print the stack."""
    previous = signal.getsignal(signal.SIGUSR1)

    def handle(sig: int, frame: types.FrameType | None) -> None:
        if callable(previous):
            previous(sig, frame)
        print_stack_trace(sig, frame)

    signal.signal(signal.SIGUSR1, handle)


# Python sets handlers in the main thread only; an import from another thread must not fail.
if threading.current_thread() is threading.main_thread():
    add_siguser1_handler()
