"""Collisionless embedding tables: every 64-bit id owns a row of floats.

A write does not change the `HashTable` it is called on but returns a new one; whatever is done with
that comes after the write. Two calls on the same object are not ordered in a graph.

In a graph a table lives as long as its session, or in the server that its device names, where
sessions find it by its name. Called eagerly, and inside of `tf.function`s that use such a table, it
lives in the process until its end, again found by its name: a second table of the same name and
config is the same table.

Example:
    >>> from monolith.testing import generate_test_hash_table_config
    >>> config = generate_test_hash_table_config(dim=2, learning_rate=0.5)
    >>> table = hash_table_from_config(config, name_suffix="readme")
    >>> table = table.assign_add([7, -1], [[1.0, 1.0], [2.0, 2.0]])
    >>> table = table.apply_gradients([7], [[2.0, 4.0]], global_step=1)
    >>> table.lookup([7, -1, 8]).numpy().tolist()  # Nobody has written id 8.
    [[0.0, -1.0], [2.0, 2.0], [0.0, 0.0]]
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.tables.inputs import (
    TensorLike,
    to_floats,
    to_ids,
    to_seconds,
    to_sizes,
    to_step,
)
from monolith.embedding.tables.iteration import infer_dim_size
from monolith.embedding.tables.registry import _HASH_TABLE_GRAPH_KEY
from monolith.embedding.tables.single_snapshots import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    HashTableRestorerSaverListener,
)
from monolith.embedding.tables.snapshots import _TIMEOUT_IN_MS
from monolith.embedding.tables.table import (
    _NAME_PREFIX,
    BaseHashTable,
    HashTable,
    HashTableMetadata,
    learning_rates_of,
)
from monolith.graph import devices, export_mode
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2

__all__ = [
    "_HASH_TABLE_GRAPH_KEY",
    "_TIMEOUT_IN_MS",
    "BaseHashTable",
    "HashTable",
    "HashTableCheckpointRestorerListener",
    "HashTableCheckpointSaverListener",
    "HashTableMetadata",
    "HashTableRestorerSaverListener",
    "extract_slot_from_entry",
    "fused_apply_gradient",
    "fused_lookup",
    "hash_table_from_config",
    "test_hash_table",
    "vocab_hash_table",
]

# ruff: noqa: PT028 - `test_hash_table` is not a test, and its name is public.

DEFAULT_EXPIRE_TIME = 36500  # Days.

# Numbers for tables that are made eagerly without a name; a graph has its own unique names.
_eager_numbers = itertools.count()


def fused_lookup(
    tables: Sequence[tf.Tensor],
    ids: TensorLike,
    fused_slot_size: TensorLike,
    num_of_shards: int,
    req_time: TensorLike | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Looks up ids of many tables, for several shards of workers, in one op.

    Args:
        tables: The handles of K tables.
        ids: Int64, in K * N blocks, shard by shard: block `shard * K + table`.
        fused_slot_size: Number of ids in each block, int32 [K * N].
        num_of_shards: N.
        req_time: When the request was made; int64 scalar.

    Returns:
        Rows of all blocks as one float32 vector; floats per shard, int32 [N]; where the ids of each
        block start, int32 [K * N + 1]; where its floats start, int32 [K * N + 1]; and the ids once
        more, for tables that keep positions.
    """
    rows, splits, id_offsets, row_offsets, indices = ops.monolith_hash_table_fused_lookup(
        list(tables),
        to_ids(ids),
        to_sizes(fused_slot_size),
        to_seconds(req_time),
        num_of_shards=num_of_shards,
    )
    return rows, splits, id_offsets, row_offsets, indices


