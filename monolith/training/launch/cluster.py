"""Trains on a cluster of processes of this machine, from a program.

Example:
    >>> import monolith as ml
    >>> class Clicks(ml.Model): ...
    >>> train_on_cluster(  # doctest: +SKIP
    ...     work.ModelWork(model=Clicks(), data=read, optimizer=ml.SGD(0.1), config=ml.RunConfig()),
    ...     num_ps=2,
    ...     num_workers=2,
    ...     model_dir="clicks",
    ... )
"""

import logging
import sys

import rich.console
import rich.text

from monolith import errors
from monolith.cluster.local import start
from monolith.cluster.local.display import JobDisplay, NoDisplay
from monolith.cluster.local.supervisor import Display
from monolith.training.hooks import interrupt
from monolith.training.hooks.bottom_line import BottomLine
from monolith.training.launch import work

# How often members of a cluster that a program has started are started again.
MAX_RESTARTS = 10


class JobError(errors.MonolithError, RuntimeError):
    """A job of several processes has failed; the message says why."""


def train_on_cluster(
    what: work.Work,
    *,
    num_ps: int,
    num_workers: int,
    model_dir: str,
    max_restarts: int = MAX_RESTARTS,
    progress: bool = True,
) -> None:
    """Trains on a cluster of processes of this machine, and returns when it is over.

    Args:
        what: What to train.
        num_ps: How many parameter servers.
        num_workers: How many workers, with the chief.
        model_dir: Where checkpoints are and go.
        max_restarts: How often members are started again, in sum.
        progress: Whether to show how it is getting on.

    Raises:
        ConfigError: A part of it cannot be pickled, or a member refuses its part.
        JobError: The job has failed.
        KeyboardInterrupt: Ctrl-C has stopped the training, which is saved.
        SystemExit: SIGTERM has stopped the training, which is saved.
    """
    pickled = work.pickle_work(what)
    display: Display = NoDisplay()
    if progress:
        display = JobDisplay(sys.stderr, total_steps=what.max_steps, line=make_line())
    outcome = start.run_job(
        num_ps=num_ps,
        num_workers=num_workers,
        model_dir=model_dir,
        process=start.describe_process(logging.getLogger().getEffectiveLevel()),
        given=pickled,
        max_restarts=max_restarts,
        display=display,
    )
    if outcome.received is not None and outcome.code != 0:
        interrupt.end_as_told(outcome.received)
    if outcome.code != 0:
        raise (errors.ConfigError if outcome.is_refused else JobError)(outcome.message)


class _Line:
    """The bottom line of the terminal."""

    def __init__(self, console: rich.console.Console) -> None:
        self._line = BottomLine(console)

    def show(self, text: str) -> bool:
        return self._line.show(rich.text.Text(text))

    def close(self) -> None:
        self._line.close()


def make_line() -> _Line | None:
    """Returns the bottom line of the terminal, None if the standard error is none."""
    if sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        return None
    console = rich.console.Console(stderr=True, highlight=False)
    return None if console.is_dumb_terminal else _Line(console)
