"""ShampooOptimizer against a NumPy model of the specified steps."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training.optimizers import shampoo


def model_inverse_root(mat, p, head, tail, damping):
    """Returns eigenvectors, values minus offset, offset, step by step as specified."""
    values, vectors = np.linalg.eigh(mat)
    dim = len(values)
    above = np.flatnonzero(values > damping)
    zeros = above.min() if above.size else 0
    roots = np.maximum(values, damping) ** (-1.0 / p)
    if head + tail > dim:
        zeros, head, tail = 0, dim, 0
    elif zeros + head + tail > dim:
        zeros = dim - head - tail
    kept = [*range(zeros, zeros + head), *range(dim - tail, dim)]
    rest = values[zeros + head : dim - tail]
    offset = 0.0 if zeros + head + tail == dim else rest.mean()
    return vectors[:, kept], roots[kept] - offset, offset


def as_matrix(vectors, values, offset):
    """The full matrix behind the sparse form; unlike eigenvectors it has no arbitrary signs."""
    vectors, values = np.asarray(vectors), np.asarray(values)
    return vectors @ np.diag(values) @ vectors.T + float(offset) * np.eye(len(vectors))


@pytest.mark.parametrize(
    ("eigenvalues", "head", "tail"),
    [
        pytest.param([1.0, 2.0, 3.0], 2, 2, id="all_are_kept"),
        pytest.param([1.0, 2.0, 3.0], 2, 1, id="just_all"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0], 1, 1, id="middle_is_averaged"),
        pytest.param([0.0, 1e-5, 3.0, 4.0, 5.0], 1, 1, id="zeros_are_skipped"),
        pytest.param([0.0, 0.0, 0.0, 4.0, 5.0], 2, 1, id="too_many_zeros_to_skip"),
        pytest.param([0.0, 0.0, 0.0, 0.0], 1, 1, id="nothing_but_zeros"),
        pytest.param([1.0, 2.0, 3.0], 0, 2, id="tail_only"),
    ],
)
def test_eigen_inverse_root(eigenvalues, head, tail):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=[len(eigenvalues)] * 2))
    mat = rotation @ np.diag(eigenvalues) @ rotation.T
    got = shampoo.eigen_inverse_root(tf.constant(mat), 4, head, tail, 1e-3)
    expected = model_inverse_root(mat, 4, head, tail, 1e-3)
    kept = min(head + tail, len(eigenvalues))
    assert got[0].shape == (len(eigenvalues), kept)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)
    np.testing.assert_allclose(got[2], expected[2], rtol=1e-6, atol=1e-12)
    if len(set(eigenvalues)) == len(eigenvalues):
        np.testing.assert_allclose(as_matrix(*got), as_matrix(*expected), atol=1e-8)


def test_full_inverse_root_is_the_matrix_power():
    factor = np.random.default_rng(2).normal(size=(4, 4))
    mat = factor @ factor.T + np.eye(4)
    root = as_matrix(*shampoo.eigen_inverse_root(tf.constant(mat), 2, 4, 4))
    np.testing.assert_allclose(root @ root @ mat, np.eye(4), atol=1e-8)


def test_apply_sparse_precond_multiplies_and_rotates_the_dimensions():
    rng = np.random.default_rng(3)
    tensor, vectors = rng.normal(size=(4, 2, 3)), rng.normal(size=(4, 2))
    values, offset = rng.normal(size=2), 0.7
    got = shampoo.apply_sparse_precond(
        *map(tf.constant, (tensor, vectors, values)), tf.constant(offset, tf.float64)
    )
    expected = np.einsum("ij,jkl->kli", as_matrix(vectors, values, offset), tensor)
    np.testing.assert_allclose(got, expected)


class ShampooModel:
    """The specified step in NumPy, float64."""

    def __init__(self, var, **config):
        self.var = np.array(var, np.float64)
        self.config = config
        self.g = [np.zeros((n, n)) for n in self.var.shape]
        self.s = [np.zeros((n, n)) for n in self.var.shape]
        self.precond = [np.zeros((n, n)) for n in self.var.shape]
        self.d, self.m, self.pm = (np.zeros_like(self.var) for _ in range(3))

    def apply(self, grad, step):
        c = self.config
        rank = grad.ndim
        warmed_up = step > c["warmup"]
        grad_precond = grad
        for i in range(rank):
            if step % c["tau_2"] == 0:
                others = [a for a in range(rank) if a != i]
                self.g[i] = np.tensordot(grad, grad, axes=[others, others])
            if c["beta_2"] < 1:
                self.s[i] = c["beta_2"] * self.s[i] + (1 - c["beta_2"]) * self.g[i]
            else:
                self.s[i] = self.s[i] + self.g[i]
            if warmed_up and step % c["tau_1"] == 0:
                self.precond[i] = as_matrix(
                    *model_inverse_root(self.s[i], 2 * rank, c["eigen_head"], c["eigen_tail"], 1e-3)
                )
            grad_precond = np.moveaxis(np.tensordot(self.precond[i], grad_precond, 1), 0, -1)
        b, lr = c["beta_1"], c["learning_rate"]
        self.d = self.d + grad**2
        self.m = b * self.m + (1 - b) * grad / np.sqrt(self.d + 1e-30)
        self.pm = b * self.pm + (1 - b) * grad_precond
        diag = lr * self.m
        second = lr * np.linalg.norm(self.m) / (np.linalg.norm(self.pm) + 1e-10) * self.pm
        if warmed_up:
            rate = min(max(step / c["warmup"] - 1, 0), 1)
            self.var -= (1 - rate) * diag + rate * second
        else:
            self.var -= diag


@pytest.mark.parametrize(
    ("shape", "beta_2", "eigen_head", "eigen_tail"),
    [
        pytest.param((4, 3), 1.0, 100, 100, id="matrix"),
        pytest.param((4, 3), 0.9, 100, 100, id="matrix_with_decay"),
        pytest.param((6, 5), 1.0, 1, 2, id="few_eigenvalues"),
        pytest.param((5,), 1.0, 100, 100, id="vector"),
        pytest.param((2, 3, 2), 1.0, 100, 100, id="rank_three"),
        pytest.param((), 1.0, 100, 100, id="scalar"),
    ],
)
def test_training_agrees_with_the_model(shape, beta_2, eigen_head, eigen_tail):
    config = {
        "learning_rate": 0.03,
        "beta_1": 0.9,
        "beta_2": beta_2,
        "warmup": 4,
        "tau_1": 3,
        "tau_2": 2,
        "eigen_head": eigen_head,
        "eigen_tail": eigen_tail,
    }
    rng = np.random.default_rng(11)
    start = rng.normal(size=shape)
    model = ShampooModel(start, **config)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var = tf.Variable(start, name="w")
        global_step = tf.compat.v1.train.get_or_create_global_step()
        grad = tf.compat.v1.placeholder(tf.float64, shape)
        optimizer = shampoo.ShampooOptimizer(**config)
        train_op = optimizer.apply_gradients([(grad, var)], global_step)
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(12):  # Warm-up ends at 4, the blend at 8.
            value = rng.normal(size=shape)
            session.run(train_op, {grad: value})
            model.apply(np.asarray(value), step)
            np.testing.assert_allclose(session.run(var), model.var, rtol=1e-4, atol=1e-7)


def test_slots():
    with tf.Graph().as_default():
        var = tf.Variable(tf.zeros([6, 3]), name="w")
        tf.compat.v1.train.get_or_create_global_step()
        optimizer = shampoo.ShampooOptimizer(eigen_head=2, eigen_tail=2)
        optimizer.apply_gradients([(tf.zeros([6, 3]), var)])
        shapes = {name: optimizer.get_slot(var, name).shape for name in optimizer.get_slot_names()}
        assert shapes == {
            **{"s0": [6, 6], "g0": [6, 6], "pvec0": [6, 4], "pval0": [4], "o0": []},
            **{"s1": [3, 3], "g1": [3, 3], "pvec1": [3, 3], "pval1": [3], "o1": []},
            **{"d": [6, 3], "m": [6, 3], "pm": [6, 3]},
        }


def test_reduces_a_float32_loss():
    target = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var = tf.Variable(tf.zeros([4, 3]))
        global_step = tf.compat.v1.train.get_or_create_global_step()
        loss = tf.reduce_sum((var - target) ** 2)
        optimizer = shampoo.ShampooOptimizer(0.3, warmup=5, tau_1=2, tau_2=1)
        train_op = optimizer.minimize(loss, global_step)
        session.run(tf.compat.v1.global_variables_initializer())
        before = session.run(loss)
        for _ in range(40):
            session.run(train_op)
        assert session.run(loss) < before / 10


def test_sparse_gradient_is_refused_with_advice():
    with tf.Graph().as_default():
        table = tf.Variable(tf.ones([4, 2]), name="table")
        global_step = tf.compat.v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.gather(table, [1]))
        with pytest.raises(
            NotImplementedError, match=r"sparse gradient of 'table:0'; .*tf.convert_to_tensor"
        ):
            shampoo.ShampooOptimizer().minimize(loss, global_step)


def test_missing_global_step_is_explained():
    with tf.Graph().as_default():
        var = tf.Variable([[1.0]])
        with pytest.raises(ValueError, match=r"needs a global step .*get_or_create_global_step"):
            shampoo.ShampooOptimizer().apply_gradients([(tf.zeros([1, 1]), var)])


def test_reference_variable_is_refused():
    with tf.Graph().as_default():
        var = tf.compat.v1.Variable([1.0], use_resource=False)
        with pytest.raises(NotImplementedError, match="disable_eager_execution"):
            shampoo.ShampooOptimizer().apply_gradients([(tf.constant([2.0]), var)])


@pytest.mark.parametrize(
    ("setting", "value"), [("beta_1", 1.5), ("tau_1", 0), ("tau_2", 0), ("warmup", -1)]
)
def test_setting_out_of_range_is_refused(setting, value):
    with pytest.raises(errors.ConfigError, match=f"`{setting}` must be between .* got {value}"):
        shampoo.ShampooOptimizer(**{setting: value})
