"""A fully connected layer: `activation(inputs @ kernel + bias)`.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     outputs = Dense(8, activation="relu")(tf.ones([4, 3]))
    ...     print(outputs.shape, [v.name for v in tf.compat.v1.trainable_variables()])
    (4, 8) ['dense/kernel:0', 'dense/bias:0']
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import devices, export_mode
from monolith.layers import base
from monolith.native import ops


class Dense(base.Layer):
    """Maps `[batch, ..., dim]` to `[batch, ..., units]`.

    Args:
        units: Width of the outputs.
        activation: Applied at the end: a name, a function, or None.
        use_bias: Whether there is a bias.
        kernel_initializer: A name or an initializer of `tf.compat.v1`.
        bias_initializer: As `kernel_initializer`.
        name: See `base.Layer`.

    Raises:
        ConfigError: `units` is not positive, or a name is unknown.
    """

    def __init__(
        self,
        units: int,
        activation: base.Activation = None,
        *,
        use_bias: bool = True,
        kernel_initializer: base.Initializer = "glorot_uniform",
        bias_initializer: base.Initializer = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._units = base.check_units("The units of a Dense layer", units)
        self._activation = base.get_activation(activation)
        self._use_bias = use_bias
        self._kernel_initializer = base.get_initializer(kernel_initializer)
        self._bias_initializer = base.get_initializer(bias_initializer)

    @property
    def units(self) -> int:
        """Width of the outputs."""
        return self._units

    def build(self, input_shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
        dim = input_shape[-1]
        assert dim is not None
        kernel = self.add_weight("kernel", [dim, self._units], dtype, self._kernel_initializer)
        if not self._use_bias:
            return {"kernel": kernel}
        bias = self.add_weight("bias", [self._units], dtype, self._bias_initializer)
        return {"kernel": kernel, "bias": bias}

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        return call_in_a_row([self], inputs, [weights])

    def _call_plain_ops(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        kernel = tf.convert_to_tensor(weights["kernel"])
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, kernel)
        else:
            outputs = tf.tensordot(inputs, kernel, axes=1)
        if self._use_bias:
            outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(weights["bias"]))
        return self._activation(outputs)


def call_in_a_row(
    layers: Sequence[Dense], inputs: tf.Tensor, weights: Sequence[Mapping[str, Any]]
) -> tf.Tensor:
    """Applies layers, the second to what the first gives, and so on.

    As many of them as possible go into one of our ops, which needs less CPU than TensorFlow's.

    Args:
        layers: The layers.
        inputs: What the first takes.
        weights: What `build` gave, for each layer.
    """
    outputs = inputs
    # Those since the last op: an activation that the op does not know ends it.
    row: list[tuple[Dense, Mapping[str, Any]]] = []
    for i, (layer, layer_weights) in enumerate(zip(layers, weights, strict=True)):
        if not _has_fast_op(outputs):
            outputs = layer._call_plain_ops(outputs, layer_weights)
            continue
        row.append((layer, layer_weights))
        if layer._activation not in (tf.nn.relu, tf.identity) or i == len(layers) - 1:
            outputs = _call_fast_op(row, outputs)
            row = []
    return outputs


def _call_fast_op(row: Sequence[tuple[Dense, Mapping[str, Any]]], inputs: tf.Tensor) -> tf.Tensor:
    outputs = ops.monolith_mlp(
        inputs,
        [tf.convert_to_tensor(weights["kernel"]) for _, weights in row],
        [
            tf.convert_to_tensor(weights["bias"]) if layer._use_bias else tf.zeros([0])
            for layer, weights in row
        ],
        relu=[layer._activation is tf.nn.relu for layer, _ in row],
    )[-1]
    activation = row[-1][0]._activation
    return outputs if activation in (tf.nn.relu, tf.identity) else activation(outputs)


def _has_fast_op(inputs: tf.Tensor) -> bool:
    """Whether our op can compute a layer.

    Exported models consist of TensorFlow's ops, which converters of models understand.
    """
    is_matrix_of_floats = inputs.shape.rank == 2 and inputs.dtype == tf.float32
    return is_matrix_of_floats and not export_mode.is_exporting() and not devices.is_gpu_training()
