"""Tables that the ranks of a synchronous job share: each has the rows of its own ids.

In a step, every rank sends ids to the ranks that have their rows and gets the rows back; later the
gradients go the same way. Each direction is one exchange for all tables, beside one of how many
ids there are of each. A rank adds up what several ranks send for one id and updates its row once,
so that ranks which divide a batch train as one process does with all of it.

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

from monolith import errors
from monolith.embedding.sharding import distribution
from monolith.embedding.tables.inputs import TensorLike, to_ids
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import collectives

_NEEDS_PACK = (
    "The ids must come ordered by rank, as `early_reorder_indicies_res_pack`; support for "
    "reorder_fids_in_data_pipeline=False was dropped."
)


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


class DistributedMultiTypeHashTableMpi(BaseMultiTypeHashTable):
    """The tables of all slots, of which each rank has a part.

    Args:
        shard_num: Number of ranks.
        table_factory: Makes the part of a rank: a table with `fused_lookup`.
        queue_configs: Depths of the queues between the parts of a step; must be 0.

    Raises:
        AssertionError: There are not so many ranks.
        ConfigError: A queue is asked for.
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
        for name, depth in (queue_configs or {}).items():
            if depth:
                raise errors.ConfigError(
                    f"`{name}` is {depth}, which asks for a queue between the parts of a step; "
                    "this version of Monolith has none there, leave it at 0."
                )
        self._num_ranks = shard_num
        self._table = table_factory(collectives.rank())
        self._dims = [int(dim) for dim in self._table.get_table_dim_sizes()]

    def reorder(
        self, slot_to_id: Mapping[str, TensorLike], req_time: tf.Tensor | None = None
    ) -> ReorderedIds:
        """Returns the pack for `lookup`; input pipelines may make it ahead of time."""
        ids = [tf.reshape(to_ids(slot_to_id[slot]), [-1]) for slot in sorted(slot_to_id)]
        reordered = distribution.fused_reorder_by_indices(ids, self._num_ranks, self._dims)
        return ReorderedIds(*reordered, req_time)

    def lookup(  # type: ignore[override]  # The pack is what ids are here.
        self,
        slot_to_id: Mapping[str, TensorLike | None],
        auxiliary_bundle: dict[str, tf.Tensor],
        early_reorder_indicies_res_pack: Sequence[Any] | None = None,
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Looks up the rows of all ids, on all ranks together.

        Args:
            slot_to_id: Only its slots count; the ids are in the pack.
            auxiliary_bundle: What `apply_gradients` needs of a lookup is added to it.
            early_reorder_indicies_res_pack: The ids, see `ReorderedIds`.

        Returns:
            The row of each id that a slot had, float32 [n, dim], and the bundle.

        Raises:
            AssertionError: There is no pack.
        """
        assert early_reorder_indicies_res_pack is not None, _NEEDS_PACK
        pack = ReorderedIds(*early_reorder_indicies_res_pack)
        slots = sorted(slot_to_id)
        size, num_slots = self._num_ranks, len(slots)
        ids, _ = collectives.alltoall(pack.all_fids, pack.shard_sizes)
        slot_sizes = collectives.alltoall(pack.sharded_slot_sizes)
        rows, row_splits, _, row_offsets, _ = self._table.fused_lookup(
            ids, slot_sizes, size, pack.req_time
        )
        received, _ = collectives.alltoall(rows, row_splits)
        offsets = tf.split(pack.fused_embedding_offsets, pack.emb_offset_sz, num=num_slots)
        gathered = distribution.fused_gather_embeddings_by_input(received, offsets, self._dims)
        sent_splits = tf.linalg.matvec(
            tf.reshape(pack.sharded_slot_sizes, [size, num_slots]), tf.constant(self._dims)
        )
        bundle = {
            **auxiliary_bundle,
            "ids": ids,
            "slot_sizes": slot_sizes,
            "row_offsets": row_offsets,
            "num_received": tf.size(received),
            "sent_splits": sent_splits,
            "offsets": pack.fused_embedding_offsets,
            "offset_sizes": pack.emb_offset_sz,
        }
        if pack.req_time is not None:
            bundle["req_time"] = pack.req_time
        return dict(zip(slots, gathered, strict=True)), bundle

    def apply_gradients(
        self,
        slot_to_grad: Mapping[str, TensorLike],
        auxiliary_bundle: Mapping[str, tf.Tensor],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        scale: TensorLike = 1,
    ) -> "DistributedMultiTypeHashTableMpi":
        """Updates the rows of a lookup, each once, with the sum of its gradients of all ranks.

        Args:
            slot_to_grad: The gradients of the rows that `lookup` returned.
            auxiliary_bundle: What it returned beside them.
            global_step: Int64 scalar.
            req_time: When the rows are updated; None for that of the batch.
            scale: What gradients are multiplied with.
        """
        bundle = auxiliary_bundle
        grads = [slot_to_grad[slot] for slot in sorted(slot_to_grad)]
        offsets = tf.split(bundle["offsets"], bundle["offset_sizes"], num=len(grads))
        flat = distribution.fused_gather_embeddings_by_input_gradient(
            bundle["num_received"], grads, offsets, self._dims, scale
        )
        received, _ = collectives.alltoall(flat, bundle["sent_splits"])
        copied = copy.copy(self)
        copied._table = self._update(
            received, bundle, global_step, bundle.get("req_time") if req_time is None else req_time
        )
        return copied

    def assign(self, slot_to_id_and_value: Any) -> Any:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support assign!")

    def assign_add(self, slot_to_id_and_value: Any) -> Any:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support assign_add!")

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple[Any, tf.Tensor]:
        raise NotImplementedError("DistributedMultiTypeHashTableMpi dost not support reinitialize!")

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name)

    def get_table_dim_sizes(self) -> Sequence[int]:
        return self._dims

    def _update(
        self,
        grads: tf.Tensor,
        bundle: Mapping[str, tf.Tensor],
        global_step: TensorLike,
        req_time: TensorLike | None,
    ) -> Any:
        """Updates rows of this rank, with gradients in the order of the ids that were sent to it.

        An id that several ranks have sent is there several times; an optimizer that keeps a sum of
        squares would count each of them, so they are added up first.
        """
        size, num_slots = self._num_ranks, len(self._dims)
        blocks = tf.reshape(bundle["slot_sizes"], [size, num_slots])
        # Block i of ids is that of slot i % K, sent by rank i // K.
        slot_of_id = tf.repeat(tf.tile(tf.range(num_slots), [size]), bundle["slot_sizes"])
        first_of_block = tf.cumsum(bundle["slot_sizes"], exclusive=True)
        place_in_block = tf.range(tf.size(bundle["ids"])) - tf.repeat(
            first_of_block, bundle["slot_sizes"]
        )
        start = tf.repeat(bundle["row_offsets"][: size * num_slots], bundle["slot_sizes"])
        offset = start + place_in_block * tf.gather(tf.constant(self._dims), slot_of_id)
        ids = tf.dynamic_partition(bundle["ids"], slot_of_id, num_slots)
        offsets = tf.dynamic_partition(offset, slot_of_id, num_slots)
        by_slot = distribution.fused_gather_embeddings_by_input(grads, offsets, self._dims)
        distinct, _, slot_sizes, _, places = distribution.fused_reorder_by_indices(
            ids, 1, self._dims
        )
        row_sizes = slot_sizes * tf.constant(self._dims)
        summed = distribution.fused_gather_embeddings_by_input_gradient(
            tf.reduce_sum(row_sizes),
            by_slot,
            tf.split(places, tf.reduce_sum(blocks, 0), num=num_slots),
            self._dims,
        )
        return self._table.fused_apply_gradient(
            distinct,
            distinct,
            slot_sizes,
            summed,
            _offsets(slot_sizes),
            _offsets(row_sizes),
            global_step,
            req_time,
            1,
        )


def _offsets(sizes: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0], tf.cumsum(sizes)], 0)
