"""Lost servers: what importing `monolith.training` changes in TensorFlow, and what comes of it."""

import importlib
import logging
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.training import monitored_session

import monolith.training
from monolith.core import files
from monolith.training.graph.estimator import GraphEstimator, GraphSpec

v1 = tf.compat.v1


class TestImport:
    @pytest.fixture(autouse=True)
    def unpatched(self, monkeypatch):
        as_tensorflow_has_it = (tf.errors.AbortedError, tf.errors.UnavailableError)
        monkeypatch.setattr(monitored_session, "_PREEMPTION_ERRORS", as_tensorflow_has_it)

    def test_only_aborted_sessions_recover(self):
        importlib.reload(monolith.training)
        assert (tf.errors.AbortedError,) == monitored_session._PREEMPTION_ERRORS

    def test_a_failure_is_only_logged(self, caplog):
        broken = mock.patch.object(files, "enable_monkey_patch", side_effect=AttributeError("gone"))
        with broken, caplog.at_level(logging.ERROR):
            importlib.reload(monolith.training)
        assert "sessions will retry lost servers on their own" in caplog.text
        assert "gone" in caplog.text


class FailOnce(v1.train.SessionRunHook):
    """Fails in the second step of the first session."""

    def __init__(self, error):
        self.error = error
        self.sessions = 0
        self.runs = 0

    def after_create_session(self, session, coord):
        self.sessions += 1

    def before_run(self, run_context):
        self.runs += 1
        if self.runs == 2:
            raise self.error


def model_fn(features, mode):
    loss = tf.cast(features, tf.float32)
    with tf.control_dependencies([loss]):
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
    return GraphSpec(mode, loss=loss, train_op=train_op)


class TestTraining:
    @pytest.mark.parametrize("error", [tf.errors.UnavailableError, tf.errors.DeadlineExceededError])
    def test_a_lost_server_reaches_the_caller(self, tmp_path, error):
        hook = FailOnce(error(None, None, "ps 1 is gone"))
        with pytest.raises(error, match="ps 1 is gone"):
            GraphEstimator(model_fn, tmp_path).train(lambda: tf.data.Dataset.range(3), hooks=[hook])
        assert hook.sessions == 1

    def test_an_aborted_session_is_made_again(self, tmp_path):
        """It starts from the last checkpoint, here that of step 0, and reads the input anew."""
        hook = FailOnce(tf.errors.AbortedError(None, None, "ps 1 was restarted"))
        estimator = GraphEstimator(model_fn, tmp_path)
        estimator.train(lambda: tf.data.Dataset.range(3), hooks=[hook])
        assert hook.sessions == 2
        assert estimator.get_variable_value("global_step") == 3
