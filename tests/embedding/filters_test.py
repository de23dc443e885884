"""Admission filters through their ops: what passes, what is saved, what is refused."""

import itertools
import os
import pathlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from monolith.core import export_mode, restore_hook
from monolith.embedding import filters, touched_keys
from monolith.native_training import hash_filter_ops
from monolith.proto import embedding_hash_table_pb2 as pb

_names = itertools.count()


def make_config(default: int, slots: dict[int, int] | None = None) -> bytes:
    config = pb.SlotOccurrenceThresholdConfig(default_occurrence_threshold=default)
    for slot, threshold in (slots or {}).items():
        config.slot_occurrence_thresholds.add(slot=slot, occurrence_threshold=threshold)
    return config.SerializeToString()


def make_filter(threshold: int = 3, capacity: int = 300, split_num: int = 5) -> tf.Tensor:
    """Makes an eager filter that no other test knows; eager resources outlive a test."""
    return filters.create_hash_filter(
        capacity, split_num, make_config(threshold), name_suffix=f"_test_{next(_names)}"
    )


def count_rows(hash_filter: tf.Tensor, ids: list[int]) -> list[bool]:
    """Counts each id once and returns which of them passed."""
    rows = tf.ones([len(ids), 2])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        out = filters.intercept_gradient(hash_filter, tf.constant(ids, tf.int64), rows)
    gradient = tape.gradient(out, rows).numpy()
    assert ((gradient == 1).all(axis=1) | (gradient == 0).all(axis=1)).all()
    return (gradient[:, 0] == 1).tolist()


def save(hash_filter: tf.Tensor, basename: os.PathLike[str] | str) -> None:
    filters.save_hash_filter(hash_filter, os.fspath(basename), True)


def restore(hash_filter: tf.Tensor, basename: os.PathLike[str] | str) -> None:
    filters.restore_hash_filter(hash_filter, os.fspath(basename), True)


def split_path(basename: os.PathLike[str] | str, split: int, splits: int) -> pathlib.Path:
    return pathlib.Path(f"{os.fspath(basename)}-{split:05d}-of-{splits:05d}")


def read_records(path: os.PathLike[str]) -> list[bytes]:
    return list(tf.compat.v1.io.tf_record_iterator(os.fspath(path)))


def read_split(
    basename: os.PathLike[str] | str, split: int, splits: int
) -> tuple[pb.HashFilterSplitMetaDump, dict[int, int]]:
    """Reads a file with TensorFlow's and protobuf's own code: its metadata, its used cells."""
    meta, *dumps = read_records(split_path(basename, split, splits))
    cells = {}
    for dump in map(pb.HashFilterSplitDataDump.FromString, dumps):
        cells.update({dump.offset + i: cell for i, cell in enumerate(dump.data) if cell})
    return pb.HashFilterSplitMetaDump.FromString(meta), cells


class Intercepted:
    """A graph through which gradients of ones pass to the rows of `ids`, or not."""

    def __init__(self, hash_filter, ids):
        rows = tf.ones([len(ids), 1])
        out = filters.intercept_gradient(hash_filter, tf.constant(ids, tf.int64), rows)
        self.out = out
        (self.gradient,) = tf.gradients(out, rows)

    def run(self, session):
        return session.run(self.gradient)[:, 0].tolist()


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


