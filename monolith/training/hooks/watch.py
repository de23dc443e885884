"""Watches a training: what it is doing right now, measured once for all who want to show it.

    hook = WatchHook([progress.ProgressLine(total_steps=1000), summaries.SummaryWriter("model")])
    estimator.train(hooks=[hook])

`WatchHook(reporters)` takes loss, predictions and labels along with a step, and makes `Figures` of
them when a reporter wants to have them; all reporters that want them after the same step share
them. That costs little: after the first 200 steps, so that a short training can be followed step by
step, only some of the steps are looked at if they are quick, and figures may take 0.3 % of the
time; who wants them more often has to wait. Loops close the hook at the end, also of an error.

Example:
    >>> class Printer(Reporter):
    ...     def plan(self, num_steps, now_sec):
    ...         return num_steps + 2, math.inf
    ...     def report(self, figures):
    ...         print(figures.step, figures.loss)
    >>> with tf.Graph().as_default():
    ...     step = tf.compat.v1.train.get_or_create_global_step()
    ...     loss = tf.cast(step, tf.float32)
    ...     tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOSSES, loss)
    ...     with tf.control_dependencies([loss]):
    ...         train_op = tf.compat.v1.assign_add(step, 1)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[WatchHook([Printer()])]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(train_op)
    2 0.5
    3 1.0
"""

import abc
import collections
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith.embedding.tables.stats import TableStats, get_stats
from monolith.graph import metadata
from monolith.model.heads import TRAINED_HEADS, Head
from monolith.training.hooks import window_metrics

