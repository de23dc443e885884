"""A fully connected layer: `activation(inputs @ kernel + bias)`.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     outputs = Dense(8, activation="relu")(tf.ones([4, 3]))
    ...     print(outputs.shape, [v.name for v in tf.compat.v1.trainable_variables()])
    (4, 8) ['dense/kernel:0', 'dense/bias:0']
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith.core import devices, export_mode
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

    def build(self, input_shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
        dim = input_shape[-1]
        assert dim is not None
        kernel = self.add_weight("kernel", [dim, self._units], dtype, self._kernel_initializer)
        if not self._use_bias:
            return {"kernel": kernel}
        bias = self.add_weight("bias", [self._units], dtype, self._bias_initializer)
        return {"kernel": kernel, "bias": bias}

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        kernel = tf.convert_to_tensor(weights["kernel"])
        bias = tf.convert_to_tensor(weights["bias"]) if self._use_bias else None
        if _has_fast_op(inputs):
            return self._call_fast_op(inputs, kernel, bias)
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, kernel)
        else:
            outputs = tf.tensordot(inputs, kernel, axes=1)
        if bias is not None:
            outputs = tf.nn.bias_add(outputs, bias)
        return self._activation(outputs)

    def _call_fast_op(
        self, inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None
    ) -> tf.Tensor:
        bias = tf.zeros([0]) if bias is None else bias
        if self._activation is tf.nn.relu:
            return ops.monolith_dense(inputs, kernel, bias, activation="relu")
        outputs = ops.monolith_dense(inputs, kernel, bias)
        return outputs if self._activation is tf.identity else self._activation(outputs)


def _has_fast_op(inputs: tf.Tensor) -> bool:
    """Whether our op, which needs less CPU than TensorFlow's three, can compute the layer.

    Exported models consist of TensorFlow's ops, which converters of models understand.
    """
    is_matrix_of_floats = inputs.shape.rank == 2 and inputs.dtype == tf.float32
    return is_matrix_of_floats and not export_mode.is_exporting() and not devices.is_gpu_training()
