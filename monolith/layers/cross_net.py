"""Explicit feature crosses of bounded degree: the cross network of DCN v2.

Each layer multiplies the inputs, element by element, with a linear map of what the layer before
gave, and adds that again: `x[l + 1] = x[0] * (W[l] @ x[l] + b[l]) + x[l]`. After `n` layers the
outputs are polynomials of degree `n + 1` of the inputs. See Wang et al., "DCN V2: Improved Deep &
Cross Network", WWW 2021.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     print(CrossNet(num_layers=2, projection_dim=4)(tf.ones([8, 32])).shape)
    (8, 32)
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.layers import base


class CrossNet(base.Layer):
    """Maps `[batch, dim]` to `[batch, dim]`.

    Args:
        num_layers: How many crosses follow each other.
        projection_dim: If given, each `W` is the product of a `[dim, projection_dim]` and a
            `[projection_dim, dim]` matrix, which costs `2 * dim * projection_dim` weights instead
            of `dim * dim`. It must be smaller than `dim`, else the full matrix is cheaper.
        use_bias: Whether there is a bias.
        kernel_initializer: A name or an initializer of `tf.compat.v1`.
        bias_initializer: As `kernel_initializer`.
        name: See `base.Layer`.

    Raises:
        ConfigError: A size is not positive, or a name is unknown.
    """

    def __init__(
        self,
        num_layers: int,
        projection_dim: int | None = None,
        *,
        use_bias: bool = True,
        kernel_initializer: base.Initializer = "truncated_normal",
        bias_initializer: base.Initializer = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._num_layers = base.check_units("The num_layers of a CrossNet", num_layers)
        if projection_dim is not None:
            base.check_units("The projection_dim of a CrossNet", projection_dim)
        self._projection_dim = projection_dim
        self._use_bias = use_bias
        self._kernel_initializer = base.get_initializer(kernel_initializer)
        self._bias_initializer = base.get_initializer(bias_initializer)

    def check_inputs(self, inputs: Any) -> tf.Tensor:
        tensor = self.to_tensor(inputs, min_rank=2, max_rank=2)
        dim = tensor.shape[-1]
        if self._projection_dim is not None and self._projection_dim >= dim:
            raise errors.ConfigError(
                f"The projection_dim {self._projection_dim} of CrossNet {self.name!r} must be "
                f"smaller than the width of its inputs, {dim}; leave it out for a full matrix."
            )
        return tensor

    def build(self, input_shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
        dim = input_shape[-1]
        assert dim is not None
        weights = {}
        for i in range(self._num_layers):
            if self._projection_dim is None:
                shapes = {f"kernel_{i}": [dim, dim]}
            else:
                shapes = {
                    f"kernel_v_{i}": [dim, self._projection_dim],
                    f"kernel_u_{i}": [self._projection_dim, dim],
                }
            for name, shape in shapes.items():
                weights[name] = self.add_weight(name, shape, dtype, self._kernel_initializer)
            if self._use_bias:
                name = f"bias_{i}"
                weights[name] = self.add_weight(name, [dim], dtype, self._bias_initializer)
        return weights

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        crossed = inputs
        for i in range(self._num_layers):
            if self._projection_dim is None:
                mapped = tf.matmul(crossed, tf.convert_to_tensor(weights[f"kernel_{i}"]))
            else:
                projected = tf.matmul(crossed, tf.convert_to_tensor(weights[f"kernel_v_{i}"]))
                mapped = tf.matmul(projected, tf.convert_to_tensor(weights[f"kernel_u_{i}"]))
            if self._use_bias:
                mapped = tf.nn.bias_add(mapped, tf.convert_to_tensor(weights[f"bias_{i}"]))
            crossed = inputs * mapped + crossed
        return crossed
