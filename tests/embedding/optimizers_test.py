"""The optimizers of `import monolith as ml`: one object for rows and for dense variables."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry, optimizers
from monolith.embedding.tables import single
from monolith.optimizer.learning_rate import PolynomialDecay
from monolith.proto import embedding_hash_table_pb2

START = np.array([0.5, -1.0, 2.0], np.float32)
GRADIENTS = np.array([[0.3, -0.2, 0.0], [-0.1, 0.4, 0.01], [0.2, 0.2, -0.5]], np.float32)

NUMBERS = itertools.count()  # Tables of one name are one table.

FOR_BOTH = [
    optimizers.SGD(0.1),
    optimizers.Adagrad(0.1),
    optimizers.Adagrad(0.1, initial_accumulator=0.1, weight_decay=0.05),
    optimizers.Momentum(0.1),
    optimizers.Momentum(0.1, 0.8, nesterov=True, weight_decay=0.05),
    optimizers.Adadelta(1.0),
    optimizers.Adadelta(0.5, rho=0.9, epsilon=1e-4, weight_decay=0.05),
    optimizers.Adam(0.01),
    optimizers.Adam(0.01, beta1=0.8, beta2=0.99, epsilon=1e-3, weight_decay=0.05),
    optimizers.FTRL(0.1),
    optimizers.FTRL(0.1, l1=0.2, l2=0.3, beta=0.5, initial_accumulator=0.1),
]


def train_row(optimizer, gradients=GRADIENTS):
    """Returns the row of one id after a step with each of the gradients."""
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(config)
    config.entry_config.segments.append(
        entry.CombineAsSegment(
            len(START),
            entry.ZerosInitializer(),
            optimizers.to_row_optimizer(optimizer),
            entry.Fp32Compressor(),
        )
    )
    rate = optimizers.row_learning_rate(optimizer)
    table = single.hash_table_from_config(
        entry.HashTableConfigInstance(config, [rate]), name_suffix=f"optimizers_{next(NUMBERS)}"
    )
    table = table.assign([7], [START])
    for step, gradient in enumerate(gradients):
        tf.compat.v1.train.get_or_create_global_step().assign(step)
        table = table.apply_gradients([7], [gradient], global_step=step)
    return table.lookup([7]).numpy()[0]


def train_variable(optimizer, gradients=GRADIENTS, sparse=False):
    """The same of a dense variable."""
    variable = tf.Variable([START, START])
    dense = optimizers.to_dense_optimizer(optimizer)
    for step, gradient in enumerate(gradients):
        tf.compat.v1.train.get_or_create_global_step().assign(step)
        slices = tf.IndexedSlices(tf.constant([gradient]), tf.constant([0]), tf.constant([2, 3]))
        values = tf.constant([gradient, np.zeros_like(gradient)])
        dense.apply_gradients([(slices if sparse else values, variable)])
    return variable.numpy()[0]


@pytest.mark.parametrize("optimizer", FOR_BOTH, ids=optimizers.show)
def test_rows_and_variables_are_updated_alike(optimizer):
    row = train_row(optimizer)
    assert not np.allclose(row, START, atol=1e-4)
    np.testing.assert_allclose(train_variable(optimizer), row, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(train_variable(optimizer, sparse=True), row, rtol=1e-5, atol=1e-6)


def test_adagrad_is_the_textbook_formula():
    # n = 1e-6 + h^2 with h = g + 0.05 * w; w -= 0.1 * h / sqrt(n)
    w, n = START.astype(np.float64), np.full(3, 1e-6)
    for gradient in GRADIENTS:
        h = gradient + 0.05 * w
        n += h * h
        w -= 0.1 * h / np.sqrt(n)
    row = train_row(optimizers.Adagrad(0.1, weight_decay=0.05))
    np.testing.assert_allclose(row, w, rtol=1e-5)


def test_momentum_follows_a_schedule_as_documented():
    # Rates 0.1 and 0.05: rows sum lr * g, variables sum g.
    schedule = PolynomialDecay(0.1, 1, end_learning_rate=0.05)
    gradients = np.ones((2, 3), np.float32)
    # n = 0.1, then 0.9 * 0.1 + 0.05 = 0.14
    np.testing.assert_allclose(
        train_row(optimizers.Momentum(schedule), gradients), START - 0.24, rtol=1e-5
    )
    # 0.1 * 1, then 0.05 * (0.9 + 1) = 0.095
    np.testing.assert_allclose(
        train_variable(optimizers.Momentum(schedule), gradients), START - 0.195, rtol=1e-5
    )


@pytest.mark.parametrize(
    "make",
    [optimizers.SGD, optimizers.Adagrad, optimizers.Adam, optimizers.Adadelta, optimizers.FTRL],
)
@pytest.mark.parametrize(
    "schedule",
    [
        PolynomialDecay(0.1, 2, end_learning_rate=0.02),
        keras.optimizers.schedules.PolynomialDecay(0.1, 2, end_learning_rate=0.02),
        lambda: 0.1 - 0.04 * int(tf.compat.v1.train.get_or_create_global_step()),
    ],
    ids=["ours", "keras", "function"],
)
def test_schedules_change_the_rate(make, schedule):
    scheduled = make(schedule)
    row = train_row(scheduled)
    np.testing.assert_allclose(train_variable(scheduled), row, rtol=1e-4, atol=1e-5)
    assert not np.allclose(row, train_row(make(0.1)), atol=1e-5)


def test_schedule_in_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.get_or_create_global_step()
        variable = tf.compat.v1.get_variable("w", [], initializer=tf.zeros_initializer())
        dense = optimizers.FTRL(PolynomialDecay(0.5, 1, end_learning_rate=0.25)).for_variables()
        train = dense.apply_gradients([(tf.constant(1.0), variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        # n = 1 + 1e-6, z = 1: w = -0.5 / sqrt(n)
        assert session.run(variable) == pytest.approx(-0.5, rel=1e-5)
        session.run(step.assign(1))
        session.run(train)
        # n' = 2, z = 2 + (sqrt(2) - 1) / 0.25 * 0.5 = 2.828: w = -0.25 * 2.828 / sqrt(2) = -0.5
        assert session.run(variable) == pytest.approx(-0.5, rel=1e-4)


def test_equal_settings_are_equal_and_do_not_change():
    assert optimizers.Adam(0.1) == optimizers.Adam(0.1, beta1=0.9)
    assert optimizers.Adam(0.1) != optimizers.AMSGrad(0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        optimizers.SGD(0.1).learning_rate = 0.2


def test_each_call_makes_a_new_optimizer_for_variables():
    settings = optimizers.Adagrad(0.1)
    assert settings.for_variables() is not settings.for_variables()


def test_historical_objects_pass():
    rows = entry.AdagradOptimizer(0.03)
    dense = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    assert optimizers.to_row_optimizer(rows) is rows
    assert optimizers.to_dense_optimizer(dense) is dense
    assert optimizers.row_learning_rate(rows) == pytest.approx(0.03)
    rounded = entry.StochasticRoundingFloat16OptimizerWrapper(entry.AdamOptimizer(0.25))
    assert optimizers.row_learning_rate(rounded) == 0.25
    assert optimizers.row_learning_rate(entry.MovingAverageOptimizer()) == 1.0


@pytest.mark.parametrize(
    ("optimizer", "of_rows", "of_variables"),
    [
        (
            keras.optimizers.Adagrad(0.02),
            "use ml.Adagrad(0.02, initial_accumulator=0.1) instead of keras.optimizers.Adagrad.",
            "use ml.Adagrad(0.02, initial_accumulator=0.1) instead of keras.optimizers.Adagrad.",
        ),
        (keras.optimizers.SGD(0.1), "use ml.SGD(0.1) instead", "use ml.SGD(0.1) instead"),
        (
            keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True),
            "use ml.Momentum(0.1, momentum=0.5, nesterov=True) instead of keras.optimizers.SGD",
            "use ml.Momentum(0.1, momentum=0.5, nesterov=True) instead of keras.optimizers.SGD",
        ),
        (
            keras.optimizers.Adam(clipnorm=1.0),
            "use ml.Adam(0.001) instead of keras.optimizers.Adam, without its clipnorm.",
            "use ml.Adam(0.001) instead of keras.optimizers.Adam, without its clipnorm.",
        ),
        (
            keras.optimizers.Adam(amsgrad=True),
            "use ml.AMSGrad(0.001) instead",
            "use ml.Adam(0.001) instead",
        ),
        (
            keras.optimizers.RMSprop(0.01),
            "use ml.Adam(0.01, beta1=0.0, beta2=0.9) instead",
            "use ml.RMSprop(0.01) instead",
        ),
        (keras.optimizers.Adadelta(0.01), "use ml.Adadelta(0.01) ", "use ml.Adadelta(0.01) "),
        (
            keras.optimizers.Ftrl(0.01, l2_regularization_strength=0.5),
            "use ml.FTRL(0.01, l2=1.0, initial_accumulator=0.1) instead",
            "use ml.FTRL(0.01, l2=1.0, initial_accumulator=0.1) instead",
        ),
        (keras.optimizers.Lion(0.01), "use ml.Adam(0.01) instead", "use ml.Adam(0.01) instead"),
        (
            keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)),
            "use ml.Adam(CosineDecay(...)) instead",
            "use ml.Adam(CosineDecay(...)) instead",
        ),
    ],
)
def test_optimizers_of_keras_are_refused_by_the_name_of_their_replacement(
    optimizer, of_rows, of_variables
):
    with pytest.raises(errors.ConfigError) as refused:
        optimizers.to_row_optimizer(optimizer)
    assert of_rows in str(refused.value)
    with pytest.raises(errors.ConfigError) as refused:
        optimizers.to_dense_optimizer(optimizer)
    assert of_variables in str(refused.value)


@pytest.mark.parametrize("optimizer", [None, "adagrad", 0.1, optimizers.Adagrad])
def test_anything_else_is_refused(optimizer):
    with pytest.raises(errors.ConfigError, match=r"must be one such as ml.Adagrad\(0.05\)"):
        optimizers.to_row_optimizer(optimizer)
    with pytest.raises(errors.ConfigError, match=r"must be one such as ml.Adagrad\(0.05\)"):
        optimizers.to_dense_optimizer(optimizer)


def test_one_of_the_other_kind_is_refused():
    with pytest.raises(errors.ConfigError, match="AdamOptimizer, which is for dense variables"):
        optimizers.to_row_optimizer(tf.compat.v1.train.AdamOptimizer())
    with pytest.raises(errors.ConfigError, match="AdamOptimizer, which is for rows of a table"):
        optimizers.to_dense_optimizer(entry.AdamOptimizer())


def test_what_only_one_side_has_names_the_other_sides():
    with pytest.raises(errors.ConfigError, match=r"use ml.Adam\(0.1, beta1=0.0, beta2=0.9\)"):
        optimizers.RMSprop(0.1).for_rows()
    with pytest.raises(errors.ConfigError, match=r"use ml.Adam\(0.1, beta2=0.99\)"):
        optimizers.AMSGrad(0.1, beta2=0.99).for_variables()
    # v = 0.1 * g^2; w -= 0.1 * g / sqrt(v + 1e-7)
    gradient = GRADIENTS[1]
    expected = START - 0.1 * gradient / np.sqrt(0.1 * gradient**2 + 1e-7)
    trained = train_variable(optimizers.RMSprop(0.1), GRADIENTS[1:2])
    np.testing.assert_allclose(trained, expected, rtol=1e-5)
    # m / sqrt(vhat) of the first step is the sign of the gradient, but for epsilon.
    trained = train_row(optimizers.AMSGrad(0.1), GRADIENTS[1:2])
    np.testing.assert_allclose(trained, START - 0.1 * np.sign(gradient), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.SGD(-1.0), "`learning_rate` of SGD must be a number that is not neg"),
        (lambda: optimizers.SGD(float("nan")), "`learning_rate` of SGD must be a number"),
        (lambda: optimizers.SGD("0.1"), "got '0.1'"),
        (lambda: optimizers.SGD(True), "got True"),
        (lambda: optimizers.SGD(None), "or a schedule"),
        (lambda: optimizers.SGD(tf.Variable(0.1)), "`lambda: variable`"),
        (lambda: optimizers.Adagrad(0.1, -0.1), "`initial_accumulator` of Adagrad must not be neg"),
        (lambda: optimizers.Adagrad(0.1, weight_decay=None), "`weight_decay` of Adagrad must not"),
        (lambda: optimizers.Adam(0.1, beta1=1.0), r"`beta1` of Adam must lie in \[0, 1\)"),
        (lambda: optimizers.Momentum(0.1, 2.0), r"`momentum` of Momentum must lie in \[0, 1\)"),
        (lambda: optimizers.RMSprop(0.1, rho=1.0), r"`rho` of RMSprop must lie in \[0, 1\)"),
        (lambda: optimizers.Adadelta(0.1, rho=-1.0), "`rho` of Adadelta must not be negative"),
        (lambda: optimizers.Adagrad(0.1, 0.0).for_variables(), "must be above 0 for dense"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(errors.ConfigError, match=message):
        make()


def test_numpy_numbers_are_numbers():
    assert optimizers.SGD(np.float32(0.5)) == optimizers.SGD(0.5)
    assert optimizers.SGD(1).learning_rate == 1.0
