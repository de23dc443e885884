"""Admission filters through their ops: what passes and what is refused."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.filters import (
    Intercepted,
    _names,
    count_rows,
    make_config,
    make_filter,
    read_split,
    restore,
    save,
)

from monolith.embedding import filters
from monolith.embedding.tables import touched_keys
from monolith.graph import export_mode
from monolith.native_training import hash_filter_ops


@pytest.mark.usefixtures("graph_mode")
class HashFilterOpsTest(tf.test.TestCase):
    def test_hash_filter_basic(self):
        hash_filter = filters.create_hash_filter(100, 7, make_config(3))
        intercepted = Intercepted(hash_filter, [1, 3 << 17, 1])
        with self.session() as sess:
            self.assertAllEqual(sess.run(intercepted.out), [[1], [1], [1]])
            self.assertEqual(intercepted.run(sess), [0, 0, 0])
            self.assertEqual(intercepted.run(sess), [0, 0, 1])
            self.assertEqual(intercepted.run(sess), [1, 0, 1])
            self.assertEqual(intercepted.run(sess), [1, 1, 1])

    def test_hash_filter_save_restore(self):
        basename = os.path.join(os.environ["TEST_TMPDIR"], "ckpt", "hash_filter")
        with self.session() as sess:
            hash_filter = filters.create_hash_filter(100, 7, make_config(3))
            intercepted = Intercepted(hash_filter, [1, 3 << 17, 1])
            self.assertEqual(intercepted.run(sess), [0, 0, 0])
            self.assertEqual(intercepted.run(sess), [0, 0, 1])
            sess.run(filters.save_hash_filter(hash_filter, basename, True).op)
        self.assertEqual(
            sorted(os.listdir(os.path.dirname(basename))),
            [f"hash_filter-0000{i}-of-00007" for i in range(7)],
        )
        with tf.Graph().as_default(), self.session() as sess:
            hash_filter = filters.create_hash_filter(100, 7, make_config(3))
            sess.run(filters.restore_hash_filter(hash_filter, basename, True).op)
            intercepted = Intercepted(hash_filter, [1, 3 << 17, 1])
            self.assertEqual(intercepted.run(sess), [1, 0, 1])
            self.assertEqual(intercepted.run(sess), [1, 1, 1])

    def test_hash_filter_save_restore_across_multiple_filters(self):
        """Three ids per split: the head moves while they are counted, and is saved with them."""
        directory = os.environ["TEST_TMPDIR"]
        basename = os.path.join(directory, "hash_filter")
        ids = [1, 1 << 17, 2 << 17, 1]
        with self.session() as sess:
            hash_filter = filters.create_hash_filter(300, 100, make_config(2))
            intercepted = Intercepted(hash_filter, ids)
            save_op = filters.save_hash_filter(hash_filter, basename, True).op
            sess.run(save_op)
            for split, (meta, cells) in enumerate(self.read_all(basename)):
                self.assertEqual(meta.total_size, 3, split)
                self.assertEqual(meta.num_elements, 0)
                self.assertEqual(meta.sliding_hash_filter_meta.head, 0)
                self.assertEqual(cells, {})
            self.assertEqual(intercepted.run(sess), [0, 0, 0, 0])
            self.assertEqual(intercepted.run(sess), [1, 0, 0, 1])
            sess.run(save_op)
        for split, (meta, cells) in enumerate(self.read_all(basename)):
            self.assertEqual(meta.num_elements, 2 if split < 4 else 0, split)
            self.assertLen(cells, meta.num_elements)
            self.assertEqual(meta.sliding_hash_filter_meta.head, 4)
            self.assertEqual(meta.sliding_hash_filter_meta.head_increment, 4)
        with tf.Graph().as_default(), self.session() as sess:
            hash_filter = filters.create_hash_filter(300, 100, make_config(2))
            sess.run(filters.restore_hash_filter(hash_filter, basename, True).op)
            intercepted = Intercepted(hash_filter, ids)
            self.assertEqual(intercepted.run(sess), [1, 1, 1, 1])
            self.assertEqual(intercepted.run(sess), [1, 1, 1, 1])

    def read_all(self, basename):
        return [read_split(basename, split, 100) for split in range(100)]

    def test_restore_not_found(self):
        hash_filter = filters.create_hash_filter(100, 7, make_config(3))
        basename = os.path.join(os.environ["TEST_TMPDIR"], "nowhere", "hash_filter")
        restore_op = filters.restore_hash_filter(hash_filter, basename, True).op
        with self.session() as sess, self.assertRaisesRegex(tf.errors.NotFoundError, basename):
            sess.run(restore_op)

    def test_dummy_hash_filter_basic(self):
        intercepted = Intercepted(filters.create_dummy_hash_filter(), [1, 1])
        with self.session() as sess:
            self.assertEqual(intercepted.run(sess), [1, 1])

    def test_probabilistic_filter_without_a_table_lets_all_pass(self):
        config = make_config(2**31)
        for equal in (False, True):
            hash_filter = filters.create_probabilistic_filter(equal, config, f"_{equal}")
            intercepted = Intercepted(hash_filter, list(range(100)))
            with self.session() as sess:
                self.assertEqual(intercepted.run(sess), [1] * 100)

    def test_ids_of_zero_threshold_are_not_counted(self):
        basename = os.path.join(os.environ["TEST_TMPDIR"], "hash_filter")
        hash_filter = filters.create_hash_filter(300, 5, make_config(2, slots={1: 0}))
        # Ten ids, five of them in slot 1.
        intercepted = Intercepted(hash_filter, [(i % 2) << 48 | i << 17 for i in range(10)])
        save_op = filters.save_hash_filter(hash_filter, basename, True).op
        with self.session() as sess:
            self.assertEqual(intercepted.run(sess), [0, 1] * 5)
            sess.run(save_op)
        self.assertEqual(read_split(basename, 0, 5)[0].num_elements, 5)

    def test_session_threads_lose_no_occurrence(self):
        """8 threads count 100 ids 5 times each: exactly `threshold` of the 40 are held back."""
        hash_filter = filters.create_hash_filter(3000, 7, make_config(13))
        ids = np.arange(100) << 17
        intercepted = Intercepted(hash_filter, ids.tolist())
        passed = []
        with self.session() as sess:

            def count():
                for _ in range(5):
                    passed.append(intercepted.run(sess))

            threads = [threading.Thread(target=count) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertAllEqual(np.sum(passed, axis=0), np.full(100, 40 - 13))

    def test_saves_while_threads_count(self):
        basename = os.path.join(os.environ["TEST_TMPDIR"], "hash_filter")
        hash_filter = filters.create_hash_filter(3000, 7, make_config(3))
        ids = tf.random.uniform([100], maxval=tf.int64.max, dtype=tf.int64)
        rows = tf.ones([100, 1])
        (gradient,) = tf.gradients(filters.intercept_gradient(hash_filter, ids, rows), rows)
        save_op = filters.save_hash_filter(hash_filter, basename, True).op
        restore_op = filters.restore_hash_filter(hash_filter, basename, True).op
        stop = threading.Event()
        with self.session() as sess:

            def count():
                while not stop.is_set():
                    sess.run(gradient.op)

            threads = [threading.Thread(target=count) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                sess.run(save_op)
                sess.run(restore_op)
            stop.set()
            for thread in threads:
                thread.join()


class TestCreate:
    def test_constants_and_historical_path(self):
        assert hash_filter_ops is filters
        assert filters.HASH_FILTER_CAPACITY == 300000000
        assert filters.HASH_FILTER_SPLIT_NUM == 7
        assert filters.FilterType.SLIDING_HASH_FILTER == "sliding_hash_filter"
        assert filters.FilterType.PROBABILISTIC_FILTER == "probabilistic_filter"
        assert filters.FilterType.NO_FILTER == "no_filter"

    @pytest.mark.parametrize(
        ("enabled", "kind", "op_type", "name"),
        [
            (True, "sliding_hash_filter", "MonolithHashFilter", "MonolithHashFilter"),
            (
                True,
                "probabilistic_filter",
                "MonolithProbabilisticFilter",
                "MonolithProbabilisticFilter",
            ),
            (True, "no_filter", "MonolithDummyHashFilter", "DummyHashFilter"),
            (False, "sliding_hash_filter", "MonolithDummyHashFilter", "DummyHashFilter"),
        ],
    )
    def test_kinds_and_names(self, graph_mode, enabled, kind, op_type, name):
        (local,) = filters.create_hash_filters(0, enabled, filter_type=kind)
        assert local.op.type == op_type
        assert local.op.get_attr("shared_name") == name.encode()
        assert local.device == ""
        assert local.shape == []
        remote = filters.create_hash_filters(2, enabled, filter_type=kind)
        for i, hash_filter in enumerate(remote):
            assert hash_filter.op.type == op_type
            assert hash_filter.op.get_attr("shared_name") == f"{name}_{i}".encode()
            assert hash_filter.device == f"/job:ps/task:{i}/device:CPU:0"

    def test_settings_reach_the_op(self, graph_mode):
        config = make_config(3)
        (sliding,) = filters.create_hash_filters(0, True, config)
        assert sliding.op.get_attr("capacity") == 300000000
        assert sliding.op.get_attr("split_num") == 7
        assert sliding.op.get_attr("config") == config
        (small,) = filters.create_hash_filters(
            0, True, config, filter_capacity=400, filter_split_num=9
        )
        assert small.op.get_attr("capacity") == 400
        assert small.op.get_attr("split_num") == 9
        (lots,) = filters.create_hash_filters(
            0, True, config, filter_equal_probability=True, filter_type="probabilistic_filter"
        )
        assert lots.op.get_attr("equal_probability")
        assert lots.op.get_attr("config") == config
        assert filters.create_dummy_hash_filter().op.get_attr("shared_name") == b"DummyHashFilter0"

    def test_exported_for_one_process_has_no_device(self, graph_mode):
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            assert [f.device for f in filters.create_hash_filters(2, True)] == ["", ""]
        with export_mode.enter_export_mode(export_mode.ExportMode.DISTRIBUTED):
            devices = [f.device for f in filters.create_hash_filters(2, True)]
        assert devices == ["/job:ps/task:0/device:CPU:0", "/job:ps/task:1/device:CPU:0"]

    @pytest.mark.parametrize("ps_num", [0, 1])
    def test_unknown_kind(self, graph_mode, ps_num):
        with pytest.raises(ValueError, match="Invalid filter type, please investigate and retry!"):
            filters.create_hash_filters(ps_num, True, filter_type="bloom")

    def test_full_size_costs_nothing_until_used(self, tmp_path):
        (hash_filter,) = filters.create_hash_filters(0, True, make_config(1))
        ids = list(range(0, 1 << 60, 1 << 50))
        count_rows(hash_filter, ids)
        save(hash_filter, tmp_path / "f")
        # Six splits are empty, the first holds a few ids: no file has 120 MB.
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 50_000_000
        restore(hash_filter, tmp_path / "f")
        assert count_rows(hash_filter, ids) == [True] * len(ids)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param({"config": b"\xff"}, "Unable to parse config. Make sure it", id="config"),
            pytest.param(
                {"config": make_config(1, {1 << 15: 2})}, "Slot 32768 is out of range", id="slot"
            ),
            pytest.param({"capacity": -1}, "capacity", id="negative_capacity"),
            pytest.param({"split_num": -1}, "split_num", id="negative_splits"),
            pytest.param({"split_num": 152}, "at most 151 splits, got split_num 152", id="splits"),
            pytest.param({"capacity": 1 << 40}, "2\\^32", id="too_large"),
        ],
    )
    def test_bad_settings(self, arguments, message):
        arguments = {"capacity": 300, "split_num": 5, **arguments}
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            filters.create_hash_filter(**arguments, name_suffix="_bad")

    def test_bad_config_text(self):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="Make sure it is serialized version of SlotOccurrenceThresholdConfig",
        ):
            filters.create_probabilistic_filter(False, b"\x0a", name_suffix="_bad")

    def test_same_name_gives_the_same_filter(self):
        first = filters.create_hash_filter(300, 5, make_config(1), "_same")
        second = filters.create_hash_filter(300, 5, make_config(1), "_same")
        assert count_rows(first, [1]) == [False]
        assert count_rows(second, [1]) == [True]

    @pytest.mark.parametrize(
        ("capacity", "split_num", "threshold"), [(400, 5, 1), (300, 6, 1), (300, 5, 2)]
    )
    def test_same_name_with_other_settings_is_refused(self, capacity, split_num, threshold):
        filters.create_hash_filter(300, 5, make_config(1), "_settings")
        with pytest.raises(tf.errors.InvalidArgumentError, match="exists already as a sliding"):
            filters.create_hash_filter(capacity, split_num, make_config(threshold), "_settings")

    def test_handle_of_another_kind_is_refused(self, tmp_path):
        other = touched_keys.TouchedKeySet(10, 1, name_suffix="_not_a_filter").handle
        with pytest.raises(tf.errors.InvalidArgumentError):
            save(other, tmp_path / "f")


class TestInterceptGradient:
    def test_in_a_function(self):
        hash_filter = make_filter(threshold=1)

        @tf.function
        def gradient(ids, rows):
            with tf.GradientTape() as tape:
                tape.watch(rows)
                loss = tf.reduce_sum(2.0 * filters.intercept_gradient(hash_filter, ids, rows))
            return tape.gradient(loss, rows)

        ids = tf.constant([5, 6, 5], tf.int64)
        rows = tf.constant([[1.0, 2.0]] * 3)
        assert gradient(ids, rows).numpy().tolist() == [[0, 0], [0, 0], [2, 2]]
        assert gradient(ids, rows).numpy().tolist() == [[2, 2]] * 3

    def test_filter_made_in_a_function(self):
        config, suffix = make_config(1), f"_test_{next(_names)}"

        @tf.function
        def gradient(rows):
            hash_filter = filters.create_hash_filter(300, 5, config, suffix)
            with tf.GradientTape() as tape:
                tape.watch(rows)
                out = filters.intercept_gradient(hash_filter, tf.constant([5], tf.int64), rows)
            return tape.gradient(out, rows)

        assert gradient(tf.ones([1, 1])).numpy().tolist() == [[0]]
        assert gradient(tf.ones([1, 1])).numpy().tolist() == [[1]]

    @pytest.mark.parametrize(
        ("ids_shape", "rows_shape"),
        [
            pytest.param([3], [3], id="one_number_per_id"),
            pytest.param([3], [3, 2], id="rows"),
            pytest.param([3], [3, 2, 2], id="matrices"),
            pytest.param([3, 2], [3, 2, 4], id="ids_of_rank_2"),
            pytest.param([3, 1], [3, 4], id="column_of_ids"),
            pytest.param([], [4], id="scalar_id"),
            pytest.param([0], [0, 4], id="no_ids"),
            pytest.param([0], [0], id="no_ids_no_width"),
            pytest.param([3], [3, 0], id="rows_of_width_0"),
        ],
    )
    def test_keeps_the_shape(self, ids_shape, rows_shape):
        hash_filter = make_filter(threshold=1)
        num_ids = int(np.prod(ids_shape, dtype=int))
        ids = tf.reshape(tf.constant(np.arange(num_ids) << 17, tf.int64), ids_shape)
        known = tf.reshape(ids, [-1])[: num_ids // 2]
        count_rows(hash_filter, known.numpy().tolist())  # These pass from now on.
        rows = tf.random.uniform(rows_shape)
        weight = tf.random.uniform(rows_shape)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            out = filters.intercept_gradient(hash_filter, ids, rows)
        np.testing.assert_array_equal(out, rows)
        gradient = tape.gradient(out, rows, output_gradients=weight)
        expected = weight.numpy().copy()
        expected.reshape([num_ids, expected.size // num_ids] if num_ids else [0, 1])[
            num_ids // 2 :
        ] = 0
        np.testing.assert_array_equal(gradient, expected)

    def test_held_back_rows_are_zero_even_if_not_finite(self):
        hash_filter = make_filter(threshold=5)
        rows = tf.ones([2, 2])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            out = filters.intercept_gradient(hash_filter, tf.constant([1, 2], tf.int64), rows)
        bad = tf.constant([[np.nan, np.inf], [-np.inf, 1]])
        assert tape.gradient(out, rows, output_gradients=bad).numpy().tolist() == [[0, 0], [0, 0]]

    def test_does_not_change_the_incoming_gradient(self):
        hash_filter = make_filter(threshold=5)
        rows, incoming = tf.ones([2, 2]), tf.ones([2, 2])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            out = filters.intercept_gradient(hash_filter, tf.constant([1, 2], tf.int64), rows)
        tape.gradient(out, rows, output_gradients=incoming)
        assert incoming.numpy().tolist() == [[1, 1], [1, 1]]

    @pytest.mark.parametrize(
        ("num_ids", "rows_shape"), [(2, [3, 4]), (3, [2, 3]), (2, []), (0, [2, 1]), (2, [0, 2])]
    )
    def test_ids_and_rows_of_different_length(self, num_ids, rows_shape):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one row of embeddings per id"):
            filters.intercept_gradient(
                make_filter(), tf.zeros([num_ids], tf.int64), tf.zeros(rows_shape)
            )

    def test_wrong_types(self):
        hash_filter = make_filter()
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
            filters.intercept_gradient(hash_filter, tf.constant([1], tf.int32), tf.ones([1, 1]))
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
            filters.intercept_gradient(
                hash_filter, tf.constant([1], tf.int64), tf.ones([1, 1], tf.float64)
            )

    def test_static_shape(self, graph_mode):
        rows = tf.compat.v1.placeholder(tf.float32, [None, 7])
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        out = filters.intercept_gradient(filters.create_dummy_hash_filter(), ids, rows)
        assert out.shape.as_list() == [None, 7]
        (gradient,) = tf.gradients(out, rows)
        assert gradient.shape.as_list() == [None, 7]

    def test_thresholds_above_15_work_as_15(self):
        hash_filter = make_filter(threshold=100)
        passed = [count_rows(hash_filter, [9])[0] for _ in range(17)]
        assert passed == [False] * 15 + [True] * 2

    def test_on_a_parameter_server(self, graph_mode):
        """The filter lives in the server and outlasts the sessions that use it."""
        server = tf.distribute.Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0)
        (hash_filter,) = filters.create_hash_filters(1, True, make_config(1), filter_capacity=300)
        intercepted = Intercepted(hash_filter, [1])
        assert intercepted.gradient.op.type == "MonolithHashFilterInterceptGradientGradient"
        with tf.compat.v1.Session(server.target) as session:
            assert intercepted.run(session) == [0]
        with tf.compat.v1.Session(server.target) as session:
            assert intercepted.run(session) == [1]
