"""Embeddings in tables learn what a variable of plain TensorFlow learns from the same data."""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import cpu_training, entry, feature, native_task
from monolith.training.graph.estimator import GraphSpec, ModeKeys

pytestmark = pytest.mark.usefixtures("graph_mode")

DIM = 5
VOCABULARY = 50
BATCH = 8
IDS_PER_EXAMPLE = 4
STEPS = 100
LEARNING_RATE = 0.1


class EmbeddingUpdateTask(native_task.NativeTask):
    """Looks up the same ids in a table and in a variable, and compares them in every step.

    The loss is not linear, so a difference in one step would grow in the next ones. The ids are
    drawn with many repetitions, within an example as well as within a batch.
    """

    def create_input_fn(self, mode):
        def input_fn():
            rng = np.random.default_rng(7)
            ids = rng.zipf(1.3, [STEPS, BATCH, IDS_PER_EXAMPLE]).astype(np.int64) % VOCABULARY
            labels = rng.uniform(0.5, 1.5, [STEPS, BATCH, DIM]).astype(np.float32)
            dataset = tf.data.Dataset.from_tensor_slices({"dense_ids": ids, "label": labels})
            return dataset.map(
                lambda x: {
                    **x,
                    "feature": tf.RaggedTensor.from_tensor(x["dense_ids"], ragged_rank=1),
                }
            )

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                feature.FeatureSlotConfig(
                    name="slot",
                    default_vec_initializer=entry.ConstantsInitializer(0),
                    default_vec_optimizer=entry.AdagradOptimizer(
                        LEARNING_RATE, initial_accumulator_value=1
                    ),
                )
            )
            vector = slot.add_feature_slice(DIM)
            column = feature.FeatureColumnV1(slot, "feature")
            embedding = column.embedding_lookup(vector)

            variable = tf.compat.v1.get_variable(
                "reference", [VOCABULARY, DIM], initializer=tf.compat.v1.zeros_initializer()
            )
            # Over several servers the variable comes in parts.
            looked_up = tf.compat.v1.nn.embedding_lookup(
                variable, features["dense_ids"], partition_strategy="div"
            )
            reference = tf.reduce_sum(looked_up, axis=1)
            predictions = {"embedding": embedding, "reference": reference}
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=predictions)

            check = tf.debugging.assert_near(embedding, reference, rtol=1e-5, atol=1e-5)
            loss = tf.reduce_sum(tf.square(embedding - features["label"]))
            rows = column.get_all_embeddings_concat()
            with tf.control_dependencies([check] if check is not None else []):
                gradients = [tf.identity(g) for g in tf.gradients(loss, [rows])]
                optimizer = tf.compat.v1.train.AdagradOptimizer(LEARNING_RATE, 1.0)
                reference_loss = tf.reduce_sum(tf.square(reference - features["label"]))
                reference_op = optimizer.minimize(reference_loss)
            update = self.ctx.apply_embedding_gradients(zip(gradients, [rows], strict=True))
            with tf.control_dependencies([update, reference_op]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn


@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
@pytest.mark.parametrize("num_ps", [0, 2])
def test_embedding_update(native, num_ps, tmp_path):
    params = EmbeddingUpdateTask.params()
    conf = cpu_training.CpuTrainingConfig(num_ps=num_ps, use_native_multi_hash_table=native)
    estimator = cpu_training.local_train_internal(params, conf, os.fspath(tmp_path), steps=None)
    assert estimator.get_variable_value("global_step") == STEPS

    # After all steps, and through a checkpoint.
    input_fn = params.instantiate().create_input_fn(ModeKeys.PREDICT)
    predictions = list(estimator.predict(input_fn))
    embedding, reference = (
        np.stack([p[key] for p in predictions]) for key in ("embedding", "reference")
    )
    assert np.abs(reference).max() > 0.5
    np.testing.assert_allclose(embedding, reference, rtol=1e-5, atol=1e-5)
