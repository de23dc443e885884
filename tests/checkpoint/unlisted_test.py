"""A directory whose file `checkpoint` is missing is no new beginning."""

import os

import pytest
import tensorflow as tf

from monolith.checkpoint import saver as saving
from monolith.checkpoint import unlisted

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1


def train(model_dir, num_steps, **settings):
    """Trains and saves at the end; returns the step it started from."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        next_step = v1.assign_add(step, 1)
        saver = saving.PartialRecoverySaver(**settings)
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        hook = saving.NoFirstSaveCheckpointSaverHook(model_dir, save_steps=1000, saver=saver)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=model_dir, hooks=[hook], save_checkpoint_secs=None
        ) as session:
            first = int(session.run(step))
            for _ in range(num_steps):
                session.run(next_step)
        return first


def read_newest(model_dir):
    return os.path.basename(tf.train.latest_checkpoint(model_dir))


@pytest.fixture
def model_dir(tmp_path):
    """Holds checkpoints of the steps 9 and 12, and no list."""
    model_dir = str(tmp_path)
    train(model_dir, 9)
    train(model_dir, 3)
    os.remove(tmp_path / "checkpoint")
    return model_dir


def test_training_is_refused_and_nothing_touched(model_dir):
    before = sorted(os.listdir(model_dir))
    with pytest.raises(tf.errors.DataLossError) as error:
        train(model_dir, 1)
    assert error.value.message == (
        f"{model_dir}/checkpoint is missing, though 2 complete checkpoints are there, "
        f"{model_dir}/model.ckpt-12 the newest: put the file back, or set "
        "`rebuild_checkpoint_list` to go on from the newest, or move them away to start afresh."
    )
    assert sorted(os.listdir(model_dir)) == before


def test_training_goes_on_from_the_newest_if_told_so(model_dir, caplog):
    assert train(model_dir, 1, rebuild_checkpoint_list=True) == 12
    assert f"{model_dir}/checkpoint was missing" in caplog.text
    assert read_newest(model_dir) == "model.ckpt-13"
    # The others are listed again, too, so that they are deleted in their turn.
    state = tf.train.get_checkpoint_state(model_dir)
    names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    assert names == ["model.ckpt-9", "model.ckpt-12", "model.ckpt-13"]


def test_checkpoint_that_was_not_complete_does_not_count(tmp_path):
    (tmp_path / "model.ckpt-3.index").write_text("half")
    (tmp_path / "model.ckpt-3.unfinished").write_text("mark")
    (tmp_path / "other-4.index").write_text("another model")
    assert unlisted.find_complete(str(tmp_path), "model.ckpt") == []
    assert train(str(tmp_path), 1) == 0


def test_copy_counts_while_its_step_is_being_saved_again(tmp_path):
    (tmp_path / "replaced-model.ckpt-3.index").write_text("whole")
    (tmp_path / "model.ckpt-3.index").write_text("half")
    mark = tmp_path / "model.ckpt-3.unfinished"
    mark.write_text("mark")
    (tmp_path / "model.ckpt-20.index").write_text("whole")
    names = [os.path.basename(p) for p in unlisted.find_complete(str(tmp_path), "model.ckpt")]
    assert names == ["replaced-model.ckpt-3", "model.ckpt-20"]
    mark.unlink()
    names = [os.path.basename(p) for p in unlisted.find_complete(str(tmp_path), "model.ckpt")]
    assert names == ["model.ckpt-3", "model.ckpt-20"]


@pytest.mark.parametrize("directory", ["missing", ""])
def test_directory_without_checkpoints(tmp_path, directory):
    unlisted.require_list(str(tmp_path / directory), "model.ckpt")
    assert not (tmp_path / "checkpoint").exists()
