"""Several tables behind one object: rows of one slot may be wider than those of another.

Dicts map names of slots to ids, or to ids and rows. `MultiTypeHashTable` has a table for each slot;
`MergedMultiTypeHashTable` puts slots with equal configs into one table, which makes fewer requests.

Example:
    >>> from monolith.embedding.tables import single
    >>> from monolith.testing import generate_test_hash_table_config
    >>> def make_table(slot, config):
    ...     return single.hash_table_from_config(config, name_suffix="example_" + slot)
    >>> configs = {slot: generate_test_hash_table_config(dim=1) for slot in ("user", "item")}
    >>> table = MultiTypeHashTable(configs, make_table)
    >>> table = table.assign_add({"user": ([1], [[2.0]]), "item": ([5], [[3.0]])})
    >>> rows = table.lookup({"user": tf.constant([1], tf.int64)})
    >>> rows["user"].numpy().tolist()
    [[2.0]]
"""

import abc
import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.embedding import entry
from monolith.embedding.tables import single
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids
from monolith.embedding.tables.single import BaseHashTable

_OLD_SLOT_NAME = re.compile(r"^fc_(slot_[0-9]*)$")


class BaseMultiTypeHashTable(abc.ABC):
    """What can be done with several tables, wherever their rows are."""

    @abc.abstractmethod
    def lookup(self, slot_to_id: Mapping[str, TensorLike]) -> Any:
        """Returns the rows of each slot, float32 [len(ids), dim]; zeros for ids without a row."""

    @abc.abstractmethod
    def assign(self, slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]]) -> Any:
        """Overwrites rows; returns the table as it is afterwards."""

    @abc.abstractmethod
    def assign_add(self, slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]]) -> Any:
        """Adds to rows; returns the table as it is afterwards."""

    @abc.abstractmethod
    def reinitialize(self, slot: str, ids: TensorLike) -> tuple[Any, tf.Tensor]:
        """Makes rows as if they were new; returns the table and a status for each id."""

    @abc.abstractmethod
    def apply_gradients(
        self,
        slot_to_id_and_grad: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Updates rows by their optimizers; returns the table as it is afterwards."""

    @abc.abstractmethod
    def as_op(self, name: str | None = None) -> Any:
        """Returns what to depend on, or to run, for all that was done so far."""

    @abc.abstractmethod
    def get_table_dim_sizes(self) -> Sequence[int]:
        """Returns the widths of the tables' rows, in the order of the tables."""

    def add_queue_hook(self, hook: tf.compat.v1.train.SessionRunHook) -> None:
        """Keeps a hook that a session which uses the table has to run."""
        # Made on demand: subclasses need not call a constructor of this class.
        self.__dict__.setdefault("_queue_hooks", []).append(hook)

    def get_queue_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns the hooks of this table, then those of the tables it is made of."""
        hooks = list(self.__dict__.get("_queue_hooks", []))
        inner = [self.__dict__.get("_table"), *_values(self.__dict__.get("_tables"))]
        for table in inner:
            if hasattr(table, "get_queue_hooks"):
                hooks.extend(table.get_queue_hooks())
        return hooks


class MultiTypeHashTable(BaseMultiTypeHashTable):
    """A table for each slot.

    Args:
        slot_to_config: What the table of each slot is made of.
        hash_table_factory: Makes a table of a slot and its config; called in sorted slot order.
    """

    def __init__(
        self,
        slot_to_config: Mapping[str, entry.HashTableConfigInstance],
        hash_table_factory: Callable[[str, entry.HashTableConfigInstance], BaseHashTable],
    ) -> None:
        self._tables: dict[str, Any] = {
            slot: hash_table_factory(slot, slot_to_config[slot]) for slot in sorted(slot_to_config)
        }

    def lookup(
        self, slot_to_id: Mapping[str, TensorLike], *args: Any, **kwargs: Any
    ) -> dict[str, tf.Tensor]:
        return {
            slot: self._tables[slot].lookup(ids, *args, **kwargs)
            for slot, ids in slot_to_id.items()
        }

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "MultiTypeHashTable":
        return self._update("assign", slot_to_id_and_value, args, kwargs)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "MultiTypeHashTable":
        return self._update("assign_add", slot_to_id_and_value, args, kwargs)

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple["MultiTypeHashTable", tf.Tensor]:
        raise NotImplementedError("MultiTypeHashTable dost not support reinitialize!")

    def apply_gradients(
        self,
        slot_to_id_and_grad: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "MultiTypeHashTable":
        """Updates rows; further arguments are those of `HashTable.apply_gradients`."""
        return self._update("apply_gradients", slot_to_id_and_grad, args, kwargs)

    def as_op(self, name: str | None = None) -> Any:
        done = [table.as_op() for table in self._tables.values()]
        with tf.name_scope(name or "mtht_ao"), tf.control_dependencies(done):
            return tf.no_op(name="done")

    def get_table_dim_sizes(self) -> list[int]:
        return [table.dim_size for table in self._tables.values()]

    def fused_lookup(
        self,
        ids: TensorLike,
        fused_slot_size: TensorLike,
        num_of_shards: int,
        req_time: TensorLike | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks up ids of all slots in one op; see `single.fused_lookup`.

        Tables come in sorted slot order.
        """
        return single.fused_lookup(self._handles(), ids, fused_slot_size, num_of_shards, req_time)

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
    ) -> "MultiTypeHashTable":
        """Updates rows of all slots in one op; see `single.fused_apply_gradient`."""
        rates = [table.learning_rate_tensor for table in self._tables.values()]
        handles = single.fused_apply_gradient(
            self._handles(),
            ids,
            indices,
            fused_slot_size,
            id_grads,
            id_offsets,
            grad_offsets,
            tf.concat(rates, 0),
            req_time,
            global_step,
            num_of_shards,
            enable_grad_accumulation,
        )
        copied = copy.copy(self)
        copied._tables = {
            slot: table.table_update(handle)
            for (slot, table), handle in zip(self._tables.items(), handles, strict=True)
        }
        return copied

    def _handles(self) -> list[tf.Tensor]:
        return [table.table for table in self._tables.values()]

    def _update(
        self,
        method: str,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "MultiTypeHashTable":
        copied = copy.copy(self)
        copied._tables = dict(self._tables)
        for slot, (ids, values) in slot_to_id_and_value.items():
            copied._tables[slot] = getattr(self._tables[slot], method)(ids, values, *args, **kwargs)
        return copied


class MergedMultiTypeHashTable(BaseMultiTypeHashTable):
    """Slots with equal configs share one table.

    Ids of slots that share a table must differ, as ids that contain their slot do: equal ids are
    one row.

    Args:
        slot_to_config: What the table of each slot is made of; `str` tells which are equal.
        factory: Makes the inner table of configs by merged name.
    """

    def __init__(
        self,
        slot_to_config: Mapping[str, entry.HashTableConfigInstance],
        factory: Callable[[dict[str, entry.HashTableConfigInstance]], BaseMultiTypeHashTable],
    ) -> None:
        slots_by_config: dict[str, list[str]] = {}
        for slot in sorted(slot_to_config):
            slots_by_config.setdefault(str(slot_to_config[slot]), []).append(slot)

        self._slot_mapping: dict[str, str] = {}
        merged_slot_to_config = {}
        for slots in slots_by_config.values():
            merged = _merged_name(slots)
            self._slot_mapping.update(dict.fromkeys(slots, merged))
            config = copy.copy(slot_to_config[slots[0]])
            config.extra_restore_names = list(config.extra_restore_names)
            old = _merged_name(_OLD_SLOT_NAME.sub(r"\1", slot) for slot in slots)
            if old != merged:
                config.extra_restore_names.append(old)
            merged_slot_to_config[merged] = config
        self._table: Any = factory(merged_slot_to_config)

    @property
    def slot_mapping(self) -> dict[str, str]:
        """The name of the shared table of each slot."""
        return self._slot_mapping

    @property
    def merged_table(self) -> Any:
        """The inner table, which knows the shared tables by their names."""
        return self._table

    def lookup(
        self,
        slot_to_id: Mapping[str, TensorLike],
        auxiliary_bundle: dict[str, Any] | None = None,
        early_reorder_indicies_res_pack: tuple[Mapping[str, Any], Any] | None = None,
    ) -> Any:
        """Looks up the ids of all slots.

        Args:
            slot_to_id: Ids by slot.
            auxiliary_bundle: Tensors that the inner table wants to see again in `apply_gradients`.
            early_reorder_indicies_res_pack: If the ids were merged and reordered earlier: by merged
                name, the numbers of ids of its slots in sorted order; and what the inner table's
                lookup takes in place of ids.

        Returns:
            Rows by slot; with a bundle that is not empty, a pair of them and the bundle.
        """
        slots_by_table = self._slots_by_table(slot_to_id)
        if early_reorder_indicies_res_pack is None:
            ids = {slot: to_ids(slot_to_id[slot]) for slot in slot_to_id}
            sizes: Mapping[str, Any] = {
                merged: [tf.size(ids[slot]) for slot in slots]
                for merged, slots in slots_by_table.items()
            }
            result = self._table.lookup(
                {
                    merged: _concat([ids[slot] for slot in slots])
                    for merged, slots in slots_by_table.items()
                }
            )
        else:
            sizes, res_pack = early_reorder_indicies_res_pack
            result = self._table.lookup(dict.fromkeys(slots_by_table), auxiliary_bundle, res_pack)
        merged_rows, auxiliary_bundle = (
            result if isinstance(result, tuple) else (result, auxiliary_bundle)
        )
        rows: dict[str, tf.Tensor] = {}
        for merged, slots in slots_by_table.items():
            rows.update(zip(slots, tf.split(merged_rows[merged], sizes[merged]), strict=True))
        return (rows, auxiliary_bundle) if auxiliary_bundle else rows

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "MergedMultiTypeHashTable":
        return self._update("assign", slot_to_id_and_value, args, kwargs)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "MergedMultiTypeHashTable":
        return self._update("assign_add", slot_to_id_and_value, args, kwargs)

    def reinitialize(
        self, slot: str, ids: TensorLike
    ) -> tuple["MergedMultiTypeHashTable", tf.Tensor]:
        raise NotImplementedError("MergedMultiTypeHashTable dost not support reinitialize!")

    def apply_gradients(
        self, slot_to_id_and_grad: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> "MergedMultiTypeHashTable":
        """Updates rows; further arguments go to the inner table.

        Args:
            slot_to_id_and_grad: Ids and gradients by slot; gradients alone with the keyword
                argument `skip_merge_id=True`, for inner tables that know the ids already.
            args: For the inner table.
            kwargs: For the inner table.
        """
        return self._update("apply_gradients", slot_to_id_and_grad, args, kwargs)

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name)

    def get_table_dim_sizes(self) -> Sequence[int]:
        sizes: Sequence[int] = self._table.get_table_dim_sizes()
        return sizes

    def _slots_by_table(self, slots: Iterable[str]) -> dict[str, list[str]]:
        """Groups slots by the table they share; sorted, as their ids are put together."""
        grouped: dict[str, list[str]] = {}
        for slot in sorted(slots):
            grouped.setdefault(self._slot_mapping[slot], []).append(slot)
        return grouped

    def _update(
        self,
        method: str,
        slot_to_update: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "MergedMultiTypeHashTable":
        skip_merge_id = kwargs.pop("skip_merge_id", False)
        merged_update: dict[str, Any] = {}
        for merged, slots in self._slots_by_table(slot_to_update).items():
            updates = [slot_to_update[slot] for slot in slots]
            if skip_merge_id:
                merged_update[merged] = _concat([to_floats(grads) for grads in updates])
            else:
                merged_update[merged] = (
                    _concat([to_ids(ids) for ids, _ in updates]),
                    _concat([to_floats(values) for _, values in updates]),
                )
        copied = copy.copy(self)
        copied._table = getattr(self._table, method)(merged_update, *args, **kwargs)
        return copied


def _merged_name(slots: Iterable[str]) -> str:
    return hashlib.md5(",".join(sorted(slots)).encode()).hexdigest()


def _values(tables: Any) -> Iterable[Any]:
    return tables.values() if isinstance(tables, Mapping) else tables or []


def _concat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
