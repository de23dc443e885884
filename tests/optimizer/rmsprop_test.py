"""RmspropOptimizer, first version, and what both versions have in common."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import errors
from monolith.native_training.optimizers import rmsprop


def build_graph():
    v = tf.Variable([0.1], name="var")
    loss = 0.12 * v
    optimizer = rmsprop.RmspropOptimizer(
        learning_rate=0.1, weight_decay=1, beta1=0.9, beta2=0.9, epsilon=0.1
    )
    return optimizer.minimize(loss)


class RmspropTest(tf.test.TestCase):
    def testBasic(self):
        # There is no GPU kernel: a graph that asks for a GPU is refused while it is built,
        # whether the machine has one or not.
        with (
            tf.Graph().as_default(),
            tf.device("/device:GPU:0"),
            self.assertRaisesRegex(tf.errors.UnimplementedError, "CPUs only"),
        ):
            build_graph()

        results = []
        for device in ("", "/device:CPU:0"):
            with tf.Graph().as_default(), tf.device(device), self.session() as session:
                train_op = build_graph()
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(train_op)
                variables = tf.compat.v1.global_variables()
                self.assertTrue(all(variable.device == device for variable in variables))
                results.append({var.op.name: session.run(var) for var in variables})
        for values in results:
            self.assertLen(values, 3)
            # h = 0.12 + 1 * 0.1 = 0.22; v = 0.1 * h^2; m = 0.1 * h / sqrt(v + 0.1); 0.1 - m
            self.assertAllClose(values["var/Rmsprop/m"], [0.06794526153774846])
            self.assertAllClose(values["var/Rmsprop/v"], [0.00484])
            self.assertAllClose(values["var"], [0.03205473846225154])
        self.assertAllEqual(results[0]["var"], results[1]["var"])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(), (1,), (7,), (3, 5), (2, 1, 33)]),
    dtype=st.sampled_from([tf.float32, tf.float64]),
    beta1=st.sampled_from([0.0, 0.9, 0.99]),
    beta2=st.sampled_from([0.5, 0.9, 0.999]),
    epsilon=st.sampled_from([1e-4, 0.1]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_random_steps_agree_with_numpy(check_rmsprop, **case):
    check_rmsprop(**case, use_v2=False)


@pytest.mark.parametrize("use_v2", [False, True])
def test_large_variable_is_split_over_threads(check_rmsprop, use_v2):
    check_rmsprop(5, (1_000_003,), tf.float32, 0.9, 0.9, 0.1, 0.01, use_v2)


@pytest.mark.parametrize("use_v2", [False, True])
def test_sparse_gradient_has_the_effect_of_the_dense_one(use_v2):
    start = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sparse = tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 2]))
    dense = np.array([[3.0, 4.0], [0, 0], [6.0, 8.0], [0, 0]], np.float32)
    results = []
    for grad in (sparse, tf.constant(dense)):
        var = tf.Variable(start)
        optimizer = rmsprop.RmspropOptimizer(0.1, weight_decay=0.01, use_v2=use_v2)
        optimizer.apply_gradients([(grad, var)])
        results.append([var.numpy(), *(optimizer.get_slot(var, s).numpy() for s in "mv")])
    for from_sparse, from_dense in zip(*results, strict=True):
        np.testing.assert_array_equal(from_sparse, from_dense)


def test_sparse_gradient_in_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.Variable(tf.ones([4, 2]))
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
        optimizer = rmsprop.RmspropOptimizer(0.1, beta1=0.0, beta2=0.0, epsilon=1e-9, use_v2=True)
        ((grad, _),) = gradients = optimizer.compute_gradients(loss, [table])
        assert isinstance(grad, tf.IndexedSlices)
        train_op = optimizer.apply_gradients(gradients)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        # m = 0.1 * h / |h|: each touched element moves by the learning rate.
        np.testing.assert_allclose(session.run(table), [[1, 1], [0.9, 0.9], [1, 1], [0.9, 0.9]])


def test_defaults():
    var = tf.Variable([0.5], dtype=tf.float64)
    optimizer = rmsprop.RmspropOptimizer()
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0], tf.float64), var)])
    first = 5e-6 / np.sqrt(0.001 + 1e-8)
    second = 0.99 * first + 5e-6 / np.sqrt(0.001999 + 1e-8)
    np.testing.assert_allclose(optimizer.get_slot(var, "v").numpy(), [0.001999])
    np.testing.assert_allclose(optimizer.get_slot(var, "m").numpy(), [second], rtol=1e-6)
    np.testing.assert_allclose(0.5 - var.numpy(), [first + second], rtol=1e-6)


def test_trains_inside_a_tf_function():
    var = tf.Variable([1.0, -1.0])
    optimizer = rmsprop.RmspropOptimizer(0.1, beta1=0.0, beta2=0.0, epsilon=0.0)

    @tf.function
    def step():
        optimizer.minimize(lambda: tf.reduce_sum(var**2), var_list=[var])

    step()
    np.testing.assert_allclose(var.numpy(), [0.9, -0.9], rtol=1e-6)


def test_reference_variable_is_refused():
    with tf.Graph().as_default():
        var = tf.compat.v1.Variable([1.0], use_resource=False)
        with pytest.raises(
            NotImplementedError,
            match=r"^Please use tf.compat.v1.disable_eager_execution\(\) instead of "
            r"tf.compat.v1.disable_v2_behavior\(\)$",
        ):
            rmsprop.RmspropOptimizer().apply_gradients([(tf.constant([2.0]), var)])


@pytest.mark.parametrize("setting", ["beta1", "beta2", "epsilon", "weight_decay"])
def test_negative_setting_is_refused(setting):
    with pytest.raises(errors.ConfigError, match=f"`{setting}` must be between 0 and .*, got -1"):
        rmsprop.RmspropOptimizer(**{setting: -1})
