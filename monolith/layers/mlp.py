"""Several fully connected layers in a row.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     logits = MLP([256, 64, 1])(tf.ones([4, 32]))
    ...     print(logits.shape)
    (4, 1)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.layers import base, dense


class MLP(base.Layer):
    """Maps `[batch, ..., dim]` to `[batch, ..., units[-1]]`.

    Args:
        units: Width of each layer.
        activation: Applied after each layer but the last: a name, a function, or None.
        output_activation: Applied after the last layer. The default None gives logits.
        use_bias: Whether the layers have a bias.
        kernel_initializer: A name or an initializer of `tf.compat.v1`.
        bias_initializer: As `kernel_initializer`.
        name: See `base.Layer`.

    Raises:
        ConfigError: There is no layer, one has no units, or a name is unknown.
    """

    def __init__(
        self,
        units: Sequence[int],
        activation: base.Activation = "relu",
        output_activation: base.Activation = None,
        *,
        use_bias: bool = True,
        kernel_initializer: base.Initializer = "glorot_uniform",
        bias_initializer: base.Initializer = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not isinstance(units, list | tuple) or not units:
            raise errors.ConfigError(
                f"The units of an MLP must be a list with one width for each layer, got {units!r}."
            )
        # Named after their place: a name that a scope counts up would differ between two uses.
        self._layers = [
            dense.Dense(
                base.check_units("Each of the units of an MLP", width),
                output_activation if i == len(units) - 1 else activation,
                use_bias=use_bias,
                kernel_initializer=kernel_initializer,
                bias_initializer=bias_initializer,
                name=f"dense_{i}",
            )
            for i, width in enumerate(units)
        ]

    def build(self, input_shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
        weights = {}
        for layer in self._layers:
            with tf.compat.v1.variable_scope(layer.name):
                weights[layer.name] = layer.build(input_shape, dtype)
            input_shape = [*input_shape[:-1], layer.units]
        return weights

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        return dense.call_in_a_row(
            self._layers, inputs, [weights[layer.name] for layer in self._layers]
        )
