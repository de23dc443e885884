"""Profiles some steps of a long training for TensorBoard."""

import logging

import tensorflow as tf

logger = logging.getLogger(__name__)


class Tf2ProfilerHook(tf.compat.v1.train.SessionRunHook):
    """Records a few steps with TensorFlow's profiler, then as many again at a regular interval.

    Args:
        logdir: Where TensorBoard finds the profiles.
        init_step_range: Global steps between which the first profile is taken, `[start, end)`.
        save_steps: Steps from the start of one profile to the start of the next; None takes only
            the first.
    """

    def __init__(
        self, logdir: str, init_step_range: tuple[int, int], save_steps: int | None = None
    ) -> None:
        start, end = init_step_range
        if not start < end:
            raise ValueError(
                f"The steps to profile must not be empty, got the range [{start}, {end})."
            )
        if save_steps is not None and save_steps < end - start:
            raise ValueError(
                f"`save_steps` must not be below the {end - start} steps of one profile, "
                f"got {save_steps}."
            )
        self._logdir = logdir
        self._start, self._end = start, end
        self._save_steps = save_steps
        self._is_recording = False
        self._global_step: tf.Tensor | None = None

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_or_create_global_step()

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        # The step that is about to run; the value may be older or newer by one, which is all the
        # same for a profile.
        next_step = int(run_values.results) + 1
        if self._is_recording and next_step >= self._end:
            self._stop()
        if not self._is_recording and self._start <= next_step < self._end:
            self._begin_recording()

    def end(self, session: tf.compat.v1.Session) -> None:
        if self._is_recording:
            self._stop()

    def _begin_recording(self) -> None:
        try:
            tf.profiler.experimental.start(self._logdir)
        except tf.errors.OpError as error:  # Somebody else profiles this process already.
            logger.warning("steps from %d on are not profiled: %s", self._start, error)
            self._move_on()
            return
        self._is_recording = True

    def _stop(self) -> None:
        self._is_recording = False
        try:
            tf.profiler.experimental.stop()
            logger.info("profiled steps %d to %d in %s", self._start, self._end, self._logdir)
        except tf.errors.OpError as error:
            logger.warning("the profile of steps from %d on is lost: %s", self._start, error)
        self._move_on()

    def _move_on(self) -> None:
        if self._save_steps is None:
            self._start = self._end = -1
        else:
            self._start += self._save_steps
            self._end += self._save_steps
