"""What a rank does in the test of exports that follow a save."""

import tensorflow as tf
from support.sync_tasks import FeatureTask

from monolith.graph import collectives
from monolith.graph.export_mode import ExportMode
from monolith.graph.signatures import ServingInputReceiver
from monolith.native_training import cpu_training, entry, feature

LEARNING_RATE = 0.25


class ExportedTask(FeatureTask):
    """Predicts the sum of an example's rows; the gradient of every row is 1."""

    @classmethod
    def params(cls):
        params = super().params()
        params.serving.export_when_saving = True
        return params

    def make_features(self):
        return {"feature": tf.ragged.constant([[0, 0], [7]], dtype=tf.int64)}

    def make_slot(self):
        return feature.FeatureSlotConfig(
            name="slot",
            default_vec_initializer=entry.ZerosInitializer(),
            default_vec_optimizer=entry.SgdOptimizer(learning_rate=LEARNING_RATE),
        )

    def predict(self, features, embedding):
        return embedding

    def create_serving_input_receiver_fn(self):
        def receiver_fn():
            ids = tf.compat.v1.placeholder(tf.int64, [None])
            splits = tf.compat.v1.placeholder(tf.int64, [None])
            ragged = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
            return ServingInputReceiver({"feature": ragged}, {"ids": ids, "splits": splits})

        return receiver_fn


def train_and_export(directory, max_steps):
    """Trains in each mode of exports, and saves after every step."""
    tf.compat.v1.disable_eager_execution()
    for mode in (ExportMode.STANDALONE, ExportMode.DISTRIBUTED):
        config = cpu_training.DistributedCpuTrainingConfig(
            model_dir=f"{directory}/{mode.name}",
            enable_sync_training=True,
            save_checkpoints_steps=1,
        )
        cpu_training.init_sync_train_and_update_conf(config)
        params = ExportedTask.params()
        params.serving.export_mode = mode
        params.train.max_steps = max_steps
        cpu_training.distributed_sync_train(config, params)
    collectives.shutdown()
