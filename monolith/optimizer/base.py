"""What the optimizers with compiled kernels share: learning rate, placement, gradients they accept.

The kernels run on CPUs. A variable that is free to go anywhere is placed on a CPU by TensorFlow
itself, since there is no other kernel; one that was pinned to a GPU is refused here, with the way
out in the message, before TensorFlow fails with a long list of colocation constraints.

Example:
    >>> require_cpu("AdamomOptimizer", "kernel", "/job:ps/task:0/device:CPU:0")
    >>> require_cpu("AdamomOptimizer", "kernel", "/device:GPU:0")
    Traceback (most recent call last):
    ...
    tensorflow.python.framework.errors_impl.UnimplementedError: AdamomOptimizer ...
"""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from monolith import errors

# Reference variables only exist with resource variables turned off, as that call does.
REFERENCE_VARIABLES = (
    "Please use tf.compat.v1.disable_eager_execution() instead of "
    "tf.compat.v1.disable_v2_behavior()"
)


class KernelOptimizer(tf.compat.v1.train.Optimizer):
    """Base of the optimizers whose update is one compiled op per variable.

    A subclass lists its `slots` and implements `_apply_kernel`.
    """

    slots: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: float | tf.Tensor | Callable[[], float | tf.Tensor],
        use_locking: bool,
        name: str,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._learning_rate_tensor: tf.Tensor | None = None

    def _apply_kernel(
        self, var: tf.Variable, slots: list[tf.Variable], learning_rate: tf.Tensor, grad: tf.Tensor
    ) -> tf.Operation:
        """Returns the op that changes `var` and its `slots` for the gradient `grad`."""
        raise NotImplementedError

    def _create_slots(self, var_list: Iterable[tf.Variable]) -> None:
        for var in var_list:
            require_cpu(type(self).__name__, var.name, var.device)
            for slot in self.slots:
                self._zeros_slot(var, slot, f"{self._name}/{slot}")

    def _prepare(self) -> None:
        self._learning_rate_tensor = tf.convert_to_tensor(
            self._call_if_callable(self._learning_rate), name="learning_rate"
        )

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return self._apply_kernel(
            var,
            [self.get_slot(var, slot) for slot in self.slots],
            tf.cast(self._learning_rate_tensor, grad.dtype.base_dtype),
            grad,
        )

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Makes the gradient dense: rows that are not in it still decay, as the formula says."""
        rows = tf.shape(handle, out_type=indices.dtype)[0]
        return self._resource_apply_dense(tf.math.unsorted_segment_sum(grad, indices, rows), handle)

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        raise NotImplementedError(REFERENCE_VARIABLES)

    def _apply_sparse_duplicate_indices(
        self, grad: tf.IndexedSlices, var: tf.Variable
    ) -> tf.Operation:
        raise NotImplementedError(REFERENCE_VARIABLES)


def require_cpu(user: str, name: str, device: str) -> None:
    """Raises `tf.errors.UnimplementedError` if `device`, where `name` was put, is not a CPU."""
    device_type = tf.DeviceSpec.from_string(device).device_type
    if device_type not in (None, "CPU"):
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"{user} has kernels for CPUs only, but {name!r} is placed on {device!r}; "
            "place it with tf.device('/device:CPU:0').",
        )


def check_range(user: str, low: float, high: float, **settings: Any) -> None:
    """Raises `ConfigError` for a number outside [low, high]; tensors pass.

    Example:
        >>> check_range("RmspropOptimizer", 0, 1, beta1=0.9, beta2=1.5)
        Traceback (most recent call last):
        ...
        monolith.errors.ConfigError: RmspropOptimizer: `beta2` must be between 0 and 1, got 1.5.
    """
    for name, value in settings.items():
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise errors.ConfigError(
                f"{user}: `{name}` must be between {low} and {high}, got {value}."
            )
