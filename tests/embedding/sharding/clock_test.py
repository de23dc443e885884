"""The step and the time of an update travel with the ids, or alone if the ids are there already."""

import tensorflow as tf

from monolith.embedding.sharding.clock import UpdateClock
from monolith.embedding.sharding.ids import ShardedIds


def _shard(for_lookup):
    ids = tf.ragged.constant([[4, 7, 4], [9]], dtype=tf.int64)
    return ShardedIds(ids, dims=[1, 1], num_servers=2, for_lookup=for_lookup)


def test_rides_with_ids_that_only_the_update_sends():
    clock = UpdateClock(tf.constant(3), req_time=tf.constant(11))
    messages = clock.pack_with(_shard(for_lookup=False))
    # Step and time, three row splits for two tables, then the even ids, or the odd ones.
    assert [message.numpy().tolist() for message in messages] == [
        [3, 11, 0, 1, 1, 4],
        [3, 11, 0, 1, 2, 7, 9],
    ]
    for message, expected in zip(messages, ([[4], []], [[7], [9]]), strict=True):
        ids, step, time = clock.unpack_here(message, num_rows=2)
        assert (ids.to_list(), int(step), int(time)) == (expected, 3, 11)


def test_travels_alone_if_a_lookup_has_sent_the_ids():
    sharded = _shard(for_lookup=True)
    clock = UpdateClock(tf.constant(3), req_time=None)
    messages = clock.pack_with(sharded)
    assert all(message is packed for message, packed in zip(messages, sharded.packed, strict=True))
    ids, step, time = clock.unpack_here(messages[1], num_rows=2)
    assert (ids.to_list(), int(step), int(time)) == ([[7], [9]], 3, 0)


def test_does_not_send_python_numbers():
    clock = UpdateClock(7, req_time=None)
    sharded = _shard(for_lookup=False)
    messages = clock.pack_with(sharded)
    assert messages is sharded.packed
    ids, step, time = clock.unpack_here(messages[0], num_rows=2)
    assert (ids.to_list(), step, time) == ([[4], []], 7, None)
