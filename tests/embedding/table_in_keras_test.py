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


class Forgetful(Plain):
    """The `train_step` that a page on Keras shows, which knows of no table."""

    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(ids, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Inside(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.scores = Table("scores", 1, optimizers.SGD(0.5), initializer="zeros")

    def call(self, ids):
        return tf.reduce_sum(self.scores(ids), 1)


class ForgetfulOfLayer(Forgetful):
    def __init__(self):
        super().__init__()
        self.inside = Inside()
        self.scores = self.inside.scores

    def call(self, ids):
        return self.dense(self.inside(ids))


class Logging(Plain):
    def train_step(self, data):
        return super().train_step(data)


def make_dense(**settings):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, **settings)])


def look_up_sum(scores):
    return tf.reduce_sum(scores(tf.constant([1, 2], tf.int64)))


def make_loss_function(scores):
    model = make_dense()
    return model, lambda labels, predicted: tf.reduce_mean(predicted) + look_up_sum(scores)


def make_loss_class(scores):
    class Loss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return tf.reduce_mean(y_pred) + look_up_sum(scores)

    return make_dense(), Loss()


def make_compute_loss(scores):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, ids):
            return self.dense(ids)

        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) + look_up_sum(scores)

    return Model(), "mse"


def make_regularizer(scores):
    return make_dense(kernel_regularizer=lambda weights: look_up_sum(scores)), "mse"


IN_LOSSES = [make_loss_function, make_loss_class, make_compute_loss, make_regularizer]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("make", IN_LOSSES)
def test_fit_that_would_not_train_it_for_a_loss_is_refused(make, eager):
    scores = Table("scores", 1, optimizers.SGD(0.5), initializer="zeros")
    model, loss = make(scores)
    model.compile("sgd", loss, run_eagerly=eager)
    with pytest.raises(errors.ConfigError, match=rf"'scores' would not be .* '{model.name}', "):
        model.fit(IDS.astype(np.float32), LABELS, verbose=0)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("make", IN_LOSSES)
def test_loss_without_training_of_its_table_works(make, eager):
    scores = Table("scores", 1, optimizers.SGD(0.5), initializer="zeros")
    model, loss = make(scores)
    model.compile("sgd", loss, run_eagerly=eager)
    model.evaluate(IDS.astype(np.float32), LABELS, verbose=0)
    scores.trainable = False
    model.fit(IDS.astype(np.float32), LABELS, verbose=0)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_metric_may_look_it_up(eager):
    scores = Table("scores", 1, optimizers.SGD(0.5), initializer="zeros")
    model = make_dense()
    model.compile(
        "sgd", "mse", metrics=[lambda labels, predicted: look_up_sum(scores)], run_eagerly=eager
    )
    model.fit(IDS.astype(np.float32), LABELS, verbose=0)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("updates", [True, False])
def test_own_train_step_whose_loss_looks_it_up(updates, eager):
    class Model(Careful):
        def call(self, ids):
            return self.dense(tf.cast(ids, tf.float32))

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0])) + look_up_sum(self.scores)
            if updates:
                self.scores.apply_gradients(tape.gradient(loss, self.scores))
            self.optimizer.iterations.assign_add(1)
            return {"loss": loss}

    model = Model()
    model.compile("sgd", run_eagerly=eager)
    if updates:
        model.fit(IDS, LABELS, batch_size=1, verbose=0)
        assert len(model.scores) == 2
        return
    with pytest.raises(errors.ConfigError, match=r"'scores' is looked up in the train_step of"):
        model.fit(IDS, LABELS, batch_size=1, verbose=0)


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


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("kind", [Forgetful, ForgetfulOfLayer])
def test_own_train_step_that_forgets_it_is_refused(kind, eager):
    model = kind()
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(errors.ConfigError, match=r"'scores' is looked up in the train_step of"):
        model.fit(IDS, LABELS, batch_size=1, verbose=0)
    assert len(model.scores) == 0


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("kind", [Plain, Forgetful])
def test_frozen_table_stays_as_it_is(kind, eager):
    model = kind()
    model.scores.assign([1, 2], [[5.0], [6.0]])
    model.scores.trainable = False
    model.compile("sgd", "mse", run_eagerly=eager)
    model.fit(IDS, LABELS, batch_size=1, epochs=2, verbose=0)
    assert model.scores([1, 2, 3]).numpy().tolist() == [[5.0], [6.0], [0.0]]


def test_own_step_may_look_up_without_a_tape():
    class Watching(Forgetful):
        def __init__(self):
            super().__init__()
            teacher = Inside()
            self.teach = lambda ids: teacher(ids)

        def call(self, ids):
            return self.dense(tf.cast(ids, tf.float32))

        def train_step(self, data):
            metrics = super().train_step(data)
            return {**metrics, "teacher": tf.reduce_mean(self.teach(data[0]))}

    model = Watching()
    model.compile("sgd", "mse")
    model.fit(IDS, LABELS, verbose=0)


def test_failure_of_a_step_is_the_one_that_is_told():
    class Failing(Forgetful):
        def train_step(self, data):
            super().train_step(data)
            raise ArithmeticError("mine")

    model = Failing()
    model.compile("sgd", "mse")
    with pytest.raises(ArithmeticError, match="mine"):
        model.fit(IDS, LABELS, verbose=0)


@pytest.mark.parametrize("kind", [Plain, ForgetfulOfLayer])
def test_model_is_not_saved_without_its_rows(kind, tmp_path):
    model = kind()
    model(IDS)
    with pytest.raises(errors.ConfigError, match="rows of table 'scores' would not be saved with"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(errors.ConfigError, match="rows of table 'scores' would not be saved with"):
        model.save_weights(tmp_path / "model.weights.h5")


def test_layer_may_save_its_table_by_itself(tmp_path):
    class Saving(Plain):
        def save_own_variables(self, store):
            store["rows"] = self.scores(np.array([1])).numpy()

    model = Saving()
    model(IDS)
    model.save_weights(tmp_path / "model.weights.h5")
    assert (tmp_path / "model.weights.h5").exists()
