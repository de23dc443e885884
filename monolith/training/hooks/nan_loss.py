"""Stops training when the loss is not a number any more, before anything of it is saved.

TensorFlow's own hook looks at the loss after the step, when the hook that saves may have written
the diverged model already. Here the step itself fails, so no other hook acts on it and the last
checkpoint is from before.
"""

from typing import NoReturn

import tensorflow as tf

from monolith import errors
from monolith.graph import collectives


class NanLossError(errors.MonolithError, tf.compat.v1.train.NanLossDuringTrainingError):
    """The loss became NaN.

    Attributes:
        step: The step that gave it, counted from 1.
    """

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step

    def __str__(self) -> str:
        return str(self.args[0])


class NanLossHook(tf.compat.v1.train.NanTensorHook):
    """Makes a step whose loss is NaN fail with a `tf.errors.InvalidArgumentError`.

    `Estimator.train` translates that with `explain`.

    Args:
        loss: The loss, a scalar. That of a rank does not count that has no data left, and only
            keeps the others company.
        train_op: What else the step does; the check comes after it, so that the global step is
            that of the failed step.
    """

    def __init__(self, loss: tf.Tensor, train_op: tf.Operation | tf.Tensor) -> None:
        super().__init__(loss)
        with tf.control_dependencies([train_op]):
            # A whole number is never NaN.
            is_nan = tf.math.is_nan(loss) if loss.dtype.is_floating else tf.constant(False)
            is_idle = collectives.get_idle()
            if is_idle is not None:
                is_nan = tf.logical_and(is_nan, tf.logical_not(tf.reshape(is_idle, [])))
            self._check = tf.raw_ops.Assert(
                condition=tf.logical_not(is_nan),
                data=["The loss is NaN."],
                name="nan_loss_check",
            )

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._check)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Does nothing: a step that gets here has passed the check."""

    def is_cause_of(self, error: tf.errors.OpError) -> bool:
        """Returns whether `error` is from this hook's check."""
        return error.op is not None and error.op is self._check

    def explain(self, step: int, checkpoint: str | None, cause: BaseException) -> NoReturn:
        """Raises the error that a user can act on.

        Args:
            step: The step that failed.
            checkpoint: The last checkpoint, None if there is none.
            cause: The error of the step.

        Raises:
            NanLossError: Always.
        """
        kept = f"the last checkpoint is {checkpoint}" if checkpoint else "nothing was saved"
        raise NanLossError(
            step,
            f"The loss is NaN at step {step}, so training stops there and {kept}; look for inputs "
            "or labels that are not finite, or for logs and divisions of zero, or try a smaller "
            "learning rate or gradient clipping.",
        ) from cause
