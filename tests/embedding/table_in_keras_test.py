"""A table inside of a Keras model is trained, or refused; `fit` is not silent about it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table

IDS, LABELS = np.array([[1, 2], [3, 4]]), np.array([0.0, 1.0])


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.scores = Table("scores", 1, optimizers.SGD(0.5), initializer="zeros")
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(tf.reduce_sum(self.scores(ids), 1))


class Careful(Plain):
    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(ids)[:, 0] - tf.cast(labels, tf.float32)) ** 2)
        gradients = tape.gradient(loss, [self.scores, *self.trainable_variables])
        self.scores.apply_gradients(gradients[0])
        self.optimizer.apply(gradients[1:], self.trainable_variables)
        return {"loss": loss}


class Logging(Plain):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("kind", [Plain, Logging])
def test_fit_that_would_not_train_it_is_refused(kind, eager):
    model = kind()
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(errors.ConfigError, match=r"'scores' would not be trained by fit\(\) of"):
        model.fit(tf.constant(IDS, tf.int64), LABELS, verbose=0)


def test_what_trains_nothing_works():
    model = Plain()
    model.compile("sgd", "mse")
    assert model.predict(IDS, verbose=0).shape == (2, 1)
    model.evaluate(IDS, LABELS, verbose=0)
    assert model(IDS, training=True).shape == (2, 1)


def test_own_train_step_works():
    model = Careful()
    model.compile("sgd")
    model.fit(IDS, LABELS, verbose=0)
    assert len(model.scores) == 4


def test_own_loop_works():
    model = Plain()
    model.compile("sgd", "mse")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(IDS))
    model.scores.apply_gradients(tape.gradient(loss, model.scores))
    assert len(model.scores) == 4