def fused_apply_gradient(
    tables: Sequence[tf.Tensor],
    ids: TensorLike,
    indices: TensorLike,
    fused_slot_size: TensorLike,
    id_grads: TensorLike,
    id_offsets: TensorLike,
    grad_offsets: TensorLike,
    learning_rate_tensors: TensorLike,
    req_time: TensorLike | None,
    global_step: TensorLike,
    num_of_shards: int,
    enable_grad_accumulation: bool = False,
) -> list[tf.Tensor]:
    """Updates rows of many tables, for several shards of workers, in one op.

    Args:
        tables: The handles of K tables.
        ids: As in `fused_lookup`.
        indices: What `fused_lookup` returned under this name.
        fused_slot_size: As in `fused_lookup`.
        id_grads: Gradients laid out as the rows that `fused_lookup` returned.
        id_offsets: What `fused_lookup` returned under this name.
        grad_offsets: The offsets of floats that `fused_lookup` returned.
        learning_rate_tensors: The rates of table 0's segments, then those of table 1, ...; float32.
        req_time: When the rows were updated, in seconds since 1970; int64 scalar.
        global_step: Int64 scalar.
        num_of_shards: N.
        enable_grad_accumulation: Whether gradients of equal ids in one block are summed up first.

    Returns:
        The handles, to depend on.
    """
    handles: list[tf.Tensor] = ops.monolith_hash_table_fused_optimize(
        list(tables),
        to_ids(ids),
        to_ids(indices),
        to_sizes(fused_slot_size),
        to_floats(id_grads),
        to_sizes(id_offsets),
        to_sizes(grad_offsets),
        to_floats(learning_rate_tensors),
        to_seconds(req_time),
        to_step(global_step),
        num_of_shards=num_of_shards,
        enable_grad_accumulation=enable_grad_accumulation,
    )
    return handles


def hash_table_from_config(
    config: entry.HashTableConfigInstance,
    hash_filter: tf.Tensor | None = None,
    name_suffix: str = "",
    sync_client: tf.Tensor | None = None,
    saver_parallel: int = -1,
    counted_as: str = "",
) -> HashTable:
    """Makes a table on the current device's CPU.

    While a model is exported, the table holds compressed rows for serving. Called eagerly, a second
    table of the same name and config shares its rows with the first, and learning-rate functions
    are called at each update.

    Args:
        config: What the table is made of.
        hash_filter: Decides which new ids get a row; by default all do.
        name_suffix: The table's name is `MonolithHashTable_<name_suffix>`.
        sync_client: Told which rows change, for real-time serving; by default nobody is.
        saver_parallel: Number of files that a save writes; -1: by the number of rows.
        counted_as: The name under which the filter counts ids, if the config has a threshold of
            its own; the parts of a table on several servers share one. By default the table's name.

    Raises:
        ValueError: The graph has a table of this name, or the config does not describe a table.
    """
    table_config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    table_config.CopyFrom(config.table_config)
    if table_config.WhichOneof("type") is None:
        raise errors.ConfigError(
            "The table config has no `type`; set it with `CuckooHashTableConfig().mutate_table`."
        )
    if len(config.learning_rate_fns) != len(table_config.entry_config.segments):
        raise ValueError("Size of learning_rate_fns and size of segments must be equal.")
    if export_mode.is_exporting():
        table_config.entry_config.entry_type = embedding_hash_table_pb2.EntryConfig.SERVING

    name = _NAME_PREFIX + name_suffix
    with tf.device(devices.cpu_here()):
        if hash_filter is None:
            hash_filter = filters.create_dummy_hash_filter(name_suffix)
        if sync_client is None:
            sync_client = create_dummy_sync_client()
        handle = ops.monolith_hash_table(
            hash_filter,
            sync_client,
            config=table_config.SerializeToString(deterministic=True),
            shared_name=name,
            counted_as=counted_as,
            name=re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name),
        )
    return HashTable(
        table=handle,
        shared_name=name,
        dim_size=infer_dim_size(table_config),
        slot_expire_time_config=table_config.slot_expire_time_config.SerializeToString(),
        learning_rate_tensor=learning_rates_of(config.call_learning_rate_fns),
        saver_parallel=saver_parallel,
        extra_restore_names=config.extra_restore_names,
    )


