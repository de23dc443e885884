"""Walking over all rows of a table."""

import threading

import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding.tables import iteration, single
from monolith.native_training import hash_table_utils
from monolith.proto import embedding_hash_table_pb2
from monolith.testing import generate_test_hash_table_config


def ids_of(rows: tf.Tensor) -> tf.Tensor:
    """The ids of serialized entries: eight bytes after the tag."""
    return tf.reshape(tf.io.decode_raw(tf.strings.substr(rows, 1, 8), tf.int64), [-1])


def test_historical_path_gives_the_same_module():
    assert hash_table_utils is iteration


def test_infer_dim_size():
    config = generate_test_hash_table_config(3)
    segments = config.table_config.entry_config.segments
    segments.append(segments[0])
    assert iteration.infer_dim_size(config) == 6
    assert iteration.infer_dim_size(config.table_config) == 6
    assert iteration.infer_dim_size(embedding_hash_table_pb2.EmbeddingHashTableConfig()) == 0


@pytest.mark.usefixtures("graph_mode")
def test_iterate_table_and_apply():
    table = single.test_hash_table(1)
    ids = tf.range(100, dtype=tf.int64)
    table = table.assign_add(ids, tf.ones([100, 1]))
    count = tf.compat.v1.get_variable("count", initializer=0, use_resource=True)

    def count_rows(rows):
        count.assign_add(tf.size(rows))

    with tf.control_dependencies([table.as_op()]):
        walk = iteration.iterate_table_and_apply(
            table, count_rows, limit=2, nshards=10, name="Walk"
        )
    assert walk.name.startswith("Walk/")
    with tf.compat.v1.Session() as session:
        session.run(count.initializer)
        assert session.run(walk) == 100
        assert session.run(count) == 100


def test_graph_made_while_eager_execution_is_on():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = single.test_hash_table(1)
        fill = table.assign_add([1, 2, 3], tf.ones([3, 1])).as_op()
        walk = iteration.iterate_table_and_apply(table, lambda rows: None)
        session.run(fill)
        assert session.run(walk) == 3


@pytest.mark.parametrize(("limit", "nshards"), [(1, 1), (1000, 4), (100, 1), (7, 200)])
def test_every_row_once(limit, nshards):
    ids = list(range(100))
    table = single.test_hash_table(1).assign(ids, [[float(i)] for i in ids])
    seen = tf.Variable([0] * 100)

    def note(rows):
        seen.scatter_nd_add(ids_of(rows)[:, tf.newaxis], tf.ones([tf.size(rows)], tf.int32))

    total = iteration.iterate_table_and_apply(table, note, limit, nshards)
    assert seen.numpy().tolist() == [1] * 100
    assert int(total) == 100


def test_rows_that_stay_are_seen_while_others_come_and_go():
    table = single.test_hash_table(1)
    table.assign(list(range(2000)), tf.ones([2000, 1]))
    stop = threading.Event()

    def write():
        next_id = 10**6
        while not stop.is_set():
            table.assign(list(range(next_id, next_id + 500)), tf.ones([500, 1]))
            next_id += 500

    stayed = tf.Variable(0)

    def count_old(rows):
        stayed.assign_add(tf.reduce_sum(tf.cast(ids_of(rows) < 2000, tf.int32)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        iteration.iterate_table_and_apply(table, count_old, limit=100, nshards=3)
    finally:
        stop.set()
        writer.join()
    assert stayed.numpy() == 2000


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"nshards": 0}, {"limit": -1}])
def test_numbers_must_be_positive(arguments):
    table = single.test_hash_table(1)
    with pytest.raises(errors.ConfigError, match="must be positive, got"):
        iteration.iterate_table_and_apply(table, lambda rows: None, **arguments)
