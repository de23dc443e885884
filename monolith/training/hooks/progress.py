"""What a training, or an evaluation, is doing right now, in one line.

    hook = watch.WatchHook([ProgressLine(total_steps=1000)])    # or ProgressHook(1000), the same
    estimator.train(max_steps=1000, hooks=[hook])

`ProgressLine(total_steps=None, *, steps=None, console=None, plain_every_sec=10.0)` is what
training shows. On a terminal the line stays at the bottom and changes, and whatever else is printed
scrolls past it; anywhere else, in a log file or a pipe, a new line is printed now and then.
`monolith.training.hooks.evaluation` has the line of an evaluation.

Example:
    >>> import io
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     train_op = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
    ...     out = rich.console.Console(file=io.StringIO(), width=200)
    ...     hook = ProgressHook(total_steps=3, console=out)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(train_op)
    >>> print(out.file.getvalue().splitlines()[-1].split(", ")[0])
    step 3 of 3
"""

import io
import math
import sys
import time
from collections.abc import Callable, Mapping

import rich.console
import rich.text

from monolith import errors
from monolith.training.hooks.bottom_line import BottomLine, ignoring_lost_output
from monolith.training.hooks.watch import Figures, Reporter, WatchHook

# On a terminal; more often is flicker.
_REFRESH_SEC = 0.5
_PLAIN_EVERY_SEC = 10.0
_BAR_WIDTH = 20
# More tables than these are counted together.
_MOST_TABLES = 4
_METRICS = {"auc": "AUC", "mse": "MSE", "accuracy": "accuracy"}


class LineWriter:
    """Writes lines: over each other on a terminal, one below the other elsewhere.

    Args:
        console: Where to write; by default the standard error.
        plain_every_sec: How often to write where there is no terminal.
        is_plain: Whether a terminal is taken for none.
    """

    def __init__(
        self,
        console: rich.console.Console | None = None,
        plain_every_sec: float = _PLAIN_EVERY_SEC,
        *,
        is_plain: bool = False,
    ) -> None:
        if plain_every_sec <= 0:
            raise errors.ConfigError(f"plain_every_sec must be positive, got {plain_every_sec}.")
        self._console = console or _open_standard_error()
        can_move = self._console.is_terminal and not self._console.is_dumb_terminal
        self.is_terminal = can_move and not is_plain
        self.is_ascii = self._console.options.ascii_only
        self._plain_every_sec = plain_every_sec
        self.every_sec = _REFRESH_SEC if self.is_terminal else plain_every_sec
        self._line = BottomLine(self._console)

    def write(self, plain: str, *choices: rich.text.Text, is_last: bool = False) -> None:
        """Writes a line.

        Args:
            plain: The line where there is no terminal.
            choices: On a terminal, the first of these that fits, else the last one, cut.
            is_last: Whether no other will follow.
        """
        if self.is_terminal:
            width = self._line.width
            fitting = [text for text in choices if text.cell_len <= width]
            if self._line.show(fitting[0] if fitting else choices[-1]):
                return
            # Somebody else has the line, or there is no room for it: now and then, then.
            self.is_terminal, self.every_sec = False, self._plain_every_sec
            if not is_last:
                return
        with ignoring_lost_output():
            self._console.file.write(f"{plain}\n")
            self._console.file.flush()

    def close(self) -> None:
        """Lets go of the terminal; the line that is there stays."""
        self._line.close()


class ProgressLine(Reporter):
    """Shows steps, speed, loss, metrics of each head, rows of tables, and the time that is left.

    Args:
        total_steps: Global step at which training ends; None if nobody knows.
        steps: The same counted from where training starts; only one of the two.
        console: Where to write; by default the standard error.
        plain_every_sec: How often a line is printed where there is no terminal.
        every_steps: If given, a line is printed after so many steps, on a terminal as well, instead
            of one that changes or comes by time.

    Raises:
        errors.ConfigError: A number is not positive, or both ends are given.
    """

    def __init__(
        self,
        total_steps: int | None = None,
        *,
        steps: int | None = None,
        console: rich.console.Console | None = None,
        plain_every_sec: float = _PLAIN_EVERY_SEC,
        every_steps: int | None = None,
    ) -> None:
        given = {"total_steps": total_steps, "steps": steps, "every_steps": every_steps}
        for name, value in given.items():
            if value is not None and value < 1:
                raise errors.ConfigError(f"{name} must be positive, got {value}.")
        if total_steps is not None and steps is not None:
            raise errors.ConfigError("Give total_steps or steps, not both.")
        self._given_total, self._steps = total_steps, steps
        self._total_steps = total_steps
        self._every_steps, self._last_step = every_steps, -1
        self._writer = LineWriter(console, plain_every_sec, is_plain=every_steps is not None)

    def start(self, step: int) -> None:
        self._total_steps = self._given_total if self._steps is None else step + self._steps

    def plan(self, num_steps: int, now_sec: float) -> tuple[float, float]:
        if self._every_steps is not None:
            return num_steps + self._every_steps, math.inf
        # Somebody at a terminal waits for a sign of life; a log has time.
        is_first = num_steps == 0 and self._writer.is_terminal
        return (1 if is_first else math.inf), now_sec + self._writer.every_sec

    def report(self, figures: Figures) -> None:
        bar = _draw_bar(figures.step, self._total_steps, "=" if self._writer.is_ascii else "━")
        self._write(figures, bar)

    def end(self, figures: Figures) -> None:
        if self._every_steps is None or figures.step != self._last_step:
            self._write(figures, rich.text.Text(), is_over=True)

    def close(self) -> None:
        self._writer.close()

    def _write(self, figures: Figures, bar: rich.text.Text, is_over: bool = False) -> None:
        self._last_step = figures.step
        full = describe(figures, self._total_steps, is_over=is_over)
        short = describe(figures, self._total_steps, most_tables=0, is_over=is_over)
        choices = bar.append(full), rich.text.Text(full), rich.text.Text(short)
        self._writer.write(full, *choices, is_last=is_over)


