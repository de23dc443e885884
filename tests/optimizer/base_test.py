"""What the optimizers with compiled kernels share, on one that only subtracts."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.optimizer.base import KernelOptimizer, check_range, require_cpu


class CountingOptimizer(KernelOptimizer):
    """Gradient descent that counts its steps in a slot."""

    slots = ("count",)

    def __init__(self, learning_rate):
        super().__init__(learning_rate, use_locking=False, name="Counting")

    def _apply_kernel(self, var, slots, learning_rate, grad):
        (count,) = slots
        assert learning_rate.dtype == grad.dtype
        with tf.control_dependencies([count.assign_add(tf.ones_like(grad))]):
            return var.assign_sub(learning_rate * grad).op


@pytest.mark.usefixtures("graph_mode")
class TestKernelOptimizer:
    @pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
    @pytest.mark.parametrize(
        "learning_rate",
        [
            pytest.param(0.5, id="number"),
            pytest.param(lambda: 0.5, id="function"),
            pytest.param(lambda: tf.constant(0.5), id="function_of_a_tensor"),
        ],
    )
    def test_learning_rate_and_slots(self, learning_rate, dtype):
        var = tf.compat.v1.get_variable("w", initializer=tf.constant([4.0, 6.0], dtype))
        optimizer = CountingOptimizer(learning_rate)
        train = optimizer.apply_gradients([(tf.constant([2.0, 4.0], dtype), var)])
        count = optimizer.get_slot(var, "count")
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
            session.run(train)
            assert session.run(var).tolist() == [2.0, 2.0]
            assert session.run(count).tolist() == [2.0, 2.0]

    def test_sparse_gradient_with_equal_ids_is_made_dense(self):
        var = tf.compat.v1.get_variable("w", initializer=tf.zeros([3, 1]))
        grad = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]))
        optimizer = CountingOptimizer(1.0)
        train = optimizer.apply_gradients([(grad, var)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
            assert session.run(var).tolist() == [[-2.0], [0.0], [-5.0]]
            # Row 1 is not in the gradient and has made a step all the same.
            assert session.run(optimizer.get_slot(var, "count")).tolist() == [[1.0]] * 3


@pytest.mark.parametrize("device", ["", "/job:ps/task:0", "/job:ps/task:0/device:CPU:1"])
def test_places_that_have_a_kernel(device):
    require_cpu("Optimizer", "w", device)


@pytest.mark.parametrize("device", ["/device:GPU:0", "/job:worker/task:1/device:TPU:0"])
def test_places_without_a_kernel(device):
    with pytest.raises(tf.errors.UnimplementedError, match=f"but 'w' is placed on '{device}'"):
        require_cpu("Optimizer", "w", device)


def test_range_of_settings():
    check_range("Optimizer", 0, 1, least=0, most=1.0, tensor=tf.constant(7.0))
    with pytest.raises(errors.ConfigError, match=r"`beta` must be between 0 and 1, got -0\.1"):
        check_range("Optimizer", 0, 1, alpha=0.5, beta=-0.1)
    with pytest.raises(errors.ConfigError, match="got nan"):
        check_range("Optimizer", 0, 1, alpha=float("nan"))
