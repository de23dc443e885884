"""Clipping of gradients by the norm of all of them together, in two compiled ops.

Compared to `tf.clip_by_global_norm`: one pass over all tensors for the norm (summed in float64),
one for the scaling, and none if the norm is within the limit, since the tensors are then passed on
as they are. An infinite norm turns infinite elements into NaN and all others into 0, where
TensorFlow makes every element NaN; a NaN stays where it is.

Example:
    >>> clipped, norm = clip_by_global_norm([tf.constant([-3.0]), tf.constant([4.0])], 2.5)
    >>> [t.numpy().tolist() for t in clipped], float(norm)
    ([[-1.5], [2.0]], 5.0)
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from monolith.native import ops
from monolith.optimizer import base


def clip_by_global_norm(
    t_list: list[Any], clip_norm: float | tf.Tensor, use_norm: float | tf.Tensor | None = None
) -> tuple[list[Any], Any]:
    """Scales all tensors by `clip_norm / norm` if their common norm is above `clip_norm`.

    The tensors of `t_list` are never changed. The result can be differentiated.

    Args:
        t_list: Tensors or `tf.IndexedSlices`, all float32 or all float64; `None` stays `None`.
        clip_norm: The largest norm that is left as it is; zero or positive.
        use_norm: The norm, if the caller has it already.

    Returns:
        The list of clipped tensors and the norm before clipping; an empty list comes back with 0.

    Raises:
        TypeError: `t_list` is not a list, or the types of its tensors differ or are no float type.
    """
    if not isinstance(t_list, list):
        raise TypeError("t_list should be a list")
    tensors = _tensors(t_list)
    if not tensors:
        return t_list, 0
    dtype = tensors[0].dtype
    norm = _global_norm(t_list) if use_norm is None else _scalar(use_norm, dtype)
    clipped = ops.monolith_clip_by_global_norm(tensors, norm, _scalar(clip_norm, dtype))
    base.require_cpu("clip_by_global_norm", "the clipping op", clipped[0].device)
    remaining = iter(clipped)
    return [_replace_values(t, remaining) for t in t_list], norm


def _global_norm(t_list: list[Any]) -> tf.Tensor | None:
    """Returns the L2 norm of all tensors taken together, `None` if there are none."""
    tensors = _tensors(t_list)
    return ops.monolith_global_norm(tensors) if tensors else None


def _tensors(t_list: list[Any]) -> list[tf.Tensor]:
    tensors = [
        t.values if isinstance(t, tf.IndexedSlices) else tf.convert_to_tensor(t)
        for t in t_list
        if t is not None
    ]
    types = sorted({t.dtype.name for t in tensors})
    if len(types) > 1 or not {"float32", "float64"}.issuperset(types):
        raise TypeError(
            f"The tensors of `t_list` must be all float32 or all float64, got {', '.join(types)}; "
            "clip the others apart, or cast them."
        )
    return tensors


def _scalar(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # A Python number takes the type as it is; going through float32 would round it.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)


def _replace_values(original: Any, clipped: Iterator[tf.Tensor]) -> Any:
    if original is None:
        return None
    if isinstance(original, tf.IndexedSlices):
        return tf.IndexedSlices(next(clipped), original.indices, original.dense_shape)
    return next(clipped)
