"""A program that a user sits before: what it shows on its terminal, and what is typed."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from support import warm as programs

PATIENCE_SEC = 120


class Program:
    """A program in a terminal of its own.

    Args:
        command: The program and its arguments.
        warm: Whether `command` is what would stand behind `python`, and is to be forked.
        environment: Variables that it gets besides those of this process.
    """

    def __init__(self, command: list[str], warm: bool = False, **environment: str) -> None:
        self._mine, theirs = pty.openpty()
        rows_and_columns = struct.pack("HHHH", 40, 200, 0, 0)  # Wide: no line is wrapped.
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, rows_and_columns)
        # A session of its own, whose terminal this is: so that Ctrl-C reaches it.
        start = self._fork if warm else self._execute
        # The size is the terminal's, not what the one around the tests may have said.
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = start(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=kept | environment
        )
        os.close(theirs)
        self.output = ""

    @staticmethod
    def _fork(command, **options):
        return programs.Program(command, on_terminal=True, **options)

    @staticmethod
    def _execute(command, **options):
        return subprocess.Popen(["setsid", "--ctty", "--wait", *command], **options)

    def read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_SEC
        while (match := re.search(pattern, self.output)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.output}"
            self._read(1.0)
        return match

    def read_to_end(self) -> int:
        while self._read(1.0):
            pass
        return self.process.wait(PATIENCE_SEC)

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def _read(self, timeout_sec: float) -> bool:
        """Returns whether there may be more."""
        if not select.select([self._mine], [], [], timeout_sec)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # What a terminal says when its program has ended.
            data = os.read(self._mine, 65536)
        self.output += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)
