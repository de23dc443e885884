"""Many tables in one resource: one op serves all of them, however many features a model has.

The tables stand in sorted order of their names. Ids of all tables travel as one ragged tensor with
a row per table, their rows as one flat vector. Creation and use are separate: in a graph, a session
must run the `initializer` first, or `initialize_resources` of `tensorflow.python.ops.resources`.

Example:
    >>> from monolith.testing import generate_test_hash_table_config
    >>> configs = {
    ...     "user": generate_test_hash_table_config(dim=2),
    ...     "item": generate_test_hash_table_config(dim=1),
    ... }
    >>> table = MultiHashTable.from_configs(configs, name_suffix="example")
    >>> table = table.assign_add({"user": ([1], [[2.0, 3.0]]), "item": ([5], [[4.0]])})
    >>> {name: rows.numpy().tolist() for name, rows in table.lookup({"user": [1, 9]}).items()}
    {'user': [[2.0, 3.0], [0.0, 0.0]]}
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import resources

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.tables import registry, single
from monolith.embedding.tables.inputs import (
    TensorLike,
    to_floats,
    to_ids,
    to_seconds,
    to_sizes,
    to_step,
)
from monolith.embedding.tables.iteration import infer_dim_size
from monolith.embedding.tables.layout import (
    NamedTables,
    RawMultiTypeHashTable,
    concat_1d_tensors,
    flatten_n_tensors,
    get_list_from_flat_value,
)
from monolith.embedding.tables.multi_snapshots import (
    MultiHashTableCheckpointRestorerListener,
    MultiHashTableCheckpointSaverListener,
    MultiHashTableRestorerSaverListener,
)
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.embedding.tables.registry import _MULTI_HASH_TABLE_GRAPH_KEY
from monolith.embedding.tables.snapshots import _TIMEOUT_IN_MS
from monolith.embedding.tables.stats import TableStats, by_table, read_stats
from monolith.embedding.tables.table import LearningRates, learning_rates_of
from monolith.graph import devices, export_mode
from monolith.graph import metadata as graph_meta
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2, multi_hash_table_ops_pb2

__all__ = [
    "_MULTI_HASH_TABLE_GRAPH_KEY",
    "_TIMEOUT_IN_MS",
    "CachedConfig",
    "MultiHashTable",
    "MultiHashTableCheckpointRestorerListener",
    "MultiHashTableCheckpointSaverListener",
    "MultiHashTableMetadata",
    "MultiHashTableRestorerSaverListener",
    "RawMultiTypeHashTable",
    "concat_1d_tensors",
    "convert_to_cached_config",
    "flatten_n_tensors",
    "get_list_from_flat_value",
    "infer_dims",
]

Configs = Mapping[str, entry.HashTableConfigInstance]

_RAW_ASSIGN_SIGNATURE = "raw_assign"


class CachedConfig(NamedTuple):
    """Configs as the native tables read them; made once for many servers.

    `slot_expire_time_config` is the first table's. Saves do not ask for it: each table expires by
    its own times.
    """

    configs: Configs
    table_names: list[str]
    mconfig: bytes
    mconfig_tensor: tf.Tensor
    dims: list[int]
    slot_expire_time_config: bytes


@dataclasses.dataclass
class MultiHashTableMetadata:
    """What is known of the multi tables of a graph: their names."""

    name_set: set[str] = dataclasses.field(default_factory=set)


def infer_dims(configs: Configs) -> list[int]:
    """Returns the widths of the tables' rows, in sorted order of their names."""
    return [infer_dim_size(configs[name]) for name in sorted(configs)]


def convert_to_cached_config(configs: Configs) -> CachedConfig:
    """Serializes the configs; while a model is exported, as those of tables for serving."""
    if not configs:
        raise errors.ConfigError("A multi hash table needs the config of at least one table.")
    table_names = sorted(configs)
    mconfig = embedding_hash_table_pb2.MultiEmbeddingHashTableConfig(names=table_names)
    for name in table_names:
        config = configs[name]
        if len(config.learning_rate_fns) != len(config.table_config.entry_config.segments):
            raise ValueError("Size of learning_rate_fns and size of segments must be equal.")
        table_config = mconfig.configs.add()
        table_config.CopyFrom(config.table_config)
        if export_mode.is_exporting():
            table_config.entry_config.entry_type = embedding_hash_table_pb2.EntryConfig.SERVING
    serialized = mconfig.SerializeToString(deterministic=True)
    return CachedConfig(
        configs=configs,
        table_names=table_names,
        mconfig=serialized,
        mconfig_tensor=tf.constant(serialized, tf.string),
        dims=infer_dims(configs),
        slot_expire_time_config=mconfig.configs[0].slot_expire_time_config.SerializeToString(),
    )


