"""Ids of a batch, divided among servers and put together again."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.embedding.sharding.ids import IdSharder, ShardedIds, pack_ids, unpack_ids
from monolith.embedding.tables.layout import concat_1d_tensors

DIMS = [1, 3]


def make_row(table: int, id: int) -> list[float]:
    """A row that tells its table and its id."""
    return [float(100 * table + id + column / 8) for column in range(DIMS[table])]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(-20, 20), max_size=8), min_size=2, max_size=2),
    st.integers(1, 4),
)
def test_rows_come_back_to_every_occurrence_of_their_ids(ids, num_servers):
    ragged = tf.ragged.constant(ids, tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)
    sharded = ShardedIds(ragged, DIMS, num_servers)
    rows = []
    for server, part in enumerate(sharded.parts):
        on_server = part.to_list()
        # Each id goes to the server of its remainder, once.
        assert [sorted(of_table) for of_table in on_server] == [
            sorted({i for i in of_table if i % num_servers == server}) for of_table in ids
        ]
        flat = [x for table in range(2) for i in on_server[table] for x in make_row(table, i)]
        rows.append(tf.constant(flat, tf.float32))
    expected = [x for table in range(2) for i in ids[table] for x in make_row(table, i)]
    np.testing.assert_array_equal(sharded.join(rows), np.array(expected, np.float32))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(-5, 5), max_size=8), min_size=2, max_size=2),
    st.integers(1, 3),
)
def test_gradients_of_equal_ids_are_summed(ids, num_servers):
    ragged = tf.ragged.constant(ids, tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)
    sharded = ShardedIds(ragged, DIMS, num_servers, for_lookup=False)
    flat = [x for table in range(2) for i in ids[table] for x in make_row(table, i)]
    sums = sharded.sum_gradients(tf.constant(flat, tf.float32))
    for part, of_server in zip(sharded.parts, sums, strict=True):
        expected = [
            ids[table].count(i) * x
            for table, of_table in enumerate(part.to_list())
            for i in of_table
            for x in make_row(table, i)
        ]
        np.testing.assert_array_equal(of_server, np.array(expected, np.float32))


def test_gradients_that_do_not_fit_are_refused():
    ragged = concat_1d_tensors(tf.constant([4, 7], tf.int64), tf.constant([9], tf.int64))
    sharded = ShardedIds(ragged, DIMS, num_servers=2, for_lookup=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one gradient for each id"):
        sharded.sum_gradients(tf.zeros([4]))  # 2 * 1 + 1 * 3 = 5 floats.


@pytest.mark.parametrize("ids", [[[4, 7], []], [[], []], [[-1]]])
def test_packed_ids_are_unpacked(ids):
    ragged = tf.ragged.constant(ids, tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)
    assert unpack_ids(pack_ids(ragged), len(ids)).to_list() == ids


class TestIdSharder:
    @pytest.fixture
    def sharder(self):
        def make_ragged(slot_to_id):
            return concat_1d_tensors(*[tf.convert_to_tensor(ids) for ids in slot_to_id.values()])

        return IdSharder(make_ragged, [1], num_servers=2)

    @pytest.mark.usefixtures("graph_mode")
    def test_update_uses_the_ids_of_the_lookup(self, sharder):
        ids = tf.constant([1, 2], tf.int64)
        sharded = sharder.for_lookup({"item": ids})
        assert sharder.for_update({"item": ids}) is sharded

    @pytest.mark.usefixtures("graph_mode")
    def test_other_ids_are_divided_anew(self, sharder):
        sharded = sharder.for_lookup({"item": tf.constant([1, 2], tf.int64)})
        assert sharder.for_update({"item": tf.constant([1, 2], tf.int64)}) is not sharded

    @pytest.mark.usefixtures("graph_mode")
    def test_ids_of_a_branch_stay_in_it(self, sharder):
        ids = tf.constant([1, 2], tf.int64)
        inside = []

        def branch():
            inside.append(sharder.for_lookup({"item": ids}))
            return tf.constant(0)

        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.cond(tf.constant(True), branch, lambda: tf.constant(0))
        finally:
            tf.compat.v1.enable_control_flow_v2()
        assert sharder.for_update({"item": ids}) not in inside

    def test_nothing_is_kept_eagerly(self, sharder):
        ids = tf.constant([1, 2], tf.int64)
        sharded = sharder.for_lookup({"item": ids})
        assert sharder.for_update({"item": ids}) is not sharded
