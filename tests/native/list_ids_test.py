"""The ids of a table, part by part."""

import numpy as np
import pytest
import tensorflow as tf
from support import multi_tables

from monolith.embedding.tables import multi, single
from monolith.native import ops

pytestmark = pytest.mark.usefixtures("graph_mode")


def list_all(session, handle, table, max_ids):
    """Returns the ids of each part."""
    parts, place = [], 0
    while place >= 0:
        listed = ops.monolith_table_list_ids(handle, np.int64(table), place, np.int64(max_ids))
        ids, place = session.run((listed.id, listed.next_place))
        parts.append(ids.tolist())
    return parts


def test_each_id_of_a_table_once():
    table = multi.MultiHashTable.from_configs(
        multi_tables.make_configs(a=1, b=2, empty=1), name_suffix="listed"
    )
    ids = np.array([*range(1000), -(2**63), 2**63 - 1])
    with tf.compat.v1.Session() as session:
        session.run(table.initializer)
        session.run(
            table.assign({"a": (ids, np.ones([len(ids), 1])), "b": ([5], [[1.0, 1.0]])}).as_op()
        )
        for max_ids in (7, 2**18):
            parts = list_all(session, table.handle, 0, max_ids)
            assert sorted(key for part in parts for key in part) == sorted(ids)
            assert max(map(len, parts)) <= max_ids
        assert list_all(session, table.handle, 1, 3) == [[5]]
        assert list_all(session, table.handle, 2, 3) == [[]]


def test_a_place_beyond_the_table_has_no_ids():
    table = single.test_hash_table(1, name_suffix="far")
    with tf.compat.v1.Session() as session:
        session.run(table.as_op())
        listed = ops.monolith_table_list_ids(table.table, np.int64(0), 2**62, np.int64(9))
        assert [value.tolist() for value in session.run(tuple(listed))] == [[], -1]


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"table": 1}, r"`table` must be in \[0, 0\], got 1"),
        ({"table": -1}, r"`table` must be in \[0, 0\], got -1"),
        ({"place": -1}, "`place` must be in"),
        ({"max_ids": 0}, r"`max_ids` must be in \[1, 262144\], got 0"),
        ({"max_ids": 2**18 + 1}, "`max_ids` must be in"),
    ],
)
def test_refusals(inputs, problem):
    table = single.test_hash_table(1, name_suffix="refusing")
    given = {"table": 0, "place": 0, "max_ids": 1, **inputs}
    listed = ops.monolith_table_list_ids(
        table.table, **{name: tf.constant(value, tf.int64) for name, value in given.items()}
    )
    with tf.compat.v1.Session() as session:
        session.run(table.as_op())
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
            session.run(listed)


def test_shapes():
    table = single.test_hash_table(1, name_suffix="shapes")
    number = tf.compat.v1.placeholder(tf.int64, None)
    listed = ops.monolith_table_list_ids(table.table, number, number, number)
    assert (listed.id.shape.as_list(), listed.next_place.shape.as_list()) == ([None], [])
    vector = tf.zeros([2], tf.int64)
    with pytest.raises(ValueError, match="must be rank 0"):
        ops.monolith_table_list_ids(table.table, vector, number, number)
