"""Adamom: Adam's momentum over an average of all squared gradients seen so far.

With h = gradient + weight_decay * variable, one step is

    m = mom_decay * m + (1 - mom_decay) * h
    v = ada_decay * v + h^2
    c = ada_decay * c + 1
    variable -= learning_rate * m / sqrt(v / c + epsilon)

`c` counts the steps behind `v` with the same decay, so `v / c` is an average from the first step
on and needs no bias correction.

Example:
    >>> weight = tf.Variable([0.1])
    >>> optimizer = AdamomOptimizer(0.1, ada_decay=0.99, mom_decay=0.9, weight_decay=0.01)
    >>> _ = optimizer.minimize(lambda: 0.12 * weight, var_list=[weight])
    >>> round(float(weight.numpy()[0]), 5)
    0.09
"""

import math
from collections.abc import Callable

import tensorflow as tf

from monolith.native import ops
from monolith.optimizer import base


class AdamomOptimizer(base.KernelOptimizer):
    """The Adamom optimizer, one compiled op per variable; float32 and float64, CPU.

    Slots: `m` (momentum), `v` (decayed sum of squares), `c` (decayed count), each of the
    variable's shape and zero at first. A sparse gradient has the effect of the equal dense one.

    Args:
        learning_rate: A number, a scalar tensor, or a function that returns one of them.
        ada_decay: Decay of `v` and `c`; 1 never forgets.
        mom_decay: Decay of `m`.
        epsilon: Added to the average of squares, below the root.
        weight_decay: Share of the variable that is added to its gradient.
        use_locking: Kept for callers; an update of a resource variable always locks.
        name: Prefix of the slots' names.

    Raises:
        ConfigError: A decay is outside [0, 1], or `epsilon` or `weight_decay` is negative.
    """

    slots = ("m", "v", "c")

    def __init__(
        self,
        learning_rate: float | tf.Tensor | Callable[[], float | tf.Tensor] = 5e-6,
        ada_decay: float = 0.9999,
        mom_decay: float = 0.99,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        use_locking: bool = False,
        name: str = "Adamom",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        base.check_range("AdamomOptimizer", 0, 1, ada_decay=ada_decay, mom_decay=mom_decay)
        base.check_range("AdamomOptimizer", 0, math.inf, epsilon=epsilon, weight_decay=weight_decay)
        self._ada_decay = ada_decay
        self._mom_decay = mom_decay
        self._epsilon = epsilon
        self._weight_decay = weight_decay

    def _apply_kernel(
        self, var: tf.Variable, slots: list[tf.Variable], learning_rate: tf.Tensor, grad: tf.Tensor
    ) -> tf.Operation:
        m, v, c = slots
        return ops.monolith_resource_apply_adamom(
            var.handle,
            m.handle,
            v.handle,
            c.handle,
            learning_rate,
            self._ada_decay,
            self._mom_decay,
            self._epsilon,
            self._weight_decay,
            grad,
            use_locking=self._use_locking,
        )
