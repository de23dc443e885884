"""Calls of table ops that once ended the process, or read what was not theirs."""

import pytest
from support import hostile

SET_UP = """
from monolith.embedding import entry
from monolith.proto import embedding_hash_table_pb2 as pb
client, admit = ops.monolith_dummy_sync_client(), ops.monolith_dummy_hash_filter()
def make_set(*dims):
    config = pb.MultiEmbeddingHashTableConfig()
    for dim in dims:
        table = pb.EmbeddingHashTableConfig()
        entry.CuckooHashTableConfig().mutate_table(table)
        parts = entry.ZerosInitializer(), entry.SgdOptimizer(), entry.Fp32Compressor()
        table.entry_config.segments.append(entry.CombineAsSegment(dim, *parts))
        config.names.append(f"table_{dim}")
        config.configs.append(table)
    name = "_".join(["set", *map(str, dims)])
    return ops.create_monolith_multi_hash_table(
        config.SerializeToString(), admit, client, shared_name=name)
no_ids, no_sizes, no_floats = zeros([0], int64), zeros([0], int32), zeros([0])
time = zeros([], int64)
"""

REFUSED = {
    "sparse_indices_without_numbers": (
        "ops.monolith_hash_table_lookup_gradient(zeros([1, 0], int64), [1], zeros([1, 4]))",
        "`id_indices` must have 1 rows, one per id, of at least one number, got shape [1,0]",
    ),
    "rows_that_are_too_wide": (
        "ops.monolith_hash_table_lookup_gradient([0, 0], [1, 2], zeros([0, 2**62]))",
        "id_indices[0] = 0 is not a row of `input_grads`, which has 0",
    ),
    "a_fused_lookup_of_very_many_shards": (
        "ops.monolith_multi_hash_table_fused_lookup(make_set(), no_ids, no_sizes, time,"
        " num_of_shards=2**31 - 1)",
        "`num_of_shards` must be between 1 and 65536",
    ),
    "splits_of_a_set_without_tables": (
        "ops.monolith_multi_hash_table_lookup(make_set(), [1, 2], [2])",
        "id_split must start at 0, never fall and end at the number of ids, 2; entry 0 is 2",
    ),
    "several_handles": (
        "ops.monolith_multi_hash_table_size(tf.stack([make_set(), make_set(1)]))",
        "must be one handle, a scalar, got shape [2]",
    ),
    "a_sleep_of_years": (
        "ops.monolith_hash_table_save(make_set(2), 'name', random_sleep_ms=2**62)",
        "random_sleep_ms must be between 0 and 3600000, an hour; got 4611686018427387904",
    ),
    "a_snapshot_with_a_nul": (
        "ops.monolith_hash_table_save(make_set(2), b'name\\0')",
        "`basename` must name a file, but has a NUL at 4, after 'name'",
    ),
    "a_layer_with_a_nul": (
        "ops.monolith_table_restore_layers(make_set(2), [b'name\\0'], [0])",
        "`basenames` must name a file, but has a NUL at 4, after 'name'",
    ),
    "a_filter_without_a_name": (
        "ops.monolith_hash_filter_save(ops.monolith_hash_filter(capacity=300), '')",
        "`basename` is empty; it must name a file",
    ),
}

ALLOWED = {
    "a_fused_update_of_no_tables": (
        "ops.monolith_multi_hash_table_fused_optimize(make_set(), no_ids, no_ids, no_sizes,"
        " no_floats, [0], [0], no_floats, time, time, num_of_shards=2).shape",
        "()",
    ),
    "a_fused_lookup_of_no_tables": (
        "ops.monolith_multi_hash_table_fused_lookup(make_set(), no_ids, no_sizes, time,"
        " num_of_shards=2).embedding_splits.numpy().tolist()",
        "[0, 0]",
    ),
    "indices_are_flat_as_the_graph_says": (
        "ops.monolith_multi_hash_table_fused_lookup(make_set(2), [[1], [2]], [2], time,"
        " num_of_shards=1).indices.shape",
        "(2,)",
    ),
}


# The first block of a snapshot is said to have 4 GB, when it is inflated or already before.
DAMAGED_BLOCKS = """
import pathlib
table = ops.monolith_multi_hash_table_assign(make_set(2), [1], [0, 1], zeros([2]), time)
ops.monolith_multi_hash_table_save(table, "rows")
for file in pathlib.Path().glob("rows-*"):
    content = file.read_bytes()
    file.write_bytes(content[:{begin}] + {bytes} + content[{begin} + len({bytes}):])
ops.monolith_multi_hash_table_restore(make_set(2), "rows")
"""
BLOCKS = {
    "a_block_of_gigabytes": DAMAGED_BLOCKS.format(begin=0, bytes=b"\xff" * 4),
    "a_block_that_becomes_gigabytes": DAMAGED_BLOCKS.format(begin=4, bytes=b"\xff" * 4 + b"\x0f"),
    "an_empty_block": DAMAGED_BLOCKS.format(begin=0, bytes=bytes(4)),
}

# Rows of one table, of which the meta files are gone, for a set that has none.
NOT_FOUND = """
import pathlib
table = ops.monolith_multi_hash_table_assign(make_set(2), [1], [0, 1], zeros([2]), time)
ops.monolith_hash_table_save(table, "rows")
for meta in pathlib.Path().glob("rows.meta-*"):
    meta.unlink()
ops.monolith_hash_table_restore(make_set(), "rows")
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, hostile.Outcome]:
    cases = {name: f"{SET_UP}\n{code}" for name, (code, _) in {**REFUSED, **ALLOWED}.items()}
    blocks = {name: SET_UP + code for name, code in BLOCKS.items()}
    return hostile.run_cases({**cases, **blocks, "not_found": SET_UP + NOT_FOUND})


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(outcomes, name):
    assert outcomes[name].kind == "InvalidArgumentError", outcomes[name]
    assert REFUSED[name][1] in outcomes[name].message


@pytest.mark.parametrize("name", ALLOWED)
def test_is_done(outcomes, name):
    assert outcomes[name] == hostile.Outcome("ok", ALLOWED[name][1])


def test_rows_without_meta_files_are_not_restored_into_no_tables(outcomes):
    assert outcomes["not_found"].kind == "NotFoundError", outcomes["not_found"]
    assert "There is no valid sharded files for rows.meta" in outcomes["not_found"].message


@pytest.mark.parametrize("name", BLOCKS)
def test_damaged_block_is_named(outcomes, name):
    assert outcomes[name].kind == "DataLossError", outcomes[name]
    assert "corrupted block at 0" in outcomes[name].message
    assert "rows-00000-of-00001" in outcomes[name].message
