"""How fast a job trains, for whatever monitoring its owner has."""

import time
from collections.abc import Callable

import tensorflow as tf

from monolith.core import metrics

_REPORT_EVERY_SEC = 60.0


class ThroughputMetricHook(tf.compat.v1.train.SessionRunHook):
    """Emits how many global steps are trained per second, once a minute.

    Metrics, below the metric prefix of the process, tagged `model_name` and `type` (of cluster):
    the store `run_steps_per_sec`, the store `run_steps_elapsed_time` with the seconds since the
    machines were there, and the timer `first_run_elapsed_time`, once, with the same after the first
    step.

    Args:
        model_name: The model.
        start_time_secs: When the machines of the job were there, in seconds since 1970; None: now.
        cluster_type: Kind of cluster.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        model_name: str,
        start_time_secs: float | None = None,
        cluster_type: str = "stable",
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._start_sec = clock() if start_time_secs is None else start_time_secs
        self._tags = {"model_name": model_name, "type": cluster_type}
        self._client = metrics.get_cli(metrics.get_metric_prefix())
        self._global_step: tf.Tensor | None = None
        # Time and step of the last report.
        self._last: tuple[float, int] | None = None

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_or_create_global_step()

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        now_sec = self._clock()
        if self._last is None:
            step = self._read_step(run_context)
            self._client.emit_timer("first_run_elapsed_time", now_sec - self._start_sec, self._tags)
            self._last = now_sec, step
        elif now_sec - self._last[0] >= _REPORT_EVERY_SEC:
            self._report(now_sec, self._read_step(run_context))

    def _report(self, now_sec: float, step: int) -> None:
        assert self._last is not None
        last_sec, last_step = self._last
        speed = (step - last_step) / (now_sec - last_sec)
        self._client.emit_store("run_steps_per_sec", speed, self._tags)
        self._client.emit_store("run_steps_elapsed_time", now_sec - self._start_sec, self._tags)
        self._last = now_sec, step

    def _read_step(self, run_context: tf.compat.v1.train.SessionRunContext) -> int:
        # Beside the step, once a minute: a fetch in every step would cost a read of the server.
        return int(run_context.session.run(self._global_step))