class TestFiles:
    def test_disabled_does_nothing(self, graph_mode, tmp_path):
        hash_filter = filters.create_hash_filter(300, 5, make_config(1))
        basename = os.fspath(tmp_path / "f")
        with tf.compat.v1.Session() as session:
            for make_op in (filters.save_hash_filter, filters.restore_hash_filter):
                assert make_op(hash_filter, basename).type == "NoOp"
                session.run(make_op(hash_filter, basename))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(filters.create_dummy_hash_filter, id="dummy"),
            pytest.param(lambda: filters.create_probabilistic_filter(False), id="probabilistic"),
        ],
    )
    def test_filter_without_state_has_no_files(self, make, tmp_path):
        hash_filter = make()
        save(hash_filter, tmp_path / "f")
        assert list(tmp_path.iterdir()) == []
        restore(hash_filter, tmp_path / "f")

    def test_restored_filter_goes_on_like_the_original(self, tmp_path):
        original, copy = make_filter(), make_filter()
        rng = np.random.default_rng(1)
        pool = rng.integers(-(1 << 63), (1 << 63) - 1, 400)
        for _ in range(5):
            count_rows(original, rng.choice(pool, 200).tolist())
        count_rows(copy, [1, 2, 3])  # Replaced by the restore.
        save(original, tmp_path / "f")
        restore(copy, tmp_path / "f")
        for _ in range(5):
            ids = rng.choice(pool, 200).tolist()
            assert count_rows(copy, ids) == count_rows(original, ids)

    def test_cells_are_what_the_format_says(self, tmp_path):
        hash_filter = make_filter()  # 75 ids and 90 positions in a split.
        count_rows(hash_filter, [5, 5, (0xABC << 17) + 1])
        save(hash_filter, tmp_path / "f")
        meta, cells = read_split(tmp_path / "f", 0, 5)
        # Cell = signature << 4 | count, at the id modulo the number of positions.
        assert cells == {5: 2, ((0xABC << 17) + 1) % 90: 0xABC1}
        assert meta == pb.HashFilterSplitMetaDump(
            failure_count=0,
            total_size=75,
            num_elements=2,
            fill_rate=1.2,
            sliding_hash_filter_meta=pb.SlidingHashFilterMetaDump(
                split_num=5,
                max_forward_step=2,
                max_backward_step=3,
                max_step=16,
                head=0,
                head_increment=0,
                failure_count=0,
            ),
        )

    @pytest.mark.parametrize("cells_per_record", [154, 50, 1])
    def test_reads_files_of_other_writers(self, tmp_path, cells_per_record):
        """Files written by protobuf and TensorFlow, with all cells and whatever record size."""
        for split in range(5):
            meta = pb.HashFilterSplitMetaDump(total_size=75, fill_rate=1.2, num_elements=0)
            meta.sliding_hash_filter_meta.MergeFrom(
                pb.SlidingHashFilterMetaDump(
                    split_num=5, max_forward_step=2, max_backward_step=3, max_step=16
                )
            )
            cells = [0] * 154
            if split == 0:
                cells[7] = 2
            with tf.io.TFRecordWriter(os.fspath(split_path(tmp_path / "f", split, 5))) as writer:
                writer.write(meta.SerializeToString())
                for start in range(0, 154, cells_per_record):
                    data = cells[start : start + cells_per_record]
                    dump = pb.HashFilterSplitDataDump(offset=start, data=data)
                    writer.write(dump.SerializeToString())
        hash_filter = make_filter(threshold=2)
        restore(hash_filter, tmp_path / "f")
        assert count_rows(hash_filter, [7, 8]) == [True, False]
        save(hash_filter, tmp_path / "g")
        assert read_split(tmp_path / "g", 0, 5)[0].num_elements == 2

    def test_saving_again_replaces_the_files(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "f")
        count_rows(hash_filter, [5])
        save(hash_filter, tmp_path / "f")
        assert len(list(tmp_path.iterdir())) == 5
        assert read_split(tmp_path / "f", 0, 5)[1] == {5: 1}

    def test_another_number_of_splits_replaces_the_files(self, tmp_path):
        save(make_filter(split_num=7), tmp_path / "f")
        save(make_filter(split_num=5), tmp_path / "f")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"f-0000{i}-of-00005" for i in range(5)
        ]

    def test_where_no_directory_can_be_made(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(tf.errors.OpError, match="file"):
            save(make_filter(), tmp_path / "file" / "f")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_failed_save_leaves_no_temporary_files(self, tmp_path):
        # A directory of the final name: the rename fails after everything was written.
        in_the_way = split_path(tmp_path / "f", 4, 5)
        in_the_way.mkdir()
        (in_the_way / "child").touch()
        with pytest.raises(tf.errors.OpError):
            save(make_filter(), tmp_path / "f")
        assert [path for path in tmp_path.iterdir() if "tmp" in path.name] == []

    def test_leftovers_of_an_interrupted_save_are_passed_over(self, tmp_path):
        hash_filter = make_filter(threshold=1)
        count_rows(hash_filter, [5])
        save(hash_filter, tmp_path / "f")
        (tmp_path / "f-00000-of-00005-tmp-123").write_bytes(b"half")
        (tmp_path / "f-00000-of-00009").write_bytes(b"other")
        fresh = make_filter(threshold=1)
        restore(fresh, tmp_path / "f")
        assert count_rows(fresh, [5]) == [True]

    def test_basename_must_be_a_scalar(self, tmp_path):
        names = tf.constant([os.fspath(tmp_path / "f")])
        with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
            filters.save_hash_filter(make_filter(), names, True)

    def test_one_file_missing(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "f")
        missing = split_path(tmp_path / "f", 3, 5)
        missing.unlink()
        with pytest.raises(tf.errors.NotFoundError, match=f"lacks 1 of its 5 files.*{missing}"):
            restore(hash_filter, tmp_path / "f")

    @pytest.mark.parametrize(
        ("capacity", "split_num", "message"),
        [
            pytest.param(
                300, 7, "split_num: 5 does't match with : 7 read from hash filter checkpoint file."
            ),
            pytest.param(
                600, 5, "total_size: 75 does't match with : 150 read from hash filter checkpoint"
            ),
        ],
    )
    def test_files_of_a_filter_with_other_settings(self, tmp_path, capacity, split_num, message):
        save(make_filter(capacity=capacity, split_num=split_num), tmp_path / "f")
        hash_filter = make_filter(threshold=1)
        count_rows(hash_filter, [5])
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message) as error:
            restore(hash_filter, tmp_path / "f")
        assert os.fspath(tmp_path / "f") in str(error.value)
        assert count_rows(hash_filter, [5, 6]) == [True, False]

    def test_files_of_different_saves(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "old")
        count_rows(hash_filter, [i << 17 | i for i in range(100)])  # Moves the head.
        save(hash_filter, tmp_path / "new")
        split_path(tmp_path / "old", 2, 5).rename(split_path(tmp_path / "new", 2, 5))
        with pytest.raises(tf.errors.DataLossError, match="different saves"):
            restore(hash_filter, tmp_path / "new")

    def test_other_thresholds_are_no_obstacle(self, tmp_path):
        """Thresholds may be tuned between runs; the counts stay valid."""
        hash_filter = make_filter(threshold=5)
        count_rows(hash_filter, [5, 5])
        save(hash_filter, tmp_path / "f")
        other = make_filter(threshold=2)
        restore(other, tmp_path / "f")
        assert count_rows(other, [5]) == [True]


