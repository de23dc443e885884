"""One log of many processes: every line begins with the name of who wrote it.

Example:
    >>> import io
    >>> log = LabelledLog(["ps 0", "chief"], file=io.StringIO())
    >>> log.feed("ps 0", b"half a li")
    >>> log.feed("chief", b"step 1\\n")
    >>> log.feed("ps 0", b"ne\\n")
    >>> print(log.file.getvalue(), end="")
    chief | step 1
    ps 0  | half a line
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import TextIO

# A line that never ends must not fill the memory.
_LONGEST_LINE = 1 << 16
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Cyan, magenta, green, blue, yellow, and the bright ones; red is for errors.
_COLORS = (36, 35, 32, 34, 33, 96, 95, 92, 94, 93)
# The launcher itself.
OWN_NAME = "monolith"


class LabelledLog:
    """Puts the output of several processes into one, line by line.

    Nothing that goes wrong with the file is raised: a training does not end because nobody reads
    its log any more.

    Args:
        names: Names of the processes.
        file: Where to write; by default the standard error.
        is_colored: Whether names have colors; by default on a terminal.
    """

    def __init__(
        self, names: Sequence[str], file: TextIO | None = None, is_colored: bool | None = None
    ) -> None:
        self.file = sys.stderr if file is None else file
        self._width = max([len(name) for name in names], default=0)
        if is_colored is None:
            is_colored = self.file is not None and not self.file.closed and self.file.isatty()
        self._colors = {
            name: _COLORS[number % len(_COLORS)] if is_colored else None
            for number, name in enumerate(names)
        }
        self._pending: dict[str, bytes] = {}

    def feed(self, name: str, output: bytes) -> None:
        """Takes a piece of the output of a process, and writes the lines that are complete."""
        *lines, rest = _LINE_END.split(self._pending.pop(name, b"") + output)
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        if rest:
            self._pending[name] = rest
        self._write(name, lines)

    def finish(self, name: str) -> None:
        """Writes what is left of a process that has ended."""
        if name in self._pending:
            self._write(name, [self._pending.pop(name)])

    def say(self, text: str) -> None:
        """Writes a line of the launcher itself."""
        self._write(OWN_NAME, [text.encode()])

    def _write(self, name: str, lines: Sequence[bytes]) -> None:
        label = f"{name:<{self._width}}"
        color = self._colors.get(name)
        if color is not None:
            label = f"\x1b[{color}m{label}\x1b[0m"
        text = "".join(f"{label} | {line.decode(errors='replace')}\n" for line in lines)
        # A closed file raises a ValueError.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.file.write(text)
            self.file.flush()
