"""Shampoo: a preconditioner per dimension of a variable, blended in after a warm-up.

For each dimension i of a variable the optimizer keeps the statistics `s{i}`, the sum of
`gradient x gradient^T` over the other dimensions, and an inverse root of them in a sparse form: a
few eigenvectors `pvec{i}` with their values `pval{i}`, and one offset `o{i}` for all the others.
Until `warmup` steps are over, the update is momentum over an AdaGrad-like gradient; from there to
`2 * warmup` steps it is blended with the preconditioned one, which then takes over.

The statistics of a dimension of size n take n x n floats: this is for the kernels of dense layers,
not for embedding variables.

Example:
    >>> import numpy as np
    >>> vectors, values, offset = eigen_inverse_root(tf.linalg.diag([4.0, 16.0]), 2, 2, 0)
    >>> root = vectors @ tf.linalg.diag(values) @ tf.transpose(vectors)
    >>> np.round(root.numpy() + offset.numpy() * np.eye(2), 4).tolist()  # 4 ** -0.5, 16 ** -0.5
    [[0.5, 0.0], [0.0, 0.25]]
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from monolith.optimizer import base


@tf.function
def eigen_inverse_root(
    mat: tf.Tensor, p: int, head: int, tail: int, damping: float = 1e-3
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns `mat ** (-1 / p)` in sparse form: some eigenvectors, their values, an offset.

    Kept are the `head` smallest eigenvalues above `damping` and the `tail` largest ones; all of
    them if there are no more than that. The offset is the mean of the remaining eigenvalues
    themselves, not of their inverse roots.

    Args:
        mat: Symmetric matrix [dim, dim] of a known shape.
        p: Which root.
        head: How many of the small eigenvalues to keep.
        tail: How many of the large eigenvalues to keep.
        damping: Eigenvalues below count as this one.

    Returns:
        Eigenvectors [dim, k], values minus offset [k], and the scalar offset.
    """
    dim = mat.shape[0]
    values, vectors = tf.linalg.eigh(mat)  # In ascending order.
    root_values = tf.pow(tf.maximum(values, tf.cast(damping, mat.dtype)), -1.0 / p)
    if head + tail > dim:
        zeros, head, tail = tf.constant(0), dim, 0
    else:
        # The number of eigenvalues to skip: ascending order puts those below the damping first.
        above = tf.where(values > tf.cast(damping, mat.dtype))
        zeros = tf.cond(
            tf.size(above) > 0,
            lambda: tf.cast(tf.reduce_min(above), tf.int32),
            lambda: tf.constant(0),
        )
        zeros = tf.minimum(zeros, dim - head - tail)
    kept_values = tf.concat([root_values[zeros : zeros + head], root_values[dim - tail :]], 0)
    kept_vectors = tf.concat([vectors[:, zeros : zeros + head], vectors[:, dim - tail :]], 1)
    kept_values = tf.ensure_shape(kept_values, [head + tail])
    kept_vectors = tf.ensure_shape(kept_vectors, [dim, head + tail])
    offset = tf.cond(
        tf.equal(zeros + head + tail, dim),
        lambda: tf.zeros([], mat.dtype),
        lambda: tf.reduce_mean(values[zeros + head : dim - tail]),
    )
    return kept_vectors, kept_values - offset, offset


def apply_sparse_precond(
    tensor: tf.Tensor, pvec: tf.Tensor, pval: tf.Tensor, offset: tf.Tensor
) -> tf.Tensor:
    """Multiplies the first dimension of `tensor` by a preconditioner and moves it to the end.

    Applied once per dimension, it preconditions all of them and restores their order.

    Args:
        tensor: Any tensor of rank 1 or more, first dimension `dim`.
        pvec: Eigenvectors [dim, k].
        pval: Values [k].
        offset: Scalar; the value of all other directions.

    Returns:
        Tensor of the shape of `tensor` with the first dimension moved to the end.
    """
    projected = tf.tensordot(tensor, pvec, axes=[[0], [0]]) * pval
    preconditioned = tf.tensordot(projected, pvec, axes=[[-1], [-1]])
    rank = tensor.shape.rank
    return preconditioned + tf.transpose(tensor, [*range(1, rank), 0]) * offset