class TestDamagedFiles:
    """Whichever byte is wrong or missing: DataLoss that names the file, and nothing changed."""

    @pytest.fixture
    def saved(self, tmp_path):
        hash_filter = make_filter()
        count_rows(hash_filter, [(i << 17) + i for i in range(90)])
        save(hash_filter, tmp_path / "f")
        return tmp_path / "f"

    @pytest.fixture
    def live(self, tmp_path):
        """A filter with a state of its own, which must be the same at the end."""
        hash_filter = make_filter()
        count_rows(hash_filter, [i << 17 for i in range(30)])
        save(hash_filter, tmp_path / "before" / "f")
        yield hash_filter
        save(hash_filter, tmp_path / "after" / "f")
        for before in (tmp_path / "before").iterdir():
            assert (tmp_path / "after" / before.name).read_bytes() == before.read_bytes()

    def expect_data_loss(self, live, saved, path):
        with pytest.raises(tf.errors.DataLossError, match=path.name):
            restore(live, saved)

    @pytest.mark.parametrize("split", [0, 4])
    def test_every_flipped_byte(self, saved, live, split):
        path = split_path(saved, split, 5)
        good = path.read_bytes()
        assert 300 < len(good) < 1000
        for i in range(len(good)):
            path.write_bytes(good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1 :])
            self.expect_data_loss(live, saved, path)

    def test_every_truncation(self, saved, live):
        path = split_path(saved, 0, 5)
        good = path.read_bytes()
        for size in range(len(good)):
            path.write_bytes(good[:size])
            self.expect_data_loss(live, saved, path)

    @pytest.mark.parametrize("size", [1, 11, 12, 20])
    def test_bytes_behind_the_end(self, saved, live, size):
        path = split_path(saved, 1, 5)
        with path.open("ab") as file:
            file.write(bytes(size))
        self.expect_data_loss(live, saved, path)

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            pytest.param([b""], "not the metadata", id="empty_record"),
            pytest.param([b"\xff\xff"], "not the metadata", id="no_message"),
            pytest.param(["meta", b"\x0a"], "not a protobuf message", id="no_cells"),
            pytest.param(["meta"], "truncated", id="metadata_only"),
            pytest.param(["meta", "cells", "cells"], "do not fit", id="cells_twice"),
            pytest.param(["cells"], "not the metadata", id="no_metadata"),
        ],
    )
    def test_valid_records_with_wrong_content(self, saved, live, records, message):
        path = split_path(saved, 1, 5)
        meta, cells = read_records(path)
        with tf.io.TFRecordWriter(os.fspath(path)) as writer:
            for record in records:
                writer.write({"meta": meta, "cells": cells}.get(record, record))
        with pytest.raises(tf.errors.DataLossError, match=message) as error:
            restore(live, saved)
        assert path.name in str(error.value)


