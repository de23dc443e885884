"""The step and the time of an update, on their way to parameter servers.

Example:
    >>> ids = ShardedIds(tf.ragged.constant([[4, 7]], dtype=tf.int64), [1], 1, for_lookup=False)
    >>> clock = UpdateClock(tf.constant(5), req_time=1700000000)
    >>> (message,) = clock.pack_with(ids)
    >>> message.numpy().tolist()  # The step, the time, where rows begin and end, and the ids.
    [5, 1700000000, 0, 2, 4, 7]
    >>> part, step, time = clock.unpack_here(message, num_rows=1)
    >>> part.to_list(), int(step), int(time)
    ([[4, 7]], 5, 1700000000)
"""

from typing import Any

import tensorflow as tf

from monolith.embedding.sharding.ids import ShardedIds, pack_ids, unpack_numbers_and_ids
from monolith.embedding.tables.inputs import TensorLike, to_seconds, to_step


class UpdateClock:
    """The step and the time of an update, sent to each server as one tensor.

    They travel with the ids, unless these are there already, since a lookup has sent them.

    Args:
        global_step: The step; a Python number is not sent at all.
        req_time: Seconds since 1970, or None.
    """

    def __init__(self, global_step: TensorLike, req_time: TensorLike | None) -> None:
        self._numbers = (global_step, req_time)
        self._packed = None
        self._is_with_ids = False
        if any(tf.is_tensor(n) or isinstance(n, tf.Variable) for n in self._numbers):
            self._packed = tf.stack([to_step(global_step), to_seconds(req_time)])

    def pack_with(self, sharded: ShardedIds) -> list[tf.Tensor]:
        """Returns what each server gets of the ids."""
        self._is_with_ids = self._packed is not None and not sharded.is_sent
        if not self._is_with_ids:
            return sharded.packed
        return [pack_ids(part, self._packed) for part in sharded.parts]

    def unpack_here(self, message: tf.Tensor, num_rows: int) -> tuple[tf.RaggedTensor, Any, Any]:
        """Returns the ids, the step and the time on the current device."""
        numbers, ids = unpack_numbers_and_ids(
            message, len(self._numbers) if self._is_with_ids else 0, num_rows
        )
        numbers = numbers if self._is_with_ids else self._packed
        step, time = self._numbers if numbers is None else tf.unstack(numbers, 2)
        return ids, step, time
