"""Which ids of a batch go to which server, and how what comes back is put together.

An id belongs to the server of its remainder by the number of servers. What occurs several times
in a batch is sent once, and its gradients are summed before they leave.

Example:
    >>> ids = tf.ragged.constant([[4, 7, 4], [9]], dtype=tf.int64)
    >>> sharded = ShardedIds(ids, dims=[1, 2], num_servers=2)
    >>> [part.to_list() for part in sharded.parts]
    [[[4], []], [[7], [9]]]
    >>> flat = sharded.join([tf.constant([1.0]), tf.constant([2.0, 3.0, 4.0])])
    >>> flat.numpy().tolist()  # The rows of 4, 7 and 4, then that of 9.
    [1.0, 2.0, 1.0, 3.0, 4.0]
    >>> [grad.numpy().tolist() for grad in sharded.sum_gradients(flat)]
    [[2.0], [2.0, 3.0, 4.0]]
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

import tensorflow as tf

from monolith.embedding.sharding import distribution
from monolith.embedding.tables.inputs import TensorLike


class ShardedIds:
    """The distinct ids of several tables, divided among servers.

    Args:
        ids: One row per table, int64.
        dims: The width of each table's rows.
        num_servers: How many servers there are.
        for_lookup: Whether `join` will be called; it can be once in each step.

    Attributes:
        ids: As given.
        parts: For each server its distinct ids, one row per table.
        packed: The parts as they are sent, see `pack_ids`.
        is_sent: Whether the servers get `packed` for a lookup of the same step.
    """

    def __init__(
        self,
        ids: tf.RaggedTensor,
        dims: Sequence[int],
        num_servers: int,
        for_lookup: bool = True,
    ) -> None:
        self.ids = ids
        self._dims = list(dims)
        self._unique = distribution.unique_key_with_value_and_offset(
            ids, self._dims, generate_buffer=for_lookup
        )
        distinct = self._unique.unique_key
        server_of_id = tf.math.floormod(distinct.values, tf.constant(num_servers, tf.int64))
        self.parts, self._positions = distribution.ragged_split_by_indices(
            server_of_id, distinct, num_servers
        )
        self.packed = [pack_ids(part) for part in self.parts]
        self.is_sent = for_lookup

    def join(self, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the rows of all ids as one vector, from the rows of each server's `parts`."""
        handles = [
            distribution.fill_with_offset_map(
                positions,
                rows_of_server,
                self._unique.value_offset,
                self._unique.value_buffer,
                self._dims,
            )
            for positions, rows_of_server in zip(self._positions, rows, strict=True)
        ]
        return distribution.finalize_shared_tensor(handles, tf.float32, [None])

    def sum_gradients(self, flat_grad: tf.Tensor) -> list[tf.Tensor]:
        """Returns the gradients of each server's `parts`, from those of all ids as one vector."""
        # A gradient too few or too many would move all that follow to other ids.
        expected = tf.reduce_sum(self.ids.row_lengths() * tf.constant(self._dims, tf.int64))
        expected = tf.cast(expected, tf.int32)  # Asserts about int32 are the cheap ones.
        actual = tf.size(flat_grad)
        message = "There must be one gradient for each id, as wide as its table. Floats expected:"
        check = tf.debugging.Assert(tf.equal(actual, expected), [message, expected, "got:", actual])
        with tf.control_dependencies([] if check is None else [check]):
            flat_grad = tf.identity(flat_grad)
        return [
            distribution.fill_with_offset_map_gradient(
                positions, flat_grad, self._unique.value_offset, self._dims
            )
            for positions in self._positions
        ]


class IdSharder:
    """Divides ids among servers, once for a lookup and the update of the same ids.

    In a graph the update then needs no work of its own for that, and the ids that a server got
    for the lookup are not sent to it again.

    Args:
        make_ragged: Makes ids by table a ragged tensor with one row per table.
        dims: The width of each table's rows.
        num_servers: How many servers there are.
    """

    def __init__(
        self,
        make_ragged: Callable[[Mapping[str, TensorLike]], tf.RaggedTensor],
        dims: Sequence[int],
        num_servers: int,
    ) -> None:
        self._make_ragged = make_ragged
        self._dims = dims
        self._num_servers = num_servers
        self._of_lookups: dict[Hashable, ShardedIds] = {}

    def for_lookup(self, slot_to_id: Mapping[str, TensorLike]) -> ShardedIds:
        """Returns ids for one lookup."""
        sharded = self._shard(slot_to_id, for_lookup=True)
        key = _key(slot_to_id)
        if key is not None:
            self._of_lookups[key] = sharded
        return sharded

    def for_update(self, slot_to_id: Mapping[str, TensorLike]) -> ShardedIds:
        """Returns ids, which may be those of the latest lookup."""
        known = self._of_lookups.get(_key(slot_to_id))
        return known or self._shard(slot_to_id, for_lookup=False)

    def _shard(self, slot_to_id: Mapping[str, TensorLike], for_lookup: bool) -> ShardedIds:
        ragged = self._make_ragged(slot_to_id)
        return ShardedIds(ragged, self._dims, self._num_servers, for_lookup)


def pack_ids(ids: tf.RaggedTensor, numbers: tf.Tensor | None = None) -> tf.Tensor:
    """Returns a ragged tensor as one vector, which is one message to a server instead of two.

    Args:
        ids: One row per table.
        numbers: What else is sent, int64; it stands in front.
    """
    before = [] if numbers is None else [numbers]
    return tf.concat([*before, ids.row_splits, ids.values], 0)


def unpack_ids(packed: tf.Tensor, num_rows: int) -> tf.RaggedTensor:
    """Undoes `pack_ids`."""
    return unpack_numbers_and_ids(packed, 0, num_rows)[1]


def unpack_numbers_and_ids(
    packed: tf.Tensor, num_numbers: int, num_rows: int
) -> tuple[tf.Tensor | None, tf.RaggedTensor]:
    """Undoes `pack_ids` with numbers."""
    before = [num_numbers] if num_numbers else []
    # Constants that waited for ops of the worker would have that told to the server.
    with tf.control_dependencies(None):
        sizes, axis = tf.constant([*before, num_rows + 1, -1]), tf.constant(0)
    *numbers, row_splits, values = tf.raw_ops.SplitV(
        value=packed, size_splits=sizes, axis=axis, num_split=len(before) + 2
    )
    ids = tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
    return (numbers[0] if numbers else None), ids


def _key(slot_to_id: Mapping[str, TensorLike]) -> Hashable | None:
    """Tells equal calls in one graph apart from others; None where results must not be kept."""
    if tf.executing_eagerly() or not all(tf.is_tensor(ids) for ids in slot_to_id.values()):
        return None
    graph = tf.compat.v1.get_default_graph()
    # What is computed in a branch of a conditional is out of reach outside of it.
    context = graph._get_control_flow_context()
    return graph, context, tuple((slot, slot_to_id[slot].ref()) for slot in sorted(slot_to_id))
