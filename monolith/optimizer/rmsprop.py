"""RMSProp with momentum, in two versions.

With h = gradient + weight_decay * variable, one step is

    v = beta2 * v + (1 - beta2) * h^2
    m = beta1 * m + learning_rate * h / sqrt(v + epsilon)
    variable -= m

and with `use_v2`, where `v` is a sum instead of an average and epsilon is outside the root,

    v = beta2 * v + h^2
    m = beta1 * m + learning_rate * h / (sqrt(v) + epsilon)
    variable -= m

Example:
    >>> weight = tf.Variable([0.1])
    >>> optimizer = RmspropOptimizer(
    ...     0.1, beta1=0.9, beta2=0.9, epsilon=0.1, weight_decay=1, use_v2=True
    ... )
    >>> _ = optimizer.minimize(lambda: 0.12 * weight, var_list=[weight])
    >>> round(float(weight.numpy()[0]), 5)
    0.03125
"""

import math
from collections.abc import Callable

import tensorflow as tf

from monolith.native import ops
from monolith.optimizer import base


class RmspropOptimizer(base.KernelOptimizer):
    """The RMSProp optimizer, one compiled op per variable; float32 and float64, CPU.

    Slots: `m` (momentum, learning rate included) and `v` (squares), each of the variable's shape
    and zero at first. A sparse gradient has the effect of the equal dense one.

    Args:
        learning_rate: A number, a scalar tensor, or a function that returns one of them.
        beta1: Decay of `m`.
        beta2: Decay of `v`.
        epsilon: Keeps the divisor away from zero: below the root, with `use_v2` beside it.
        weight_decay: Share of the variable that is added to its gradient.
        use_locking: Kept for callers; an update of a resource variable always locks.
        use_v2: Whether to use the second of the two formulas above.
        name: Prefix of the slots' names.

    Raises:
        ConfigError: A decay is outside [0, 1], or `epsilon` or `weight_decay` is negative.
    """

    slots = ("m", "v")

    def __init__(
        self,
        learning_rate: float | tf.Tensor | Callable[[], float | tf.Tensor] = 5e-6,
        beta1: float = 0.99,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        use_locking: bool = False,
        use_v2: bool = False,
        name: str = "Rmsprop",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        base.check_range("RmspropOptimizer", 0, 1, beta1=beta1, beta2=beta2)
        base.check_range(
            "RmspropOptimizer", 0, math.inf, epsilon=epsilon, weight_decay=weight_decay
        )
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        self._use_v2 = use_v2

    def _apply_kernel(
        self, var: tf.Variable, slots: list[tf.Variable], learning_rate: tf.Tensor, grad: tf.Tensor
    ) -> tf.Operation:
        m, v = slots
        return ops.monolith_resource_apply_rmsprop(
            var.handle,
            m.handle,
            v.handle,
            learning_rate,
            self._beta1,
            self._beta2,
            self._epsilon,
            self._weight_decay,
            grad,
            use_locking=self._use_locking,
            use_v2=self._use_v2,
        )