class MultiHashTable(BaseMultiTypeHashTable, NamedTables, registry.Table):
    """Many tables in one resource on one device; `from_configs` makes it.

    Called eagerly, the tables are there at once and live until the end of the process; a second
    `MultiHashTable` of the same name and configs shares them.

    Args:
        cached_config: What the tables are made of.
        hash_filter: Decides which new ids get a row; by default all do.
        sync_client: Told which rows change, for real-time serving; by default nobody is.
        name_suffix: The resource's name is `MonolithMultiHashTable_<name_suffix>`.
        saver_parallel: Number of files that a save writes; -1: by the number of rows.
        table_proto: If given, all of the above is taken from it, and the table is not added to the
            graph's collection.
        import_scope: Name scope in front of the names in `table_proto`.

    Raises:
        ValueError: The graph has a multi table of this name.
    """

    NAME_PREFIX = "MonolithMultiHashTable"
    COLLECTION = _MULTI_HASH_TABLE_GRAPH_KEY

    def __init__(
        self,
        cached_config: CachedConfig | None = None,
        hash_filter: tf.Tensor | None = None,
        sync_client: tf.Tensor | None = None,
        name_suffix: str = "",
        saver_parallel: int = -1,
        table_proto: multi_hash_table_ops_pb2.MultiHashTableProto | None = None,
        import_scope: str | None = None,
    ) -> None:
        if table_proto is not None:
            self._init_from_proto(table_proto, import_scope)
            return
        if cached_config is None:
            raise errors.ConfigError(
                "A MultiHashTable needs a `cached_config` or a `table_proto`; "
                "`MultiHashTable.from_configs` makes one from configs."
            )
        self._shared_name = f"{self.NAME_PREFIX}_{name_suffix}"
        metadata = graph_meta.get_meta("multi_hash_table_metadata", MultiHashTableMetadata)
        if self._shared_name in metadata.name_set:
            raise ValueError(f"shared_name {self._shared_name} has already been used.")
        metadata.name_set.add(self._shared_name)
        self._table_names = list(cached_config.table_names)
        self._dims = list(cached_config.dims)
        self._saver_parallel = saver_parallel
        self._learning_rates: LearningRates = learning_rates_of(
            lambda: _flat_learning_rates(cached_config)
        )
        self._create(cached_config.mconfig_tensor, hash_filter, sync_client, name_suffix)
        registry.add(self)

    def _create(
        self,
        config: tf.Tensor,
        hash_filter: tf.Tensor | None,
        sync_client: tf.Tensor | None,
        name_suffix: str,
    ) -> None:
        with tf.device(devices.cpu_here()):
            if hash_filter is None:
                hash_filter = filters.create_dummy_hash_filter(name_suffix)
            if sync_client is None:
                sync_client = single.create_dummy_sync_client()
            created = ops.create_monolith_multi_hash_table(
                config, hash_filter, sync_client, shared_name=self._shared_name
            )
            if tf.executing_eagerly():
                self._initializer = None
                self._handle = created
                return
            self._initializer = created.op
            # Apart from the creation, so that using the tables does not need the configs.
            self._handle = ops.read_monolith_multi_hash_table(shared_name=self._shared_name)
            is_initialized = ops.is_hash_table_initialized(self._handle)
            resources.register_resource(self._handle, created.op, is_initialized, is_shared=True)

    def _init_from_proto(
        self, table_proto: multi_hash_table_ops_pb2.MultiHashTableProto, import_scope: str | None
    ) -> None:
        graph = tf.compat.v1.get_default_graph()

        def scoped(name: str) -> str:
            return str(framework_ops.prepend_name_scope(name, import_scope))

        self._shared_name = table_proto.shared_name
        self._table_names = list(table_proto.table_names)
        self._dims = list(table_proto.dims)
        self._saver_parallel = table_proto.saver_parallel
        self._learning_rates = graph.get_tensor_by_name(scoped(table_proto.learning_rate_tensor))
        self._initializer = graph.get_operation_by_name(scoped(table_proto.initializer_op))
        self._handle = graph.get_tensor_by_name(scoped(table_proto.handle_tensor))

    @classmethod
    def from_configs(
        cls,
        configs: Configs,
        hash_filter: tf.Tensor | None = None,
        sync_client: tf.Tensor | None = None,
        name_suffix: str = "",
        saver_parallel: int = -1,
    ) -> "MultiHashTable":
        """Makes tables from their configs by name; the other arguments are the constructor's."""
        cached_config = convert_to_cached_config(configs)
        return cls(cached_config, hash_filter, sync_client, name_suffix, saver_parallel)

    @classmethod
    def from_cached_config(
        cls,
        cc: CachedConfig,
        hash_filter: tf.Tensor | None = None,
        sync_client: tf.Tensor | None = None,
        name_suffix: str = "",
        saver_parallel: int = -1,
    ) -> "MultiHashTable":
        """Makes tables from configs that were converted before, for another server, say."""
        return cls(cc, hash_filter, sync_client, name_suffix, saver_parallel)

    @property
    def table_names(self) -> list[str]:
        return self._table_names

    @property
    def handle(self) -> tf.Tensor:
        """The handle, a scalar of type resource."""
        return self._handle

    @property
    def shared_name(self) -> str:
        return self._shared_name

    @property
    def name(self) -> str:
        return self._shared_name

    @property
    def config(self) -> registry.TableTraits:
        return registry.TableTraits(
            table_names=tuple(self._table_names),
            dims=tuple(self._dims),
            expire_times=b"",
            snapshot_format=registry.MULTI_FORMAT,
            export_share_embedding=self.export_share_embedding,
        )

    @property
    def initializer(self) -> tf.Operation | None:
        """The op that makes the tables; None when they were made eagerly."""
        return self._initializer

    @property
    def learning_rate_tensor(self) -> tf.Tensor:
        """The learning rates of all segments, table by table, float32 [segments]."""
        rates = self._learning_rates
        return rates() if callable(rates) else rates

    def get_table_dim_sizes(self) -> tuple[int, ...]:
        return tuple(self._dims)

    def lookup(self, slot_to_id: Mapping[str, TensorLike]) -> dict[str, tf.Tensor]:
        """Returns the rows of each table asked for; unknown names are passed over."""
        ragged_id = self.get_ragged_id(slot_to_id)
        rows = self.get_embeddings(ragged_id, self.raw_lookup(ragged_id))
        return {name: rows[name] for name in slot_to_id if name in rows}

    def lookup_entry(self, slot_to_id: Mapping[str, TensorLike]) -> dict[str, tf.Tensor]:
        """Returns rows with optimizer state as serialized `EntryDump`s, empty for absent ids."""
        ragged_id = self.get_ragged_id(slot_to_id)
        entries = ops.monolith_multi_hash_table_lookup_entry(
            self._handle, ragged_id.values, ragged_id.row_splits
        )
        lengths = tf.unstack(ragged_id.row_lengths(), len(self._table_names))
        by_name = dict(zip(self._table_names, tf.split(entries, lengths), strict=True))
        return {name: by_name[name] for name in slot_to_id if name in by_name}

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        req_time: TensorLike | None = None,
        enable_inter_table_parallelism: bool = False,
    ) -> "MultiHashTable":
        """Overwrites rows.

        Args:
            slot_to_id_and_value: Ids and rows by table.
            req_time: When the rows were updated, in seconds since 1970.
            enable_inter_table_parallelism: Has no effect: tables are always served in parallel.
        """
        del enable_inter_table_parallelism
        ragged_id, flat = self._split_updates(slot_to_id_and_value)
        return self.raw_assign(ragged_id, flat, req_time)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        req_time: TensorLike | None = None,
    ) -> "MultiHashTable":
        """Adds to rows; the filter is asked only about ids that have no row yet."""
        ragged_id, flat = self._split_updates(slot_to_id_and_value)
        return self._after(
            ops.monolith_multi_hash_table_assign_add(
                self._handle, ragged_id.values, ragged_id.row_splits, flat, to_seconds(req_time)
            )
        )

    def apply_gradients(
        self,
        slot_to_id_and_grad: Mapping[str, tuple[TensorLike, TensorLike]],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        enable_dedup: bool = False,
    ) -> "MultiHashTable":
        """Updates rows.

        Args:
            slot_to_id_and_grad: Ids and gradients by table.
            global_step: The step of training.
            req_time: When the rows were updated, in seconds since 1970.
            enable_dedup: If True, the gradients of equal ids of a table are summed up first, which
                makes one step of its optimizer; if False, every occurrence is a step.
        """
        ragged_id, flat = self._split_updates(slot_to_id_and_grad)
        return self.raw_apply_gradients(ragged_id, flat, global_step, req_time, enable_dedup)

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple["MultiHashTable", tf.Tensor]:
        """Makes rows as if they were new, updated now.

        Returns:
            The table, and for each id 1 if it had a row, 0 if it has got one, -1 if there is no
            table called `slot`; int32.
        """
        handle, status = ops.monolith_multi_hash_table_reinitialize(self._handle, slot, to_ids(ids))
        return self._after(handle), status

    def raw_lookup(self, ragged_id: tf.RaggedTensor) -> tf.Tensor:
        return ops.monolith_multi_hash_table_lookup(
            self._handle, ragged_id.values, ragged_id.row_splits
        )

    def raw_apply_gradients(
        self,
        ragged_id: tf.RaggedTensor,
        flat_grad: tf.Tensor,
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        enable_dedup: bool = False,
    ) -> "MultiHashTable":
        return self._after(
            ops.monolith_multi_hash_table_optimize(
                self._handle,
                ragged_id.values,
                ragged_id.row_splits,
                flat_grad,
                self.learning_rate_tensor,
                to_seconds(req_time),
                to_step(global_step),
                enable_dedup=enable_dedup,
            )
        )

    def raw_assign(
        self,
        ragged_id: tf.RaggedTensor,
        flat_value: tf.Tensor,
        req_time: TensorLike | None = None,
    ) -> "MultiHashTable":
        return self._after(
            ops.monolith_multi_hash_table_assign(
                self._handle,
                ragged_id.values,
                ragged_id.row_splits,
                flat_value,
                to_seconds(req_time),
            )
        )

    def fused_lookup(
        self,
        ids: TensorLike,
        fused_slot_size: TensorLike,
        num_of_shards: int,
        req_time: TensorLike | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks up ids of all tables for several shards of workers; see `fused_lookup` there."""
        rows, splits, id_offsets, row_offsets, indices = ops.monolith_multi_hash_table_fused_lookup(
            self._handle,
            to_ids(ids),
            to_sizes(fused_slot_size),
            to_seconds(req_time),
            num_of_shards=num_of_shards,
        )
        return rows, splits, id_offsets, row_offsets, indices

    def fused_apply_gradient(
        self,
        ids: TensorLike,
        indices: TensorLike,
        fused_slot_size: TensorLike,
        id_grads: TensorLike,
        id_offsets: TensorLike,
        grad_offsets: TensorLike,
        global_step: TensorLike,
        req_time: TensorLike | None,
        num_of_shards: int,
        enable_grad_accumulation: bool = False,
    ) -> "MultiHashTable":
        """Updates rows of all tables for several shards; see `single.fused_apply_gradient`."""
        return self._after(
            ops.monolith_multi_hash_table_fused_optimize(
                self._handle,
                to_ids(ids),
                to_ids(indices),
                to_sizes(fused_slot_size),
                to_floats(id_grads),
                to_sizes(id_offsets),
                to_sizes(grad_offsets),
                self.learning_rate_tensor,
                to_seconds(req_time),
                to_step(global_step),
                num_of_shards=num_of_shards,
                enable_grad_accumulation=enable_grad_accumulation,
            )
        )

    def save(self, basename: TensorLike, random_sleep_ms: int = 0) -> "MultiHashTable":
        """Writes rows to `<basename>-00000-of-0000N`, their numbers to `<basename>.meta-…`.

        Rows that have expired at the newest update of their table, by that table's own times, are
        left out.

        Args:
            basename: Path that the names of the files start with; a string scalar.
            random_sleep_ms: Has no effect: one save writes all tables of a server, so there are no
                others to stay clear of.
        """
        del random_sleep_ms
        return self._after(
            ops.monolith_multi_hash_table_save(self._handle, basename, nshards=self._saver_parallel)
        )

    def restore(self, basename: TensorLike) -> "MultiHashTable":
        """Adds the rows of a save, in place of those with the same ids.

        Tables that only the save has are passed over, others stay as they are. Files that are
        missing or damaged give a `NotFoundError`, `DataLossError` or `InvalidArgumentError`, and
        all tables stay as they were.
        """
        return self._after(ops.monolith_multi_hash_table_restore(self._handle, basename))

    def evict(
        self, max_update_time: TensorLike | None = None
    ) -> tuple["MultiHashTable", tf.Tensor]:
        """Removes from each table the rows that have expired by its own times.

        Args:
            max_update_time: When they have to have expired, in seconds since 1970; by default, at
                the newest update of their table. That is what a save leaves out.

        Returns:
            The tables, and how many rows of each were removed, int64, in the order of
            `table_names`.
        """
        handle, evicted = ops.monolith_multi_hash_table_evict(
            self._handle, -1 if max_update_time is None else to_seconds(max_update_time)
        )
        return self._after(handle), evicted

    def sizes(self) -> tf.Tensor:
        """Returns how many rows each table has, int64, in the order of `table_names`."""
        return ops.monolith_multi_hash_table_size(self._handle)

    def stats(self) -> dict[str, TableStats]:
        """Returns rows, memory and what has become of ids by table, int64 scalars.

        `TableStats` says what is counted.
        """
        stats = by_table(read_stats(self._handle), len(self._table_names))
        return dict(zip(self._table_names, stats, strict=True))

    def make_assign_call(self) -> registry.AssignCall:
        """Adds what overwrites rows of a model that serves to the default graph."""
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        id_split = tf.compat.v1.placeholder(tf.int64, [None])
        flat_value = tf.compat.v1.placeholder(tf.float32, [None])
        ragged_ids = tf.RaggedTensor.from_row_splits(ids, id_split, validate=False)
        with tf.control_dependencies([self.raw_assign(ragged_ids, flat_value).as_op()]):
            # An identity, since a constant would not wait.
            result = tf.identity(tf.constant(0))
        return registry.AssignCall(
            f"{self._shared_name}/{_RAW_ASSIGN_SIGNATURE}",
            {"id": ids, "id_split": id_split, "flat_value": flat_value},
            {"result": result},
        )

    def as_op(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the op to depend on, or to run; called eagerly, the handle.

        Takes the arguments of other tables' `as_op` and does not need them.
        """
        del args, kwargs
        return self._handle if tf.executing_eagerly() else self._handle.op

    def to_proto(
        self, export_scope: str | None = None
    ) -> multi_hash_table_ops_pb2.MultiHashTableProto | None:
        """Returns what a meta graph keeps of the table, None if it is not in `export_scope`."""
        if self._initializer is None:
            raise RuntimeError("Only a table in a graph has a proto: it holds names of tensors.")
        if export_scope is not None and not self._handle.name.startswith(export_scope):
            return None

        def stripped(name: str) -> str:
            return str(framework_ops.strip_name_scope(name, export_scope))

        return multi_hash_table_ops_pb2.MultiHashTableProto(
            dims=self._dims,
            table_names=self._table_names,
            learning_rate_tensor=stripped(self.learning_rate_tensor.name),
            shared_name=self._shared_name,
            saver_parallel=self._saver_parallel,
            initializer_op=stripped(self._initializer.name),
            handle_tensor=stripped(self._handle.name),
        )

    @staticmethod
    def from_proto(
        table_proto: multi_hash_table_ops_pb2.MultiHashTableProto, import_scope: str | None = None
    ) -> "MultiHashTable":
        """Finds a table again in the default graph, which may have been imported."""
        return MultiHashTable(table_proto=table_proto, import_scope=import_scope)

    def _split_updates(
        self, slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]]
    ) -> tuple[tf.RaggedTensor, tf.Tensor]:
        ids = {name: ids for name, (ids, _) in slot_to_id_and_value.items()}
        values = {name: values for name, (_, values) in slot_to_id_and_value.items()}
        return self.get_ragged_id(ids), self.get_flat_value(values)

    def _after(self, handle: tf.Tensor) -> "MultiHashTable":
        copied = copy.copy(self)
        copied._handle = handle
        return copied


def _flat_learning_rates(cached_config: CachedConfig) -> tf.Tensor:
    # In the order of the tables, in which the op reads them, whatever the order of the dict.
    rates: list[Any] = []
    for name in cached_config.table_names:
        rates.extend(cached_config.configs[name].call_learning_rate_fns_fewer_ops())
    return tf.stack([tf.cast(rate, tf.float32) for rate in rates])


framework_ops.register_proto_function(
    _MULTI_HASH_TABLE_GRAPH_KEY,
    proto_type=multi_hash_table_ops_pb2.MultiHashTableProto,
    to_proto=MultiHashTable.to_proto,
    from_proto=MultiHashTable.from_proto,
)
