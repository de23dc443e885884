"""The average of dense gradients over all workers of synchronous training.

Only jobs that set `MONOLITH_WITH_HOROVOD` average anything; how they do it is up to a few more
variables of the environment, listed below.

Example:
    >>> is_enabled()  # Without the variable.
    False
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith import errors

_WITH_HOROVOD = "MONOLITH_WITH_HOROVOD"
_WITH_BYTEPS = "MONOLITH_WITH_BYTEPS"  # BytePS instead of Horovod; off by default,
_WITH_BYTEPS_ALLREDUCE = "MONOLITH_WITH_BYTEPS_ALLREDUCE"  # for gradients too; on by default.
_FUSION = "MONOLITH_WITH_ALLREDUCE_FUSION"  # "none", "one" or "grouped".
_FP16 = "MONOLITH_WITH_ALLREDUCE_FP16"  # Whether gradients travel in half precision.
_SKIP = "MONOLITH_SKIP_ALLREDUCE"  # To measure what the exchange costs.


def is_enabled() -> bool:
    """Returns whether this job has a collective library."""
    return _is_on(_WITH_HOROVOD)


def average(gradients: Sequence[Any]) -> list[Any]:
    """Returns each gradient, a tensor or `tf.IndexedSlices`, averaged over all workers.

    Raises:
        ConfigError: The library that the environment asks for cannot be imported.
        RuntimeError: It asks for a fusion that does not exist.
    """
    fusion = os.environ.get(_FUSION, "none")
    if fusion not in ("none", "one", "grouped"):
        raise RuntimeError(
            f"{_FUSION} must be 'none', 'one' or 'grouped', got '{fusion}'; set one of these."
        )
    if not gradients or _is_on(_SKIP):
        return list(gradients)
    if _is_on(_WITH_BYTEPS) and _is_on(_WITH_BYTEPS_ALLREDUCE, default="1"):
        library = _import("byteps.tensorflow", _WITH_BYTEPS)
        reduce = library.push_pull
    else:
        library = _import("horovod.tensorflow", _WITH_HOROVOD)
        reduce = library.allreduce
    options = {"op": library.Average}
    if _is_on(_FP16):
        options["compression"] = library.Compression.fp16
    if fusion == "none":
        return [reduce(gradient, **options) for gradient in gradients]
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if fusion == "one":
        return _split_like(reduce(_join(dense), **options), dense)
    if not hasattr(library, "grouped_allreduce"):
        raise RuntimeError(f"{library.__name__} cannot reduce groups; set {_FUSION} to 'one'.")
    return list(library.grouped_allreduce(dense, **options))


def _is_on(variable: str, default: str = "0") -> bool:
    return os.environ.get(variable, default).lower() not in ("", "0", "false")


def _import(name: str, variable: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise errors.ConfigError(
            f"{variable} asks for all-reduce with {name}, which cannot be imported ({e}); install "
            f"it or unset {variable}."
        ) from e


def _join(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _split_like(joined: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    parts = tf.split(joined, [tf.size(tensor) for tensor in tensors], num=len(tensors))
    return [
        tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
