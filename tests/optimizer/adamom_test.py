"""AdamomOptimizer: the historical case, a NumPy model, types, sparse gradients, placement."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import errors
from monolith.native_training.optimizers import adamom


class AdamomTest(tf.test.TestCase):
    def testBasic(self):
        with tf.Graph().as_default(), self.session() as session:
            v = tf.Variable([0.1], name="var")
            loss = 0.12 * v
            optimizer = adamom.AdamomOptimizer(
                learning_rate=0.1, weight_decay=0.01, ada_decay=0.99, mom_decay=0.9
            )
            train_op = optimizer.minimize(loss)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train_op)
            variables = tf.compat.v1.global_variables()
            values = {var.op.name: session.run(var) for var in variables}
        self.assertLen(values, 4)
        # h = 0.12 + 0.01 * 0.1 = 0.121
        self.assertAllClose(values["var/Adamom/m"], [0.0121])  # 0.1 * h
        self.assertAllClose(values["var/Adamom/c"], [1.0])
        self.assertAllClose(values["var/Adamom/v"], [0.014641])  # h^2
        # 0.1 - 0.1 * 0.0121 / sqrt(0.014641 + 1e-6)
        self.assertAllClose(values["var"], [0.090000336], rtol=1e-6, atol=1e-8)


class Model:
    """The formula in NumPy, float64."""

    def __init__(self, var, ada_decay, mom_decay, epsilon, weight_decay):
        self.var = np.array(var, np.float64)
        self.m, self.v, self.c = (np.zeros_like(self.var) for _ in range(3))
        self._settings = ada_decay, mom_decay, epsilon, weight_decay

    def apply(self, grad, learning_rate):
        ada_decay, mom_decay, epsilon, weight_decay = self._settings
        h = np.asarray(grad, np.float64) + weight_decay * self.var
        self.m = mom_decay * self.m + (1 - mom_decay) * h
        self.v = ada_decay * self.v + h**2
        self.c = ada_decay * self.c + 1
        self.var -= learning_rate * self.m / np.sqrt(self.v / self.c + epsilon)


TOLERANCES = {tf.float32: {"rtol": 2e-5, "atol": 1e-6}, tf.float64: {"rtol": 1e-7, "atol": 1e-9}}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(), (1,), (7,), (3, 5), (2, 1, 33)]),
    dtype=st.sampled_from([tf.float32, tf.float64]),
    ada_decay=st.sampled_from([0.5, 0.99, 0.9999, 1.0]),
    mom_decay=st.sampled_from([0.0, 0.9, 0.99]),
    epsilon=st.sampled_from([1e-6, 1e-2]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_random_steps_agree_with_numpy(
    seed, shape, dtype, ada_decay, mom_decay, epsilon, weight_decay
):
    rng = np.random.default_rng(seed)
    var = tf.Variable(rng.normal(size=shape), dtype=dtype)
    learning_rate = 0.05
    optimizer = adamom.AdamomOptimizer(learning_rate, ada_decay, mom_decay, epsilon, weight_decay)
    model = Model(var.numpy(), ada_decay, mom_decay, epsilon, weight_decay)
    for _ in range(5):
        grad = tf.constant(rng.normal(size=shape), dtype)
        optimizer.apply_gradients([(grad, var)])
        model.apply(grad.numpy(), float(np.float32(learning_rate)))
    for slot in ("m", "v", "c"):
        np.testing.assert_allclose(
            optimizer.get_slot(var, slot).numpy(), getattr(model, slot), **TOLERANCES[dtype]
        )
    np.testing.assert_allclose(var.numpy(), model.var, **TOLERANCES[dtype])


def test_large_variable_is_split_over_threads():
    rng = np.random.default_rng(3)
    start = rng.normal(size=1_000_003).astype(np.float32)
    grad = rng.normal(size=start.shape).astype(np.float32)
    var = tf.Variable(start)
    optimizer = adamom.AdamomOptimizer(0.1, weight_decay=0.01)
    model = Model(start, 0.9999, 0.99, 1e-6, 0.01)
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(grad), var)])
        model.apply(grad, 0.1)
    np.testing.assert_allclose(var.numpy(), model.var, **TOLERANCES[tf.float32])


def test_sparse_gradient_has_the_effect_of_the_dense_one():
    start = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sparse = tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 2]))
    dense = np.array([[3.0, 4.0], [0, 0], [6.0, 8.0], [0, 0]], np.float32)
    results = []
    for grad in (sparse, tf.constant(dense)):
        var = tf.Variable(start)
        optimizer = adamom.AdamomOptimizer(0.1, weight_decay=0.01)
        optimizer.apply_gradients([(grad, var)])
        optimizer.apply_gradients([(grad, var)])
        results.append([var.numpy(), *(optimizer.get_slot(var, s).numpy() for s in "mvc")])
    for from_sparse, from_dense in zip(*results, strict=True):
        np.testing.assert_array_equal(from_sparse, from_dense)


@pytest.mark.parametrize(
    "learning_rate",
    [
        pytest.param(0.1, id="number"),
        pytest.param(lambda: 0.1, id="function"),
        pytest.param(lambda: tf.constant(0.1, tf.float64), id="tensor_of_other_type"),
    ],
)
def test_learning_rate(learning_rate):
    var = tf.Variable([1.0])
    optimizer = adamom.AdamomOptimizer(learning_rate, mom_decay=0.0, epsilon=0.0)
    optimizer.apply_gradients([(tf.constant([2.0]), var)])
    # m = h, v / c = h^2: the first step is the learning rate itself.
    np.testing.assert_allclose(var.numpy(), [0.9], rtol=1e-6)


def test_learning_rate_tensor_is_named():
    with tf.Graph().as_default() as graph:
        var = tf.Variable([1.0])
        adamom.AdamomOptimizer(0.1).apply_gradients([(tf.constant([2.0]), var)])
        assert graph.get_tensor_by_name("Adamom/learning_rate:0").dtype == tf.float32


def test_trains_inside_a_tf_function():
    var = tf.Variable([1.0, -1.0])
    optimizer = adamom.AdamomOptimizer(0.1, mom_decay=0.0, epsilon=0.0)

    @tf.function
    def step():
        optimizer.minimize(lambda: tf.reduce_sum(var**2), var_list=[var])

    step()
    np.testing.assert_allclose(var.numpy(), [0.9, -0.9], rtol=1e-6)


def test_readers_keep_the_value_they_read():
    var = tf.Variable([1.0])
    before = var.read_value()
    adamom.AdamomOptimizer(0.1).apply_gradients([(tf.constant([2.0]), var)])
    assert before.numpy() == [1.0]
    assert var.numpy() != [1.0]


def test_nan_in_a_gradient_reaches_the_variable():
    var = tf.Variable([1.0, 1.0])
    adamom.AdamomOptimizer(0.1).apply_gradients([(tf.constant([np.nan, 1.0]), var)])
    assert np.isnan(var.numpy()).tolist() == [True, False]


def test_defaults():
    var = tf.Variable([0.5], dtype=tf.float64)
    optimizer = adamom.AdamomOptimizer()
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0], tf.float64), var)])
    # Second step: m = 0.99 * 0.01 + 0.01, v = c = 0.9999 + 1, and v / c = 1 in both steps.
    np.testing.assert_allclose(optimizer.get_slot(var, "m").numpy(), [0.0199])
    np.testing.assert_allclose(optimizer.get_slot(var, "v").numpy(), [1.9999])
    np.testing.assert_allclose(optimizer.get_slot(var, "c").numpy(), [1.9999])
    moved = 5e-6 * (0.01 + 0.0199) / np.sqrt(1 + 1e-6)
    np.testing.assert_allclose(0.5 - var.numpy(), [moved], rtol=1e-6)


@pytest.mark.parametrize("setting", ["ada_decay", "mom_decay", "epsilon", "weight_decay"])
def test_negative_setting_is_refused(setting):
    with pytest.raises(errors.ConfigError, match=f"`{setting}` must be between 0 and .*, got -1"):
        adamom.AdamomOptimizer(**{setting: -1})


def test_variable_on_a_gpu_is_refused_when_the_graph_is_built():
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:1/device:GPU:0"):
            var = tf.Variable([1.0], name="kernel")
        with pytest.raises(
            tf.errors.UnimplementedError, match=r"CPUs only, but 'kernel:0' .* tf.device"
        ):
            adamom.AdamomOptimizer().apply_gradients([(tf.constant([2.0]), var)])


def test_reference_variable_is_refused():
    with tf.Graph().as_default():
        var = tf.compat.v1.Variable([1.0], use_resource=False)
        with pytest.raises(NotImplementedError, match="disable_eager_execution"):
            adamom.AdamomOptimizer().apply_gradients([(tf.constant([2.0]), var)])
