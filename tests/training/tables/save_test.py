"""A training whose model directory is not as it left it: damaged, or with leftovers."""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith.checkpoint import manifest
from monolith.cluster import net
from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.graph.run_config import GraphRunConfig
from monolith.model.task import NativeTask
from monolith.training import cpu, estimator
from monolith.training.controller import files as controller_files
from monolith.training.graph.estimator import GraphEstimator, GraphSpec, ModeKeys
from monolith.training.runner import RunnerConfig

pytestmark = pytest.mark.usefixtures("graph_mode")

TABLE = "assets/MonolithMultiHashTable_-00000-of-00001"


class CountingTask(NativeTask):
    """Each step takes 1 from each number of a row, and from a variable."""

    def create_input_fn(self, mode):
        def input_fn():
            ids = tf.ragged.constant([[7]], dtype=tf.int64)
            data = tf.data.Dataset.from_tensors({"feature": ids})
            return data.repeat() if mode == ModeKeys.TRAIN else data

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                FeatureSlotConfig(
                    name="slot",
                    default_vec_initializer=entry.ZerosInitializer(),
                    default_vec_optimizer=entry.SgdOptimizer(1.0),
                )
            )
            vector = slot.add_feature_slice(2)
            column = FeatureColumnV1(slot, "feature")
            row = column.embedding_lookup(vector)
            dense = tf.compat.v1.get_variable("dense", initializer=[[0.0]], use_resource=True)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"all": tf.concat([row, dense], axis=1)})
            rows = column.get_all_embeddings_concat()
            update = self.ctx.apply_embedding_gradients([(tf.ones_like(rows), rows)])
            with tf.control_dependencies([update, dense.assign_sub([[1.0]])]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=tf.reduce_sum(row), train_op=step)

        return model_fn


def train(model_dir, max_steps, **settings):
    params = CountingTask.params()
    params.name = "counting"
    params.train.set(**settings)
    config = RunnerConfig(is_local=True, model_dir=str(model_dir), save_checkpoints_steps=2)
    return estimator.Estimator(params, config).train(max_steps=max_steps)


def predict(model_dir):
    """Returns what the row and the variable have lost, by the newest checkpoint."""
    config = cpu.CpuTrainingConfig(use_native_multi_hash_table=True)
    training = cpu.CpuTraining(config, CountingTask.params().instantiate())
    predictions = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=str(model_dir))
    ).predict(training.create_input_fn(ModeKeys.PREDICT))
    (prediction,) = predictions
    return (-prediction["all"]).tolist()


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001", TABLE])
def test_damaged_checkpoint_ends_training_or_an_older_one_is_taken(tmp_path, part):
    train(tmp_path, 4)
    assert predict(tmp_path) == [4.0, 4.0, 4.0]
    path = tmp_path / f"model.ckpt-4.{part}"
    flip_byte(path)
    with pytest.raises(tf.errors.DataLossError) as error:
        train(tmp_path, 6)
    assert str(path) in error.value.message

    train(tmp_path, 5, fall_back_to_older_checkpoint=True)
    # From step 2, variables and tables alike. Step 4 was saved again.
    assert predict(tmp_path) == [5.0, 5.0, 5.0]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    listed = [os.path.basename(name) for name in state.all_model_checkpoint_paths]
    assert listed == ["model.ckpt-2", "model.ckpt-4", "model.ckpt-5"]
    manifest.verify_thoroughly(str(tmp_path / "model.ckpt-4"))


def test_lost_list_ends_training_or_the_newest_checkpoint_is_taken(tmp_path):
    train(tmp_path, 4)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(tf.errors.DataLossError, match=r"model\.ckpt-4 the newest: put the file"):
        train(tmp_path, 6)
    train(tmp_path, 5, rebuild_checkpoint_list=True)
    assert predict(tmp_path) == [5.0, 5.0, 5.0]


def test_counts_go_with_their_checkpoint(tmp_path):
    config = RunnerConfig(
        is_local=True, model_dir=str(tmp_path), save_checkpoints_steps=2, checkpoints_max_to_keep=2
    )
    params = CountingTask.params()
    params.name = "counting"
    estimator.Estimator(params, config).train(max_steps=6)
    assert sorted(path.name for path in tmp_path.glob("ckpt.info-*")) == [
        "ckpt.info-4",
        "ckpt.info-6",
    ]


def test_damaged_checkpoint_is_not_evaluated(tmp_path):
    train(tmp_path, 2)
    flip_byte(tmp_path / "model.ckpt-2.meta")
    with pytest.raises(tf.errors.DataLossError, match=r"model\.ckpt-2\.meta is damaged"):
        predict(tmp_path)


def test_step_that_was_being_replaced_does_not_disturb_its_exemption(tmp_path):
    """A process is killed while it saves a listed and exempt step again."""
    train(tmp_path, 2)
    for path in tmp_path.glob("model.ckpt-2.*"):
        path.rename(tmp_path / f"replaced-{path.name}")
    (tmp_path / "model.ckpt-2.unfinished").write_text("")
    text = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").write_text(text.replace("model.ckpt-2", "replaced-model.ckpt-2"))
    with open(tmp_path / "monolith_checkpoint", "a") as file:
        file.write('exempt_model_checkpoint_paths: "model.ckpt-2"\n')
    train(tmp_path, 3)
    assert predict(tmp_path) == [3.0, 3.0, 3.0]
    assert not list(tmp_path.glob("replaced-*"))
    np.testing.assert_array_equal(
        tf.train.load_variable(str(tmp_path / "model.ckpt-2"), "dense"), [[-2.0]]
    )


def test_leftovers_of_a_killed_first_save_are_not_restored(tmp_path):
    train(tmp_path / "other", 4)
    (tmp_path / "other" / "model.ckpt-4.assets").rename(tmp_path / "model.ckpt-4.assets")
    (tmp_path / "model.ckpt-4.unfinished").write_text("")
    train(tmp_path, 2)
    assert predict(tmp_path) == [2.0, 2.0, 2.0]
    assert not (tmp_path / "model.ckpt-4.assets").exists()


class ReadAddressHook(tf.compat.v1.train.SessionRunHook):
    """Reads where the controller is, while it runs."""

    def __init__(self, model_dir):
        self._model_dir = model_dir

    def after_run(self, run_context, run_values):
        self.address = controller_files.read_address(self._model_dir)
        self.has_token = bool(controller_files.read_token(self._model_dir))


@pytest.mark.parametrize(
    ("settings", "host"),
    [({}, "127.0.0.1"), ({"train.controller_host": "0.0.0.0"}, net.get_local_ip())],
)
def test_controller_listens_where_it_is_told_and_always_with_a_token(tmp_path, settings, host):
    params = CountingTask.params().set(name="counting", **settings)
    hook = ReadAddressHook(str(tmp_path))
    config = cpu.CpuTrainingConfig()
    cpu.local_train_internal(params, config, str(tmp_path), steps=1, user_hooks=[hook])
    assert net.parse_address(hook.address)[0] == host
    assert hook.has_token
