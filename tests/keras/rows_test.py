"""A table among the variables of a Keras model: what optimizers may do with it, and may not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.keras.rows import Rows, TableVariable


def make_rows(dim=1):
    return Rows.of(Table("scores", dim, optimizers.SGD(1.0), initializer="zeros"))


def train(rows, optimizer, weight=None):
    variables = [*rows.trainable_variables, *([] if weight is None else [weight])]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(rows.look_up(tf.constant([7, 7], tf.int64)))
        if weight is not None:
            loss += 10.0 * weight
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.optimizers.Adam(0.1, clipnorm=0.001),
        keras.optimizers.Adam(0.1, global_clipnorm=0.001),
        keras.optimizers.AdamW(0.1, weight_decay=0.5, clipvalue=0.001),
        keras.optimizers.Adagrad(0.1),
        keras.optimizers.Ftrl(0.1),
        keras.optimizers.Lion(0.1),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_optimizers_of_keras_do_nothing_but_pass_the_gradient(optimizer):
    rows, weight = make_rows(), keras.Variable(1.0)
    train(rows, optimizer, weight)
    assert rows.table([7]).numpy().tolist() == [[-2.0]]
    assert float(weight.value) != 1.0
    assert not any("scores" in variable.path for variable in optimizer.variables)
    assert float(rows.variable.value) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.Adam(loss_scale_factor=8.0), "Adam scales the loss"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
            "LossScaleOptimizer scales the loss",
        ),
        (
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
            "SGD with `gradient_accumulation_steps` cannot sum up",
        ),
        (lambda: keras.optimizers.Adam(use_ema=True), "Adam with `use_ema` cannot average"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    rows = make_rows()
    with pytest.raises(errors.ConfigError, match=message):
        train(rows, make())
    assert len(rows.table) == 0


def test_models_that_scale_their_loss_are_refused():
    rows = make_rows(2)
    inputs = keras.Input((), dtype="int64")
    outputs = keras.layers.Lambda(lambda ids: rows.look_up(ids), output_shape=(2,))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="mixed_float16")(outputs))
    model.rows = rows
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    with pytest.raises(errors.ConfigError, match="'mixed_bfloat16' in place of 'mixed_float16'"):
        model.fit(np.array([7]), np.array([1.0]), verbose=0)


def test_one_variable_for_one_table():
    table = Table("a/b", 1)
    assert Rows.of(table) is Rows.of(table)
    assert Rows.of(table).variable.name == "a_b"


def test_values():
    rows = make_rows()
    rows.table.assign([7], [[1.0]])
    saved = rows.get_weights()
    assert repr(saved[0].item()) == "<rows of table 'scores'>"
    rows.table.assign([7, 8], [[2.0], [3.0]])
    rows.set_weights(saved)
    assert rows.table([7, 8]).numpy().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("value", [1.0, np.array(1.0), tf.constant(1.0), np.array([1.0])])
def test_anything_else_cannot_be_assigned(value):
    with pytest.raises(errors.ConfigError, match="cannot be assigned like a variable"):
        TableVariable(Table("scores", 1)).assign(value)


def test_updates_by_hand_are_refused():
    variable = TableVariable(Table("scores", 1))
    with pytest.raises(errors.ConfigError, match="only optimizers of Keras can update it"):
        variable.assign_sub(0.1)
