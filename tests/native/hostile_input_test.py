"""Input that once ended the process, took all memory or never came back, refused in a sentence."""

import pytest
from support import hostile

# name: (code, what the refusal says)
REFUSED = {
    "rows_too_wide_for_an_int64": (
        "ops.monolith_unique_key_with_value_and_offset([1, 2], [0, 2], dims=[2**62],"
        " generate_buffer=True)",
        "`dims` asks for an output of 2^63 or more elements",
    ),
    "rows_too_wide_for_the_memory": (
        "ops.monolith_unique_key_with_value_and_offset([1], [0, 1], dims=[2**40],"
        " generate_buffer=True)",
        "`dims` asks for an output of 1099511627776 elements",
    ),
    "more_shards_than_workers": (
        "ops.monolith_reorder_by_indices([1, 2], [0, 0], num_of_shards=2**31 - 1)",
        "`num_of_shards` must be between 1 and 65536, got 2147483647",
    ),
    "more_shards_than_workers_fused": (
        "ops.fused_reorder_by_indices([[1, 2]], num_of_shards=2**61, slot_embedding_dims=[1])",
        "`num_of_shards` must be between 1 and 65536",
    ),
    "fused_rows_too_wide": (
        "ops.fused_reorder_by_indices([[1, 2, 3, 4]], num_of_shards=1,"
        " slot_embedding_dims=[2**62])",
        "too many for int32 offsets",
    ),
    "a_list_too_short_another_too_long": (
        "f = zeros([1, 4])\n"
        "ops.monolith_mlp_gradient(zeros([1, 3]), [zeros([3, 4])], [], [f, f], f, relu=[True])",
        "needs lists of one length for kernels, biases, outputs, got [1, 0, 2]",
    ),
    "a_batch_without_columns_times_units": (
        "ops.monolith_mlp(zeros([2**40, 0]), [zeros([0, 2**40])], [zeros([0])], relu=[True])",
        "The batch must be at most 2147483647, got 1099511627776",
    ),
    "layers_of_nothing_that_make_much": (
        "ops.monolith_mlp(zeros([2**30, 0]), [zeros([0, 2**30])], [zeros([0])], relu=[True])",
        "`kernels` asks for an output of 1152921504606846976 elements",
    ),
    "a_number_of_examples_that_takes_all_memory": (
        "ops.monolith_reduce_sum(zeros([0], int64), zeros([0, 1]), [2**33])",
        "`id_dense_shape` asks for an output of 8589934592 elements",
    ),
    "slices_of_so_many_examples": (
        "ops.monolith_fused_reduce_sum_and_split(zeros([0], int64), zeros([0, 3]), [2**62],"
        " M=2, split_dims=[1, 2])",
        "`id_dense_shape` asks for an output of 2^63 or more elements",
    ),
    "gradients_of_so_many_examples": (
        "ops.monolith_fused_reduce_sum_and_split_gradient(zeros([0], int64), [zeros([2**62, 0])],"
        " split_dims=[3])",
        "Gradient 0 of `grads` must have shape",
    ),
    "splits_without_values": (
        "ops.monolith_fused_value_rowids([0, 2**33])",
        "`splits` asks for an output of 8589934592 elements",
    ),
    "merged_splits_beyond_an_int64": (
        "ops.monolith_normalize_merged_split([0, 2**62, 0, 2**62], [2, 2])",
        "together do not fit into an int64",
    ),
    "segments_whose_sum_wraps_to_zero": (
        "ops.monolith_feature_insight(zeros([3, 0]), zeros([0, 3]), segment_sizes=[2**62] * 4)",
        "`segment_sizes` must have a sum of at most 2147483647, got",
    ),
    "rows_whose_size_wraps_to_zero": (
        "ops.monolith_gather_embeddings_by_input_gradient([1], zeros([0, 2**62]), [0, 0, 0, 0])",
        "`grads` must have one row for each of 4 elements of `index_mapping`",
    ),
    "mapped_rows_whose_size_wraps_to_zero": (
        "ops.monolith_map_id_to_embedding_gradient([[1]], [1, 1, 1, 1], zeros([0, 2**62]))",
        "`grads` must have one row for each of 4 elements of `input`",
    ),
    "gradients_of_rows_too_wide": (
        "ops.monolith_gather_embeddings_by_input_gradient([1, 2], zeros([0, 2**40]),"
        " zeros([0], int32))",
        "`grads` asks for an output of 2199023255552 elements",
    ),
    "a_fused_size_without_gradients": (
        "ops.monolith_fused_gather_embeddings_by_input_gradient(2**31 - 1, [zeros([0, 2])],"
        " [zeros([0], int32)], 1.0, embedding_dims=[2])",
        "`fused_embeddings_size` asks for an output of 2147483647 elements",
    ),
    "offsets_of_rows_too_wide": (
        "ops.monolith_fill_with_offset_map_gradient([0, 0], [0, 2], zeros([2]), [0, 0], [0, 2],"
        " dims=[2**62])",
        "`dims` asks for an output of 2^63 or more elements",
    ),
    "a_filter_of_everything": (
        "ops.monolith_hash_filter(capacity=2**62, split_num=7)",
        "A filter has a capacity of at most 1099511627776 ids",
    ),
    "a_shape_of_no_tensor": (
        "ops.monolith_static_reshape_n([zeros([4])], shapes=[[None, 2**62, 4]])",
        "`shapes` must be the shape of a tensor, but [?,4611686018427387904,4] has 2^63 or more",
    ),
    "a_file_with_a_nul": (
        "ops.monolith_writable_file(filename=b'a\\0b')",
        "`filename` must name a file, but has a NUL at 1, after 'a'",
    ),
}

ALLOWED = {
    "no_columns_of_very_many_examples": (
        "ops.monolith_reduce_sum(zeros([0], int64), zeros([0, 0]), [2**62]).shape",
        "(4611686018427387904, 0)",
    ),
    "no_columns_of_very_many_gradients": (
        "ops.monolith_reduce_sum_gradient(zeros([0], int64), zeros([2**62, 0])).shape",
        "(0, 0)",
    ),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, hostile.Outcome]:
    return hostile.run_cases({name: code for name, (code, _) in {**REFUSED, **ALLOWED}.items()})


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(outcomes, name):
    assert outcomes[name].kind == "InvalidArgumentError", outcomes[name]
    assert REFUSED[name][1] in outcomes[name].message


@pytest.mark.parametrize("name", ALLOWED)
def test_is_done_at_once(outcomes, name):
    assert outcomes[name] == hostile.Outcome("ok", ALLOWED[name][1])
