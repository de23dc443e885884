"""A table among the variables of a Keras model: what optimizers may do with it, and may not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.keras.embedding import Embedding
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


class Borrowing(keras.Model):
    """Looks up rows of a layer that it does not own."""

    def __init__(self, embed):
        super().__init__()
        self.borrowed = lambda ids: embed(ids)
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.borrowed(ids))


class BorrowingWithStep(Borrowing):
    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(ids, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Paying(Borrowing):
    """Trains what it has borrowed."""

    def __init__(self, embed):
        super().__init__(embed)
        self.get_variables = lambda: [*embed.trainable_variables, *self.trainable_variables]

    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(ids, training=True))
        variables = self.get_variables()
        gradients = tape.gradient(loss, variables)
        embeds, own = gradients[:1], gradients[1:]
        variables[0].assign(embeds[0])
        self.optimizer.apply_gradients(zip(own, variables[1:], strict=True))
        return {"loss": loss}


def make_lambda_model(embed):
    ids = keras.Input((2,), dtype="int64")
    rows = keras.layers.Lambda(lambda x: embed(x), output_shape=(2,))(ids)
    return keras.Model(ids, keras.layers.Dense(1)(rows))


IDS, LABELS = np.array([[1, 2], [3, 4]]), np.array([0.0, 1.0])


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Borrowing, r"would not be trained by fit\(\) of"),
        (make_lambda_model, r"would not be trained by fit\(\) of"),
        (BorrowingWithStep, "is looked up in the train_step of"),
    ],
)
def test_layer_that_the_model_does_not_own_is_refused(make, message, eager):
    embed = Embedding(2, optimizers.SGD(1.0), "sum", name="ids")
    model = make(embed)
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(errors.ConfigError, match=f"Table 'ids' {message}"):
        model.fit(IDS, LABELS, batch_size=1, verbose=0)
    assert len(embed.table) == 0


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("make", [Borrowing, make_lambda_model, BorrowingWithStep])
def test_frozen_layer_may_be_borrowed(make, eager):
    embed = Embedding(2, optimizers.SGD(1.0), "sum", trainable=False)
    model = make(embed)
    model.compile("sgd", "mse", run_eagerly=eager)
    model.fit(IDS, LABELS, batch_size=1, verbose=0)
    model.evaluate(IDS, LABELS, verbose=0)
    assert len(embed.table) == 0


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_step_that_updates_a_borrowed_table_works(eager):
    embed = Embedding(2, optimizers.SGD(1.0), "sum")
    model = Paying(embed)
    model.compile("sgd", "mse", run_eagerly=eager)
    model.fit(IDS, LABELS, batch_size=1, verbose=0)
    assert len(embed.table) == 4


def test_layer_of_a_nested_model_and_a_shared_table_are_trained():
    embed = Embedding(2, optimizers.SGD(1.0), "sum")
    inner = keras.Sequential([Embedding(table=embed, combiner="mean"), keras.layers.Dense(1)])
    outer = keras.Sequential([keras.Sequential([inner])])
    outer.compile("sgd", "mse")
    outer.fit(IDS, LABELS, verbose=0)
    assert len(embed.table) == 4


def test_part_of_a_model_may_be_frozen():
    embed = Embedding(2, optimizers.SGD(1.0), "sum", trainable=False)
    model = keras.Sequential([embed, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(IDS, LABELS, verbose=0)
    assert len(embed.table) == 0


class Branching(keras.Model):
    """Looks something up in one branch only."""

    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        rows = tf.cond(
            tf.reduce_any(ids > 0),
            lambda: self.embed(ids),
            lambda: tf.zeros([tf.shape(ids)[0], 2]),
        )
        return self.dense(tf.ensure_shape(rows, [None, 2]))


def test_lookup_in_a_branch_is_trained():
    embed = Embedding(2, optimizers.SGD(1.0), "sum")
    model = Branching(embed)
    model.compile("sgd", "mse")
    model.fit(-IDS, LABELS, verbose=0)
    assert len(embed.table) == 0
    model.fit(IDS, LABELS, verbose=0)
    assert len(embed.table) == 4


class Recomputing(Branching):
    def call(self, ids):
        return self.dense(keras.remat(self.embed)(ids))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_recomputing_is_refused(eager):
    model = Recomputing(Embedding(2, optimizers.SGD(1.0), "sum", name="ids"))
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(errors.ConfigError, match="Table 'ids' cannot be looked up inside of keras"):
        model.fit(IDS, LABELS, verbose=0)
