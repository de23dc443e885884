"""Ops that bring ids to the servers which hold their rows, and the rows back to the examples.

Ids of several tables travel as a ragged tensor with one row per table, their rows as one flat
vector; see `monolith.embedding.tables.layout`. What is asked for twice in a batch is sent once: see
`unique_key_with_value_and_offset`.

Example:
    >>> ids = tf.constant([7, 4, 9, 7], tf.int64)
    >>> even, odd = split_by_indices(ids % 2, ids, num_splits=2)
    >>> even.numpy().tolist(), odd.numpy().tolist()
    ([4], [7, 9, 7])
    >>> rows = map_id_to_embedding([[4], [7, 9]], [[[1.0]], [[2.0], [3.0]]], ids)
    >>> rows.numpy().ravel().tolist()
    [2.0, 1.0, 3.0, 2.0]
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from monolith.embedding.sharding.fused_layout import (
    fused_embedding_to_layout,  # noqa: F401
    fused_embedding_to_layout_grad,  # noqa: F401
)
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids, to_sizes
from monolith.native import ops

_EMPTY_RANK0_VARIABLE = "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD"


class UniqueKeyWithOffset(NamedTuple):
    """Distinct ids of several tables, and where their rows belong.

    Attributes:
        unique_key: The distinct ids of each table in the order in which they first came.
        value_offset: For each of them, where in the flat value of all ids the row of each
            of its occurrences begins; ragged, [tables, (distinct ids), (occurrences)].
        value_buffer: A handle of that flat value, to be filled within the same step.
    """

    unique_key: tf.RaggedTensor
    value_offset: tf.RaggedTensor
    value_buffer: tf.Tensor


def split_by_indices(indices: TensorLike, tensor: TensorLike, num_splits: int) -> list[tf.Tensor]:
    """Divides the rows of a tensor of float32 or int64; differentiable.

    Args:
        indices: For each row its split, within [0, num_splits); int64 [n].
        tensor: [n, ...].
        num_splits: How many tensors to make.

    Returns:
        The rows of each split in their old order.
    """
    return ops.monolith_split_by_indices(to_ids(indices), tensor, num_splits=num_splits)


def ragged_split_by_indices(
    indices: TensorLike, num: tf.RaggedTensor, num_splits: int
) -> tuple[list[tf.RaggedTensor], list[tf.RaggedTensor]]:
    """Divides the values of a ragged tensor of int64.

    Args:
        indices: For each value its split, within [0, num_splits); int64.
        num: Ragged of rank 2.
        num_splits: How many ragged tensors to make.

    Returns:
        The values of each split, every one of which has all rows; and with the same rows, where
        they stood among the values of `num`.
    """
    values, row_splits, positions = ops.monolith_ragged_split_by_indices(
        to_ids(indices), num.values, num.row_splits, num_splits=num_splits
    )
    return (
        [_ragged(v, splits) for v, splits in zip(values, row_splits, strict=True)],
        [_ragged(p, splits) for p, splits in zip(positions, row_splits, strict=True)],
    )


def unique_key_with_value_and_offset(
    key: tf.RaggedTensor, dims: Sequence[int], generate_buffer: bool = True
) -> UniqueKeyWithOffset:
    """Finds the distinct ids of each table.

    Args:
        key: Ids with one row per table, int64.
        dims: The width of each table's rows.
        generate_buffer: Whether a buffer for `fill_with_offset_map` is made; it can be filled and
            finalized once in each step.
    """
    keys, key_splits, offsets, offset_splits, buffer = (
        ops.monolith_unique_key_with_value_and_offset(
            key.values, key.row_splits, dims=dims, generate_buffer=generate_buffer
        )
    )
    return UniqueKeyWithOffset(
        _ragged(keys, key_splits), _ragged(_ragged(offsets, offset_splits), key_splits), buffer
    )


def fill_with_offset_map(
    pos: tf.RaggedTensor,
    value: TensorLike,
    value_offset_map: tf.RaggedTensor,
    value_buffer: tf.Tensor,
    dims: Sequence[int],
) -> tf.Tensor:
    """Copies rows of distinct ids to all places where the ids occur.

    Args:
        pos: Which of the distinct ids, by position among all of them; one row per table.
        value: Their rows, one after the other, as one vector.
        value_offset_map: `UniqueKeyWithOffset.value_offset`.
        value_buffer: `UniqueKeyWithOffset.value_buffer`.
        dims: The width of each table's rows.

    Returns:
        The buffer's handle, for `finalize_shared_tensor`.
    """
    return ops.monolith_fill_with_offset_map(
        pos.values,
        pos.row_splits,
        to_floats(value),
        value_offset_map.flat_values,
        value_offset_map.values.row_splits,
        value_buffer,
        dims=dims,
    )


def fill_with_offset_map_gradient(
    pos: tf.RaggedTensor, grad: TensorLike, value_offset_map: tf.RaggedTensor, dims: Sequence[int]
) -> tf.Tensor:
    """Sums gradients over all occurrences of each distinct id.

    Args:
        pos: As in `fill_with_offset_map`.
        grad: Gradients laid out as the buffer there.
        value_offset_map: As there.
        dims: As there.

    Returns:
        Gradients laid out as the value there.
    """
    return ops.monolith_fill_with_offset_map_gradient(
        pos.values,
        pos.row_splits,
        to_floats(grad),
        value_offset_map.flat_values,
        value_offset_map.values.row_splits,
        dims=dims,
    )


def finalize_shared_tensor(
    handles: Sequence[tf.Tensor], dtype: tf.DType, shape: TensorLike
) -> tf.Tensor:
    """Returns the tensor behind a handle once all have written to it.

    The handle is useless afterwards. The gradient goes to every handle.

    Args:
        handles: The same handle, as it came from each op that has written.
        dtype: Type of the tensor.
        shape: Its static shape, of which dimensions may be unknown.
    """
    return ops.monolith_finalize_shared_tensor(list(handles), dtype=dtype, shape=shape)


def map_id_to_embedding(
    ids: Sequence[TensorLike],
    embeddings: Sequence[TensorLike],
    input: TensorLike,
    use_multi_threads: bool = True,
) -> tf.Tensor:
    """Returns for each id of `input` its row; differentiable by the rows.

    Args:
        ids: Distinct ids in several parts, int64.
        embeddings: The rows of each part, float32 [ids, dim].
        input: Ids of any shape, int64.
        use_multi_threads: Whether a large input may use several threads.

    Returns:
        float32 [..., dim].

    Raises:
        ValueError: There are not as many `embeddings` as `ids`.
    """
    if len(ids) != len(embeddings):
        raise ValueError(
            f"ids length and embeddings lenght must match. {len(ids)} vs {len(embeddings)}"
        )
    return ops.monolith_map_id_to_embedding(
        [to_ids(part) for part in ids],
        [to_floats(part) for part in embeddings],
        to_ids(input),
        use_multi_threads=use_multi_threads,
    )


def map_id_to_embedding_gradient_back_prop(
    ids: Sequence[TensorLike],
    input: TensorLike,
    grads: TensorLike,
) -> list[tf.Tensor]:
    """Sums gradients over all occurrences of each id, the gradient of `map_id_to_embedding`.

    Args:
        ids: As there.
        input: As there.
        grads: Gradients laid out as its output.

    Returns:
        Gradients laid out as `embeddings` there.
    """
    return ops.monolith_map_id_to_embedding_gradient(
        [to_ids(part) for part in ids], to_ids(input), to_floats(grads)
    )


def gather_embeddings_by_input(
    ids: TensorLike,
    embeddings: TensorLike,
    input: TensorLike,
    use_multi_threads: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns for each id of `input` its row; differentiable by the rows.

    Args:
        ids: Distinct ids, int64.
        embeddings: Their rows, float32 [ids, dim].
        input: Ids of any shape, int64.
        use_multi_threads: Whether a large input may use several threads.

    Returns:
        The rows, float32 [..., dim]; and the number of each row in `embeddings`, int32 [...].
    """
    return ops.monolith_gather_embeddings_by_input(
        to_ids(ids), to_floats(embeddings), to_ids(input), use_multi_threads=use_multi_threads
    )