def test_hash_table(
    dim_size: int,
    enable_hash_filter: bool = False,
    name_suffix: str | None = None,
    learning_rate: Any = 1.0,
    occurrence_threshold: int = 0,
    use_adagrad: bool = False,
    expire_time: int = DEFAULT_EXPIRE_TIME,
    sync_client: tf.Tensor | None = None,
    extra_restore_names: Sequence[str] | None = None,
    use_gpu: bool = False,
) -> HashTable:
    """Makes a simple table for tests: zeros at first, SGD or Adagrad, no compression.

    Args:
        dim_size: The width of the rows.
        enable_hash_filter: Whether ids need `occurrence_threshold` occurrences before they get a
            row at the next one.
        name_suffix: By default one that the graph has not used yet.
        learning_rate: A number or a function.
        occurrence_threshold: See `enable_hash_filter`.
        use_adagrad: Adagrad in place of SGD.
        expire_time: Days after which a save leaves a row out.
        sync_client: As in `hash_table_from_config`.
        extra_restore_names: Names under which older checkpoints may hold the table.
        use_gpu: Must be False; there are no tables on GPUs.
    """
    if use_gpu:
        raise NotImplementedError("There are no hash tables on GPUs; leave `use_gpu` out.")
    table_config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(table_config)
    table_config.slot_expire_time_config.default_expire_time = expire_time
    table_config.entry_config.segments.append(
        entry.CombineAsSegment(
            dim_size,
            entry.ZerosInitializer(),
            entry.AdagradOptimizer() if use_adagrad else entry.SgdOptimizer(),
            entry.Fp32Compressor(),
        )
    )
    if name_suffix is None:
        name_suffix = (
            f"test_eager_{next(_eager_numbers)}"
            if tf.executing_eagerly()
            else tf.compat.v1.get_default_graph().unique_name("test")
        )
    thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
        default_occurrence_threshold=occurrence_threshold
    ).SerializeToString()
    if enable_hash_filter and tf.executing_eagerly():
        # All filters of `create_hash_filters` have one name, which counts for the whole process.
        hash_filter = filters.create_hash_filter(
            filters.HASH_FILTER_CAPACITY, filters.HASH_FILTER_SPLIT_NUM, thresholds, name_suffix
        )
    else:
        hash_filter = filters.create_hash_filters(0, enable_hash_filter, thresholds)[0]
    return hash_table_from_config(
        entry.HashTableConfigInstance(table_config, [learning_rate], extra_restore_names),
        hash_filter=hash_filter,
        name_suffix=name_suffix,
        sync_client=sync_client,
    )


test_hash_table.__test__ = False  # type: ignore[attr-defined] # Its name, to pytest, is a test's.


def vocab_hash_table(
    vocab_size: int, dim_size: int, enable_hash_filter: bool = False, learning_rate: Any = 1.0
) -> HashTable:
    """Makes a simple table for ids from 0 to `vocab_size`, which it does not need to know."""
    del vocab_size
    return test_hash_table(
        dim_size, enable_hash_filter=enable_hash_filter, learning_rate=learning_rate
    )


def extract_slot_from_entry(entry: TensorLike, fid_v2: bool = True) -> tf.Tensor:
    """Returns the slots of serialized `EntryDump`s, int32.

    Args:
        entry: Strings, such as `HashTable.save_as_tensor` gives.
        fid_v2: Whether the slot is in bits 48 to 62 of the id; else it is in bits 54 to 63.
    """
    return ops.monolith_extract_slot_from_entry(entry, fid_v2=fid_v2)


def create_dummy_sync_client() -> tf.Tensor:
    """Makes a client that nobody listens to; the default of all tables."""
    return ops.monolith_dummy_sync_client(shared_name="MonolithDummySyncClient")
