"""Tables that are somewhere else, seen as if their ids and rows travelled as one tensor each.

`DistributedMultiTypeHashTable` knows only this view of what a parameter server has. Tables that
do not offer it themselves get it from `PackedTables`; tables of an exported model, which are
models of their own, from `ExportedTables`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.embedding.tables.inputs import TensorLike
from monolith.embedding.tables.layout import (
    NamedTables,
    RawMultiTypeHashTable,
    flatten_n_tensors,
)
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import export_mode, task_context
from monolith.native import remote_predict


class _SortedTables(NamedTables):
    """Ids and rows by name, in the order of the names.

    Args:
        dims: The width of the rows of each table, by name.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self._table_names = sorted(dims)
        self._dims = [dims[name] for name in self._table_names]

    def get_table_dim_sizes(self) -> Sequence[int]:
        return list(self._dims)

    def _ids_by_name(self, ragged_id: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        sizes = tf.unstack(ragged_id.row_lengths(), len(self._table_names))
        return dict(zip(self._table_names, tf.split(ragged_id.values, sizes), strict=True))


class PackedTables(_SortedTables):
    """Gives tables that are called by name the view of this module.

    Args:
        table: The tables.
        dims: The width of the rows of each table, by name.
    """

    def __init__(self, table: BaseMultiTypeHashTable, dims: Mapping[str, int]) -> None:
        super().__init__(dims)
        self._table: Any = table

    def raw_lookup(self, ragged_id: tf.RaggedTensor) -> tf.Tensor:
        rows = self._table.lookup(self._ids_by_name(ragged_id))
        return flatten_n_tensors(*(rows[name] for name in self._table_names))

    def raw_apply_gradients(
        self,
        ragged_id: tf.RaggedTensor,
        flat_grad: tf.Tensor,
        global_step: TensorLike,
        req_time: TensorLike | None = None,
    ) -> "PackedTables":
        updates = self._updates(ragged_id, flat_grad)
        return self._after(self._table.apply_gradients(updates, global_step, req_time=req_time))

    def raw_assign(
        self,
        ragged_id: tf.RaggedTensor,
        flat_value: tf.Tensor,
        req_time: TensorLike | None = None,
    ) -> "PackedTables":
        updates = self._updates(ragged_id, flat_value)
        return self._after(self._table.assign(updates, req_time=req_time))

    def assign(self, slot_to_id_and_value: Mapping[str, Any], **kwargs: Any) -> "PackedTables":
        return self._after(self._table.assign(slot_to_id_and_value, **kwargs))

    def assign_add(self, slot_to_id_and_value: Mapping[str, Any], **kwargs: Any) -> "PackedTables":
        return self._after(self._table.assign_add(slot_to_id_and_value, **kwargs))

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name)

    def get_queue_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return self._table.get_queue_hooks()

    def _updates(
        self, ragged_id: tf.RaggedTensor, flat: tf.Tensor
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        ids = self._ids_by_name(ragged_id)
        rows = self.get_embeddings(ragged_id, flat)
        return {name: (ids[name], rows[name]) for name in self._table_names}

    def _after(self, table: BaseMultiTypeHashTable) -> "PackedTables":
        copied = copy.copy(self)
        copied._table = table
        return copied


class ExportedTables(_SortedTables):
    """Tables in a model of their own, `ps_<index>`, which the entry model asks for rows.

    Args:
        table: The tables, made in the graph of that model.
        dims: The width of the rows of each table, by name.
        index: Number of the server.
        max_rpc_deadline_millis: How long a request may take.
    """

    def __init__(
        self,
        table: BaseMultiTypeHashTable,
        dims: Mapping[str, int],
        index: int,
        max_rpc_deadline_millis: int,
    ) -> None:
        super().__init__(dims)
        self._index = index
        self._max_rpc_deadline_millis = max_rpc_deadline_millis
        self._is_raw = isinstance(table, RawMultiTypeHashTable)
        self._add_signatures(table)

    def raw_lookup(self, ragged_id: tf.RaggedTensor) -> tf.Tensor:
        """Returns the rows; if the server is away, and the process may go on, default ones."""
        if self._is_raw:
            inputs = {"id": ragged_id.values, "id_split": ragged_id.row_splits}
            dims = tf.constant(self._dims, tf.int64)
            size = tf.reduce_sum(ragged_id.row_lengths() * dims)
            code, (rows,) = self._call("raw_lookup", inputs, ["flat_emb"])
            return _or_default(code, rows, size)
        ids = self._ids_by_name(ragged_id)
        code, rows_of_tables = self._call("lookup", ids, self._table_names)
        return flatten_n_tensors(
            *(
                _or_default(code, rows, tf.size(ids[name], tf.int64) * dim)
                for name, dim, rows in zip(
                    self._table_names, self._dims, rows_of_tables, strict=True
                )
            )
        )

    def raw_apply_gradients(
        self,
        ragged_id: tf.RaggedTensor,
        flat_grad: tf.Tensor,
        global_step: TensorLike,
        req_time: TensorLike | None = None,
    ) -> "ExportedTables":
        raise NotImplementedError("The tables of an exported model cannot be changed.")

    def raw_assign(
        self,
        ragged_id: tf.RaggedTensor,
        flat_value: tf.Tensor,
        req_time: TensorLike | None = None,
    ) -> "ExportedTables":
        raise NotImplementedError("The tables of an exported model cannot be changed.")

    def as_op(self, name: str | None = None) -> Any:
        return tf.no_op(name=name)

    def _add_signatures(self, table: Any) -> None:
        """Adds what the entry model calls to the model that is built in the default graph."""
        export_ctx = export_mode.get_current_export_ctx()
        if export_ctx is None:
            raise RuntimeError("Tables can be exported only inside of `enter_export_mode`.")
        graph = tf.compat.v1.get_default_graph()
        ids = {name: tf.compat.v1.placeholder(tf.int64, [None]) for name in self._table_names}
        export_ctx.add_signature(graph, "lookup", ids, table.lookup(ids))
        if self._is_raw:
            id_ph = tf.compat.v1.placeholder(tf.int64, [None], name="id")
            split_ph = tf.compat.v1.placeholder(tf.int64, [None], name="id_split")
            ragged = tf.RaggedTensor.from_row_splits(id_ph, split_ph, validate=False)
            inputs = {"id": id_ph, "id_split": split_ph}
            outputs = {"flat_emb": table.raw_lookup(ragged)}
            export_ctx.add_signature(graph, "raw_lookup", inputs, outputs)

    def _call(
        self, signature: str, inputs: Mapping[str, tf.Tensor], outputs: Sequence[str]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the status of a call, and its outputs."""
        aliases = sorted(inputs)
        code, _, tensors = remote_predict.call_op(
            aliases,
            [inputs[alias] for alias in aliases],
            outputs,
            model_name=f"{task_context.get().model_name or ''}:ps_{self._index}",
            task=self._index,
            old_model_name=f"ps_{self._index}",
            # Whoever serves the model decides what becomes of a call without an answer.
            fail_op_on_rpc_error=False,
            max_rpc_deadline_millis=self._max_rpc_deadline_millis,
            signature_name=signature,
        )
        return code, tensors


def _or_default(code: tf.Tensor, rows: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the rows, flat; of a failed call `size` times the number that it gives instead."""
    flat = tf.cond(
        tf.equal(code, 0),
        lambda: tf.reshape(rows, [-1]),
        lambda: tf.fill(tf.reshape(size, [1]), tf.reshape(rows, [])),
    )
    return tf.ensure_shape(flat, [None])