def gather_embeddings_by_ids_gradient_back_prop(
    ids: TensorLike, grads: TensorLike, index_mapping: TensorLike
) -> tf.Tensor:
    """Sums gradients over all occurrences of each id: what `gather_embeddings_by_input` undoes.

    Args:
        ids: Distinct ids, of which only the number counts.
        grads: Gradients of the gathered rows.
        index_mapping: The row each came from, int32 or int64.

    Returns:
        float32 [ids, dim].
    """
    if tf.int64 == getattr(index_mapping, "dtype", None):
        # A number beyond int32 must not become one within: the largest is refused by the op.
        index_mapping = tf.saturate_cast(index_mapping, tf.int32)
    return ops.monolith_gather_embeddings_by_input_gradient(
        to_ids(ids), to_floats(grads), to_sizes(index_mapping)
    )


def reorder_by_indices(
    input: TensorLike,
    shard_ids: TensorLike,
    num_of_shards: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct ids shard by shard, and the number of ids of each shard, int32.

    Within a shard, what came first is last.

    Args:
        input: Ids, a vector.
        shard_ids: The shard of each id, int32.
        num_of_shards: How many shards there are.
    """
    return ops.monolith_reorder_by_indices(input, to_sizes(shard_ids), num_of_shards=num_of_shards)


def fused_reorder_by_indices(
    inputs: Sequence[TensorLike], num_of_shards: int, dim_sizes: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Orders the distinct ids of several slots by shard.

    The shard of an id is its remainder by the number of shards. With more than four of them the
    first gets no ids, unless the environment has `MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD=0`.

    Args:
        inputs: The ids of each of K slots, int64.
        num_of_shards: N.
        dim_sizes: The width of each slot's rows.

    Returns:
        The distinct ids, int64, shard by shard and there slot by slot; then, all int32, the number
        of ids of each shard [N]; the number of ids of each slot in each shard [N * K]; the number
        of ids of each slot as given [K]; and for each of those, where its row begins in a flat
        vector of the rows of the ordered ids.
    """
    return ops.fused_reorder_by_indices(
        [to_ids(ids) for ids in inputs],
        num_of_shards=num_of_shards,
        slot_embedding_dims=dim_sizes,
        rank0_empty=leaves_rank_0_empty(),
    )


def leaves_rank_0_empty() -> bool:
    """Returns whether the first of more than four shards gets no ids."""
    return os.environ.get(_EMPTY_RANK0_VARIABLE, "1") == "1"


def fused_gather_embeddings_by_input(
    fused_embeddings: TensorLike, offsets: Sequence[TensorLike], embedding_dims: Sequence[int]
) -> list[tf.Tensor]:
    """Takes the rows of several slots out of one flat vector; differentiable.

    Args:
        fused_embeddings: The rows, one after the other.
        offsets: For each slot where its rows begin, int32 [n].
        embedding_dims: The width of each slot's rows.

    Returns:
        For each slot float32 [n, dim].
    """
    return ops.monolith_fused_gather_embeddings_by_input(
        to_floats(fused_embeddings),
        [to_sizes(of_slot) for of_slot in offsets],
        embedding_dims=embedding_dims,
    )


def fused_gather_embeddings_by_input_gradient(
    fused_embeddings_size: TensorLike,
    grads: Sequence[TensorLike],
    embedding_offsets: Sequence[TensorLike],
    embedding_dims: Sequence[int],
    scale: TensorLike = 1,
) -> tf.Tensor:
    """Adds the gradients of the rows of several slots into one flat vector.

    Args:
        fused_embeddings_size: The length of the vector; a Python number makes its shape static.
        grads: For each slot the gradients of its rows.
        embedding_offsets: As in `fused_gather_embeddings_by_input`.
        embedding_dims: As there.
        scale: What the sums are multiplied with.
    """
    return ops.monolith_fused_gather_embeddings_by_input_gradient(
        to_sizes(fused_embeddings_size),
        [to_floats(of_slot) for of_slot in grads],
        [to_sizes(of_slot) for of_slot in embedding_offsets],
        tf.cast(scale, tf.float32),
        embedding_dims=embedding_dims,
    )


def reduce_sum(
    id_indices: TensorLike, id_values: TensorLike, id_length: TensorLike, name: str | None = None
) -> tf.Tensor:
    """Sums the rows of each example.

    Args:
        id_indices: For each row its example, int64 [rows, 1].
        id_values: The rows, float32 [rows, dim].
        id_length: The number of examples, int64 [1].
        name: Of the op.

    Returns:
        float32 [examples, dim]; zeros for examples without rows.
    """
    return ops.monolith_reduce_sum(
        to_ids(id_indices), to_floats(id_values), to_ids(id_length), name=name
    )


def reduce_mean(
    id_indices: TensorLike, id_values: TensorLike, id_length: TensorLike, name: str | None = None
) -> tf.Tensor:
    """Returns the mean of the rows of each example; the arguments are those of `reduce_sum`.

    Examples without rows give zeros.
    """
    return ops.monolith_reduce_mean(
        to_ids(id_indices), to_floats(id_values), to_ids(id_length), name=name
    )


def reduce_sqrtn(
    id_indices: TensorLike, id_values: TensorLike, id_length: TensorLike, name: str | None = None
) -> tf.Tensor:
    """Returns the root of the sum of squares of each example's rows, column by column.

    The arguments are those of `reduce_sum`. The gradient is 0 where the root is.
    """
    return ops.monolith_reduce_square_norm(
        to_ids(id_indices), to_floats(id_values), to_ids(id_length), name=name
    )


def fused_reduce_sum_and_split(
    id_indices: TensorLike,
    id_values: TensorLike,
    id_length: TensorLike,
    split_dims: Sequence[int],
    name: str | None = None,
) -> list[tf.Tensor]:
    """Sums rows by example and cuts the sums into slices; differentiable.

    Args:
        id_indices: For each row its example, int64 [rows].
        id_values: The rows, float32 [rows, sum(split_dims)].
        id_length: The number of examples, int64 [1].
        split_dims: The width of each slice.
        name: Of the op.

    Returns:
        For each slice a tensor [examples, width]; zeros for examples without rows.
    """
    return ops.monolith_fused_reduce_sum_and_split(
        to_ids(id_indices),
        to_floats(id_values),
        to_ids(id_length),
        M=len(split_dims),
        split_dims=split_dims,
        name=name,
    )


def normalize_merged_split(row_split: TensorLike, row_split_size: TensorLike) -> tf.Tensor:
    """Makes the row splits of several ragged tensors those of all their rows together.

    Args:
        row_split: The row splits of each tensor, one after the other, int64.
        row_split_size: How many of them belong to each tensor, int32.
    """
    return ops.monolith_normalize_merged_split(to_ids(row_split), to_sizes(row_split_size))


def _ragged(values: tf.Tensor | tf.RaggedTensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    # The ops have made them fit; checking that once more would cost ops in every step.
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