@pytest.mark.usefixtures("graph_mode")
class TestListeners:
    THRESHOLD = 2

    def make_session(self, model_dir, listener_class, num_filters=1, **listener_arguments):
        """Makes a session that counts id 1 in each step, with a saver or restorer listener."""
        hash_filters = [
            filters.create_hash_filter(300, 5, make_config(self.THRESHOLD), f"_{i}")
            for i in range(num_filters)
        ]
        self.gradients = [Intercepted(f, [1]).gradient for f in hash_filters]
        step = tf.compat.v1.train.get_or_create_global_step()
        self.next_step = tf.compat.v1.assign_add(step, 1)
        basename = os.path.join(model_dir, "model.ckpt")
        listener = listener_class(basename, hash_filters, **listener_arguments)
        if listener_class is filters.HashFilterCheckpointSaverListener:
            hook = tf.compat.v1.train.CheckpointSaverHook(
                model_dir, save_steps=1000, listeners=[listener]
            )
        else:
            hook = restore_hook.CheckpointRestorerHook([listener])
        return tf.compat.v1.train.SingularMonitoredSession(hooks=[hook], checkpoint_dir=model_dir)

    def save_after_counting(self, model_dir, times, **arguments):
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointSaverListener, **arguments
            ) as session,
        ):
            for _ in range(times):
                session.run(self.gradients)
            session.run(self.next_step)

    def count_after_restoring(self, model_dir, **arguments):
        """Returns for each filter whether id 1 passes at once."""
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointRestorerListener, **arguments
            ) as session,
        ):
            return [bool(g[0, 0]) for g in session.run(self.gradients)]

    def test_save_and_restore_with_a_checkpoint(self, tmp_path):
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2, num_filters=2, enable_hash_filter=True)
        assert sorted(path.name for path in (tmp_path / "model.ckpt-1.assets").iterdir()) == [
            f"hash_filter_{ps}-0000{i}-of-00005" for ps in range(2) for i in range(5)
        ]
        assert self.count_after_restoring(model_dir, num_filters=2, enable_hash_filter=True) == [
            True,
            True,
        ]
        # Without the restore they start from nothing.
        assert self.count_after_restoring(model_dir, num_filters=2) == [False, False]

    def test_counts_go_on_where_they_were(self, tmp_path):
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 1, enable_hash_filter=True)
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [False]
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointRestorerListener, enable_hash_filter=True
            ) as session,
        ):
            # One occurrence was saved; the threshold is 2.
            assert [session.run(self.gradients)[0][0, 0] for _ in range(3)] == [0, 1, 1]

    @pytest.mark.parametrize(
        "arguments",
        [{}, {"enable_hash_filter": True, "enable_save_restore": False}],
        ids=["no_filter", "no_save_restore"],
    )
    def test_disabled(self, tmp_path, arguments):
        self.save_after_counting(os.fspath(tmp_path), 5, **arguments)
        assert not (tmp_path / "model.ckpt-1.assets").exists()
        assert self.count_after_restoring(os.fspath(tmp_path), **arguments) == [False]

    def test_without_a_checkpoint(self, tmp_path):
        assert self.count_after_restoring(os.fspath(tmp_path), enable_hash_filter=True) == [False]

    def test_checkpoint_without_asset_directory(self, tmp_path):
        """Files of the days before asset directories lie beside the checkpoint itself."""
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2, enable_hash_filter=True)
        for path in (tmp_path / "model.ckpt-1.assets").iterdir():
            path.rename(tmp_path / f"model.ckpt-1{path.name}")
        (tmp_path / "model.ckpt-1.assets").rmdir()
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [True]

    def test_checkpoint_without_filters_is_refused(self, tmp_path):
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2)
        with pytest.raises(tf.errors.NotFoundError, match="hash_filter_0"):
            self.count_after_restoring(model_dir, enable_hash_filter=True)

    def test_filters_are_written_before_the_checkpoint_is_visible(self, tmp_path):
        seen = []

        class Observed(filters.HashFilterCheckpointSaverListener):
            def before_save(self, sess, global_step_value):
                super().before_save(sess, global_step_value)
                assets = tmp_path / f"model.ckpt-{global_step_value}.assets"
                seen.append((len(list(assets.iterdir())), (tmp_path / "checkpoint").exists()))

        tf.compat.v1.train.create_global_step()
        hash_filter = filters.create_hash_filter(300, 5, make_config(1))
        listener = Observed(os.fspath(tmp_path / "model.ckpt"), [hash_filter], True)
        hook = tf.compat.v1.train.CheckpointSaverHook(
            os.fspath(tmp_path), save_steps=1000, listeners=[listener]
        )
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]):
            pass
        assert seen[0] == (5, False)
