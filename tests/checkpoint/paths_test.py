"""Names of checkpoints and their parts."""

import os

import pytest
import tensorflow as tf

from monolith.checkpoint import paths as checkpoint_paths


def test_prefix_and_asset_dir():
    helper = checkpoint_paths.SaveHelper("dir/model.ckpt")
    assert helper.get_ckpt_prefix(12) == "dir/model.ckpt-12"
    assert helper.get_ckpt_asset_dir("dir/model.ckpt-12") == "dir/model.ckpt-12.assets/"


@pytest.mark.parametrize(
    ("prefix", "step"),
    [
        pytest.param("dir/model.ckpt-12", 12, id="step"),
        pytest.param("my-dir-3/model.ckpt-0", 0, id="last_dash_counts"),
        pytest.param("dir/model.ckpt", 0, id="no_dash"),
        pytest.param("my-dir/model.ckpt", 0, id="no_number_after_the_dash"),
        pytest.param("", 0, id="empty"),
    ],
)
def test_global_step_value(prefix, step):
    assert checkpoint_paths.SaveHelper.get_global_step_value(prefix) == step


def test_existing_checkpoint_steps(tmp_path):
    paths = [str(tmp_path / f"model.ckpt-{step}") for step in (10, 20, 300)]
    helper = checkpoint_paths.SaveHelper(os.fspath(tmp_path / "model.ckpt"))
    assert helper.get_existing_checkpoint_steps() == set()
    tf.compat.v1.train.update_checkpoint_state(os.fspath(tmp_path), paths[-1], paths)
    assert helper.get_existing_checkpoint_steps() == {10, 20, 300}