class ProgressHook(WatchHook):
    """A hook that shows a `ProgressLine` and does nothing else.

    Args:
        total_steps: Global step at which training ends; None if nobody knows.
        steps: The same counted from where training starts.
        console: Where to write; by default the standard error.
        plain_every_sec: How often a line is printed where there is no terminal.
        clock: Returns seconds.
    """

    def __init__(
        self,
        total_steps: int | None = None,
        *,
        steps: int | None = None,
        console: rich.console.Console | None = None,
        plain_every_sec: float = _PLAIN_EVERY_SEC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        line = ProgressLine(
            total_steps, steps=steps, console=console, plain_every_sec=plain_every_sec
        )
        super().__init__([line], clock=clock)


def describe(
    figures: Figures,
    total_steps: int | None = None,
    *,
    most_tables: int = _MOST_TABLES,
    is_over: bool = False,
) -> str:
    """Returns figures as a line.

    Args:
        figures: The figures.
        total_steps: Global step at which training ends.
        most_tables: Up to how many tables are counted one by one.
        is_over: Whether training has ended, so that there is no time left to tell.
    """
    total = "" if total_steps is None else f" of {total_steps:,}"
    parts = [f"step {figures.step:,}{total}"]
    if figures.examples_per_sec is not None:
        parts.append(f"{figures.examples_per_sec:,.0f} examples/s")
    elif figures.steps_per_sec is not None:
        parts.append(f"{figures.steps_per_sec:,.1f} steps/s")
    if figures.loss is not None:
        parts.append(f"loss {figures.loss:.4f}")
    for tag, value in figures.metrics.items():
        head, _, kind = tag.rpartition("_")
        shown = f"{_METRICS[kind]} {value:.4f}"
        parts.append(shown if len(figures.metrics) == 1 else f"{head} {shown}")
    if figures.tables:
        rows = {name: stats.rows for name, stats in figures.tables.items()}
        parts.append(_describe_rows(rows, most_tables))
    trained = figures.step - figures.start_step
    if total_steps is not None and trained > 0 and not is_over:
        left_sec = max(total_steps - figures.step, 0) * figures.elapsed_sec / trained
        parts.append(f"{describe_duration(left_sec)} left")
    return to_printable(", ".join(parts))


def describe_duration(seconds: float) -> str:
    """Returns a duration as on a clock.

    Example:
        >>> describe_duration(9.7), describe_duration(3661)
        ('0:10', '1:01:01')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def to_printable(text: str) -> str:
    """Returns a text without what would move the cursor: names can hold anything."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _open_standard_error() -> rich.console.Console:
    # A program without a terminal may have none, or have closed it.
    file = sys.stderr if sys.stderr is not None else io.StringIO()
    # Asked here, because variables of the environment make rich take files for terminals.
    is_terminal = not file.closed and file.isatty()
    return rich.console.Console(file=file, highlight=False, force_terminal=is_terminal)


def _describe_rows(rows: Mapping[str, int], most_tables: int) -> str:
    if len(rows) <= most_tables:
        return "rows " + " ".join(f"{name} {number:,}" for name, number in rows.items())
    total = f"rows {sum(rows.values()):,}"
    return total if len(rows) == 1 else f"{total} in {len(rows)} tables"


def _draw_bar(step: int, total_steps: int | None, piece: str) -> rich.text.Text:
    bar = rich.text.Text()
    if total_steps is not None:
        full = round(_BAR_WIDTH * min(step / total_steps, 1))
        bar.append(piece * full, style="green")
        bar.append(piece * (_BAR_WIDTH - full) + " ", style="bright_black")
    return bar
