"""A function that is called now and then finds what was trained saved, at any pace."""

import pytest
import tensorflow as tf

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook
from monolith.training.graph.estimator import GraphEstimator, GraphSpec
from monolith.training.hooks.saved_steps import SavedStepsHook

v1 = tf.compat.v1


def make_model_fn(model_dir, own_saver, **settings):
    def model_fn(features, mode):
        loss = tf.reduce_sum(features)
        with tf.control_dependencies([loss]):
            train_op = v1.assign_add(v1.train.get_global_step(), 1)
        savers = [NoFirstSaveCheckpointSaverHook(model_dir, **settings)] if own_saver else []
        return GraphSpec(mode, loss=loss, train_op=train_op, training_chief_hooks=savers)

    return model_fn


def read():
    return tf.data.Dataset.from_tensors(1.0).repeat(7)


@pytest.mark.parametrize("settings", [{"save_secs": 600}, {"save_steps": 600}])
@pytest.mark.parametrize("own_saver", [True, False])
def test_finds_a_checkpoint_of_its_step(tmp_path, own_saver, settings):
    model_dir, found = str(tmp_path), []

    def look():
        found.append(SaveHelper.get_global_step_value(tf.train.latest_checkpoint(model_dir)))

    for _ in range(2):
        estimator = GraphEstimator(make_model_fn(model_dir, own_saver, **settings), model_dir)
        estimator.train(read, hooks=[SavedStepsHook(3, look)])
    # It counts from where each training starts.
    assert found == [3, 6, 10, 13]
