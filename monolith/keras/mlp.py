"""`ml.keras.MLP`: dense layers in a row, which one op computes, and one op their gradients.

What it learns is what as many `keras.layers.Dense` learn. It takes less time: Keras' layers go over
the whole batch once for each product, bias and activation.

Example:
    >>> model = keras.Sequential([keras.Input((8,)), MLP([256, 64, 1])])
    >>> model.compile(optimizer="adam", loss="mse")
    >>> _ = model.fit(np.ones((4, 8)), np.ones(4), verbose=0)
    >>> model.predict(np.ones((2, 8)), verbose=0).shape, model.count_params()
    ((2, 1), 18817)
"""

from collections.abc import Sequence
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from monolith import errors
from monolith.native import ops

__all__ = ["MLP", "np"]


@keras.saving.register_keras_serializable(package="monolith")
class MLP(keras.layers.Layer):
    """Maps `[batch, ..., dim]` to `[batch, ..., units[-1]]`.

    Args:
        units: Width of each layer.
        activation: Applied after each layer but the last. One op computes layers with "relu" or
            "linear" and a batch of float32 vectors; others are computed as Keras does it.
        output_activation: Applied after the last layer. The default None gives logits.
        use_bias: Whether the layers have a bias.
        kernel_initializer: As that of `keras.layers.Dense`, and so are the next ones.
        bias_initializer: What biases start with.
        kernel_regularizer: A loss by the kernels.
        **kwargs: `name`, `dtype`, `trainable` and whatever else layers take.

    Raises:
        ConfigError: There is no layer, or one has no units.
    """

    def __init__(
        self,
        units: Sequence[int],
        activation: Any = "relu",
        output_activation: Any = None,
        *,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(units, list | tuple) or not units:
            raise errors.ConfigError(
                f"The units of an MLP must be a list with one width for each layer, got {units!r}."
            )
        for width in units:
            if not isinstance(width, int) or isinstance(width, bool) or width <= 0:
                raise errors.ConfigError(
                    f"Each of the units of an MLP must be a positive integer, got {width!r}."
                )
        self.units = list(units)
        self.layers = [
            keras.layers.Dense(
                width,
                output_activation if i == len(units) - 1 else activation,
                use_bias=use_bias,
                # An initializer that is used twice draws the same numbers twice.
                kernel_initializer=_copy(keras.initializers, kernel_initializer),
                bias_initializer=_copy(keras.initializers, bias_initializer),
                kernel_regularizer=_copy(keras.regularizers, kernel_regularizer),
                dtype=self.dtype_policy,
                name=f"dense_{i}",
            )
            for i, width in enumerate(units)
        ]
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape: Any) -> None:
        for layer in self.layers:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, inputs: Any) -> Any:
        if self._is_one_op(inputs):
            return ops.monolith_mlp(
                inputs,
                [tf.convert_to_tensor(layer.kernel) for layer in self.layers],
                [
                    tf.convert_to_tensor(layer.bias) if layer.use_bias else tf.zeros([0])
                    for layer in self.layers
                ],
                relu=[layer.activation is keras.activations.relu for layer in self.layers],
            )[-1]
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units[-1])

    def get_config(self) -> dict[str, Any]:
        first, last = self.layers[0].get_config(), self.layers[-1].get_config()
        shared = ("use_bias", "kernel_initializer", "bias_initializer", "kernel_regularizer")
        return {
            **super().get_config(),
            "units": self.units,
            "activation": first["activation"] if len(self.units) > 1 else "relu",
            "output_activation": last["activation"],
            **{name: first[name] for name in shared},
        }

    def _is_one_op(self, inputs: Any) -> bool:
        known = (keras.activations.relu, keras.activations.linear)
        graph = tf.compat.v1.get_default_graph()
        return (
            tf.is_tensor(inputs)
            and inputs.shape.rank == 2
            and inputs.dtype == tf.float32
            and all(layer.activation in known for layer in self.layers)
            and not (
                not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(graph)
            )
        )


def _copy(module: Any, given: Any) -> Any:
    """Returns an initializer or regularizer that no other layer has."""
    found = module.get(given)
    return module.deserialize(module.serialize(found)) if hasattr(found, "get_config") else found
