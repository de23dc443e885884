"""Calls the functions that a user writes to build a graph: the input's and the model's.

Both may declare just the arguments they need.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.util import structure

from monolith import errors
from monolith.graph.run_config import GraphRunConfig
from monolith.graph.spec import GraphSpec, Hook
from monolith.training.hooks.dataset_initializer import DatasetInitializerHook

_CPU = "/device:CPU:0"


class Input(NamedTuple):
    """Tensors of the input, and the hooks that a session needs to get them."""

    features: Any
    labels: Any
    hooks: list[Hook]


def call_input_fn(
    input_fn: Callable[..., Any], mode: str, config: GraphRunConfig, params: Any
) -> Input:
    """Builds the input in the default graph.

    Args:
        input_fn: Takes any of `mode`, `config` and `params`. Returns a dataset of features, or of
            pairs of features and labels, or such tensors themselves.
        mode: One of `ModeKeys`.
        config: Handed on.
        params: Handed on.

    Raises:
        errors.ConfigError: It returns nothing, or a tuple that is no pair.
    """
    arguments = _select(input_fn, {"mode": mode, "config": config, "params": params})
    with tf.device(_CPU):
        result = input_fn(**arguments)
    hooks: list[Hook] = []
    if isinstance(result, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(DatasetInitializerHook(iterator))
        result = _get_next(iterator, config)
    if result is None:
        raise errors.ConfigError(
            f"The input function {_name(input_fn)} returns nothing; return a tf.data.Dataset or "
            "the features."
        )
    if isinstance(result, (tuple, list)):
        if len(result) != 2:
            raise errors.ConfigError(
                f"The input function {_name(input_fn)} must give features, or a pair of features "
                f"and labels; got {len(result)} parts. Put several features into a dictionary."
            )
        return Input(result[0], result[1], hooks)
    return Input(result, None, hooks)


def call_model_fn(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    config: GraphRunConfig,
    params: Any,
) -> GraphSpec:
    """Builds the model in the default graph.

    Args:
        model_fn: Takes any of the other arguments, by name.
        features: Features of the input.
        labels: Labels of the input, None if there are none.
        mode: One of `ModeKeys`.
        config: Handed on.
        params: Handed on.

    Raises:
        errors.ConfigError: It does not take labels that are there, or returns something else than
            an `GraphSpec`.
    """
    available = {
        "features": features,
        "labels": labels,
        "mode": mode,
        "config": config,
        "params": params,
    }
    arguments = _select(model_fn, available)
    if labels is not None and "labels" not in arguments:
        raise errors.ConfigError(
            f"The input gives labels, but the model function {_name(model_fn)} does not take them; "
            "give it an argument `labels`, or put them among the features."
        )
    spec = model_fn(**arguments)
    if not isinstance(spec, GraphSpec):
        raise errors.ConfigError(
            f"The model function {_name(model_fn)} must return an GraphSpec, got {spec!r}."
        )
    return spec


def _get_next(iterator: Any, config: GraphRunConfig) -> Any:
    """Returns the tensors of an iterator's next element."""
    session_config = config.session_config
    if session_config is None or session_config.inter_op_parallelism_threads >= 0:
        return iterator.get_next()
    # The usual op waits in a thread of its own, so that others can go on. Where all ops run in one
    # thread there are no others, and waking that thread is all that happens.
    tensors = tf.raw_ops.IteratorGetNextSync(
        iterator=iterator._iterator_resource,
        output_types=iterator._flat_tensor_types,
        output_shapes=iterator._flat_tensor_shapes,
    )
    return structure.from_compatible_tensor_list(iterator.element_spec, tensors)


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> None:
    """Refuses a model function that cannot be called, before anything is built.

    Raises:
        errors.ConfigError: It needs an argument that nobody gives, or does not take `params`
            although there are some.
    """
    known = dict.fromkeys(("features", "labels", "mode", "config", "params"))
    selected = _select(model_fn, known)
    if params and "params" not in selected:
        raise errors.ConfigError(
            f"The model function {_name(model_fn)} has no argument `params`, but params were "
            f"given: {params!r}."
        )


def _select(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the available arguments that `function` declares."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(available)
    required = [
        p.name
        for p in parameters
        if p.default is inspect.Parameter.empty
        and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    unknown = [name for name in required if name not in available]
    if unknown:
        raise errors.ConfigError(
            f"The function {_name(function)} needs {', '.join(unknown)}, which nobody gives; it "
            f"may take {', '.join(available)}."
        )
    names = {p.name for p in parameters}
    return {name: value for name, value in available.items() if name in names}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
