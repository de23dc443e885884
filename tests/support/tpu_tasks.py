"""A task as for TPUs, registered under a name."""

import numpy as np
import tensorflow as tf

from monolith.graph.mode_keys import ModeKeys
from monolith.graph.spec import GraphSpec
from monolith.model import registry
from monolith.model.base_embedding_task import BaseEmbeddingTask
from monolith.model.base_task import BaseTask

NUM_EXAMPLES = 512


def write_examples(path):
    """Writes examples whose label is whether the user's number is odd."""
    random = np.random.default_rng(1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for user in random.integers(0, 50, NUM_EXAMPLES):
            features = {
                "user": tf.train.Feature(int64_list=tf.train.Int64List(value=[user, user + 1000])),
                "uid": tf.train.Feature(int64_list=tf.train.Int64List(value=[user + 3000])),
                "label": tf.train.Feature(float_list=tf.train.FloatList(value=[user % 2])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


class Clicks(BaseEmbeddingTask):
    """Guesses the label by the user."""

    losses: list[float] = []

    def _get_feature_map(self):
        return {
            "user": tf.io.VarLenFeature(tf.int64),
            "uid": tf.io.FixedLenFeature([], tf.int64),
            "label": tf.io.FixedLenFeature([], tf.float32),
        }

    def logits_fn(self):
        return tf.reduce_sum(self.env.lookup("user", slot=1, dim=4), 1)

    def _note(self, loss):
        self.losses.append(float(loss))

    def create_model_fn(self):
        def model_fn(features, mode, params):
            assert params["accelerator"] == "tpu"
            with self.env.using(features):
                logits = self.logits_fn()
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=features["label"], logits=logits)
            )
            optimizer = tf.compat.v1.train.AdagradOptimizer(0.5)
            train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
            note = tf.compat.v1.py_func(self._note, [loss], [])
            return GraphSpec(mode, loss=loss, train_op=tf.group(train_op, note))

        return model_fn


class Line(BaseTask):
    """A model without embeddings: w goes up by one with every step; its loss is w."""

    trained: list[float] = []

    def _note(self, w):
        self.trained.append(float(w))

    def create_input_fn(self, mode):
        return lambda: tf.data.Dataset.from_tensors({"x": [1.0]}).repeat(4)

    def create_model_fn(self):
        def model_fn(features, mode):
            w = tf.compat.v1.get_variable("w", initializer=0.0)
            loss = w * tf.reduce_sum(features["x"])
            if mode == ModeKeys.EVAL:
                return GraphSpec(mode, loss=loss)
            step = tf.compat.v1.train.get_global_step()
            with tf.control_dependencies([loss]):  # Not without a batch.
                trained = w.assign_add(1.0, read_value=True)
                note = tf.compat.v1.py_func(self._note, [trained], [])
                train_op = tf.group(trained, note, tf.compat.v1.assign_add(step, 1))
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


@registry.RegisterSingleTaskModel
class ClicksParams(registry.SingleTaskModelParams):
    def task(self):
        return Clicks.params().set(name="clicks", vocab_size_per_slot=100)
