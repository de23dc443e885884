"""The dense optimizers' training ops: what they refuse, and locking."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from monolith.native import ops
from monolith.native_training.runtime.ops import gen_monolith_ops


def apply_adamom(var, m, v, c, grad, learning_rate=0.1):
    return ops.monolith_resource_apply_adamom(
        var.handle, m.handle, v.handle, c.handle, learning_rate, 0.9, 0.9, 1e-6, 0.0, grad
    )


def apply_rmsprop(var, m, v, grad, **kwargs):
    return ops.monolith_resource_apply_rmsprop(
        var.handle, m.handle, v.handle, 0.1, 0.9, 0.9, 0.1, 0.0, grad, **kwargs
    )


def make_variables(n, shape=(3,), dtype=tf.float32):
    return [tf.Variable(tf.zeros(shape, dtype)) for _ in range(n)]


def test_names_without_the_prefix():
    grad = tf.fill([3], 2.0)
    # Without decays: m = 0.5 * 2 / sqrt(2^2) = 0.5, subtracted.
    var, m, v = make_variables(3)
    gen_monolith_ops.resource_apply_rmsprop(
        var.handle, m.handle, v.handle, 0.5, 0.0, 0.0, 0.0, 0.0, grad
    )
    assert var.numpy().tolist() == [-0.5] * 3
    # m = 2, v = 4, c = 1: 0.5 * 2 / sqrt(4 / 1) = 0.5, subtracted.
    var, m, v, c = make_variables(4)
    gen_monolith_ops.resource_apply_adamom(
        var.handle, m.handle, v.handle, c.handle, 0.5, 0.0, 0.0, 0.0, 0.0, grad
    )
    assert var.numpy().tolist() == [-0.5] * 3


def test_gradient_of_another_shape():
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"`grad` must have the shape \[3\] of `var`, got \[2\]",
    ):
        apply_adamom(*make_variables(4), tf.zeros([2]))


def test_slot_of_another_shape():
    var, m, v, _ = make_variables(4)
    c = tf.Variable(tf.zeros([1]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"`c` must have the shape \[3\] of `var`, got \[1\]"
    ):
        apply_adamom(var, m, v, c, tf.zeros([3]))


def test_variable_of_another_type():
    var, m, v = make_variables(3, dtype=tf.float64)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`var` must be a variable of type float, got double"
    ):
        apply_rmsprop(var, m, v, tf.zeros([3]))


def test_setting_that_is_not_a_scalar():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Input 4 must be a scalar, .* \[2\]"):
        apply_adamom(*make_variables(4), tf.zeros([3]), learning_rate=tf.constant([0.1, 0.1]))


def test_handle_that_is_no_variable():
    var, m = make_variables(2)
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="wrong type"):
        ops.monolith_resource_apply_rmsprop(
            var.handle, m.handle, table.resource_handle, *[0.1] * 5, tf.zeros([3])
        )


def test_uninitialized_variable_in_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var, m, v = (tf.Variable(tf.zeros([3]), name=name) for name in ("w", "m", "v"))
        step = apply_rmsprop(var, m, v, tf.zeros([3]))
        session.run([var.initializer, v.initializer])
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"`m` is the variable 'm', .* run its initializer",
        ):
            session.run(step)


def test_shapes_that_cannot_agree_are_found_while_the_graph_is_built():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="Dimension"):
        apply_rmsprop(*make_variables(3), tf.zeros([2]))


def test_empty_variable():
    variables = make_variables(3, shape=(0, 4))
    apply_rmsprop(*variables, tf.zeros([0, 4]))
    assert variables[0].shape == (0, 4)


@pytest.mark.parametrize("use_locking", [False, True])
def test_concurrent_updates_are_not_lost(use_locking):
    # Without decays every step subtracts exactly 0.5 from each element.
    var, m, v = make_variables(3, shape=(100_000,), dtype=tf.float64)
    grad = tf.ones([100_000], tf.float64)

    def step(_):
        ops.monolith_resource_apply_rmsprop(
            var.handle, m.handle, v.handle, 0.5, 0.0, 0.0, 0.0, 0.0, grad, use_locking=use_locking
        )

    def read(_):
        value = var.numpy()
        assert (value == value[0]).all(), "a reader saw half an update"

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = [pool.submit(step if i % 2 else read, i) for i in range(80)]
        for result in results:
            result.result()
    np.testing.assert_array_equal(var.numpy(), np.full(100_000, -20.0))


def test_ops_over_the_same_variables_in_other_roles_do_not_wait_for_each_other():
    variables = make_variables(4, shape=(1000,))
    grad = tf.ones([1000])

    def step(i):
        order = [(i + k) % 4 for k in range(4)]
        apply_adamom(*[variables[k] for k in order], grad)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done, late = concurrent.futures.wait([pool.submit(step, i) for i in range(200)], timeout=60)
    assert len(done) == 200
    assert not late
