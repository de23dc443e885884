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

import abc
import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from monolith import errors
from monolith.core import export_mode, graph_meta
from monolith.embedding import entry, filters
from monolith.embedding.hash_table_checkpoint import (
    _HASH_TABLE_GRAPH_KEY,
    _NAME_PREFIX,
    _TIMEOUT_IN_MS,
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    HashTableRestorerSaverListener,
)
from monolith.embedding.table_iteration import infer_dim_size
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2, hash_table_ops_pb2

__all__ = [
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

DEFAULT_EXPIRE_TIME = 36500  # Days.

# Numbers for tables that are made eagerly without a name; a graph has its own unique names.
_eager_numbers = itertools.count()

# A tensor or what `tf.convert_to_tensor` makes one of.
TensorLike = Any
# The learning rates of a table's segments, or what computes them when they are needed.
LearningRates = tf.Tensor | Callable[[], tf.Tensor] | None

_OptionalBool = hash_table_ops_pb2.HashTableProto
_TO_OPTIONAL_BOOL = {
    None: _OptionalBool.kBoolNone,
    False: _OptionalBool.kFalse,
    True: _OptionalBool.kTrue,
}
_FROM_OPTIONAL_BOOL = {value: key for key, value in _TO_OPTIONAL_BOOL.items()}


@dataclasses.dataclass
class HashTableMetadata:
    """What is known of the tables of a graph: their names, and the table behind each handle."""

    name_set: set[str] = dataclasses.field(default_factory=set)
    # Keys are `handle.ref()`, since tensors themselves cannot be.
    tensor_table_to_obj_dict: dict[Any, "HashTable"] = dataclasses.field(default_factory=dict)


class BaseHashTable(abc.ABC):
    """What can be done with a table, wherever its rows are."""

    @abc.abstractmethod
    def assign(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "BaseHashTable":
        """Overwrites rows."""

    @abc.abstractmethod
    def assign_add(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "BaseHashTable":
        """Adds to rows."""

    @abc.abstractmethod
    def lookup(
        self, ids: TensorLike, use_multi_threads: bool = False, enable_dedup: bool = False
    ) -> tf.Tensor:
        """Returns rows, float32 [len(ids), dim]."""

    @abc.abstractmethod
    def apply_gradients(
        self,
        ids: TensorLike,
        grads: TensorLike,
        global_step: TensorLike,
        use_multi_threads: bool = False,
        enable_dedup: bool = False,
        req_time: TensorLike | None = None,
    ) -> "BaseHashTable":
        """Updates rows by their optimizers."""

    @abc.abstractmethod
    def as_op(self) -> Any:
        """Returns what to depend on, or to run, for all that was done so far."""

    @property
    @abc.abstractmethod
    def dim_size(self) -> int:
        """The width of the rows."""


class HashTable(BaseHashTable):
    """One table on one device. `hash_table_from_config` makes one from a config.

    Args:
        table: The handle.
        shared_name: The name under which the device finds the table; unique in the graph.
        dim_size: The width of the rows.
        slot_expire_time_config: A serialized `SlotExpireTimeConfig`: which rows a save leaves out.
        learning_rate_tensor: One rate per segment, or a function that gives them at each update.
        saver_parallel: Number of files that a save writes; -1: by the number of rows.
        extra_restore_names: Names under which older checkpoints may hold the table.
        table_proto: If given, all of the above is taken from it, and the table is not added to the
            graph's collection.
        import_scope: Name scope in front of the names in `table_proto`.

    Raises:
        ValueError: The graph has a table of this name.
    """

    def __init__(
        self,
        table: tf.Tensor | None = None,
        shared_name: str | None = None,
        dim_size: int | None = None,
        slot_expire_time_config: bytes | None = None,
        learning_rate_tensor: LearningRates = None,
        saver_parallel: int = -1,
        extra_restore_names: Sequence[str] | None = None,
        table_proto: hash_table_ops_pb2.HashTableProto | None = None,
        import_scope: str | None = None,
    ) -> None:
        if table_proto is not None:
            self._init_from_proto(table_proto, import_scope)
            return
        if table is None or shared_name is None or dim_size is None:
            raise errors.ConfigError(
                "A HashTable needs `table`, `shared_name` and `dim_size`, or a `table_proto`; "
                "`hash_table_from_config` makes one from a config."
            )
        metadata = self.get_metadata()
        if shared_name in metadata.name_set:
            raise ValueError(f"shared_name {shared_name} has already been used.")
        metadata.name_set.add(shared_name)
        self._table = table
        self._shared_name = shared_name
        self._dim_size = dim_size
        self._slot_expire_time_config = slot_expire_time_config or b""
        self._learning_rates = learning_rate_tensor
        self._saver_parallel = saver_parallel
        self._extra_restore_names = list(extra_restore_names or [])
        self.export_share_embedding: bool | None = None
        if not tf.executing_eagerly():
            metadata.tensor_table_to_obj_dict[table.ref()] = self
            tf.compat.v1.add_to_collection(_HASH_TABLE_GRAPH_KEY, self)

    def _init_from_proto(
        self, table_proto: hash_table_ops_pb2.HashTableProto, import_scope: str | None
    ) -> None:
        def find_tensor(name: str) -> tf.Tensor:
            scoped = framework_ops.prepend_name_scope(name, import_scope)
            return tf.compat.v1.get_default_graph().get_tensor_by_name(scoped)

        self._table = find_tensor(table_proto.table_tensor)
        self._shared_name = table_proto.shared_name
        self._dim_size = table_proto.dim_size
        self._slot_expire_time_config = table_proto.slot_expire_time_config
        self._learning_rates = (
            find_tensor(table_proto.learning_rate_tensor)
            if table_proto.learning_rate_tensor
            else None
        )
        self._saver_parallel = table_proto.saver_parallel
        self._extra_restore_names = list(table_proto.extra_restore_names)
        self.export_share_embedding = _FROM_OPTIONAL_BOOL[table_proto.export_share_embedding]

    @classmethod
    def get_metadata(cls) -> HashTableMetadata:
        """Returns what is known of the tables of the default graph."""
        return graph_meta.get_meta("hash_table_metadata", HashTableMetadata)

    @property
    def table(self) -> tf.Tensor:
        """The handle, a scalar of type resource.

        `tf.gradients(loss, table.table)` gives `tf.IndexedSlices` of ids and gradients of the rows
        that were looked up through this handle.
        """
        return self._table

    @property
    def name(self) -> str:
        return self._shared_name

    @property
    def extra_restore_names(self) -> list[str]:
        return self._extra_restore_names

    @property
    def dim_size(self) -> int:
        return self._dim_size

    @property
    def learning_rate_tensor(self) -> tf.Tensor:
        """The learning rates of the segments, float32 [segments]."""
        rates = self._learning_rates
        if rates is None:
            raise errors.ConfigError(
                f"Table {self.name} has no learning rates; give `learning_rate_tensor` when making "
                "it, to update its rows by gradients."
            )
        return rates() if callable(rates) else rates

    def assign(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "HashTable":
        """Overwrites rows; an id without a row gets one, if the filter admits it.

        Args:
            ids: Int64. Of equal ids the last one wins.
            values: Float32 with `dim` elements per id.
            req_time: When the rows were updated, in seconds since 1970; int64 scalar, 0 if unknown.
        """
        return self._after(
            ops.monolith_hash_table_assign(
                self._table, _ids(ids), _floats(values), _seconds(req_time)
            )
        )

    def assign_add(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "HashTable":
        """Adds to rows; an id without a row first gets an initial one, if the filter admits it.

        The arguments are those of `assign`; equal ids are all added.
        """
        return self._after(
            ops.monolith_hash_table_assign_add(
                self._table, _ids(ids), _floats(values), _seconds(req_time)
            )
        )

    def lookup(
        self, ids: TensorLike, use_multi_threads: bool = False, enable_dedup: bool = False
    ) -> tf.Tensor:
        """Returns rows, float32 [len(ids), dim]; zeros for ids without a row, which get none.

        Args:
            ids: Int64.
            use_multi_threads: Whether also batches of moderate size are worth several threads.
            enable_dedup: Has no effect; equal ids cost little in a lookup.
        """
        del enable_dedup
        return ops.monolith_hash_table_lookup(
            self._table, _ids(ids), dim_size=self._dim_size, use_multi_threads=use_multi_threads
        )

    def lookup_entry(self, ids: TensorLike) -> tf.Tensor:
        """Returns rows with optimizer state and time as serialized `EntryDump`s without id.

        A string vector [len(ids)], empty strings for ids without a row.
        """
        return ops.monolith_hash_table_lookup_entry(self._table, _ids(ids))

    def apply_gradients(
        self,
        ids: TensorLike,
        grads: TensorLike,
        global_step: TensorLike,
        use_multi_threads: bool = False,
        enable_dedup: bool = False,
        req_time: TensorLike | None = None,
    ) -> "HashTable":
        """Updates rows by their optimizers; an id without a row gets one, if the filter admits it.

        Args:
            ids: Int64.
            grads: Float32 with `dim` elements per id, in the order of the ids.
            global_step: Int64 scalar.
            use_multi_threads: Whether also batches of moderate size are worth several threads.
            enable_dedup: If True, the gradients of equal ids are summed up first, which makes one
                optimizer step per id. If False, every occurrence is a step.
            req_time: When the rows were updated, in seconds since 1970; int64 scalar, 0 if unknown.
        """
        return self._after(
            ops.monolith_hash_table_optimize(
                self._table,
                _ids(ids),
                _floats(grads),
                self.learning_rate_tensor,
                _seconds(req_time),
                tf.cast(global_step, tf.int64),
                use_multi_threads=use_multi_threads,
                enable_dedup=enable_dedup,
            )
        )

    def evict(self, max_update_time: TensorLike) -> tuple["HashTable", tf.Tensor]:
        """Removes rows that have expired at `max_update_time`, in seconds since 1970.

        Returns:
            The table, and how many rows were removed, an int64 scalar.
        """
        handle, evicted = ops.monolith_hash_table_evict(self._table, _seconds(max_update_time))
        return self._after(handle), evicted

    def as_op(self) -> Any:
        """Returns the op to depend on, or to run, for all that was done so far.

        Called eagerly, it is done already; the handle is returned then.
        """
        return self._table if tf.executing_eagerly() else self._table.op

    def table_update(self, update_op: Any) -> "HashTable":
        """Returns the table as it is after `update_op`."""
        with tf.control_dependencies([update_op]):
            return self._after(tf.identity(self._table))

    def save(self, basename: TensorLike, random_sleep_ms: int = 0) -> "HashTable":
        """Writes all rows that have not expired to `<basename>-00000-of-0000N` and so on.

        Others may read and write the table meanwhile.

        Args:
            basename: Path that the names of the files start with; a string scalar.
            random_sleep_ms: Each file is begun after a random time below this.
        """
        return self._after(
            ops.monolith_hash_table_save(
                self._table,
                basename,
                nshards=self._saver_parallel,
                random_sleep_ms=random_sleep_ms,
                slot_expire_time_config=self._slot_expire_time_config,
            )
        )

    def restore(self, basename: TensorLike) -> "HashTable":
        """Replaces all rows by those of a save, which may come from more or fewer files.

        Files that are missing, damaged or of another kind of row give a `NotFoundError`,
        `DataLossError` or `InvalidArgumentError`, and the table stays as it was.
        """
        return self._after(ops.monolith_hash_table_restore(self._table, basename))

    def size(self) -> tf.Tensor:
        """Returns the number of rows, an int64 scalar."""
        return ops.monolith_hash_table_size(self._table)

    def save_as_tensor(
        self,
        shard_idx: TensorLike,
        num_shards: TensorLike,
        limit: TensorLike,
        offset: TensorLike,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns some rows of one of `num_shards` parts of the table, expired ones too.

        Args:
            shard_idx: Which part.
            num_shards: Number of parts.
            limit: The most rows to return.
            offset: 0 at the start of a part, later what the call before has returned.

        Returns:
            The offset to go on from, an int64 scalar above 0, and serialized `EntryDump`s, a string
            vector; with fewer than `limit` of them the part is finished.
        """
        new_offset, entries = ops.monolith_hash_table_save_as_tensor(
            self._table,
            tf.cast(shard_idx, tf.int32),
            tf.cast(num_shards, tf.int32),
            tf.cast(limit, tf.int64),
            tf.cast(offset, tf.int64),
            name="monolith_hash_table_save_as_tensor",
        )
        return new_offset, entries

    def to_proto(self, export_scope: str | None = None) -> hash_table_ops_pb2.HashTableProto | None:
        """Returns what a meta graph keeps of the table, None if it is not in `export_scope`."""
        if tf.executing_eagerly():
            raise RuntimeError("Only a table in a graph has a proto: it holds names of tensors.")
        if export_scope is not None and not self._table.name.startswith(export_scope):
            return None
        result = hash_table_ops_pb2.HashTableProto(
            table_tensor=framework_ops.strip_name_scope(self._table.name, export_scope),
            dim_size=self._dim_size,
            shared_name=self._shared_name,
            slot_expire_time_config=self._slot_expire_time_config,
            saver_parallel=self._saver_parallel,
            extra_restore_names=self._extra_restore_names,
            export_share_embedding=_TO_OPTIONAL_BOOL[self.export_share_embedding],
        )
        if self._learning_rates is not None:
            name = self.learning_rate_tensor.name
            result.learning_rate_tensor = framework_ops.strip_name_scope(name, export_scope)
        return result

    @staticmethod
    def from_proto(
        table_proto: hash_table_ops_pb2.HashTableProto, import_scope: str | None = None
    ) -> "HashTable":
        """Finds a table again in the default graph, which may have been imported."""
        return HashTable(table_proto=table_proto, import_scope=import_scope)

    def _after(self, handle: tf.Tensor) -> "HashTable":
        copied = copy.copy(self)
        copied._table = handle
        return copied


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
    return ops.monolith_hash_table_fused_lookup(
        list(tables),
        _ids(ids),
        tf.convert_to_tensor(fused_slot_size, tf.int32),
        _seconds(req_time),
        num_of_shards=num_of_shards,
    )


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
    return ops.monolith_hash_table_fused_optimize(
        list(tables),
        _ids(ids),
        _ids(indices),
        tf.convert_to_tensor(fused_slot_size, tf.int32),
        _floats(id_grads),
        tf.convert_to_tensor(id_offsets, tf.int32),
        tf.convert_to_tensor(grad_offsets, tf.int32),
        _floats(learning_rate_tensors),
        _seconds(req_time),
        tf.cast(global_step, tf.int64),
        num_of_shards=num_of_shards,
        enable_grad_accumulation=enable_grad_accumulation,
    )


def hash_table_from_config(
    config: entry.HashTableConfigInstance,
    hash_filter: tf.Tensor | None = None,
    name_suffix: str = "",
    sync_client: tf.Tensor | None = None,
    saver_parallel: int = -1,
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
    with tf.device("/device:CPU:0"):
        if hash_filter is None:
            hash_filter = filters.create_dummy_hash_filter(name_suffix)
        if sync_client is None:
            sync_client = create_dummy_sync_client()
        handle = ops.monolith_hash_table(
            hash_filter,
            sync_client,
            config=table_config.SerializeToString(deterministic=True),
            shared_name=name,
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


def learning_rates_of(call: Callable[[], tf.Tensor]) -> LearningRates:
    """Returns the tensor of a graph, which computes itself at each step; eagerly, the function."""
    return call if tf.executing_eagerly() else call()


def _ids(ids: TensorLike) -> tf.Tensor:
    return tf.convert_to_tensor(ids, tf.int64)


def _floats(values: TensorLike) -> tf.Tensor:
    return tf.convert_to_tensor(values, tf.float32)


def _seconds(time: TensorLike | None) -> tf.Tensor:
    return tf.constant(0, tf.int64) if time is None else tf.cast(time, tf.int64)


framework_ops.register_proto_function(
    _HASH_TABLE_GRAPH_KEY,
    proto_type=hash_table_ops_pb2.HashTableProto,
    to_proto=HashTable.to_proto,
    from_proto=HashTable.from_proto,
)
