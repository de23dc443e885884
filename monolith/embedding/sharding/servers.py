"""Tables spread over parameter servers: every server has the ids of one remainder.

`DistributedHashTable` is one table; `DistributedMultiTypeHashTable` is all tables of a model. The
latter costs one request for a lookup and one for an update to each server, however many tables
there are: ids of all tables travel as one tensor, and so do their rows and gradients.

Example (with two servers in this process):
    >>> from monolith.embedding.tables import single
    >>> from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config
    >>> servers, config = create_test_ps_cluster(2)
    >>> def make_table(index, table_config):
    ...     return single.hash_table_from_config(table_config, name_suffix=f"user_{index}")
    >>> with tf.Graph().as_default():
    ...     table = DistributedHashTable(2, generate_test_hash_table_config(dim=1), make_table)
    ...     table = table.assign([3, 8], [[1.5], [2.5]])
    ...     rows = table.lookup([8, 3, 8])
    ...     with tf.compat.v1.Session(servers[0].target, config=config) as session:
    ...         session.run(rows).tolist()
    [[2.5], [1.5], [2.5]]
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.sharding import distribution
from monolith.embedding.sharding.clock import UpdateClock
from monolith.embedding.sharding.ids import IdSharder, unpack_ids
from monolith.embedding.sharding.learning_rates import WorkerLearningRates
from monolith.embedding.sharding.remote import ExportedTables, PackedTables
from monolith.embedding.sharding.server_calls import emit_time_of_lookup
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids
from monolith.embedding.tables.iteration import infer_dim_size
from monolith.embedding.tables.layout import RawMultiTypeHashTable
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.embedding.tables.single import BaseHashTable
from monolith.graph import devices, export_mode
from monolith.native import logging_ops

Configs = Mapping[str, entry.HashTableConfigInstance]

_ONLY_TABLE = "ids"  # A `DistributedHashTable` has one table, which needs no name.


@contextlib.contextmanager
def ps_device(i: int) -> Iterator[None]:
    """Places ops on parameter server `i`, whatever device or colocation is asked for around it.

    While one model with all its tables is exported there are no servers, and no device is set.
    """
    default_graph = tf.compat.v1.get_default_graph()
    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            stack.enter_context(default_graph.colocate_with(None, ignore_existing=True))
        stack.enter_context(tf.device(None))
        if not export_mode.is_exporting_standalone():
            stack.enter_context(tf.device(devices.ps_device(i)))
        yield


class DistributedHashTable(BaseHashTable):
    """One table on several parameter servers.

    Args:
        ps_num: Number of servers.
        config: What the table is made of.
        hash_table_factory: Makes the part of a server, of its number and the config.
    """

    def __init__(
        self,
        ps_num: int,
        config: entry.HashTableConfigInstance,
        hash_table_factory: Callable[[int, entry.HashTableConfigInstance], BaseHashTable],
    ) -> None:
        _check_num_servers("ps_num", ps_num)
        rates = WorkerLearningRates({_ONLY_TABLE: config})
        self._tables: list[Any] = []
        for i in range(ps_num):
            with ps_device(i):
                rates.unstack_here()
                self._tables.append(hash_table_factory(i, rates.configs[_ONLY_TABLE]))
        self._sharder = IdSharder(_one_row, [self.dim_size], ps_num)

    def lookup(
        self, ids: TensorLike, use_multi_threads: bool = False, enable_dedup: bool = False
    ) -> tf.Tensor:
        """Returns rows, float32 [..., dim]; each distinct id is asked for once.

        Args:
            ids: Ids of any shape.
            use_multi_threads: Passed on to the servers.
            enable_dedup: Has no effect: equal ids are always asked for once.
        """
        del enable_dedup
        ids = to_ids(ids)
        sharded = self._sharder.for_lookup({_ONLY_TABLE: ids})
        rows = []
        for i, table in enumerate(self._tables):
            with tf.name_scope(f"ps_{i}"), ps_device(i):
                part = unpack_ids(sharded.packed[i], 1)
                rows.append(tf.reshape(table.lookup(part.values, use_multi_threads), [-1]))
        shape = tf.concat([tf.shape(ids), [self.dim_size]], 0)
        result = tf.reshape(sharded.join(rows), shape)
        result.set_shape(ids.shape.concatenate([self.dim_size]))
        return result

    def assign(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "DistributedHashTable":
        return self._write("assign", ids, values, req_time)

    def assign_add(
        self, ids: TensorLike, values: TensorLike, req_time: TensorLike | None = None
    ) -> "DistributedHashTable":
        return self._write("assign_add", ids, values, req_time)

    def apply_gradients(
        self,
        ids: TensorLike,
        grads: TensorLike,
        global_step: TensorLike,
        use_multi_threads: bool = False,
        enable_dedup: bool = False,
        req_time: TensorLike | None = None,
    ) -> "DistributedHashTable":
        """Updates rows; gradients of equal ids are summed, so each id makes one step.

        Args:
            ids: Ids of any shape.
            grads: A row for each of them.
            global_step: The step of training.
            use_multi_threads: Passed on to the servers.
            enable_dedup: Has no effect: equal ids are always brought together.
            req_time: When the rows were updated, in seconds since 1970.
        """
        del enable_dedup
        ids = to_ids(ids)
        sharded = self._sharder.for_update({_ONLY_TABLE: ids})
        grads_of_servers = sharded.sum_gradients(tf.reshape(to_floats(grads), [-1]))
        clock = UpdateClock(global_step, req_time)
        messages = clock.pack_with(sharded)
        copied = copy.copy(self)
        copied._tables = []
        for i, table in enumerate(self._tables):
            with tf.name_scope(f"ps_{i}"), ps_device(i):
                part, step, time = clock.unpack_here(messages[i], 1)
                copied._tables.append(
                    table.apply_gradients(
                        part.values,
                        tf.reshape(grads_of_servers[i], [-1, self.dim_size]),
                        step,
                        use_multi_threads=use_multi_threads,
                        req_time=time,
                    )
                )
        return copied

    def as_op(self, name: str | None = None) -> Any:
        return _done(name or "dht_ao", self._tables)

    @property
    def dim_size(self) -> int:
        return self._tables[0].dim_size

    def _write(
        self, method: str, ids: TensorLike, values: TensorLike, req_time: TensorLike | None
    ) -> "DistributedHashTable":
        parts = _split_rows(ids, values, self.dim_size, len(self._tables))
        copied = copy.copy(self)
        copied._tables = []
        for i, (table, part) in enumerate(zip(self._tables, parts, strict=True)):
            with tf.name_scope(f"ps_{i}"), ps_device(i):
                copied._tables.append(getattr(table, method)(*part, req_time=req_time))
        return copied


class DistributedMultiTypeHashTable(BaseMultiTypeHashTable):
    """All tables of a model on several parameter servers.

    While a model is exported for serving in parts, the tables of server i are made in the sub
    graph `ps_<i>`, and lookups become calls of that model.

    Args:
        num_ps: Number of servers.
        slot_to_config: What the table of each slot is made of.
        table_factory: Makes the tables of a server, of its number and the configs. Tables that
            are a `RawMultiTypeHashTable` are called with ids and rows as they travel; for others
            these are cut and put together on the server.
        transfer_float16: Whether rows and gradients travel as float16.
        max_rpc_deadline_millis: How long a call may take in an exported model.
    """

    def __init__(
        self,
        num_ps: int,
        slot_to_config: Configs,
        table_factory: Callable[[int, Configs], BaseMultiTypeHashTable],
        transfer_float16: bool = False,
        max_rpc_deadline_millis: int = 30,
    ) -> None:
        _check_num_servers("num_ps", num_ps)
        if not slot_to_config:
            raise errors.ConfigError("A distributed table needs the config of at least one slot.")
        self._slots = frozenset(slot_to_config)
        self._wire_type = tf.float16 if transfer_float16 else tf.float32
        dims = {slot: infer_dim_size(config) for slot, config in slot_to_config.items()}
        rates = WorkerLearningRates(slot_to_config)
        self._tables: list[Any] = []
        for i in range(num_ps):
            if export_mode.is_exporting_distributed():
                with _sub_graph(i).as_default():
                    table: Any = table_factory(i, rates.configs)
                    table = ExportedTables(table, dims, i, max_rpc_deadline_millis)
            else:
                with ps_device(i):
                    rates.unstack_here()
                    table = table_factory(i, rates.configs)
                if not isinstance(table, RawMultiTypeHashTable):
                    table = PackedTables(table, dims)
            self._tables.append(table)
        self._num_tables = len(dims)
        self._sharder = IdSharder(self._layout.get_ragged_id, self.get_table_dim_sizes(), num_ps)

    def lookup(self, slot_to_id: Mapping[str, TensorLike]) -> dict[str, tf.Tensor]:
        """Returns the rows of each slot asked for; unknown slots are passed over."""
        with tf.name_scope("dmtht_lu"):
            sharded = self._sharder.for_lookup(slot_to_id)
            # The update takes the ids from here, too: other tensors would be sent once more.
            rows, sharded.packed = self.lookup_packed(sharded.packed)
            by_slot = self._layout.get_embeddings(sharded.ids, sharded.join(rows))
        return {slot: by_slot[slot] for slot in slot_to_id if slot in by_slot}

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        req_time: TensorLike | None = None,
    ) -> "DistributedMultiTypeHashTable":
        with tf.name_scope("dmtht_a"):
            return self._write("assign", slot_to_id_and_value, req_time)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        req_time: TensorLike | None = None,
    ) -> "DistributedMultiTypeHashTable":
        with tf.name_scope("dmtht_aa"):
            return self._write("assign_add", slot_to_id_and_value, req_time)

    def reinitialize(
        self, slot: str, ids: TensorLike
    ) -> tuple["DistributedMultiTypeHashTable", tf.Tensor]:
        """Makes rows as if they were new, updated now.

        Returns:
            The table, and a status for each id: those of server 0's ids first, then those of
            server 1's, and so on; see `MultiHashTable.reinitialize`.
        """
        if not all(hasattr(table, "reinitialize") for table in self._tables):
            raise NotImplementedError(
                "DistributedMultiTypeHashTable dost not support reinitialize!"
            )
        with tf.name_scope("dmtht_reinit"):
            ids = tf.reshape(to_ids(ids), [-1])
            num_ps = len(self._tables)
            parts = distribution.split_by_indices(_server_of(ids, num_ps), ids, num_ps)
            tables = []
            statuses = []
            for i, table in enumerate(self._tables):
                with ps_device(i):
                    table, status = table.reinitialize(slot, parts[i])
                tables.append(table)
                statuses.append(status)
            return self._with_tables(tables), tf.concat(statuses, 0)

    def apply_gradients(
        self,
        slot_to_id_and_grad: Mapping[str, tuple[TensorLike, TensorLike]],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
    ) -> "DistributedMultiTypeHashTable":
        """Updates rows; gradients of equal ids of a slot are summed, so each id makes one step.

        Args:
            slot_to_id_and_grad: Ids and gradients by slot.
            global_step: The step of training.
            req_time: When the rows were updated, in seconds since 1970.
        """
        self._check_update(slot_to_id_and_grad)
        with tf.name_scope("dmtht_ag"):
            ids = {slot: ids for slot, (ids, _) in slot_to_id_and_grad.items()}
            grads = {slot: grads for slot, (_, grads) in slot_to_id_and_grad.items()}
            sharded = self._sharder.for_update(ids)
            grads_of_servers = sharded.sum_gradients(self._layout.get_flat_value(grads))
            clock = UpdateClock(global_step, req_time)
            return self._apply(clock, clock.pack_with(sharded), grads_of_servers)

    def apply_packed(
        self,
        packed: Sequence[tf.Tensor],
        grads: Sequence[tf.Tensor],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
    ) -> "DistributedMultiTypeHashTable":
        """Updates rows by each server's ids, as `pack_ids` packs them, and their gradients."""
        return self._apply(UpdateClock(global_step, req_time), packed, grads)

    def _apply(
        self, clock: UpdateClock, messages: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]
    ) -> "DistributedMultiTypeHashTable":
        tables = []
        for i, table in enumerate(self._tables):
            grad = tf.cast(grads[i], self._wire_type)
            with ps_device(i):
                part, step, time = clock.unpack_here(messages[i], self._num_tables)
                grad = tf.cast(grad, tf.float32)
                tables.append(table.raw_apply_gradients(part, grad, step, time))
        return self._with_tables(tables)

    def as_op(self, name: str | None = None) -> Any:
        return _done(name or "dmtht_ao", self._tables)

    def get_table_dim_sizes(self) -> Sequence[int]:
        return self._layout.get_table_dim_sizes()

    @property
    def _layout(self) -> Any:
        """Says how ids and rows of all tables lie in one tensor, the same way on all servers."""
        return self._tables[0]

    def lookup_packed(self, packed: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Looks up each server's ids, as `pack_ids` packs them, and measures how long that takes.

        Returns:
            The rows of each server as one vector; and the ids, for the update.
        """
        is_timed = not export_mode.is_exporting() and not tf.executing_eagerly()
        if is_timed:
            packed, start_us = logging_ops.tensors_timestamp(packed)
        rows_of_servers = []
        for i, (table, ids) in enumerate(zip(self._tables, packed, strict=True)):
            if isinstance(table, ExportedTables):
                rows_of_servers.append(table.raw_lookup(unpack_ids(ids, self._num_tables)))
                continue
            with ps_device(i):
                rows = table.raw_lookup(unpack_ids(ids, self._num_tables))
                rows = tf.cast(rows, self._wire_type)
            if is_timed:
                rows = emit_time_of_lookup(i, rows, start_us)
            rows_of_servers.append(tf.cast(rows, tf.float32))
        return rows_of_servers, list(packed)

    def _write(
        self,
        method: str,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        req_time: TensorLike | None,
    ) -> "DistributedMultiTypeHashTable":
        self._check_update(slot_to_id_and_value)
        dims = dict(zip(sorted(self._slots), self.get_table_dim_sizes(), strict=True))
        parts = {
            slot: _split_rows(ids, values, dims[slot], len(self._tables))
            for slot, (ids, values) in slot_to_id_and_value.items()
        }
        by_server = [
            {slot: of_slot[i] for slot, of_slot in parts.items()} for i in range(len(self._tables))
        ]
        return self.write_parts(method, by_server, req_time)

    def write_parts(
        self,
        method: str,
        parts: Sequence[Mapping[str, tuple[TensorLike, TensorLike]]],
        req_time: TensorLike | None,
    ) -> "DistributedMultiTypeHashTable":
        """Calls `assign` or `assign_add` of each server's tables with its ids and rows by slot."""
        tables = []
        for i, (table, part) in enumerate(zip(self._tables, parts, strict=True)):
            with ps_device(i):
                tables.append(getattr(table, method)(part, req_time=req_time))
        return self._with_tables(tables)

    def _check_update(self, slots: Mapping[str, Any]) -> None:
        if any(isinstance(table, ExportedTables) for table in self._tables):
            raise NotImplementedError(
                "The tables of an exported model can be looked up in, and not be changed."
            )
        unknown = sorted(set(slots) - self._slots)
        if unknown:
            raise ValueError(
                f"There is no table for slot {unknown[0]!r}; there are tables for "
                f"{sorted(self._slots)}."
            )

    def _with_tables(self, tables: list[Any]) -> "DistributedMultiTypeHashTable":
        copied = copy.copy(self)
        copied._tables = tables
        return copied


def _check_num_servers(name: str, number: int) -> None:
    if number < 1:
        raise errors.ConfigError(
            f"`{name}` must be at least 1, got {number}; without servers use a local table."
        )


def _sub_graph(i: int) -> tf.Graph:
    export_ctx = export_mode.get_current_export_ctx()
    assert export_ctx is not None  # There is one whenever something is exported.
    return export_ctx.sub_graph(f"ps_{i}")


def _one_row(slot_to_id: Mapping[str, tf.Tensor]) -> tf.RaggedTensor:
    ids = tf.reshape(slot_to_id[_ONLY_TABLE], [-1])
    row_splits = tf.stack([tf.constant(0, tf.int64), tf.size(ids, tf.int64)])
    return tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False)


def _server_of(ids: tf.Tensor, num_servers: int) -> tf.Tensor:
    return tf.math.floormod(ids, tf.constant(num_servers, tf.int64))


def _split_rows(
    ids: TensorLike, values: TensorLike, dim: int, num_servers: int
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Divides ids and their rows among servers; equal ids stay as they are, in their order."""
    ids = tf.reshape(to_ids(ids), [-1])
    rows = tf.reshape(to_floats(values), [-1, dim])
    server_of_id = _server_of(ids, num_servers)
    return list(
        zip(
            distribution.split_by_indices(server_of_id, ids, num_servers),
            distribution.split_by_indices(server_of_id, rows, num_servers),
            strict=True,
        )
    )


def _done(name: str, tables: Sequence[Any]) -> Any:
    done = [table.as_op() for table in tables]
    with tf.name_scope(name), tf.control_dependencies(done):
        return tf.no_op(name="done")
