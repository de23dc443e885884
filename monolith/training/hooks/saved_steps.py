"""A function that is called now and then in a training, and finds what was trained so far saved.

    estimator.train(hooks=[SavedStepsHook(1000, evaluate)])

The loop that trains has the hook that saves do so at these steps, too; how often it saves otherwise
is not changed.

Example:
    >>> import tempfile
    >>> from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as directory:
    ...     train_op = tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)
    ...     saver = NoFirstSaveCheckpointSaverHook(directory, save_secs=600)
    ...     hook = SavedStepsHook(2, lambda: print(tf.train.latest_checkpoint(directory)[-12:]))
    ...     hook.let_save(saver)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[saver, hook]) as session:
    ...         for _ in range(5):
    ...             _ = session.run(train_op)
    model.ckpt-2
    model.ckpt-4
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class SavedStepsHook(tf.compat.v1.train.SessionRunHook):
    """Calls a function after every so many steps; goes behind the hook that saves.

    Args:
        every_steps: How many, counted from where the training starts.
        call: The function.
    """

    def __init__(self, every_steps: int, call: Callable[[], None]) -> None:
        self._every_steps = every_steps
        self._call = call
        self._first_step: int | None = None
        self._step = 0

    def let_save(self, saver: Any) -> None:
        """Makes a hook save at these steps, too; its timer is one of this package."""
        saver._timer.also_trigger_every(self._every_steps)

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step().read_value()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        # A session that replaces a lost one goes back to what was saved.
        self._step = int(session.run(self._global_step))
        if self._first_step is None:
            self._first_step = self._step

    def after_run(self, run_context: Any, run_values: Any) -> None:
        assert self._first_step is not None
        self._step += 1
        if (self._step - self._first_step) % self._every_steps == 0:
            self._call()
