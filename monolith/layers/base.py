"""What all layers share: weights that belong to a graph, and settings that are checked early.

A layer holds no tensors itself. Its weights are kept with the graph they live in, so one layer
object works in every graph a model is built in (dry run, training, export), and a model that holds
layers can be copied.

Example:
    >>> import tensorflow as tf
    >>> class Scale(Layer):
    ...     def build(self, input_shape, dtype):
    ...         return {"factor": self.add_weight("factor", [input_shape[-1]], dtype, "ones")}
    ...     def call(self, inputs, weights):
    ...         return inputs * weights["factor"]
    >>> with tf.Graph().as_default():
    ...     scale = Scale()
    ...     twice = scale(scale(tf.ones([2, 3])))
    ...     print([v.name for v in tf.compat.v1.trainable_variables()])
    ['scale/factor:0']
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core import naming
from monolith.graph import metadata

Activation = str | Callable[[tf.Tensor], tf.Tensor] | None
Initializer = str | Callable[..., Any]

_META_KEY = "layers"

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "leaky_relu": tf.nn.leaky_relu,
    "linear": tf.identity,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "selu": tf.nn.selu,
    "sigmoid": tf.nn.sigmoid,
    "silu": tf.nn.silu,
    "softmax": tf.nn.softmax,
    "softplus": tf.nn.softplus,
    "swish": tf.nn.silu,
    "tanh": tf.nn.tanh,
}

# Initializers of v1: they learn the shape of the whole variable when they fill one partition of it,
# so a partitioned kernel starts with the same spread as a whole one.
_INITIALIZERS: dict[str, Callable[[], Any]] = {
    "glorot_normal": tf.compat.v1.glorot_normal_initializer,
    "glorot_uniform": tf.compat.v1.glorot_uniform_initializer,
    "he_normal": lambda: tf.compat.v1.variance_scaling_initializer(scale=2.0),
    "he_uniform": lambda: tf.compat.v1.variance_scaling_initializer(
        scale=2.0, distribution="uniform"
    ),
    "ones": tf.compat.v1.ones_initializer,
    "truncated_normal": lambda: tf.compat.v1.truncated_normal_initializer(stddev=0.05),
    "zeros": tf.compat.v1.zeros_initializer,
}


class InputTypeError(errors.ConfigError, TypeError):
    """A layer is called on what is no dense tensor of floats."""


@dataclasses.dataclass(frozen=True)
class _Built:
    """A layer in one graph. It holds the layer, so that no other can take its id meanwhile."""

    layer: "Layer"
    input_dim: int | None
    weights: Mapping[str, Any]


class Layer:
    """A function of tensors with weights that its first call in a graph makes.

    Subclasses override `call` and, if they have weights of their own, `build`. Layers inside of a
    layer are made in its constructor and called in its `call`.

    Args:
        name: Scope of the weights. If left out, the default name, with a number where the graph
            has that scope already. Two layers with the same given name are refused by TensorFlow,
            unless the surrounding variable scope allows reuse.
        default_name: If left out, the name of the class in snake case.
    """

    def __init__(self, name: str | None = None, default_name: str | None = None) -> None:
        self._given_name = name
        self._default_name = default_name or naming.to_snake_case(type(self).__name__)

    @property
    def name(self) -> str:
        """The given name, or the one that the scope of an unnamed layer starts with."""
        return self._given_name or self._default_name

    def __call__(self, inputs: Any) -> Any:
        """Applies the layer; the first call in a graph makes its weights."""
        if tf.executing_eagerly():
            raise RuntimeError(
                f"Layer {self.name!r} was called eagerly, but layers build graphs; call it in a "
                "model function, or inside of `with tf.Graph().as_default():`."
            )
        built = metadata.get_meta(_META_KEY, dict[int, _Built])
        known = built.get(id(self))
        if known is not None:
            with tf.compat.v1.name_scope(self.name):
                inputs = self.check_inputs(inputs)
                self._check_width(inputs, known)
                return self.call(inputs, known.weights)
        with tf.compat.v1.variable_scope(self._given_name, default_name=self._default_name):
            inputs = self.check_inputs(inputs)
            shape = inputs.shape.as_list()
            weights = self.build(shape, inputs.dtype)
            outputs = self.call(inputs, weights)
            built[id(self)] = _Built(self, shape[-1], weights)
        return outputs

    def check_inputs(self, inputs: Any) -> tf.Tensor:
        """Returns the inputs as one tensor, or says what is wrong with them."""
        return self.to_tensor(inputs, min_rank=2)

    def build(self, input_shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
        """Makes the weights, in the layer's variable scope.

        Args:
            input_shape: Static shape of the inputs.
            dtype: Type of the inputs.

        Returns:
            The weights, for `call`.
        """
        return {}

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> Any:
        """Computes the outputs from what `check_inputs` and `build` returned."""
        raise NotImplementedError("Abstract method.")

    def add_weight(
        self, name: str, shape: list[int], dtype: tf.DType, initializer: Initializer
    ) -> Any:
        """Makes a trainable variable, which the surrounding scope may partition."""
        return tf.compat.v1.get_variable(
            name, shape, dtype, initializer=get_initializer(initializer), use_resource=True
        )

    def to_tensor(self, inputs: Any, min_rank: int, max_rank: int | None = None) -> tf.Tensor:
        """Returns `inputs` as a tensor of floats.

        Raises:
            InputTypeError: It is ragged or sparse, or does not hold floats.
            ConfigError: The number of dimensions is out of bounds, or the last one is not known.
        """
        if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            raise InputTypeError(
                f"Layer {self.name!r} needs a dense tensor, got a {type(inputs).__name__}; look "
                "ids up in an embedding first."
            )
        tensor = tf.convert_to_tensor(inputs)
        if not tensor.dtype.is_floating:
            raise InputTypeError(
                f"Layer {self.name!r} needs floats, got {tensor.dtype.name}; use `tf.cast`."
            )
        rank = tensor.shape.rank
        if rank is None or rank < min_rank or (max_rank is not None and rank > max_rank):
            expected = f"{min_rank}" if max_rank == min_rank else f"at least {min_rank}"
            raise errors.ConfigError(
                f"Layer {self.name!r} needs a tensor with {expected} dimensions, batch first, got "
                f"shape {tensor.shape}."
            )
        if not tensor.shape[-1]:
            raise errors.ConfigError(
                f"Layer {self.name!r} needs a known, positive last dimension to size its weights, "
                f"got shape {tensor.shape}; use `tf.ensure_shape`."
            )
        return tensor

    def _check_width(self, inputs: tf.Tensor, known: _Built) -> None:
        if known.weights and inputs.shape[-1] != known.input_dim:
            raise errors.ConfigError(
                f"Layer {self.name!r} was called on inputs of width {known.input_dim} before and "
                f"shares its weights between calls, got shape {inputs.shape}; make another layer."
            )


def get_activation(activation: Activation) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function that a name, None for the identity, or a function itself stands for."""
    if activation is None:
        return tf.identity
    if callable(activation):
        return activation
    return _find("activation", activation, _ACTIVATIONS)


def get_initializer(initializer: Initializer) -> Any:
    """Returns the initializer that a name, or an initializer itself, stands for."""
    if callable(initializer):
        return initializer
    return _find("initializer", initializer, _INITIALIZERS)()


def check_units(what: str, units: Any) -> int:
    """Returns `units` if it is a positive int.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(units, bool) or not isinstance(units, int) or units < 1:
        raise errors.ConfigError(f"{what} must be a positive int, got {units!r}.")
    return units


def _find(kind: str, name: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        raise errors.ConfigError(
            f"Unknown {kind} {name!r}; use one of {', '.join(known)}, or a function."
        )
    return found
