"""What a training is doing right now, in one line.

On a terminal the line stays where it is and changes; anywhere else, in a log file or a pipe, a new
line is printed now and then.

Example:
    >>> import io
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

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import rich.console
import rich.live
import rich.text
import tensorflow as tf

from monolith import errors
from monolith.data.auc import auc
from monolith.embedding.tables import registry
from monolith.graph import metadata
from monolith.model.heads import TRAINED_HEADS, Head

# AUC and loss are those of the last examples: enough for two digits, few enough to follow.
_WINDOW_EXAMPLES = 50_000
# On a terminal; more often is flicker, and each time costs a call of the session.
_REFRESH_SEC = 0.25
_BAR_WIDTH = 20


@dataclasses.dataclass(frozen=True)
class Status:
    """Figures of a moment; None where there is nothing to tell.

    Attributes:
        step: The global step.
        total_steps: The global step at which training ends.
        examples_per_sec: Speed since the last line.
        loss: Mean loss of the last steps.
        auc: AUC of each head that classifies, by its name, over the last examples.
        rows: Number of rows of each table, by its name.
        seconds_left: Until training ends, at the speed so far.
    """

    step: int
    total_steps: int | None = None
    examples_per_sec: float | None = None
    loss: float | None = None
    auc: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds_left: float | None = None

    def __str__(self) -> str:
        total = "" if self.total_steps is None else f" of {self.total_steps:,}"
        parts = [f"step {self.step:,}{total}"]
        if self.examples_per_sec is not None:
            parts.append(f"{self.examples_per_sec:,.0f} examples/s")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        for head, value in self.auc.items():
            parts.append(f"AUC {value:.4f}" if len(self.auc) == 1 else f"{head} AUC {value:.4f}")
        if self.rows:
            parts.append("rows " + " ".join(f"{name} {n:,}" for name, n in self.rows.items()))
        if self.seconds_left is not None:
            minutes, seconds = divmod(round(self.seconds_left), 60)
            parts.append(f"{minutes}:{seconds:02d} left")
        return ", ".join(parts)


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Shows steps, speed, loss, AUC of each head, rows of tables, and the time that is left.

    What it shows beside steps and rows comes from the `EstimatorSpec` of a `MonolithModel`: the
    AUC is that of the predictions before the model learned from them, so it tells how good the
    model is on examples that it has never seen.

    Use it in a `with` statement to get the terminal back also when training fails.

    Args:
        total_steps: Global step at which training ends; None if nobody knows.
        console: Where to write; by default the standard output.
        plain_every_sec: How often a line is printed where there is no terminal.
        clock: Returns seconds.
    """

    def __init__(
        self,
        total_steps: int | None = None,
        *,
        console: rich.console.Console | None = None,
        plain_every_sec: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if total_steps is not None and total_steps < 1:
            raise errors.ConfigError(f"total_steps must be positive, got {total_steps}.")
        self._total_steps = total_steps
        self._console = console or rich.console.Console(highlight=False)
        self._every_sec = _REFRESH_SEC if self._console.is_terminal else plain_every_sec
        self._clock = clock
        self._live: rich.live.Live | None = None

    def __enter__(self) -> "ProgressHook":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        heads = metadata.get_meta(TRAINED_HEADS, list[Head])
        with_auc = [head for head in heads if head.classification and head.label is not None]
        self._heads = [head.name for head in with_auc]
        self._step_fetches = {
            "losses": losses[-1:],
            "sizes": [tf.size(head.pred) for head in heads[:1]],
            "preds": [head.pred for head in with_auc],
            "labels": [head.label for head in with_auc],
        }
        tables = registry.get_tables()
        # Those of each server apart.
        self._row_names = [entry.config.table_names for entry in tables]
        self._row_counts = [entry.table.sizes() for entry in tables]

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._window: collections.deque[Any] = collections.deque()
        self._window_examples = 0
        self._examples = 0
        self._shown_sec = self._start_sec = self._clock()
        self._start_step: int | None = None

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._step_fetches)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._remember(run_values.results)
        now_sec = self._clock()
        if self._start_step is None:
            # The first step is slow in its own way; the speed is that of the others.
            self._start_step = int(run_context.session.run(self._global_step))
            self._start_sec, self._shown_sec, self._examples = now_sec, now_sec, 0
        elif now_sec - self._shown_sec >= self._every_sec:
            self._show(self._make_status(run_context.session, now_sec))

    def end(self, session: tf.compat.v1.Session) -> None:
        status = self._make_status(session, self._clock())
        self._show(dataclasses.replace(status, seconds_left=None))
        self.close()

    def close(self) -> None:
        """Lets go of the terminal; the last line stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _remember(self, results: Mapping[str, Any]) -> None:
        size = sum(results["sizes"])
        self._examples += size
        self._window.append((size, results))
        self._window_examples += size
        while len(self._window) > 1 and self._window_examples - self._window[0][0] > (
            _WINDOW_EXAMPLES
        ):
            self._window_examples -= self._window.popleft()[0]

    def _make_status(self, session: tf.compat.v1.Session, now_sec: float) -> Status:
        step, counts = session.run((self._global_step, self._row_counts))
        elapsed_sec = now_sec - self._start_sec
        rows: collections.Counter[str] = collections.Counter()
        for names, numbers in zip(self._row_names, counts, strict=True):
            rows.update(dict(zip(names, map(int, numbers), strict=True)))
        trained = step - self._start_step if self._start_step is not None else 0
        left = None
        if self._total_steps is not None and trained > 0:
            left = max(self._total_steps - step, 0) * elapsed_sec / trained
        losses = [value for _, results in self._window for value in results["losses"]]
        return Status(
            step=int(step),
            total_steps=self._total_steps,
            examples_per_sec=self._examples / elapsed_sec if self._examples and trained else None,
            loss=float(np.mean(losses)) if losses else None,
            auc=self._compute_auc(),
            rows=rows,
            seconds_left=left,
        )

    def _compute_auc(self) -> dict[str, float]:
        values = {}
        for i, head in enumerate(self._heads):
            preds = [np.ravel(results["preds"][i]) for _, results in self._window]
            labels = [np.ravel(results["labels"][i]) for _, results in self._window]
            try:
                values[head] = auc(np.concatenate(preds), np.concatenate(labels))
            except errors.ConfigError:
                continue  # All labels are the same: there is no AUC.
        return values

    def _show(self, status: Status) -> None:
        self._shown_sec = self._clock()
        if not self._console.is_terminal:
            self._console.print(str(status), soft_wrap=True, markup=False)
            return
        if self._live is None:
            self._live = rich.live.Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(_draw(status), refresh=True)


def _draw(status: Status) -> rich.text.Text:
    line = rich.text.Text()
    if status.total_steps is not None:
        full = round(_BAR_WIDTH * min(status.step / status.total_steps, 1))
        line.append("━" * full, style="green")
        line.append("━" * (_BAR_WIDTH - full) + " ", style="bright_black")
    return line.append(str(status))
