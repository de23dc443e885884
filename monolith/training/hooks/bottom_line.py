"""A line at the bottom of a terminal that stays there while everything else scrolls past it.

A program that trains is not alone on its terminal: TensorFlow logs from C++, other libraries from
Python, and the user prints. A line that is drawn over and over where the cursor happens to be is
torn by all of them. So the last row of the terminal is taken out of the part that scrolls, which
every terminal can do (DECSTBM): whoever writes, writes above, and nothing has to be redirected.
Only a program that is killed cannot give the row back; the command `reset` does that.

Example:
    >>> import io
    >>> out = rich.console.Console(file=io.StringIO(), width=40, height=10, force_terminal=True)
    >>> with BottomLine(out) as line:
    ...     _ = line.show(rich.text.Text("step 1"))
    ...     _ = line.show(rich.text.Text("step 2"))
    >>> out.file.getvalue().endswith("step 2\\n")  # It stays when the terminal is given back.
    True
"""

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.text

_SAVE_CURSOR, _RESTORE_CURSOR = "\x1b7", "\x1b8"
_ERASE_ROW = "\x1b[2K"
# Down and up a row in the same column; down scrolls at the end, as a new line does.
_CURSOR_DOWN, _CURSOR_UP = "\x1bD", "\x1b[A"
_SCROLL_EVERYTHING = "\x1b[r"
# With fewer rows there would be next to nothing left above the line.
_LEAST_ROWS = 4

# A terminal has one last row; of two lines of a process, the second has to do without.
_TAKEN = threading.Lock()


class BottomLine:
    """The last row of a terminal, from the first `show` to `close`.

    Nothing that goes wrong with the terminal is raised: whoever shows a line has better things to
    do.

    Args:
        console: The terminal.
    """

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        # Of the terminal when the row was taken; None: it is not.
        self._size: rich.console.ConsoleDimensions | None = None
        self._text: rich.text.Text | None = None

    def __enter__(self) -> "BottomLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def width(self) -> int:
        """How many characters fit into the line."""
        # The last column is left free: a terminal that wraps there would scroll.
        return max(self._console.size.width - 1, 1)

    def show(self, text: rich.text.Text) -> bool:
        """Shows a line in the place of the last one, cut where the terminal ends.

        Returns:
            Whether it did. It does not where the terminal has too few rows, or another line.
        """
        size = self._console.size
        rows = size.height
        if self._size is None and (rows < _LEAST_ROWS or not _TAKEN.acquire(blocking=False)):
            return False
        # A terminal whose size changes lets all of its rows scroll again.
        take = "" if size == self._size else _take_last_row(rows)
        self._size = size
        self._text = text
        # In one piece, so that what others write cannot come in between.
        self._write(
            f"{take}{_SAVE_CURSOR}\x1b[{rows};1H{_ERASE_ROW}{self._render(text)}{_RESTORE_CURSOR}"
        )
        return True

    def close(self) -> None:
        """Gives the row back; the line is printed once more, to stay with what was printed."""
        if self._size is None:
            return
        assert self._text is not None
        rows = self._size.height
        give_back = f"{_SAVE_CURSOR}{_SCROLL_EVERYTHING}\x1b[{rows};1H{_ERASE_ROW}{_RESTORE_CURSOR}"
        self._size = None
        _TAKEN.release()
        self._write(f"{give_back}{self._render(self._text)}\n")

    def _render(self, text: rich.text.Text) -> str:
        cut = text.copy()
        is_ascii = self._console.options.ascii_only
        cut.truncate(self.width, overflow="crop" if is_ascii else "ellipsis")
        # Not by the console itself, which would write to the terminal what comes before and after.
        out = io.StringIO()
        color_system: Any = self._console.color_system
        renderer = rich.console.Console(
            file=out, force_terminal=True, color_system=color_system, width=self.width + 1
        )
        renderer.print(cut, end="", no_wrap=True, crop=False, highlight=False)
        return out.getvalue()

    def _write(self, text: str) -> None:
        with ignoring_lost_output():
            self._console.file.write(text)
            self._console.file.flush()


@contextlib.contextmanager
def ignoring_lost_output() -> Iterator[None]:
    """Goes on where the terminal, or whoever reads the output, is gone."""
    # A closed file raises a ValueError.
    with contextlib.suppress(OSError, ValueError):
        yield


def _take_last_row(rows: int) -> str:
    """Returns what keeps the last row from scrolling; the cursor stays in the part that does."""
    # Down and back up, since the cursor can be in the row that is taken. To set the part
    # that scrolls moves the cursor, so its place is kept meanwhile.
    return f"{_CURSOR_DOWN}{_CURSOR_UP}{_SAVE_CURSOR}\x1b[1;{rows - 1}r{_RESTORE_CURSOR}"
