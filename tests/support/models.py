"""A small model and its batch, for tests of the model API."""

import numpy as np
import tensorflow as tf

from monolith.graph.mode_keys import ModeKeys
from monolith.model.ranking import EstimatorSpec, MonolithModel
from monolith.tensor import prefetch

RUN_CONFIG = None  # Model functions take a config; the ones here have no use for it.


class Model(MonolithModel):
    """Has the features that a test declares."""

    def input_fn(self, mode):
        ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
        return tf.data.Dataset.from_tensors({"user": ids, "label": [1.0, 0.0]})

    def model_fn(self, features, mode):
        raise AssertionError("Not to be called.")


def with_model_fn(function, **params) -> Model:
    """Returns a model without features whose model_fn is `function(self, features, mode)`."""
    made = type("Ranking", (Model,), {"model_fn": function})()
    made.p.set(**params)
    made.ctx.async_function_mgr = prefetch.AsyncFunctionMgr(is_async=False)
    return made


def build(made: MonolithModel, features, mode=ModeKeys.TRAIN):
    tf.compat.v1.train.get_or_create_global_step()
    return made.create_model_fn()(features=features, mode=mode, config=RUN_CONFIG)


def linear_model_fn(self, features, mode):
    """Predicts `sigmoid(w * x)`, with `w` 1 at first."""
    w = tf.compat.v1.get_variable("w", initializer=1.0)
    pred = tf.sigmoid(w * features["x"])
    label = features.get("label")
    loss = None if mode == ModeKeys.PREDICT else tf.reduce_sum(tf.square(pred - label))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    return EstimatorSpec(label, pred, "ctr", loss, optimizer)


X, LABEL = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, 0.0])


def make_features():
    return {"x": tf.constant(X, tf.float32), "label": tf.constant(LABEL, tf.float32)}
