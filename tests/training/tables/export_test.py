"""Exports of tasks: which exporter there is, and what happens after a save."""

import os

import numpy as np
import pytest
import tensorflow as tf
from support.serving import call_in_parts

from monolith import errors
from monolith.embedding import entry
from monolith.graph import export_mode
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import ServingInputReceiver
from monolith.native_training import cpu_training, feature, native_task
from monolith.serving import export_state
from monolith.serving.export import DistributedExporter, StandaloneExporter
from monolith.serving.loading import import_saved_model
from monolith.training.graph.estimator import GraphSpec
from monolith.training.tables import export as cpu_export
from monolith.training.tables import save as cpu_saving

pytestmark = pytest.mark.usefixtures("graph_mode")

DIM = 5


class FeatureTask(native_task.NativeTask):
    """Sums the embeddings of one feature; the loss is that sum, so every gradient is 1."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("ids", [[0, 0], [7]], "Ids of the examples.")
        p.serving.export_when_saving = True
        p.serving.export_mode = ExportMode.STANDALONE
        return p

    def create_input_fn(self, mode):
        ids = tf.ragged.constant(self.p.ids, dtype=tf.int64, ragged_rank=1)
        return lambda: tf.data.Dataset.from_tensors({"feature": ids}).repeat(2)

    def create_model_fn(self):
        def model_fn(features, mode, config):
            config = feature.FeatureSlotConfig(
                name="slot",
                default_vec_initializer=entry.ZerosInitializer(),
                default_vec_optimizer=entry.SgdOptimizer(learning_rate=0.25),
            )
            slot = self.ctx.create_feature_slot(config)
            vector = slot.add_feature_slice(DIM)
            column = feature.FeatureColumnV1(slot, "feature")
            embedding = column.embedding_lookup(vector)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"embedding": embedding})
            loss = tf.reduce_sum(embedding)
            rows = column.get_all_embeddings_concat()
            update = self.ctx.apply_embedding_gradients([(tf.gradients(loss, [rows])[0], rows)])
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn

    def create_serving_input_receiver_fn(self):
        def receiver_fn():
            ids = tf.compat.v1.placeholder(tf.int64, [None])
            splits = tf.compat.v1.placeholder(tf.int64, [None])
            ragged = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
            return ServingInputReceiver({"feature": ragged}, {"ids": ids, "splits": splits})

        return receiver_fn


class WithoutReceiver(FeatureTask):
    def create_serving_input_receiver_fn(self):
        return None


def make_training(task_class=FeatureTask, **serving) -> cpu_training.CpuTraining:
    params = task_class.params()
    params.serving.set(**serving)
    return cpu_training.CpuTraining(cpu_training.CpuTrainingConfig(), params.instantiate())


def make_exporter(tmp_path, dense_only=False, include_graphs=None, **serving):
    return cpu_training.create_exporter(
        make_training(**serving),
        str(tmp_path),
        None,
        str(tmp_path / "exported"),
        dense_only,
        include_graphs,
    )


@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
def test_export_when_saving(tmp_path, native):
    params = FeatureTask.params()
    conf = cpu_training.CpuTrainingConfig(
        save_checkpoints_steps=1, checkpoints_max_to_keep=1, use_native_multi_hash_table=native
    )
    cpu_training.local_train_internal(params, conf, str(tmp_path), steps=2)
    base = str(tmp_path / "exported_models")
    (entry_,) = export_state.get_export_saver_listener_state(base).entries
    assert entry_.global_step == 2
    with import_saved_model(base, output_name="embedding") as infer:
        rows = infer({"ids": [0, 7, 3], "splits": [0, 1, 2, 3, 3]})["embedding"]
    # Two steps of SGD from 0, id 0 with two gradients in each: -2 * 0.25 * 2; all fit into 16 bits.
    np.testing.assert_array_equal(rows[:, 0], [-1.0, -0.5, 0.0, 0.0])
    assert rows.shape == (4, DIM)


@pytest.mark.parametrize("num_ps", [0, 1, 2])
@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
def test_export_in_parts_when_saving(tmp_path, native, num_ps):
    params = FeatureTask.params()
    params.serving.export_mode = ExportMode.DISTRIBUTED  # The default.
    conf = cpu_training.CpuTrainingConfig(
        save_checkpoints_steps=1,
        checkpoints_max_to_keep=1,
        use_native_multi_hash_table=native,
        num_ps=num_ps,
    )
    cpu_training.local_train_internal(params, conf, str(tmp_path), steps=2)
    base = tmp_path / "exported_models"
    names = ["entry", *(f"ps_{i}" for i in range(max(1, num_ps)))]
    assert sorted(os.listdir(base)) == names
    versions = set()
    for name in names:
        (entry_,) = export_state.get_export_saver_listener_state(str(base / name)).entries
        assert entry_.global_step == 2
        state, version = sorted(os.listdir(base / name), key=str.isdigit)
        versions.add(version)
        assert state == export_state.EXPORT_SAVER_LISTENER_STATE_FILE_NAME
    assert len(versions) == 1
    inputs = {"ids": [0, 7, 3], "splits": [0, 1, 2, 3, 3]}
    rows = call_in_parts(str(base), len(names) - 1, inputs)["embedding"]
    np.testing.assert_array_equal(rows[:, 0], [-1.0, -0.5, 0.0, 0.0])
    assert rows.shape == (4, DIM)


def test_table_without_rows(tmp_path):
    params = FeatureTask.params()
    params.ids = [[], []]
    cpu_training.local_train(params, model_dir=str(tmp_path / "model"), steps=1)
    base = str(tmp_path / "model" / "exported_models")
    with import_saved_model(base, output_name="embedding") as infer:
        assert not infer({"ids": [0], "splits": [0, 1]})["embedding"].any()


class TestExporter:
    def test_standalone(self, tmp_path):
        exporter = make_exporter(tmp_path, shared_embedding=False)
        assert type(exporter) is StandaloneExporter
        assert exporter._shared_embedding is False
        assert exporter._model_dir == str(tmp_path)
        assert exporter._export_dir_base == str(tmp_path / "exported")

    def test_distributed(self, tmp_path):
        exporter = make_exporter(
            tmp_path,
            export_mode=ExportMode.DISTRIBUTED,
            dense_only=True,
            include_graphs=["entry"],
            export_with_cleared_entry_devices=True,
        )
        assert type(exporter) is DistributedExporter
        assert exporter._dense_only
        assert exporter._clear_entry_devices
        assert exporter._include_graphs == {"entry"}

    @pytest.mark.parametrize("mode", [ExportMode.STANDALONE, ExportMode.DISTRIBUTED])
    @pytest.mark.parametrize("setting", ["export_with_gpu_allowed", "with_remote_gpu"])
    def test_gpus_are_refused(self, tmp_path, mode, setting):
        with pytest.raises(errors.ConfigError, match=f"`serving.{setting}` asks for a model that"):
            make_exporter(tmp_path, export_mode=mode, **{setting: True})

    def test_one_model_has_no_entry(self, tmp_path):
        with pytest.raises(errors.ConfigError, match="is for the entry of a model in parts"):
            make_exporter(tmp_path, export_with_cleared_entry_devices=True)

    @pytest.mark.parametrize("mode", [ExportMode.NONE, "standalone"])
    def test_no_mode_to_export_in(self, tmp_path, mode):
        with pytest.raises(ValueError, match=f"^Invalid export_mode: {mode}$"):
            make_exporter(tmp_path, export_mode=mode)

    @pytest.mark.parametrize("part", [{"dense_only": True}, {"include_graphs": ["ps_0"]}])
    def test_standalone_has_no_parts(self, tmp_path, part):
        with pytest.raises(errors.ConfigError, match=f"`{next(iter(part))}` exports a part"):
            make_exporter(tmp_path, **part)


class TestListeners:
    def create(self, tmp_path, dense_only=False, task_class=FeatureTask, **serving):
        return cpu_export.create_export_listeners(
            make_training(task_class, **serving),
            str(tmp_path),
            str(tmp_path / cpu_saving.CHECKPOINT_BASENAME),
            [],
            dense_only,
        )

    def test_only_on_request(self, tmp_path):
        assert self.create(tmp_path, export_when_saving=False) == []
        assert len(self.create(tmp_path)) == 1

    def test_not_inside_of_an_export(self, tmp_path):
        with (
            export_mode.enter_export_mode(ExportMode.STANDALONE),
            pytest.raises(ValueError, match=r"^Logic corrupted\. Try to call exporting listeners"),
        ):
            self.create(tmp_path)

    def test_dense_only_needs_parts(self, tmp_path):
        with pytest.raises(errors.ConfigError, match=r"only with ExportMode\.DISTRIBUTED; leave"):
            self.create(tmp_path, dense_only=True)

    def test_missing_receiver(self, tmp_path):
        with pytest.raises(
            errors.ConfigError,
            match=r"^`serving\.export_when_saving` is set, but WithoutReceiver has no serving",
        ):
            self.create(tmp_path, task_class=WithoutReceiver)

    def test_training_that_cannot_export_does_not_start(self, tmp_path):
        params = FeatureTask.params()
        params.serving.with_remote_gpu = True
        with pytest.raises(errors.ConfigError, match=r"leave it at False"):
            cpu_training.local_train(params, model_dir=str(tmp_path / "model"))
        assert os.listdir(tmp_path / "model") == []
