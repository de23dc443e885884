"""Tables that the ranks of a synchronous job share: each has the rows of its own ids.

In a step, every rank sends ids to the ranks that have their rows and gets the rows back; later the
gradients go the same way. Each direction is one exchange for all tables; how much each rank sends
to each is told once, before them. A rank adds up what several ranks send for one id and updates its
row once, so that ranks which divide a batch train as one process does with all of it.

Example:
    >>> from monolith.embedding.tables import multi
    >>> from monolith.testing import generate_test_hash_table_config
    >>> collectives.init()
    >>> configs = {"user": generate_test_hash_table_config(dim=1, learning_rate=1.0)}
    >>> table = DistributedMultiTypeHashTableMpi(
    ...     1, lambda rank: multi.MultiHashTable.from_configs(configs, name_suffix="of_ranks")
    ... )
    >>> pack = table.reorder({"user": [7, 8, 7]})
    >>> rows, bundle = table.lookup({"user": None}, {}, pack)
    >>> grads = {"user": tf.constant([[1.0], [2.0], [1.0]])}
    >>> _ = table.apply_gradients(grads, bundle, tf.constant(0, tf.int64))
    >>> rows, _ = table.lookup({"user": None}, {}, pack)
    >>> rows["user"].numpy().tolist()  # Minus the sum of the gradients of an id.
    [[-2.0], [-2.0], [-2.0]]
    >>> collectives.shutdown()
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from monolith.embedding.sharding import distribution, rank_metrics
from monolith.embedding.sharding.rank_queues import RankQueues
from monolith.embedding.tables.inputs import TensorLike, to_ids
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import collectives

_NEEDS_PACK = (
    "The ids must come ordered by rank, as `early_reorder_indicies_res_pack`; support for "
    "reorder_fids_in_data_pipeline=False was dropped."
)


# Of the bundle of a lookup.
IS_IDLE = "is_idle"
# Above this number, rank 0, which has other things to do as well, has no rows.
_MAX_RANKS_WITH_ROWS_ON_0 = 4


def get_first_owner(num_ranks: int) -> int:
    """Returns the first rank that has rows: an id is that of rank `first + id % (num - first)`.

    Example:
        >>> get_first_owner(3), get_first_owner(8)
        (0, 1)
    """
    return int(distribution.leaves_rank_0_empty() and num_ranks > _MAX_RANKS_WITH_ROWS_ON_0)


class ReorderedIds(NamedTuple):
    """The ids of a batch, ordered by the rank that has their rows.

    Attributes:
        all_fids: The distinct ids, rank by rank and there slot by slot, int64.
        shard_sizes: How many there are for each rank, int32 [N].
        sharded_slot_sizes: How many of each slot, rank by rank, int32 [N * K].
        emb_offset_sz: How many ids each slot had before, int32 [K].
        fused_embedding_offsets: Where the row of each of those is in the rows that come back.
        req_time: When the batch was made, in seconds since 1970; None if nobody knows.
    """

    all_fids: tf.Tensor
    shard_sizes: tf.Tensor
    sharded_slot_sizes: tf.Tensor
    emb_offset_sz: tf.Tensor
    fused_embedding_offsets: tf.Tensor
    req_time: tf.Tensor | None = None


def reorder(
    ids: Sequence[TensorLike],
    num_ranks: int,
    dims: Sequence[int],
    req_time: tf.Tensor | None = None,
) -> ReorderedIds:
    """Returns the pack for `lookup` of some ids; input pipelines make it ahead of time.

    Args:
        ids: Of each slot, in sorted order of slots.
        num_ranks: How many ranks there are.
        dims: The width of each slot's rows.
        req_time: When the batch was made, in seconds since 1970; None if nobody knows.

    Example:
        >>> reorder([[3, 2, 3]], num_ranks=2, dims=[4]).all_fids.numpy().tolist()
        [2, 3]
    """
    flat = [tf.reshape(to_ids(of_slot), [-1]) for of_slot in ids]
    return ReorderedIds(
        *distribution.fused_reorder_by_indices(flat, num_ranks, list(dims)), req_time
    )


class DistributedMultiTypeHashTableMpi(BaseMultiTypeHashTable):
    """The tables of all slots, of which each rank has a part.

    Args:
        shard_num: Number of ranks.
        table_factory: Makes the part of a rank: a table with `fused_lookup`.
        queue_configs: Which queues there are between the parts of a step, see `RankQueues`.

    Raises:
        AssertionError: There are not so many ranks.
        ConfigError: There is no such queue.
    """

    def __init__(
        self,
        shard_num: int,
        table_factory: Callable[[int], Any],
        queue_configs: Mapping[str, int] | None = None,
    ) -> None:
        assert collectives.size() == shard_num, (
            f"There must be a shard for each of {collectives.size()} ranks, got {shard_num}."
        )
        self._num_ranks = shard_num
        self._queues = RankQueues(queue_configs or {})
        self._table = table_factory(collectives.rank())
        self._dims = [int(dim) for dim in self._table.get_table_dim_sizes()]
        self._op: Any = None

    def reorder(
        self, slot_to_id: Mapping[str, TensorLike], req_time: tf.Tensor | None = None
    ) -> ReorderedIds:
        """Returns the pack for `lookup`, see the function of this name."""
        ids = [slot_to_id[slot] for slot in sorted(slot_to_id)]
        return reorder(ids, self._num_ranks, self._dims, req_time)

    def lookup(  # type: ignore[override]  # The pack is what ids are here.
        self,
        slot_to_id: Mapping[str, TensorLike | None],
        auxiliary_bundle: dict[str, Any],
        early_reorder_indicies_res_pack: Sequence[Any] | None = None,
    ) -> tuple[dict[str, tf.Tensor], dict[str, Any]]:
        """Looks up the rows of all ids, on all ranks together.

        Args:
            slot_to_id: Only its slots count; the ids are in the pack.
            auxiliary_bundle: What `apply_gradients` needs of a lookup is added to it. Queues carry
                all of it along, so what belongs to the batch should be in it. `IS_IDLE` in it
                says whether this rank has no data left, and repeats what it had.
            early_reorder_indicies_res_pack: The ids, see `ReorderedIds`.

        Returns:
            The row of each id that a slot had, float32 [n, dim], and the bundle.

        Raises:
            AssertionError: There is no pack.
        """
        assert early_reorder_indicies_res_pack is not None, _NEEDS_PACK
        pack = ReorderedIds(*early_reorder_indicies_res_pack)
        slots = sorted(slot_to_id)
        bundle = {
            **auxiliary_bundle,
            "offsets": pack.fused_embedding_offsets,
            "offset_sizes": pack.emb_offset_sz,
        }
        received, bundle = self.exchange_rows(
            pack.all_fids, pack.shard_sizes, pack.sharded_slot_sizes, bundle, pack.req_time
        )
        offsets = tf.split(bundle["offsets"], bundle["offset_sizes"], num=len(slots))
        gathered = distribution.fused_gather_embeddings_by_input(received, offsets, self._dims)
        bundle["num_received"] = tf.size(received)
        rank_metrics.count_ids(slots, pack.sharded_slot_sizes, self._num_ranks)
        return dict(zip(slots, gathered, strict=True)), bundle

    def exchange_rows(
        self,
        own_ids: tf.Tensor,
        shard_sizes: tf.Tensor,
        sharded_slot_sizes: tf.Tensor,
        auxiliary_bundle: Mapping[str, Any],
        req_time: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Gets the rows of distinct ids from the ranks that have them, on all ranks together.

        Args:
            own_ids: Rank by rank and there slot by slot, int64.
            shard_sizes: How many there are for each rank, int32 [N].
            sharded_slot_sizes: How many of each slot, rank by rank, int32 [N * K].
            auxiliary_bundle: As in `lookup`.
            req_time: When the batch was made, in seconds since 1970; None if nobody knows.

        Returns:
            The rows in the order of the ids, as one vector, and the bundle: where there are queues,
            those of an older batch.
        """
        size, num_slots = self._num_ranks, len(self._dims)
        is_active, sizes = self._gather_sizes(sharded_slot_sizes, auxiliary_bundle.get(IS_IDLE))
        # How many ids, and how many floats, rank i asks rank j for: [i, j].
        id_counts = tf.reduce_sum(sizes, 2)
        float_counts = tf.reduce_sum(sizes * tf.constant(self._dims), 2)
        ids, _ = collectives.alltoall(own_ids, shard_sizes, counts=id_counts)
        slot_sizes = tf.reshape(sizes[:, collectives.rank()], [size * num_slots])
        rows, row_splits, _, row_offsets, _ = self._table.fused_lookup(
            ids, slot_sizes, size, req_time
        )
        bundle: dict[str, Any] = {
            **auxiliary_bundle,
            "ids": ids,
            "slot_sizes": slot_sizes,
            "row_offsets": row_offsets,
            "row_splits": row_splits,
            "float_counts": float_counts,
        }
        if is_active is not None:
            bundle["is_active"] = is_active
        if req_time is not None:
            bundle["req_time"] = req_time
        rows, bundle = self._queues.after_lookup((rows, bundle))
        received, _ = collectives.alltoall(
            rows, bundle["row_splits"], counts=tf.transpose(bundle["float_counts"])
        )
        received, bundle = self._queues.after_exchange((received, bundle))
        for hook in self._queues.forward_hooks:
            self.add_queue_hook(hook)
        return received, bundle

    def apply_gradients(
        self,
        slot_to_grad: Mapping[str, TensorLike],
        auxiliary_bundle: Mapping[str, Any],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        scale: TensorLike = 1,
    ) -> "DistributedMultiTypeHashTableMpi":
        """Updates the rows of a lookup, each once, with the sum of its gradients of all ranks.

        What a rank sends that has no data left, and only keeps the others company, is left out.

        Args:
            slot_to_grad: The gradients of the rows that `lookup` returned.
            auxiliary_bundle: What it returned beside them.
            global_step: Int64 scalar.
            req_time: When the rows are updated; None for that of the batch.
            scale: What gradients are multiplied with.
        """
        grads = [slot_to_grad[slot] for slot in sorted(slot_to_grad)]
        offsets = tf.split(
            auxiliary_bundle["offsets"], auxiliary_bundle["offset_sizes"], num=len(grads)
        )
        flat = distribution.fused_gather_embeddings_by_input_gradient(
            auxiliary_bundle["num_received"], grads, offsets, self._dims, scale
        )
        return self.exchange_gradients(flat, auxiliary_bundle, global_step, req_time)

    def exchange_gradients(
        self,
        flat: tf.Tensor,
        auxiliary_bundle: Mapping[str, Any],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        send_late: bool = False,
    ) -> "DistributedMultiTypeHashTableMpi":
        """Updates the rows of `exchange_rows`, as `apply_gradients` does those of a lookup.

        Args:
            flat: The gradients of what `exchange_rows` returned.
            auxiliary_bundle: What it returned beside that.
            global_step: Int64 scalar.
            req_time: When the rows are updated; None for that of the batch.
            send_late: Whether gradients travel during the next step, also if no setting says so.
        """
        if send_late:
            self._queues.send_late()
        used = ("ids", "slot_sizes", "row_offsets", "float_counts", "is_active", "req_time")
        needed = {name: auxiliary_bundle[name] for name in used if name in auxiliary_bundle}
        if req_time is not None:
            needed["req_time"] = req_time
        needed["global_step"] = tf.convert_to_tensor(global_step)
        copied = copy.copy(self)
        copied._op = self._queues.before_exchange(copied._send, (flat, needed))
        return copied

    @property
    def push_hooks(self) -> list[Any]:
        """The hooks of gradients that are pushed late, once `apply_gradients` was called."""
        return self._queues.push_hooks

    def assign(self, slot_to_id_and_value: Any) -> Any:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support assign!")

    def assign_add(self, slot_to_id_and_value: Any) -> Any:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support assign_add!")

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple[Any, tf.Tensor]:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support reinitialize!")

    def as_op(self, name: str | None = None) -> Any:
        if self._op is None or tf.executing_eagerly():
            return self._table.as_op(name)
        return tf.group(self._op, name=name)

    def get_table_dim_sizes(self) -> Sequence[int]:
        return self._dims

    def _gather_sizes(
        self, own: tf.Tensor, is_idle: tf.Tensor | None
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Returns which ranks have data, and how many ids rank i asks rank j for of slot k."""
        size, num_slots = self._num_ranks, len(self._dims)
        own = tf.cast(own, tf.int32)
        if is_idle is None or size == 1:
            everything = collectives.allgather(own[tf.newaxis], same_shape=True)
            return None, tf.reshape(everything, [size, size, num_slots])
        flag = tf.reshape(tf.cast(tf.logical_not(is_idle), tf.int32), [1])
        everything = collectives.allgather(tf.concat([flag, own], 0)[tf.newaxis], same_shape=True)
        everything = tf.reshape(everything, [size, 1 + size * num_slots])
        is_active = tf.cast(everything[:, 0], tf.bool)
        return is_active, tf.reshape(everything[:, 1:], [size, size, num_slots])

    def _send(self, flat: tf.Tensor, bundle: Mapping[str, Any]) -> Any:
        """Sends the gradients to the ranks that have the rows, which update them."""
        counts = bundle["float_counts"]
        # What is pushed late is also pushed alone, before a save. TensorFlow does not see that a
        # call has collectives in it if there are only exchanges, so this one gathers counts, too.
        known = None if self._queues.sends_late else counts
        received, _ = collectives.alltoall(flat, counts[collectives.rank()], counts=known)
        return self._queues.before_update(self._update, (received, dict(bundle)))

    def _update(self, grads: tf.Tensor, bundle: Mapping[str, Any]) -> Any:
        """Updates rows of this rank, with gradients in the order of the ids that were sent to it.

        An id that several ranks have sent is there several times; an optimizer that keeps a sum of
        squares would count each of them, so they are added up first.
        """
        size, num_slots = self._num_ranks, len(self._dims)
        global_step, req_time = bundle["global_step"], bundle.get("req_time")
        ids, slot_sizes, row_offsets = (
            bundle[name] for name in ("ids", "slot_sizes", "row_offsets")
        )
        if size == 1:
            # What one rank sends is distinct already.
            self._table = self._table.fused_apply_gradient(
                ids,
                ids,
                slot_sizes,
                grads,
                _offsets(slot_sizes),
                row_offsets,
                global_step,
                req_time,
                1,
            )
            return self._table.as_op()
        # Block i of ids is that of slot i % K, sent by rank i // K.
        slot_of_id = tf.repeat(tf.tile(tf.range(num_slots), [size]), slot_sizes)
        place_in_block = tf.range(tf.size(ids)) - tf.repeat(
            tf.cumsum(slot_sizes, exclusive=True), slot_sizes
        )
        start = tf.repeat(row_offsets[: size * num_slots], slot_sizes)
        offset = start + place_in_block * tf.gather(tf.constant(self._dims), slot_of_id)
        blocks = tf.reshape(slot_sizes, [size, num_slots])
        if "is_active" in bundle:
            is_counted = tf.repeat(bundle["is_active"], tf.reduce_sum(blocks, 1))
            ids, offset, slot_of_id = (
                tf.boolean_mask(tensor, is_counted) for tensor in (ids, offset, slot_of_id)
            )
            blocks = tf.boolean_mask(blocks, bundle["is_active"])
        ids_of_slot = tf.dynamic_partition(ids, slot_of_id, num_slots)
        offsets = tf.dynamic_partition(offset, slot_of_id, num_slots)
        by_slot = distribution.fused_gather_embeddings_by_input(grads, offsets, self._dims)
        distinct, _, distinct_sizes, _, places = distribution.fused_reorder_by_indices(
            ids_of_slot, 1, self._dims
        )
        row_sizes = distinct_sizes * tf.constant(self._dims)
        summed = distribution.fused_gather_embeddings_by_input_gradient(
            tf.reduce_sum(row_sizes),
            by_slot,
            tf.split(places, tf.reduce_sum(blocks, 0), num=num_slots),
            self._dims,
        )
        self._table = self._table.fused_apply_gradient(
            distinct,
            distinct,
            distinct_sizes,
            summed,
            _offsets(distinct_sizes),
            _offsets(row_sizes),
            global_step,
            req_time,
            1,
        )
        return self._table.as_op()


def _offsets(sizes: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0], tf.cumsum(sizes)], 0)
