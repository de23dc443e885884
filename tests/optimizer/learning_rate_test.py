"""Learning rates that follow the global step."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import learning_rate_functions
from monolith.optimizer import learning_rate


def test_historical_path_gives_the_same_module():
    assert learning_rate_functions is learning_rate


@pytest.mark.usefixtures("graph_mode")
class TestPolynomialDecay:
    def test_basic(self):
        global_step = tf.compat.v1.train.get_or_create_global_step()
        rate = learning_rate.PolynomialDecay(0.01, decay_steps=10, end_learning_rate=0.11)()
        increment = tf.compat.v1.assign_add(global_step, 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(increment)
            assert session.run(rate) == pytest.approx(0.02)
            session.run(increment)
            assert session.run(rate) == pytest.approx(0.03)

    def test_stays_at_the_end(self):
        # No global step yet: the function makes it.
        rate = learning_rate.PolynomialDecay(1.0, decay_steps=4, end_learning_rate=0.5)()
        global_step = tf.compat.v1.train.get_global_step()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(tf.compat.v1.assign(global_step, 100))
            assert session.run(rate) == pytest.approx(0.5)

    def test_dense_optimizer(self):
        # Adagrad at step 0 with rate 3: norm = 0.1 + k * g^2 after k steps.
        grads = [np.array([0.1, 0.1], np.float32), np.array([0.01, 0.01], np.float32)]
        starts = [np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)]
        variables = [tf.compat.v1.get_variable(f"v{i}", initializer=starts[i]) for i in range(2)]
        tf.compat.v1.train.get_or_create_global_step()
        optimizer = tf.compat.v1.train.AdagradOptimizer(
            learning_rate.PolynomialDecay(3.0, decay_steps=10, end_learning_rate=11.0),
            initial_accumulator_value=0.1,
        )
        update = optimizer.apply_gradients(
            zip([tf.constant(g) for g in grads], variables, strict=True)
        )
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(3):
                session.run(update)
            np.testing.assert_allclose(
                session.run(variables[0]), [-1.6026099, -0.6026099], rtol=1e-6
            )
            np.testing.assert_allclose(session.run(variables[1]), [2.7156792, 3.7156792], rtol=1e-6)


def test_text_holds_the_settings():
    decay = learning_rate.PolynomialDecay(0.01, 20, 0.05)
    assert str(decay) == str(learning_rate.PolynomialDecay(0.01, 20, 0.05))
    assert str(decay) != str(learning_rate.PolynomialDecay(0.01, 21, 0.05))
    assert str(decay) == (
        'LearningRateFunction("PolynomialDecay",Params:cycle=False,decay_steps=20,'
        "end_learning_rate=0.05,initial_learning_rate=0.01,name=None,power=1.0)"
    )


def test_eagerly_it_gives_the_rate_of_the_current_step():
    decay = learning_rate.PolynomialDecay(0.01, decay_steps=10, end_learning_rate=0.11)
    step = tf.compat.v1.train.get_or_create_global_step()
    step.assign(0)
    assert float(decay()) == pytest.approx(0.01)
    step.assign(1)
    assert float(decay()) == pytest.approx(0.02)
    step.assign(0)


def test_base_class_cannot_be_called():
    with pytest.raises(
        NotImplementedError, match=r"^Learning rate function must override __call__$"
    ):
        learning_rate.LearningRateFunction()()


def test_own_functions_get_the_text():
    class Constant(learning_rate.LearningRateFunction):
        def __init__(self, rate):
            self.rate = rate

        def __call__(self):
            return self.rate

    assert Constant(0.5)() == 0.5
    assert str(Constant(0.5)) == 'LearningRateFunction("Constant",Params:rate=0.5)'
