"""What a training is doing, for TensorBoard.

    hook = watch.WatchHook([SummaryWriter(model_dir)], learning_rates={"dense": schedule})
    estimator.train(hooks=[hook])

`SummaryWriter(directory)` writes, below the tags of an evaluation where there is one, so that a
chart shows both (the evaluation is the run `eval`):

| tag | is |
| --- | --- |
| `loss`, `<head>_auc`, `<head>_mse`, `<head>_accuracy` | of the last examples, before the model learned from them |
| `examples_per_sec` | the speed |
| `rows/<table>` | rows of a table |
| `table_mb/<table>` | memory of a table |
| `admitted/<table>`, `expired/<table>`, `held_back/<table>` | ids that got a row, rows that were \
removed because they had expired, ids that got no row yet; since the process began |
| `memory/process_mb` | memory of this process |
| `learning_rate/<name>` | a learning rate that follows a schedule |

A training of 150 steps has a curve of nearly 40 points, a longer one has more and more steps
between two points, but never more than half a minute; unless `every_steps` says how many.

Example:
    >>> import glob
    >>> from monolith.training.hooks import watch
    >>> with tf.Graph().as_default():
    ...     train_op = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
    ...     hook = watch.WatchHook([SummaryWriter("logs")])
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(train_op)
    >>> (path,) = glob.glob("logs/events*")
    >>> events = list(tf.compat.v1.train.summary_iterator(path))
    >>> [event.step for event in events if event.summary.value]
    [1, 2, 3]
"""  # noqa: E501 - a table

import itertools
import logging
import math
import os

import tensorflow as tf

from monolith.training.hooks.watch import Figures, Reporter

logger = logging.getLogger(__name__)

_LONGEST_SEC = 30.0
# There is a point after a step, and the next one after this share of the steps so far.
_GROWTH = 0.1
_FLUSH_SEC = 10
_MB = 1 << 20
_FILE_NUMBERS = itertools.count()
_STATM_RESIDENT = 1  # Which of the numbers of /proc/self/statm, in pages.


class SummaryWriter(Reporter):
    """Writes figures as scalars.

    Where they cannot be written, it says so once, and training goes on.

    Args:
        directory: Of the run, as TensorBoard calls it.
        every_steps: Steps between two points; None: more and more of them.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, every_steps: int | None = None
    ) -> None:
        self._directory = os.fspath(directory)
        self._every_steps = every_steps
        self._writer: tf.compat.v1.summary.FileWriter | None = None
        self._is_broken = False
        self.start(0)

    def start(self, step: int) -> None:
        self._start_step = step
        self._last_step = -1

    def plan(self, num_steps: int, now_sec: float) -> tuple[float, float]:
        if self._every_steps is not None:
            return num_steps + self._every_steps, math.inf
        return num_steps + max(1, int(num_steps * _GROWTH)), now_sec + _LONGEST_SEC

    def report(self, figures: Figures) -> None:
        if self._is_broken or figures.step == self._last_step:
            return
        self._last_step = figures.step
        summary = tf.compat.v1.Summary()
        for tag, value in _to_scalars(figures).items():
            summary.value.add(tag=tag, simple_value=value)
        try:
            self._open().add_summary(summary, figures.step)
        except (OSError, tf.errors.OpError) as error:
            self._give_up(error)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None and not self._is_broken:
            try:
                writer.close()
            except (OSError, tf.errors.OpError) as error:
                self._give_up(error)

    def _open(self) -> tf.compat.v1.summary.FileWriter:
        if self._writer is None:
            self._writer = open_event_file(self._directory)
            # What an earlier run has written of the steps to come, and then lost, goes away.
            start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._writer.add_session_log(start, self._start_step + 1)
        return self._writer

    def _give_up(self, error: Exception) -> None:
        self._is_broken = True
        logger.warning("no more summaries are written to %s: %s", self._directory, error)


def open_event_file(directory: str) -> tf.compat.v1.summary.FileWriter:
    """Returns what writes a new file of summaries.

    TensorFlow names files by the second: without a name of its own, a file would write over one
    that is a moment older.
    """
    suffix = f".{os.getpid()}.{next(_FILE_NUMBERS)}"
    with tf.Graph().as_default():  # Eagerly, it would be refused.
        return tf.compat.v1.summary.FileWriter(
            directory, flush_secs=_FLUSH_SEC, filename_suffix=suffix
        )


def read_process_bytes() -> int:
    """Returns how much memory this process has of the machine's."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[_STATM_RESIDENT])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _to_scalars(figures: Figures) -> dict[str, float]:
    scalars = {"memory/process_mb": read_process_bytes() / _MB, **figures.metrics}
    if figures.loss is not None:
        scalars["loss"] = figures.loss
    if figures.examples_per_sec is not None:
        scalars["examples_per_sec"] = figures.examples_per_sec
    for name, rate in figures.rates.items():
        scalars[f"learning_rate/{name}"] = rate
    for name, stats in figures.tables.items():
        scalars[f"rows/{name}"] = stats.rows
        scalars[f"table_mb/{name}"] = stats.memory_bytes / _MB
        scalars[f"admitted/{name}"] = stats.admitted
        scalars[f"expired/{name}"] = stats.expired
        scalars[f"held_back/{name}"] = stats.held_back
    return scalars
