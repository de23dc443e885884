"""Row ids of ragged tensors, computed once.

Each combiner of a feature needs to know which row a value belongs to, and TensorFlow's
`RaggedTensor.value_rowids()` builds several ops for it, anew at each call.

Example:
    >>> import tensorflow as tf
    >>> ragged = tf.ragged.constant([[], [1], [2, 3]])
    >>> fused_value_rowids(ragged).numpy().tolist()
    [1, 2, 2]
"""

import contextlib

import tensorflow as tf

from monolith.native import ops

_CACHE_ATTRIBUTE = "monolith_fused_value_rowids"


def fused_value_rowids(rt: tf.RaggedTensor) -> tf.Tensor:
    """Returns for each value of `rt` the number of its row, int64 `[num_values]`.

    The result is kept as an attribute of `rt`, so that a second call returns the same tensor.

    Raises:
        ValueError: `rt` is not a ragged tensor.
    """
    if not isinstance(rt, tf.RaggedTensor):
        raise ValueError("rt must be RaggedTensor")
    if not hasattr(rt, _CACHE_ATTRIBUTE):
        with _home_of(rt.row_splits):
            splits = tf.cast(rt.row_splits, tf.int64)
            setattr(rt, _CACHE_ATTRIBUTE, ops.monolith_fused_value_rowids(splits))
    return getattr(rt, _CACHE_ATTRIBUTE)


def _home_of(tensor: tf.Tensor) -> contextlib.AbstractContextManager:
    # Made in the graph of a tf.function or of a branch, the row ids would be out of reach for the
    # next user of a ragged tensor that comes from outside of it.
    if not tf.is_symbolic_tensor(tensor):
        return tf.init_scope()
    if tensor.graph is tf.compat.v1.get_default_graph():
        return contextlib.nullcontext()
    return tensor.graph.as_default()
