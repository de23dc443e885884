"""The touched-key set through its ops: sessions, eager, functions, threads, servers."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from monolith.embedding.tables import touched_keys
from monolith.native import ops
from monolith.native_training import touched_key_set_ops

INT64 = np.iinfo(np.int64)


def steal(session, touched):
    return sorted(session.run(touched.steal()).tolist())


@pytest.mark.usefixtures("graph_mode")
class TouchedKeySetOpsTest(tf.test.TestCase):
    def test_touched_key_set_basic(self):
        with self.session() as sess:
            touched = touched_keys.TouchedKeySet(1000, 1)
            ids = list(range(1000))
            total_dropped_num = sess.run(touched.insert(tf.constant(ids, tf.int64)))
            self.assertEqual(total_dropped_num, 0)
            self.assertAllEqual(steal(sess, touched), ids)

    def test_touched_key_set_overflow(self):
        with self.session() as sess:
            touched = touched_keys.TouchedKeySet(1000, 1)
            total_dropped_num = sess.run(touched.insert(tf.range(1005, dtype=tf.int64)))
            self.assertEqual(total_dropped_num, 1001)
            self.assertAllEqual(steal(sess, touched), [1001, 1002, 1003, 1004])

    def test_touched_key_set_duplicate_insert(self):
        with self.session() as sess:
            touched = touched_keys.TouchedKeySet(10, 1)
            insert = touched.insert(tf.constant([5, 5, 7, 5], tf.int64))
            for _ in range(20):  # 80 inserts of two keys into a set of capacity 10.
                self.assertEqual(sess.run(insert), 0)
            self.assertAllEqual(steal(sess, touched), [5, 7])


@pytest.mark.usefixtures("graph_mode")
class TestSemantics:
    def test_basic(self):
        touched = touched_keys.TouchedKeySet(1000, 1)
        insert = touched.insert(tf.range(1000, dtype=tf.int64))
        with tf.compat.v1.Session() as session:
            assert session.run(insert).tolist() == [0]
            assert steal(session, touched) == list(range(1000))
            assert steal(session, touched) == []

    def test_overflow_clear(self):
        touched = touched_keys.TouchedKeySet(1000, 1)
        insert = touched.insert(tf.range(1005, dtype=tf.int64))
        with tf.compat.v1.Session() as session:
            assert session.run(insert).tolist() == [1001]
            assert steal(session, touched) == [1001, 1002, 1003, 1004]

    def test_duplicate_inserts(self):
        touched = touched_keys.TouchedKeySet(3, 1)
        insert = touched.insert(tf.constant([1, 2, 3], tf.int64))
        with tf.compat.v1.Session() as session:
            for _ in range(10):
                assert session.run(insert).tolist() == [0]
            assert steal(session, touched) == [1, 2, 3]

    def test_thread_safety(self):
        """Every key is stolen once or counted as dropped, whatever the threads do."""
        keys_per_run, runs, threads = 1000, 20, 8
        touched = touched_keys.TouchedKeySet(10_000, 16)
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        insert, steal_op = touched.insert(ids), touched.steal()
        dropped, stolen = [], []

        with tf.compat.v1.Session() as session:

            def insert_own_keys(thread):
                for run in range(runs):
                    start = (thread * runs + run) * keys_per_run
                    keys = np.arange(start, start + keys_per_run)
                    dropped.append(int(session.run(insert, {ids: keys})[0]))

            workers = [
                threading.Thread(target=insert_own_keys, args=(thread,))
                for thread in range(threads)
            ]
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers):
                stolen.extend(session.run(steal_op).tolist())
            stolen.extend(session.run(steal_op).tolist())
        assert len(set(stolen)) == len(stolen)
        assert len(stolen) + sum(dropped) == threads * runs * keys_per_run

    def test_shapes(self):
        touched = touched_keys.TouchedKeySet(10, 1)
        inserted = touched.insert(tf.constant([[1, 2], [3, 4]], tf.int64))
        assert inserted.shape == [1]
        assert inserted.dtype == tf.int64
        assert touched.handle.shape == []
        stolen = touched.steal()
        assert stolen.shape.as_list() == [None]
        with tf.compat.v1.Session() as session:
            session.run(inserted)
            assert sorted(session.run(stolen)) == [1, 2, 3, 4]

    def test_no_ids(self):
        touched = touched_keys.TouchedKeySet(10, 1)
        with tf.compat.v1.Session() as session:
            assert session.run(touched.insert(tf.zeros([0], tf.int64))).tolist() == [0]
            assert session.run(touched.steal()).shape == (0,)

    def test_equal_inserts_and_steals_of_one_run_stay_apart(self):
        """Ops that look alike must not be merged into one."""
        touched = touched_keys.TouchedKeySet(1, 1)
        ids = tf.constant([1, 2], tf.int64)
        first = touched.insert(ids)
        with tf.control_dependencies([first]):
            second = touched.insert(ids)
        with tf.compat.v1.Session() as session:
            # Keys 1 and 2 are held; the second insert of 1 drops both.
            assert [x.tolist() for x in session.run([first, second])] == [[0], [2]]

    def test_suffix_tells_sets_apart(self):
        first = touched_keys.TouchedKeySet(10, 1, name_suffix="_a")
        second = touched_keys.TouchedKeySet(10, 1, name_suffix="_b")
        again = touched_keys.TouchedKeySet(10, 1, name_suffix="_a")
        with tf.compat.v1.Session() as session:
            session.run(first.insert([1]))
            session.run(second.insert([2]))
            assert steal(session, second) == [2]
            assert steal(session, again) == [1]

    def test_same_name_with_other_sizes_is_refused(self):
        first = touched_keys.TouchedKeySet(10, 1)
        second = touched_keys.TouchedKeySet(20, 1)
        with tf.compat.v1.Session() as session:
            session.run(first.insert([1]))
            with pytest.raises(tf.errors.InvalidArgumentError, match="exists already"):
                session.run(second.insert([1]))

    def test_lives_on_a_server(self):
        """A session of one process fills the set in a server; another session empties it."""
        server = tf.distribute.Server.create_local_server()
        with tf.device("/job:localhost/task:0"):
            touched = touched_keys.TouchedKeySet(10, 1)
        with tf.compat.v1.Session(server.target) as session:
            session.run(touched.insert([3, 4]))
        with tf.compat.v1.Session(server.target) as session:
            assert steal(session, touched) == [3, 4]


def test_historical_path_and_constants():
    assert touched_key_set_ops is touched_keys
    assert touched_keys.TOUCHED_KEY_SET_CAPACITY == 2097152
    assert touched_keys.TOUCHED_KEY_SET_CONCURRENCY_LEVEL == 1024


def test_properties_and_defaults():
    touched = touched_keys.TouchedKeySet(name_suffix="_defaults")
    assert touched.capacity == 2097152
    assert touched.concurrency_level == 1024
    assert touched.handle.dtype == tf.resource


def test_all_keys_are_legal():
    touched = touched_keys.TouchedKeySet(10, 4, name_suffix="_legal")
    keys = [INT64.min, -1, 0, 1, INT64.max]
    touched.insert(keys)
    assert sorted(touched.steal().numpy().tolist()) == keys


def test_in_a_function():
    touched = touched_keys.TouchedKeySet(10, 4, name_suffix="_function")

    @tf.function
    def insert_and_steal(ids):
        dropped = touched.insert(ids)
        return dropped, touched.steal()  # In program order, as resources demand.

    dropped, stolen = insert_and_steal(tf.constant([1, 2, 1], tf.int64))
    assert dropped.numpy().tolist() == [0]
    assert sorted(stolen.numpy().tolist()) == [1, 2]
    assert insert_and_steal(tf.constant([9], tf.int64))[1].numpy().tolist() == [9]


@pytest.mark.parametrize(
    ("capacity", "level", "message"),
    [
        pytest.param(-1, 1, "capacity", id="negative_capacity"),
        pytest.param(10, 0, "concurrency_level", id="no_concurrency"),
        pytest.param(2**32, 1, "between 0 and 4294967294, got 4294967296", id="too_large"),
        pytest.param(10, 2**30, "between 1 and 1048576, got 1073741824", id="too_concurrent"),
    ],
)
def test_bad_sizes(capacity, level, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        touched_keys.TouchedKeySet(capacity, level, name_suffix="_bad")


def test_handle_of_another_kind_is_refused():
    other = ops.monolith_dummy_hash_filter(shared_name="not_a_touched_key_set")
    with pytest.raises(tf.errors.InvalidArgumentError):
        ops.monolith_touched_key_set_insert(other, [1])


@given(
    capacity=st.integers(0, 20),
    level=st.sampled_from([1, 3, 8]),
    calls=st.lists(
        st.one_of(st.none(), st.lists(st.integers(-5, 40), max_size=30)), min_size=1, max_size=8
    ),
)
def test_agrees_with_a_python_set(capacity, level, calls):
    """`None` steals, a list is inserted."""
    touched = touched_keys.TouchedKeySet(capacity, level, name_suffix=f"_model_{capacity}_{level}")
    touched.steal()
    model = set()
    for keys in calls:
        if keys is None:
            assert sorted(touched.steal().numpy().tolist()) == sorted(model)
            model = set()
            continue
        dropped = 0
        for key in keys:
            if len(model) > capacity:
                dropped += len(model)
                model = set()
            model.add(key)
        assert touched.insert(tf.constant(keys, tf.int64)).numpy().tolist() == [dropped]
    assert sorted(touched.steal().numpy().tolist()) == sorted(model)
