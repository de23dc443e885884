"""Terminals to test with: one that a text is written to, and one that a program runs on."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence

import pyte
import rich.console


class Terminal:
    """What a person would see on a terminal; also a file to write to.

    Args:
        width: How many columns it has.
        height: How many rows.
        encoding: Of what is written to it.
    """

    def __init__(self, width: int = 80, height: int = 10, encoding: str = "utf-8") -> None:
        self.encoding = encoding
        self._screen = pyte.HistoryScreen(width, height, history=10_000)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> int:
        # What the driver of a terminal does with a new line.
        self.feed(text.replace("\n", "\r\n"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True

    def feed(self, text: str) -> None:
        """Shows what a program has sent to the terminal."""
        self._stream.feed(text)

    def resize(self, width: int, height: int) -> None:
        self._screen.set_margins()
        self._screen.resize(height, width)

    @property
    def rows(self) -> list[str]:
        """The rows of the screen."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """What was printed, with what has scrolled away, without empty rows."""
        size = self._screen.columns
        history = [
            "".join(row[column].data for column in range(size)).rstrip()
            for row in self._screen.history.top
        ]
        return [row for row in [*history, *self.rows] if row]

    @property
    def scrolling_rows(self) -> int:
        """How many rows scroll."""
        margins = self._screen.margins
        return self._screen.lines if margins is None else margins.bottom - margins.top + 1

    def as_console(self) -> rich.console.Console:
        return rich.console.Console(
            file=self,  # type: ignore[arg-type]
            width=self._screen.columns,
            height=self._screen.lines,
            force_terminal=True,
        )


def run_on_terminal(
    code: str, arguments: Sequence[str] = (), *, width: int = 100, height: int = 12
) -> tuple[Terminal, list[list[str]], int]:
    """Runs a Python program on a terminal of its own.

    Returns:
        The terminal at the end, its rows whenever something was written, and the exit status.
    """
    terminal, snapshots = Terminal(width, height), []
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color", "TF_CPP_MIN_LOG_LEVEL": "3"},
        close_fds=True,
    )
    os.close(theirs)
    deadline = time.monotonic() + 120
    pending = b""
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # The last process that had it has closed it.
            break
        if not piece:
            break
        pending += piece
        text = pending.decode(errors="ignore")
        if len(text.encode()) < len(pending) - 3:
            pending = b""
            continue
        pending = pending[len(text.encode()) :]
        terminal.feed(text)
        snapshots.append(terminal.rows)
    os.close(ours)
    return terminal, snapshots, process.wait(timeout=60)
