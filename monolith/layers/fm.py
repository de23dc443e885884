"""Second-order interactions of features: the heart of a factorization machine.

The sum of the products of all pairs of embeddings is computed without forming the pairs:
`sum(v[i] * v[j], i < j) = (sum(v)**2 - sum(v**2)) / 2`, which is linear in the number of features.
See Rendle, "Factorization Machines", ICDM 2010.

Example:
    >>> import tensorflow as tf
    >>> user, movie, genre = ([[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]])
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     print(session.run(FM()([user, movie, genre])))  # 11 + 17 + 39: the dot products
    [[67.]]
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.layers import base


class FM(base.Layer):
    """Sums the products of all pairs of features.

    The inputs are one tensor `[batch, features, dim]`, or a list of tensors `[batch, dim]`. There
    are no weights.

    Args:
        keep_dim: Whether the element-wise products are returned, `[batch, dim]` (the
            "bi-interaction" that an MLP can go on with), instead of the dot products, `[batch, 1]`.
        name: See `base.Layer`.
    """

    def __init__(self, keep_dim: bool = False, *, name: str | None = None) -> None:
        super().__init__(name)
        self._keep_dim = keep_dim

    def check_inputs(self, inputs: Any) -> tf.Tensor:
        if not isinstance(inputs, list | tuple):
            return self.to_tensor(inputs, min_rank=3, max_rank=3)
        if not inputs:
            raise errors.ConfigError(
                f"FM {self.name!r} needs at least one feature, got an empty list."
            )
        tensors = [self.to_tensor(feature, min_rank=2, max_rank=2) for feature in inputs]
        dims = [tensor.shape[-1] for tensor in tensors]
        if len(set(dims)) > 1:
            raise errors.ConfigError(
                f"FM {self.name!r} needs features of one width, got widths {dims}; look all of "
                "them up in slices of the same dim."
            )
        return tf.stack(tensors, axis=1)

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        square_of_sum = tf.square(tf.reduce_sum(inputs, axis=1))
        sum_of_squares = tf.reduce_sum(tf.square(inputs), axis=1)
        products = 0.5 * (square_of_sum - sum_of_squares)
        return products if self._keep_dim else tf.reduce_sum(products, axis=1, keepdims=True)