# Metrics and loss are those of the last examples: a fifth of all there were, but enough for two
# digits, and few enough to follow. A loss without heads says nothing of examples; steps then.
_WINDOW_SHARE = 5
_WINDOW_EXAMPLES = 4_096, 25_000
_WINDOW_STEPS = 10, 100
# Speed is that of the last seconds, or since the figures before these.
_SPEED_SEC = 5.0
# What figures and reports may take, as a share of the time that passes.
_LARGEST_SHARE = 0.003
# If steps are quicker than that, only those of every eighth window are looked at. Not every eighth
# step: one that fetches more is another program for the session, which first has to warm up.
_QUICK_STEPS_PER_SEC = 100.0
_CYCLE_WINDOWS = 8
# When both begins.
_FREE_STEPS = 200


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of a moment; None where there is nothing to tell.

    Attributes:
        step: The global step.
        start_step: What it was after the first step of this session.
        elapsed_sec: Time since then.
        examples_per_sec: Speed of the last seconds.
        steps_per_sec: The same in steps.
        loss: Mean loss of the last steps.
        metrics: Of each head over the last examples, named as an evaluation names them:
            `<head>_auc`, `<head>_mse`, `<head>_accuracy`.
        tables: What each table holds, and what has become of ids in this process, by its name.
        rates: Learning rates that follow a schedule, by what they are for.
    """

    step: int
    start_step: int
    elapsed_sec: float
    examples_per_sec: float | None = None
    steps_per_sec: float | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tables: Mapping[str, TableStats] = dataclasses.field(default_factory=dict)
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Reporter(abc.ABC):
    """Shows figures somewhere."""

    def start(self, step: int) -> None:  # noqa: B027 - most have nothing to do
        """Called after the first step of a session, with the global step before it."""

    @abc.abstractmethod
    def plan(self, num_steps: int, now_sec: float) -> tuple[float, float]:
        """Returns when to report next: after how many steps, or at what time, if that is sooner.

        Args:
            num_steps: Steps of the session at the last report, 0 before the first.
            now_sec: The time.
        """

    @abc.abstractmethod
    def report(self, figures: Figures) -> None:
        """Shows the figures."""

    def end(self, figures: Figures) -> None:
        """Shows the last figures of a training that has come to its end."""
        self.report(figures)

    def close(self) -> None:  # noqa: B027 - as above
        """Lets go of what it holds; called at the end, however it comes about, maybe twice."""


class WatchHook(tf.compat.v1.train.SessionRunHook):
    """Measures a training and tells reporters.

    What it knows beside steps, loss and rows comes from the heads of the model. Their metrics are
    those of predictions before the model learned from the examples, so they tell how good it is on
    examples that it has never seen.

    Use it in a `with` statement where no loop of this package closes it.

    Args:
        reporters: Who gets the figures.
        learning_rates: Learning rates by what they are for. Those that are schedules, functions
            without arguments that give the rate of the global step, are among the figures.
        clock: Returns seconds.
    """

    def __init__(
        self,
        reporters: Sequence[Reporter],
        *,
        learning_rates: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporters = list(reporters)
        self._schedules = {
            name: rate for name, rate in (learning_rates or {}).items() if callable(rate)
        }
        self._clock = clock

    def __enter__(self) -> "WatchHook":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def reporters(self) -> list[Reporter]:
        """Who gets the figures."""
        return self._reporters

    def begin(self) -> None:
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1:]
        heads: list[Head] = metadata.get_meta(TRAINED_HEADS, list)
        self._measured = [head for head in heads if head.label is not None]
        # One flat list, which a session takes apart and puts together faster than anything else:
        # the loss, if there is one, predictions and label of each head.
        fetches = [*losses]
        for head in self._measured:
            fetches += [head.pred, head.label]
        self._has_loss, self._has_examples = bool(losses), bool(heads)
        # Of a batch whose predictions come along anyway, the size is known.
        self._has_size = self._has_examples and not self._measured
        if self._has_size:
            fetches.append(tf.shape(heads[0].pred)[0])
        self._first_pred = len(losses)
        self._args = tf.compat.v1.train.SessionRunArgs(fetches) if self._reporters else None
        tables = get_stats()
        self._table_names = list(tables)
        numbers = [number for stats in tables.values() for number in stats]
        self._now_fetches = {
            "step": tf.compat.v1.train.get_or_create_global_step(),
            # In one piece: there can be hundreds of tables.
            "tables": tf.stack(numbers) if numbers else tf.zeros([0], tf.int64),
            "rates": {name: schedule() for name, schedule in self._schedules.items()},
        }

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._window: collections.deque[tuple[int, Sequence[Any]]] = collections.deque()
        self._window_examples = 0
        self._window_limits = _WINDOW_EXAMPLES if self._has_examples else _WINDOW_STEPS
        self._num_steps = self._examples = self._batch_size = 0
        self._step_sec = 0.0
        # Of so many steps, the first ones are looked at.
        self._cycle_steps = self._looked_at_steps = 1
        self._figures: Figures | None = None
        self._figures_steps = 0
        # When each reporter wants to report, and when the first of them does.
        self._plans: list[tuple[float, float]] = []
        self._next_step: float = 1
        self._next_sec = math.inf

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        is_looked_at = self._num_steps % self._cycle_steps < self._looked_at_steps
        return self._args if is_looked_at else None

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        # All that happens after most steps: this has to be quick.
        self._num_steps += 1
        if run_values.results is not None:
            self._remember(run_values.results)
        self._examples += self._batch_size
        self._step_sec = self._clock()
        if self._num_steps >= self._next_step or self._step_sec >= self._next_sec:
            self._report(run_context.session)

    def end(self, session: tf.compat.v1.Session) -> None:
        if self._num_steps > 0:
            # As of the last step: what was saved since then, for minutes maybe, is no training.
            figures = self._measure(session, self._step_sec)
            for reporter in self._reporters:
                reporter.end(figures)
        self.close()

    def close(self) -> None:
        """Makes the reporters let go of what they hold."""
        for reporter in self._reporters:
            reporter.close()

    def _start(self, session: tf.compat.v1.Session) -> None:
        # The first step is slow in its own way; the speed is that of the others.
        self._start_step = int(session.run(self._now_fetches)["step"])
        self._start_sec = self._clock()
        self._examples = 0
        # Times, and the steps and examples by then.
        self._marks = collections.deque([(self._start_sec, self._start_step, 0)])
        for reporter in self._reporters:
            reporter.start(self._start_step - 1)
        self._plans = [reporter.plan(0, self._start_sec) for reporter in self._reporters]

    def _report(self, session: tf.compat.v1.Session) -> None:
        if not self._plans:
            self._start(session)
        now_sec, began_sec = self._clock(), time.perf_counter()
        rest_until_sec = -math.inf
        due = [
            number
            for number, (step, sec) in enumerate(self._plans)
            if self._num_steps >= step or now_sec >= sec
        ]
        if due:
            figures = self._measure(session, now_sec)
            for number in due:
                self._reporters[number].report(figures)
                self._plans[number] = self._reporters[number].plan(self._num_steps, now_sec)
            if self._num_steps > _FREE_STEPS:
                self._choose_steps(figures)
                spent_sec = time.perf_counter() - began_sec
                rest_until_sec = now_sec + spent_sec / _LARGEST_SHARE
        self._next_step = min((step for step, _ in self._plans), default=math.inf)
        self._next_sec = min((sec for _, sec in self._plans), default=math.inf)
        if rest_until_sec > now_sec:
            # Whoever is due before that is due then.
            self._next_step, self._next_sec = math.inf, rest_until_sec

    def _choose_steps(self, figures: Figures) -> None:
        is_quick = (figures.steps_per_sec or 0) > _QUICK_STEPS_PER_SEC
        window_steps = math.ceil(self._window_limits[1] / max(self._batch_size, 1))
        self._looked_at_steps = window_steps if is_quick else 1
        self._cycle_steps = window_steps * _CYCLE_WINDOWS if is_quick else 1

    def _remember(self, results: Sequence[Any]) -> None:
        if self._measured:
            pred = results[self._first_pred]
            size = len(pred) if pred.ndim else 1
        else:
            size = int(results[-1]) if self._has_size else 1
        self._batch_size = size
        counted = size or 1  # Or a stream of empty batches would fill the memory.
        self._window.append((counted, results))
        self._window_examples += counted
        least, most = self._window_limits
        wanted = min(max(self._examples // _WINDOW_SHARE, least), most)
        while self._window_examples - self._window[0][0] >= wanted:
            self._window_examples -= self._window.popleft()[0]

    def _measure(self, session: tf.compat.v1.Session, now_sec: float) -> Figures:
        if self._figures is not None and self._figures_steps == self._num_steps:
            return self._figures
        now = session.run(self._now_fetches)
        step = int(now["step"])
        numbers = now["tables"].reshape(-1, len(TableStats._fields)).tolist()
        tables = [TableStats(*row) for row in numbers]
        losses = [results[0] for _, results in self._window] if self._has_loss else []
        examples_per_sec, steps_per_sec = self._measure_speed(now_sec, step)
        self._figures_steps = self._num_steps
        self._figures = Figures(
            step=step,
            start_step=self._start_step,
            elapsed_sec=now_sec - self._start_sec,
            examples_per_sec=examples_per_sec if self._has_examples else None,
            steps_per_sec=steps_per_sec,
            loss=float(np.mean(losses)) if losses else None,
            metrics=self._measure_heads(),
            tables=dict(zip(self._table_names, tables, strict=True)),
            rates={name: float(rate) for name, rate in now["rates"].items()},
        )
        return self._figures

    def _measure_speed(self, now_sec: float, step: int) -> tuple[float | None, float | None]:
        """Returns examples and steps per second."""
        while len(self._marks) > 1 and now_sec - self._marks[1][0] >= _SPEED_SEC:
            self._marks.popleft()
        since_sec, since_step, since_examples = self._marks[0]
        self._marks.append((now_sec, step, self._examples))
        passed_sec = now_sec - since_sec
        if passed_sec <= 0 or step == since_step:
            return None, None
        return (self._examples - since_examples) / passed_sec, (step - since_step) / passed_sec

    def _measure_heads(self) -> dict[str, float]:
        values = {}
        for i, head in enumerate(self._measured):
            place = self._first_pred + 2 * i
            preds = [results[place] for _, results in self._window]
            labels = [results[place + 1] for _, results in self._window]
            name, value = window_metrics.compute(head, preds, labels, self._window_limits[1])
            if value is not None:
                values[name] = value
        return values
