"""A step whose loss is NaN fails before another hook sees its results."""

import math

import pytest
import tensorflow as tf

from monolith.training.hooks.nan_loss import NanLossError, NanLossHook


class SeenHook(tf.compat.v1.train.SessionRunHook):
    """Counts the steps that succeed, as a hook that saves would see them."""

    def __init__(self):
        self.steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1


@pytest.mark.usefixtures("graph_mode")
class TestNanLossHook:
    def train(self, losses, dtype=tf.float32):
        """Trains a step for each loss; returns the hook, the steps that others saw, the error."""
        fed = tf.compat.v1.placeholder(dtype, [])
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = step.assign_add(1)
        hook, seen = NanLossHook(fed, train_op), SeenHook()
        error = None
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[seen, hook]) as session:
            for loss in losses:
                try:
                    session.run(train_op, {fed: loss})
                except tf.errors.OpError as e:
                    error = e
                    self.failed_at = int(session.raw_session().run(step))
                    break
        return hook, seen.steps, error

    def test_step_with_nan_fails(self):
        hook, steps, error = self.train([1.0, 2.0, math.nan, 3.0])
        assert steps == 2
        assert hook.is_cause_of(error)
        assert self.failed_at == 3  # The step has counted itself already.

    def test_infinity_passes(self):
        _, steps, error = self.train([math.inf, -math.inf])
        assert (steps, error) == (2, None)

    def test_whole_numbers_pass(self):
        _, steps, error = self.train([1, 2], tf.int32)
        assert (steps, error) == (2, None)

    def test_other_errors_are_not_its_own(self):
        hook = NanLossHook(tf.constant(1.0), tf.no_op())
        assert not hook.is_cause_of(tf.errors.InvalidArgumentError(None, None, "no op"))
        other = tf.debugging.Assert(tf.constant(False), ["other"])
        assert not hook.is_cause_of(tf.errors.InvalidArgumentError(None, other, "other"))

    @pytest.mark.parametrize(
        ("checkpoint", "kept"),
        [
            ("/m/ckpt-2", "the last checkpoint is /m/ckpt-2"),
            (None, "nothing was saved"),
        ],
    )
    def test_explanation(self, checkpoint, kept):
        hook = NanLossHook(tf.constant(1.0), tf.no_op())
        cause = ValueError("the step")
        with pytest.raises(NanLossError, match=f"NaN at step 3, .* {kept}; look") as raised:
            hook.explain(3, checkpoint, cause)
        assert raised.value.step == 3
        assert raised.value.__cause__ is cause
        # Who catches TensorFlow's error catches this one.
        assert isinstance(raised.value, tf.compat.v1.train.NanLossDuringTrainingError)