class ShampooOptimizer(tf.compat.v1.train.Optimizer):
    """The Shampoo optimizer, for dense gradients; needs a global step.

    Slots, for each dimension i of size n, with k = min(n, eigen_head + eigen_tail): `s{i}` and
    `g{i}` [n, n], `pvec{i}` [n, k], `pval{i}` [k], `o{i}` scalar; and `d`, `m`, `pm` of the
    variable's shape. All are zero at first.

    Args:
        learning_rate: A number, a scalar tensor, or a function that returns one of them.
        beta_1: Decay of the two momenta.
        beta_2: Decay of the statistics; 1 sums them up instead.
        warmup: Steps without preconditioner.
        tau_1: Steps between two computations of the preconditioner.
        tau_2: Steps between two looks at the gradient for the statistics.
        eigen_head: How many of the small eigenvalues to keep.
        eigen_tail: How many of the large eigenvalues to keep.
        damping_epsilon: Eigenvalues below count as this one.
        use_locking: Passed on to the base class.
        name: Prefix of the slots' names.
        **kwargs: Passed on to the base class.

    Raises:
        ConfigError: A setting is out of its range.
    """

    def __init__(
        self,
        learning_rate: float | tf.Tensor | Callable[[], float | tf.Tensor] = 0.03,
        beta_1: float = 0.9,
        beta_2: float = 1.0,
        warmup: int = 5000,
        tau_1: int = 200,
        tau_2: int = 20,
        eigen_head: int = 100,
        eigen_tail: int = 100,
        damping_epsilon: float = 1e-3,
        use_locking: bool = False,
        name: str = "Shampoo",
        **kwargs: Any,
    ) -> None:
        super().__init__(use_locking=use_locking, name=name, **kwargs)
        base.check_range("ShampooOptimizer", 0, 1, beta_1=beta_1, beta_2=beta_2)
        base.check_range("ShampooOptimizer", 1, math.inf, tau_1=tau_1, tau_2=tau_2)
        base.check_range(
            "ShampooOptimizer",
            0,
            math.inf,
            warmup=warmup,
            eigen_head=eigen_head,
            eigen_tail=eigen_tail,
            damping_epsilon=damping_epsilon,
        )
        self._learning_rate = learning_rate
        self._learning_rate_tensor: tf.Tensor | None = None
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._warmup = warmup
        self._tau_1 = tau_1
        self._tau_2 = tau_2
        self._eigen_head = eigen_head
        self._eigen_tail = eigen_tail
        self._damping_epsilon = damping_epsilon

    def _create_slots(self, var_list: Iterable[tf.Variable]) -> None:
        for var in var_list:
            for i, dim in enumerate(var.shape.as_list()):
                eigens = min(dim, self._eigen_head + self._eigen_tail)
                self._make_slot(var, f"s{i}", [dim, dim])
                self._make_slot(var, f"g{i}", [dim, dim])
                self._make_slot(var, f"pvec{i}", [dim, eigens])
                self._make_slot(var, f"pval{i}", [eigens])
                self._make_slot(var, f"o{i}", [])
            for slot in ("d", "m", "pm"):
                self._zeros_slot(var, slot, f"{self._name}/{slot}")

    def _make_slot(self, var: tf.Variable, slot: str, shape: list[int]) -> None:
        self._get_or_make_slot_with_initializer(
            var,
            tf.compat.v1.zeros_initializer(),
            tf.TensorShape(shape),
            var.dtype.base_dtype,
            slot,
            f"{self._name}/{slot}",
        )

    def _prepare(self) -> None:
        self._learning_rate_tensor = tf.convert_to_tensor(
            self._call_if_callable(self._learning_rate), name="learning_rate"
        )

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        step = _global_step()
        warmed_up = step > self._warmup
        grad_precond = grad
        updates: list[Any] = []
        for i in range(var.shape.rank):
            statistics = self._update_statistics(grad, var, i, step, updates)
            precond = self._update_preconditioner(statistics, var, i, step, warmed_up)
            grad_precond = apply_sparse_precond(grad_precond, *precond)

        beta_1 = tf.cast(self._beta_1, grad.dtype)
        d_t = _assign(self.get_slot(var, "d"), lambda d: d + grad * grad, updates)
        m_t = _assign(
            self.get_slot(var, "m"),
            lambda m: beta_1 * m + (1 - beta_1) * grad * tf.math.rsqrt(d_t + 1e-30),
            updates,
        )
        pm_t = _assign(
            self.get_slot(var, "pm"),
            lambda pm: beta_1 * pm + (1 - beta_1) * grad_precond,
            updates,
        )
        update = self._blend(m_t, pm_t, step, warmed_up)
        updates.append(var.assign_sub(update, use_locking=self._use_locking, read_value=False))
        return tf.group(*updates)

    def _update_statistics(
        self, grad: tf.Tensor, var: tf.Variable, i: int, step: tf.Tensor, updates: list[Any]
    ) -> tf.Tensor:
        """Returns `s{i}` after this step, [n, n]."""
        others = [axis for axis in range(var.shape.rank) if axis != i]
        g = self.get_slot(var, f"g{i}")

        def look_again() -> tf.Tensor:
            value = tf.tensordot(grad, grad, axes=[others, others])
            with tf.control_dependencies([g.assign(value, read_value=False)]):
                return tf.identity(value)

        g_t = tf.cond(tf.equal(step % self._tau_2, 0), look_again, g.read_value)
        s = self.get_slot(var, f"s{i}")
        if self._beta_2 < 1.0 - 1e-10:
            beta_2 = tf.cast(self._beta_2, grad.dtype)
            return _assign(s, lambda s: beta_2 * s + (1 - beta_2) * g_t, updates)
        return _assign(s, lambda s: s + g_t, updates)

    def _update_preconditioner(
        self, statistics: tf.Tensor, var: tf.Variable, i: int, step: tf.Tensor, warmed_up: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `pvec{i}`, `pval{i}` and `o{i}` after this step."""
        slots = [self.get_slot(var, f"{name}{i}") for name in ("pvec", "pval", "o")]

        def compute() -> list[tf.Tensor]:
            values = eigen_inverse_root(
                statistics,
                2 * var.shape.rank,
                self._eigen_head,
                self._eigen_tail,
                self._damping_epsilon,
            )
            assigned = [s.assign(v, read_value=False) for s, v in zip(slots, values, strict=True)]
            with tf.control_dependencies(assigned):
                return [tf.identity(value) for value in values]

        pvec, pval, offset = tf.cond(
            tf.logical_and(warmed_up, tf.equal(step % self._tau_1, 0)),
            compute,
            lambda: [slot.read_value() for slot in slots],
        )
        return pvec, pval, offset

    def _blend(
        self, m_t: tf.Tensor, pm_t: tf.Tensor, step: tf.Tensor, warmed_up: tf.Tensor
    ) -> tf.Tensor:
        learning_rate = tf.cast(self._learning_rate_tensor, m_t.dtype)
        update_diag = learning_rate * m_t

        def blended() -> tf.Tensor:
            # Without a warm-up the preconditioned update counts in full from the start.
            rate = tf.cast(step, m_t.dtype) / self._warmup - 1 if self._warmup else 1.0
            rate = tf.cast(tf.clip_by_value(rate, 0.0, 1.0), m_t.dtype)
            update_second = learning_rate * tf.norm(m_t) / (tf.norm(pm_t) + 1e-10) * pm_t
            return (1 - rate) * update_diag + rate * update_second

        return tf.cond(warmed_up, blended, lambda: update_diag)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Refuses: the preconditioners are made of whole gradients."""
        raise NotImplementedError(
            f"ShampooOptimizer has no update for the sparse gradient of {handle.name!r}; train "
            "this variable with another optimizer, such as AdamomOptimizer, or make its gradient "
            "dense with tf.convert_to_tensor."
        )

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        raise NotImplementedError(base.REFERENCE_VARIABLES)

    def _apply_sparse_duplicate_indices(
        self, grad: tf.IndexedSlices, var: tf.Variable
    ) -> tf.Operation:
        raise NotImplementedError(base.REFERENCE_VARIABLES)


def _global_step() -> tf.Tensor:
    global_step = tf.compat.v1.train.get_global_step()
    if global_step is None:
        raise ValueError(
            "ShampooOptimizer needs a global step for its warm-up, but the graph has none; call "
            "tf.compat.v1.train.get_or_create_global_step() first and pass it to `minimize`."
        )
    return tf.cast(global_step, tf.int32)


def _assign(
    slot: tf.Variable, new_value: Callable[[tf.Tensor], tf.Tensor], updates: list[Any]
) -> tf.Tensor:
    """Adds the assignment of the slot's new value to `updates` and returns that value."""
    value = new_value(slot.read_value())
    updates.append(slot.assign(value, read_value=False))
    return value
