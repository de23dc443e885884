"""One collisionless embedding table: the object that wraps its handle.

`single` says how to make one, and how tables live and die.
"""

import abc
import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from monolith import errors
from monolith.embedding.tables import registry
from monolith.embedding.tables.inputs import (
    TensorLike,
    arrange,
    to_floats,
    to_ids,
    to_seconds,
    to_step,
)
from monolith.embedding.tables.registry import _HASH_TABLE_GRAPH_KEY
from monolith.embedding.tables.stats import TableStats, by_table, read_stats
from monolith.graph import metadata as graph_meta
from monolith.native import ops
from monolith.proto import hash_table_ops_pb2

# The learning rates of a table's segments, or what computes them when they are needed.
LearningRates: TypeAlias = tf.Tensor | Callable[[], tf.Tensor] | None

_NAME_PREFIX = registry.SINGLE_NAME_PREFIX
_SERVER_SUFFIX = re.compile(r"_\d+$", re.ASCII)
_ASSIGN_SIGNATURE = "hashtable_assign"

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
        """Returns rows, float32, in the shape of the ids and `dim`."""

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


class HashTable(BaseHashTable, registry.Table):
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

    COLLECTION = _HASH_TABLE_GRAPH_KEY

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
        if not tf.executing_eagerly():
            metadata.tensor_table_to_obj_dict[table.ref()] = self
        registry.add(self)

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
    def handle(self) -> tf.Tensor:
        return self._table

    @property
    def name(self) -> str:
        return self._shared_name

    @property
    def config(self) -> registry.TableTraits:
        return registry.TableTraits(
            table_names=(self.name,),
            dims=(self._dim_size,),
            expire_times=self._slot_expire_time_config,
            snapshot_format=registry.SINGLE_FORMAT,
            other_names=tuple(self._find_other_names()),
            export_share_embedding=self.export_share_embedding,
        )

    @property
    def initializer(self) -> None:
        """None: whoever uses the handle makes the table."""
        return None

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
                self._table, to_ids(ids), to_floats(values), to_seconds(req_time)
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
                self._table, to_ids(ids), to_floats(values), to_seconds(req_time)
            )
        )

    def lookup(
        self, ids: TensorLike, use_multi_threads: bool = False, enable_dedup: bool = False
    ) -> tf.Tensor:
        """Returns rows, float32 [..., dim]; zeros for ids without a row, which get none.

        Args:
            ids: Int64 of any shape.
            use_multi_threads: Whether also batches of moderate size are worth several threads.
            enable_dedup: Has no effect; equal ids cost little in a lookup.
        """
        del enable_dedup
        ids = to_ids(ids)
        rows = ops.monolith_hash_table_lookup(
            self._table, ids, dim_size=self._dim_size, use_multi_threads=use_multi_threads
        )
        return arrange(rows, ids, self._dim_size)

    def lookup_entry(self, ids: TensorLike) -> tf.Tensor:
        """Returns rows with optimizer state and time as serialized `EntryDump`s without id.

        A string vector [len(ids)], empty strings for ids without a row.
        """
        return ops.monolith_hash_table_lookup_entry(self._table, to_ids(ids))

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
                to_ids(ids),
                to_floats(grads),
                self.learning_rate_tensor,
                to_seconds(req_time),
                to_step(global_step),
                use_multi_threads=use_multi_threads,
                enable_dedup=enable_dedup,
            )
        )

    def evict(self, max_update_time: TensorLike) -> tuple["HashTable", tf.Tensor]:
        """Removes rows that have expired at `max_update_time`, in seconds since 1970.

        Returns:
            The table, and how many rows were removed, an int64 scalar.
        """
        handle, evicted = ops.monolith_hash_table_evict(self._table, to_seconds(max_update_time))
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

    def sizes(self) -> tf.Tensor:
        """Returns the number of rows, int64 [1]."""
        return tf.reshape(self.size(), [1])

    def stats(self) -> TableStats:
        """Returns rows, memory and what has become of ids, int64 scalars; see `TableStats`."""
        return by_table(read_stats(self._table), 1)[0]

    def make_assign_call(self) -> registry.AssignCall:
        """Adds what overwrites rows of a model that serves to the default graph."""
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.float32, [None, self._dim_size])
        with tf.control_dependencies([self.assign(ids, rows).as_op()]):
            result = tf.size(ids)
        # One call for all tables: the names of its arguments tell which is whose.
        return registry.AssignCall(
            _ASSIGN_SIGNATURE,
            {f"{self.name}_id": ids, f"{self.name}_value": rows},
            {f"{self.name}_result": result},
        )

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

    def _find_other_names(self) -> Iterator[str]:
        server = _SERVER_SUFFIX.search(self.name)
        for name in self._extra_restore_names:
            yield name
            # Other names of a merged table come without what the factory adds around them.
            if server:
                yield _NAME_PREFIX + name + server.group()
            yield _NAME_PREFIX + name

    def _after(self, handle: tf.Tensor) -> "HashTable":
        copied = copy.copy(self)
        copied._table = handle
        return copied


def learning_rates_of(call: Callable[[], tf.Tensor]) -> LearningRates:
    """Returns the tensor of a graph, which computes itself at each step; eagerly, the function."""
    return call if tf.executing_eagerly() else call()


framework_ops.register_proto_function(
    _HASH_TABLE_GRAPH_KEY,
    proto_type=hash_table_ops_pb2.HashTableProto,
    to_proto=HashTable.to_proto,
    from_proto=HashTable.from_proto,
)
