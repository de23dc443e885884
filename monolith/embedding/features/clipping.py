"""Clipping of the gradients of variables and of embeddings, together or apart.

Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     dense, sparse = clip_gradients(
    ...         [tf.constant(3.0)], [tf.constant(4.0)], GradClipType.ClipByGlobalNorm, 2.5
    ...     )
    ...     print(*session.run([*dense, *sparse]))
    1.5 2.0
"""

import enum
from typing import Any

import tensorflow as tf

from monolith.optimizer import clip

# A tensor or `tf.IndexedSlices`.
_Gradient = Any


class GradClipType(enum.Enum):
    """How gradients are clipped."""

    ClipByNorm = 1
    ClipByGlobalNorm = 2
    ClipByValue = 3
    ClipByDenseAndSparse = 4
    NoClip = 5


def clip_gradients(
    dense: list[_Gradient],
    sparse: list[tf.Tensor],
    clip_type: GradClipType,
    clip_norm: float | None,
    sparse_clip_norm: float | None = None,
    warmup_ratio: tf.Tensor | None = None,
) -> tuple[list[_Gradient], list[tf.Tensor]]:
    """Returns the clipped gradients of variables and of embeddings.

    Args:
        dense: Of variables, tensors or `tf.IndexedSlices`.
        sparse: Of embeddings.
        clip_type: How to clip.
        clip_norm: The limit; None for none.
        sparse_clip_norm: Another limit for those of embeddings, with the two types of global norms.
        warmup_ratio: What that limit is multiplied by (ClipByGlobalNorm); None is 1.
    """
    if clip_type == GradClipType.ClipByDenseAndSparse:
        dense = _clip_group(dense, clip_norm, "dense")
        return dense, _clip_group(sparse, sparse_clip_norm, "sparse")
    if clip_norm is None:
        return dense, sparse
    if clip_type == GradClipType.ClipByGlobalNorm:
        norm = clip._global_norm([*dense, *sparse])
        tf.compat.v1.summary.scalar("global_gradient_norm", norm)
        sparse_limit: Any = sparse_clip_norm or clip_norm
        if warmup_ratio is not None:
            sparse_limit = sparse_limit * warmup_ratio
        dense, _ = clip.clip_by_global_norm(dense, clip_norm, norm)
        sparse, _ = clip.clip_by_global_norm(sparse, sparse_limit, norm)
    elif clip_type == GradClipType.ClipByValue:
        dense = [tf.clip_by_value(grad, -clip_norm, clip_norm) for grad in dense]
        sparse = [tf.clip_by_value(grad, -clip_norm, clip_norm) for grad in sparse]
    elif clip_type == GradClipType.ClipByNorm:
        dense = [tf.clip_by_norm(grad, clip_norm) for grad in dense]
        sparse = [tf.clip_by_norm(grad, clip_norm) for grad in sparse]
    return dense, sparse


def _clip_group(grads: list[_Gradient], limit: float | None, group: str) -> list[_Gradient]:
    norm = clip._global_norm(grads)
    if norm is None:
        return grads
    tf.compat.v1.summary.scalar(f"global_gradient_norm/{group}", norm)
    return grads if limit is None else clip.clip_by_global_norm(grads, limit, norm)[0]
