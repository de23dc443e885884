"""State that belongs to one graph."""

import tensorflow as tf
from tensorflow.python.ops import resources
from tensorflow.python.training import moving_averages

from monolith.graph import metadata


def test_meta_is_created_once_per_graph():
    with tf.Graph().as_default() as first:
        created = metadata.get_meta("names", set)
        created.add("user")
        assert metadata.get_meta("names", set) is created
        assert metadata.get_meta("other", list) == []
    with tf.Graph().as_default():
        assert metadata.get_meta("names", set) == set()
    with first.as_default():
        assert metadata.get_meta("names", set) == {"user"}


def test_collection_holds_one_dict():
    with tf.Graph().as_default() as graph:
        names = metadata.get_meta("names", set)
        numbers = metadata.get_meta("numbers", list)
        assert graph.get_collection("monolith_graph_meta") == [{"names": names, "numbers": numbers}]


def test_factory_is_not_called_again():
    def refuse():
        raise AssertionError("called twice")

    with tf.Graph().as_default():
        metadata.get_meta("key", lambda: None)
        assert metadata.get_meta("key", refuse) is None


def test_moving_averages_become_update_ops():
    with tf.Graph().as_default() as graph:
        mean = tf.compat.v1.get_variable("mean", initializer=10.0, use_resource=True)
        moving_averages.assign_moving_average(mean, 2.0, decay=0.5, zero_debias=False)
        mean.assign_sub(1.0)  # An AssignSubVariableOp that is no moving average.
        key = tf.compat.v1.GraphKeys.UPDATE_OPS
        assert graph.get_collection(key) == []

        metadata.add_batch_norm_into_update_ops()
        metadata.add_batch_norm_into_update_ops()

        [op] = graph.get_collection(key)
        assert op.type == "AssignSubVariableOp"
        with tf.compat.v1.Session() as session:
            session.run(mean.initializer)
            session.run(op)
            # 10 - (10 - 2) * (1 - 0.5)
            assert session.run(mean) == 6.0


def test_a_meta_graph_is_written_without_a_warning_and_starts_with_nothing(caplog):
    with tf.Graph().as_default():
        metadata.get_meta("names", set).add("user")
        handle = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float32)
        resources.register_resource(handle, handle.op, tf.constant(True))
        tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)
        meta_graph = tf.compat.v1.train.export_meta_graph()
    assert not caplog.records
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(meta_graph)
        assert metadata.get_meta("names", set) == set()
