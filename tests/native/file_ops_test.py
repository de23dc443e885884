"""Files that graphs write."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from monolith.native import file_ops
from monolith.native_training import file_ops as historical_file_ops
from monolith.proto import embedding_hash_table_pb2


def read(path):
    return pathlib.Path(path).read_text()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "deep" / "down" / "part-00000")


def test_historical_path():
    assert historical_file_ops is file_ops


class WritableFileTest(tf.test.TestCase):
    def test_basic(self):
        filename = os.path.join(os.environ["TEST_TMPDIR"], "test_basic", "test_name")
        file = file_ops.WritableFile(filename)

        @tf.function
        def append():
            for _ in tf.range(1000):
                file.append("1234")

        append()
        file.close()
        self.assertEqual(read(filename), "1234" * 1000)

    def test_hook(self):
        filename = os.path.join(os.environ["TEST_TMPDIR"], "test_hook", "test_name")
        with tf.Graph().as_default():
            file = file_ops.WritableFile(filename)
            append = file.append("1234")
            hook = file_ops.FileCloseHook([file])
            with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
                session.run(append)
        self.assertEqual(read(filename), "1234")


class TestAppend:
    def test_file_is_emptied_first(self, path):
        os.makedirs(os.path.dirname(path))
        pathlib.Path(path).write_text("of an earlier run")
        file = file_ops.WritableFile(path)
        assert file.filename == path
        assert read(path) == ""
        file.append("new")
        file.close()
        assert read(path) == "new"

    def test_same_name_opens_anew(self, path):
        for content in ("first", "second"):
            file = file_ops.WritableFile(path)
            file.append(content)
            file.close()
            assert read(path) == content

    def test_file_without_a_directory(self):
        file = file_ops.WritableFile("part-00000")
        file.append("here")
        file.close()
        assert read("part-00000") == "here"

    def test_bytes_are_written_as_they_are(self, path):
        file = file_ops.WritableFile(path)
        file.append(tf.constant(b"\x00\xff\n"))
        file.append("")
        file.close()
        assert pathlib.Path(path).read_bytes() == b"\x00\xff\n"

    def test_all_runs_of_a_session_append_to_one_file(self, path):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            file = file_ops.WritableFile(path)
            content = tf.compat.v1.placeholder(tf.string, [])
            append, close = file.append(content), file.close()
            assert not os.path.exists(path)  # It is opened when the first op runs.
            for step in range(5):
                session.run(append, {content: f"{step};"})
            session.run(close)
        assert read(path) == "0;1;2;3;4;"

    def test_session_that_is_created_anew_opens_the_file_anew(self, path):
        with tf.Graph().as_default():
            file = file_ops.WritableFile(path)
            append, close = file.append("x"), file.close()
            for _ in range(2):
                with tf.compat.v1.Session() as session:
                    session.run(append)
                    session.run(close)
                assert read(path) == "x"

    def test_file_is_complete_when_a_session_ends_without_closing_it(self, path):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(file_ops.WritableFile(path).append("kept"))
        assert read(path) == "kept"

    def test_parallel_appends_do_not_mix(self, path):
        pieces = [str(i) * 1000 for i in range(10)]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            file = file_ops.WritableFile(path)
            appends = [file.append(piece) for piece in pieces]
            for _ in range(20):
                session.run(appends)
            session.run(file.close())
        content = read(path)
        found = [content[i : i + 1000] for i in range(0, len(content), 1000)]
        assert sorted(found) == sorted(pieces * 20)

    def test_content_must_be_a_scalar(self, path):
        file = file_ops.WritableFile(path)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"must be a scalar, got shape \[2"
        ):
            file.append(["a", "b"])
        with tf.Graph().as_default(), pytest.raises(ValueError, match="rank 0"):
            file_ops.WritableFile(path).append(["a", "b"])

    def test_append_after_close(self, path):
        file = file_ops.WritableFile(path)
        file.close()
        file.close()
        message = "part-00000 is closed already; append before it is closed, or open it anew"
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            file.append("late")
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            file.append_entry_dump([1], [1.0], [[1.0]])

    def test_full_disk_is_reported_with_the_name(self):
        if not os.path.exists("/dev/full"):
            pytest.skip("this system has no /dev/full")
        file = file_ops.WritableFile("/dev/full")
        with pytest.raises(tf.errors.OpError, match="/dev/full"):
            file.append("x" * (1 << 22))  # More than any buffer holds.

    def test_name_of_a_directory(self, tmp_path):
        with pytest.raises(tf.errors.OpError, match=str(tmp_path)):
            file_ops.WritableFile(str(tmp_path))

    def test_empty_name(self):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="`filename` is empty; it must name a file"
        ):
            file_ops.WritableFile("")


def read_entry_dumps(path):
    return [
        embedding_hash_table_pb2.EntryDump.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(path)
    ]


class TestEntryDump:
    def test_round_trip(self, path):
        ids = np.array([1, -1, 2**62], np.int64)
        bias = np.array([0.5, -0.25, 3.0], np.float32)
        rows = np.arange(12, dtype=np.float32).reshape(3, 4)
        file = file_ops.WritableFile(path)
        file.append_entry_dump(ids, bias, rows)
        file.append_entry_dump(ids[:1], bias[:1, np.newaxis], rows[:1])
        file.close()
        dumps = read_entry_dumps(path)
        assert [dump.id for dump in dumps] == [1, -1, 2**62, 1]
        expected = np.concatenate([bias[:, np.newaxis], rows], axis=1)
        np.testing.assert_array_equal(
            [dump.num for dump in dumps], np.concatenate([expected, expected[:1]])
        )
        assert not any(dump.HasField("opt") for dump in dumps)

    def test_no_rows(self, path):
        file = file_ops.WritableFile(path)
        file.append_entry_dump(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 4), np.float32))
        file.close()
        assert os.path.getsize(path) == 0

    @pytest.mark.parametrize(
        ("bias", "rows"),
        [
            pytest.param([1.0], [[1.0], [2.0]], id="bias_missing"),
            pytest.param([1.0, 2.0], [[1.0]], id="row_missing"),
            pytest.param([1.0, 2.0], [1.0, 2.0], id="rows_are_no_matrix"),
            pytest.param([[1.0, 2.0], [3.0, 4.0]], [[1.0], [2.0]], id="bias_is_a_matrix"),
        ],
    )
    def test_shapes_that_do_not_fit(self, path, bias, rows):
        file = file_ops.WritableFile(path)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one bias and one row"):
            file.append_entry_dump([1, 2], bias, rows)
        file.close()
        assert os.path.getsize(path) == 0


class TestFileCloseHook:
    def test_closes_all_files(self, tmp_path):
        names = [str(tmp_path / name) for name in ("a", "b")]
        with tf.Graph().as_default():
            files = [file_ops.WritableFile(name) for name in names]
            appends = [file.append(os.path.basename(file.filename)) for file in files]
            hook = file_ops.FileCloseHook(files)
            with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
                for _ in range(3):
                    session.run(appends)
        assert [read(name) for name in names] == ["aaa", "bbb"]

    @pytest.mark.parametrize("files", [None, "name", ["name"]])
    def test_only_files_can_be_closed(self, files):
        with pytest.raises(TypeError, match="must be a list of WritableFile"):
            file_ops.FileCloseHook(files)
