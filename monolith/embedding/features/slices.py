"""From the rows of a batch's ids to the combined slices that columns look up.

Sums, which nearly all features use, are taken and cut into slices by one op per feature.

Example:
    >>> ids = tf.ragged.constant([[1], [], [2, 3]], dtype=tf.int64)
    >>> rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
    >>> slices = create_embedding_slices(
    ...     {"user": rows}, {"user": ids}, {"user": combiners.ReduceSum()}, {"user": [1, 1]}
    ... )
    >>> {key: tensor.numpy().tolist() for key, tensor in slices.items()}
    {'user:0_1': [[1.0], [0.0], [5.0]], 'user:1_2': [[2.0], [0.0], [8.0]]}
"""

import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import combiners, slots
from monolith.embedding.sharding import distribution
from monolith.graph import devices, export_mode
from monolith.tensor import ragged

# The sums of an exported model, for those who look into its graph.
_REDUCED_EMBS_COLLECTION = "monolith_reduced_embs"


def create_embedding_slices(
    name_to_embeddings: Mapping[str, tf.Tensor],
    name_to_embedding_ids: Mapping[str, tf.RaggedTensor],
    feature_to_combiner: Mapping[str, combiners.Combiner],
    feature_to_unmerged_slice_dims: Mapping[str, Sequence[int]],
) -> dict[str, tf.Tensor]:
    """Combines the rows of each feature and cuts the result into slices.

    Args:
        name_to_embeddings: The rows of each feature's ids, `[num_ids, dim]`.
        name_to_embedding_ids: The ids, ragged `[batch, (num_ids)]`.
        feature_to_combiner: How to combine the rows of an example.
        feature_to_unmerged_slice_dims: The width of each slice of a row.

    Returns:
        The slices, `[batch, width]`, or `[batch, seq_length, width]` with FirstN, by the key
        `"feature:start_end"`.

    Raises:
        ConfigError: A feature has no ids, no combiner or no slices, its ids are not ragged, or its
            rows are not as wide as its slices together.
    """
    slices: dict[str, tf.Tensor] = {}
    for name, embeddings in name_to_embeddings.items():
        for what, mapping in (
            ("ids in `name_to_embedding_ids`", name_to_embedding_ids),
            ("combiner in `feature_to_combiner`", feature_to_combiner),
            ("slices in `feature_to_unmerged_slice_dims`", feature_to_unmerged_slice_dims),
        ):
            if name not in mapping:
                raise errors.ConfigError(f"Feature '{name}' has embeddings but no {what}.")
        ids, combiner = name_to_embedding_ids[name], feature_to_combiner[name]
        dims = list(feature_to_unmerged_slice_dims[name])
        combiners.require_ragged_ids(name, ids)
        embeddings = _check_rows(name, embeddings, dims)
        ends = list(itertools.accumulate(dims))
        with tf.name_scope("embedding_slices"):
            tensors = _combine_and_split(ids, embeddings, combiner, dims)
        for tensor, dim, end in zip(tensors, dims, ends, strict=True):
            slices[slots.slice_key(name, end - dim, end)] = tensor
    return slices


def _check_rows(name: str, embeddings: tf.Tensor, dims: Sequence[int]) -> tf.Tensor:
    embeddings = tf.convert_to_tensor(embeddings)
    if not embeddings.shape.is_compatible_with([None, sum(dims)]):
        raise errors.ConfigError(
            f"The rows of feature '{name}' must have shape [num_ids, {sum(dims)}], the width of "
            f"its slices {dims} together, got {embeddings.shape}."
        )
    if embeddings.shape.rank is None or embeddings.shape[1] is None:
        return tf.ensure_shape(embeddings, [None, sum(dims)])
    return embeddings


def _combine_and_split(
    ids: tf.RaggedTensor,
    embeddings: tf.Tensor,
    combiner: combiners.Combiner,
    dims: Sequence[int],
) -> Sequence[tf.Tensor]:
    if not isinstance(combiner, combiners.ReduceSum):
        return tf.split(combiner.combine(ids, embeddings), dims, axis=-1)
    rowids = ragged.fused_value_rowids(ids)
    is_exporting = export_mode.is_exporting()
    if not is_exporting and not _is_on_gpu():
        return distribution.fused_reduce_sum_and_split(
            rowids, embeddings, combiners.num_examples(ids), dims
        )
    # Only ops of TensorFlow, which have a GPU kernel and which converters of models understand.
    shape = tf.concat([combiners.num_examples(ids), [sum(dims)]], 0)
    combined = tf.scatter_nd(tf.expand_dims(rowids, 1), embeddings, shape)
    combined.set_shape([ids.shape[0], sum(dims)])
    if is_exporting:
        tf.compat.v1.add_to_collection(_REDUCED_EMBS_COLLECTION, combined)
    return tf.split(combined, dims, axis=-1)


def _is_on_gpu() -> bool:
    return devices.is_gpu_training() and devices.within_placement_context_of("GPU")
