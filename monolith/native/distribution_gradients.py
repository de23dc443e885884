"""Gradients of the ops that bring ids to their servers and rows back; see `embedding.distribution`.

Imported by `monolith.native.ops` and by nobody else.
"""

import tensorflow as tf

from monolith.native import ops

# These make ids and offsets of ids, or are gradients themselves.
for _op in (
    "FusedReorderByIndices",
    "MonolithFillWithOffsetMapGradient",
    "MonolithFusedGatherEmbeddingsByInputGradient",
    "MonolithFusedReduceSumAndSplitGradient",
    "MonolithGatherEmbeddingsByInputGradient",
    "MonolithMapIdToEmbeddingGradient",
    "MonolithNormalizeMergedSplit",
    "MonolithRaggedSplitByIndices",
    "MonolithReduceMeanGradient",
    "MonolithReduceSquareNormGradient",
    "MonolithReduceSumGradient",
    "MonolithReorderByIndices",
    "MonolithSplitByIndicesGradient",
    "MonolithUniqueKeyWithValueAndOffset",
):
    tf.no_gradient(_op)


@tf.RegisterGradient("MonolithSplitByIndices")
def _split_by_indices_gradient(
    op: tf.Operation, *split_gradients: tf.Tensor
) -> tuple[None, tf.Tensor]:
    indices, tensor = op.inputs
    return None, ops.monolith_split_by_indices_gradient(indices, tensor, split_gradients)


@tf.RegisterGradient("MonolithFillWithOffsetMap")
def _fill_with_offset_map_gradient(
    op: tf.Operation, buffer_gradient: tf.Tensor
) -> tuple[None, None, tf.Tensor, None, None, tf.Tensor]:
    """The gradient of a handle is the gradient of the tensor behind it."""
    pos, pos_split, _, offset_map, offset_map_split, _ = op.inputs
    by_value = ops.monolith_fill_with_offset_map_gradient(
        pos, pos_split, buffer_gradient, offset_map, offset_map_split, dims=op.get_attr("dims")
    )
    # Passed on to the handle, too: another op may have written to it before.
    return None, None, by_value, None, None, buffer_gradient


@tf.RegisterGradient("MonolithFinalizeSharedTensor")
def _finalize_shared_tensor_gradient(op: tf.Operation, gradient: tf.Tensor) -> list[tf.Tensor]:
    return [gradient] * len(op.inputs)


@tf.RegisterGradient("MonolithMapIdToEmbedding")
def _map_id_to_embedding_gradient(op: tf.Operation, gradient: tf.Tensor) -> list[tf.Tensor | None]:
    n = op.get_attr("num_splits")
    by_rows = ops.monolith_map_id_to_embedding_gradient(op.inputs[:n], op.inputs[-1], gradient)
    return [None] * n + list(by_rows) + [None]


@tf.RegisterGradient("MonolithGatherEmbeddingsByInput")
def _gather_embeddings_by_input_gradient(
    op: tf.Operation, gradient: tf.Tensor, _: tf.Tensor | None
) -> tuple[None, tf.Tensor, None]:
    by_rows = ops.monolith_gather_embeddings_by_input_gradient(
        op.inputs[0], gradient, op.outputs[1]
    )
    return None, by_rows, None


@tf.RegisterGradient("MonolithFusedGatherEmbeddingsByInput")
def _fused_gather_embeddings_by_input_gradient(
    op: tf.Operation, *slot_gradients: tf.Tensor
) -> list[tf.Tensor | None]:
    fused, *offsets = op.inputs
    by_fused = ops.monolith_fused_gather_embeddings_by_input_gradient(
        tf.size(fused), slot_gradients, offsets, 1.0, embedding_dims=op.get_attr("embedding_dims")
    )
    return [tf.reshape(by_fused, tf.shape(fused)), *[None] * len(offsets)]


@tf.RegisterGradient("MonolithReduceSum")
def _reduce_sum_gradient(op: tf.Operation, gradient: tf.Tensor) -> tuple[None, tf.Tensor, None]:
    return None, ops.monolith_reduce_sum_gradient(op.inputs[0], gradient), None


@tf.RegisterGradient("MonolithReduceMean")
def _reduce_mean_gradient(op: tf.Operation, gradient: tf.Tensor) -> tuple[None, tf.Tensor, None]:
    return None, ops.monolith_reduce_mean_gradient(op.inputs[0], gradient), None


@tf.RegisterGradient("MonolithReduceSquareNorm")
def _reduce_square_norm_gradient(
    op: tf.Operation, gradient: tf.Tensor
) -> tuple[None, tf.Tensor, None]:
    indices, values, _ = op.inputs
    return None, ops.monolith_reduce_square_norm_gradient(indices, values, gradient), None


@tf.RegisterGradient("MonolithFusedReduceSumAndSplit")
def _fused_reduce_sum_and_split_gradient(
    op: tf.Operation, *slice_gradients: tf.Tensor
) -> tuple[None, tf.Tensor, None]:
    by_values = ops.monolith_fused_reduce_sum_and_split_gradient(
        op.inputs[0], slice_gradients, split_dims=op.get_attr("split_dims")
    )
    return None, by_values, None
