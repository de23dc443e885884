"""The average of dense gradients over all workers of synchronous training.

Jobs that ranks train together average all gradients, and so do models that ask for it where
`MONOLITH_WITH_HOROVOD` is set. By which library they do it is decided in
`monolith.graph.collectives`, and how is up to a few more variables of the environment.

Example:
    >>> is_enabled()  # Without the variable.
    False
"""

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import collectives
from monolith.graph.collectives import is_on

_WITH_HOROVOD = "MONOLITH_WITH_HOROVOD"
_FUSION = "MONOLITH_WITH_ALLREDUCE_FUSION"  # "none", "one" or "grouped".
_FP16 = "MONOLITH_WITH_ALLREDUCE_FP16"  # Whether gradients travel in half precision.
_SKIP = "MONOLITH_SKIP_ALLREDUCE"  # To measure what the exchange costs.


def is_enabled() -> bool:
    """Returns whether this job has a collective library."""
    return is_on(_WITH_HOROVOD)


def is_wanted(use_allreduce: bool) -> bool:
    """Returns whether the gradients of the default graph are averaged.

    Args:
        use_allreduce: Whether the model asks for it.
    """
    return collectives.averages_gradients() or (use_allreduce and is_enabled())


def average(gradients: Sequence[Any]) -> list[Any]:
    """Returns each gradient, a tensor or `tf.IndexedSlices`, averaged over all workers.

    Raises:
        ConfigError: The library that the environment asks for cannot be imported, or the ranks
            have not met.
        RuntimeError: It asks for a fusion that does not exist, or that the library cannot do.
    """
    fusion = _get_fusion()
    if not gradients or is_on(_SKIP):
        return list(gradients)
    masked, factor = collectives.leave_out_idle(gradients)
    averages = _average(masked, fusion, compress=is_on(_FP16))
    return [collectives.scale_average(average, factor) for average in averages]


def describe_environment() -> dict[str, str]:
    """Returns what the environment says of averages, which must be the same in all ranks.

    Example:
        >>> describe_environment()["MONOLITH_WITH_ALLREDUCE_FP16"]
        'off'
    """
    switches = {name: "on" if is_on(name) else "off" for name in (_FP16, _SKIP)}
    return {_FUSION: os.environ.get(_FUSION, "unset"), **switches}


def _get_fusion() -> str:
    fusion = os.environ.get(_FUSION)
    if fusion is None:
        # Few large messages, where the library can.
        is_grouped = collectives.averages_gradients() and collectives.reduces_groups()
        return "grouped" if is_grouped else "none"
    if fusion not in ("none", "one", "grouped"):
        raise RuntimeError(
            f"{_FUSION} must be 'none', 'one' or 'grouped', got '{fusion}'; set one of these."
        )
    if fusion == "grouped" and not collectives.reduces_groups():
        raise RuntimeError(
            f"{_FUSION} is 'grouped', but the library that averages gradients has no groups, as "
            "BytePS; set it to 'none' or 'one', or unset it."
        )
    return fusion


def _average(gradients: Sequence[Any], fusion: str, *, compress: bool) -> list[Any]:
    if fusion == "none":
        return [collectives.allreduce(gradient, compress=compress) for gradient in gradients]
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if fusion == "one":
        return _split_like(collectives.allreduce(_join(dense), compress=compress), dense)
    return collectives.grouped_allreduce(dense, compress=compress)


def _join(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _split_like(joined: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    parts = tf.split(joined, [tf.size(tensor) for tensor in tensors], num=len(tensors))
    return [
        tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
