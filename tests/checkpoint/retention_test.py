"""Which checkpoints stay: the newest, the exempt ones, and one every few hours."""

import os
import pathlib
import time
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.eager import context

from monolith.checkpoint import state as checkpoint_state
from monolith.native_training import save_utils
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState

pytestmark = pytest.mark.usefixtures("graph_mode")

Saver = save_utils.PartialRecoverySaver
v1 = tf.compat.v1
exists = checkpoint_management.checkpoint_exists


def make_dir(name: str) -> str:
    path = os.path.join(os.environ["TEST_TMPDIR"], name)
    os.makedirs(path)
    return path


def make_variable(name: str = "v", value: float = 10.0) -> tf.Variable:
    return v1.get_variable(name, initializer=value, use_resource=True)


def open_session(**kwargs) -> v1.Session:
    """A session in which the variables of the default graph have values."""
    session = v1.Session(**kwargs)
    session.run(v1.global_variables_initializer())
    return session


def get_listed(save_dir: str) -> list[str]:
    state = tf.train.get_checkpoint_state(save_dir)
    assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1]
    return list(state.all_model_checkpoint_paths)


class MaxToKeepTest(tf.test.TestCase):
    def _exercise_three_savers(self, save_dir, save):
        """Two checkpoints are kept, by each saver according to what it knows."""

        def path(name):
            return os.path.join(save_dir, name)

        with open_session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            self.assertEqual([], save.last_checkpoints)
            s1 = save.save(session, path("s1"))
            self.assertEqual([s1], save.last_checkpoints)
            s2 = save.save(session, path("s2"))
            self.assertEqual([s1, s2], save.last_checkpoints)
            self.assertEqual([True, True], [exists(s1), exists(s2)])
            s3 = save.save(session, path("s3"))
            self.assertEqual([s2, s3], save.last_checkpoints)
            self.assertEqual([False, True, True], [exists(s1), exists(s2), exists(s3)])
            self.assertEqual(get_listed(save_dir), [s2, s3])

            # The same configuration and the same past, and the same without a past.
            save2 = Saver(saver_def=save.as_saver_def())
            save2.set_last_checkpoints_with_time([(s2, time.time()), (s3, time.time())])
            save3 = Saver(saver_def=save.as_saver_def())

            # A name that is saved again becomes the newest.
            save.save(session, path("s2"))
            self.assertEqual([s3, s2], save.last_checkpoints)
            self.assertEqual([False, True, True], [exists(s1), exists(s2), exists(s3)])
            save.save(session, path("s1"))
            self.assertEqual([s2, s1], save.last_checkpoints)
            self.assertEqual([True, True, False], [exists(s1), exists(s2), exists(s3)])

            # The second does not know that the first has deleted s3 and saved s1.
            save2.save(session, path("s2"))
            self.assertEqual([s3, s2], save2.last_checkpoints)
            self.assertEqual([True, True, False], [exists(s1), exists(s2), exists(s3)])
            save2.save(session, path("s1"))
            self.assertEqual([s2, s1], save2.last_checkpoints)
            self.assertEqual([True, True, False], [exists(s1), exists(s2), exists(s3)])

            # The third knows nothing, and deletes nothing until it has saved three.
            save3.save(session, path("s2"))
            self.assertEqual([s2], save3.last_checkpoints)
            self.assertEqual(get_listed(save_dir), [s2])
            save3.save(session, path("s3"))
            self.assertEqual([True, True, True], [exists(s1), exists(s2), exists(s3)])
            save3.save(session, path("s1"))
            self.assertEqual([s3, s1], save3.last_checkpoints)
            self.assertEqual([True, False, True], [exists(s1), exists(s2), exists(s3)])
            self.assertFalse(os.path.exists(f"{s2}.meta"))
            self.assertTrue(os.path.exists(f"{s1}.meta"))

    def testMaxToKeepEager(self):
        with context.eager_mode():
            save_dir = make_dir("max_to_keep_eager")
            v = tf.Variable(10.0, name="v")
            save = Saver({"v": v}, max_to_keep=2)
            s1 = save.save(None, os.path.join(save_dir, "s1"))
            s2 = save.save(None, os.path.join(save_dir, "s2"))
            self.assertEqual([s1, s2], save.last_checkpoints)
            s3 = save.save(None, os.path.join(save_dir, "s3"))
            self.assertEqual([s2, s3], save.last_checkpoints)
            self.assertEqual([False, True, True], [exists(s1), exists(s2), exists(s3)])
            self.assertEqual(get_listed(save_dir), [s2, s3])

            save2 = Saver({"v": v}, max_to_keep=2)
            save2.set_last_checkpoints(save.last_checkpoints)
            save.save(None, os.path.join(save_dir, "s2"))
            self.assertEqual([s3, s2], save.last_checkpoints)
            v.assign(0.0)
            save.restore(None, s2)
            self.assertEqual(v.numpy(), 10.0)

    def testNonSharded(self):
        make_variable()
        self._exercise_three_savers(make_dir("max_to_keep_non_sharded"), Saver(max_to_keep=2))

    def testSharded(self):
        save_dir = make_dir("max_to_keep_sharded")
        for i in range(2):
            with tf.device(f"/cpu:{i}"):
                make_variable(f"v{i}")
        save = Saver(sharded=True, max_to_keep=2)
        self._exercise_three_savers(save_dir, save)
        self.assertEqual(
            sorted(path.name for path in pathlib.Path(save_dir).glob("s1.data*")),
            ["s1.data-00000-of-00002", "s1.data-00001-of-00002"],
        )
        # Two of data, an index and a meta graph; the manifest has another name.
        self.assertLen(tf.io.gfile.glob(os.path.join(save_dir, "s1*")), 4)

    def testNoMaxToKeep(self):
        save_dir, save_dir2 = make_dir("no_max_to_keep"), make_dir("max_to_keep_0")
        make_variable()
        with open_session() as session:
            for directory, max_to_keep in ((save_dir, None), (save_dir2, 0)):
                save = Saver(max_to_keep=max_to_keep)
                paths = [save.save(session, os.path.join(directory, f"s{i}")) for i in range(7)]
                self.assertEqual([], save.last_checkpoints)
                self.assertTrue(all(exists(path) for path in paths))
                # The state file knows only the newest.
                self.assertEqual(get_listed(directory), paths[-1:])

    def testNoMetaGraph(self):
        save_dir = make_dir("no_meta_graph")
        make_variable()
        with open_session() as session:
            s1 = Saver().save(session, os.path.join(save_dir, "s1"), write_meta_graph=False)
        self.assertTrue(exists(s1))
        self.assertFalse(tf.io.gfile.exists(checkpoint_management.meta_graph_filename(s1)))


class RecoverLastCheckpointsTest(tf.test.TestCase):
    def test_recover_last_checkpoints(self):
        with context.eager_mode():
            save_dir = make_dir("recover_last_checkpoints")
            v = tf.Variable(10.0, name="v")
            save = Saver({"v": v}, max_to_keep=10)
            s1, s2, s3 = (save.save(None, os.path.join(save_dir, f"s{i}")) for i in (1, 2, 3))
            self.assertEqual([s1, s2, s3], save.last_checkpoints)

            # After a crash, a new saver learns of them from the state file.
            save = Saver({"v": v}, max_to_keep=10)
            self.assertEqual([], save.last_checkpoints)
            save.recover_last_checkpoints([s1, s2, s3])
            self.assertEqual([s1, s2, s3], save.last_checkpoints)

            # What is not there any more is not recovered.
            for path in tf.io.gfile.glob(f"{s1}*"):
                tf.io.gfile.remove(path)
            self.assertEqual([False, True, True], [exists(s1), exists(s2), exists(s3)])
            save = Saver({"v": v}, max_to_keep=10)
            save.recover_last_checkpoints([s1, s2, s3])
            self.assertEqual([s2, s3], save.last_checkpoints)
            s4 = save.save(None, os.path.join(save_dir, "s4"))
            self.assertEqual([s2, s3, s4], save.last_checkpoints)


class KeepCheckpointEveryNHoursTest(tf.test.TestCase):
    @mock.patch.object(save_utils, "time")
    def testNonSharded(self, mock_time):
        save_dir = make_dir("keep_checkpoint_every_n_hours")
        make_variable()
        with open_session() as session:
            start = time.time()
            mock_time.time.return_value = start
            # The last two, and one every 0.7 seconds.
            save = Saver(max_to_keep=2, keep_checkpoint_every_n_hours=0.7 / 3600)
            self.assertEqual([], save.last_checkpoints)

            mock_time.time.return_value = start + 1.0
            s1, s2 = (save.save(session, os.path.join(save_dir, name)) for name in ("s1", "s2"))
            self.assertEqual([s1, s2], save.last_checkpoints)

            # s1 leaves the list, but is the first that is older than 0.7 seconds: it is kept.
            s3 = save.save(session, os.path.join(save_dir, "s3"))
            self.assertEqual([s2, s3], save.last_checkpoints)
            self.assertTrue(exists(s1))

            # s2 is as old as s1, so the next one to keep has not come yet: it is deleted.
            s4 = save.save(session, os.path.join(save_dir, "s4"))
            self.assertEqual([s3, s4], save.last_checkpoints)
            self.assertEqual(
                [True, False, True, True], [exists(s1), exists(s2), exists(s3), exists(s4)]
            )


class TestExempt:
    def save_all(self, saver, directory, steps):
        with open_session() as session:
            for step in steps:
                saver.save(session, str(directory / "model.ckpt"), global_step=step)
        return save_utils.SaveHelper(str(directory / "model.ckpt")).get_existing_checkpoint_steps()

    def test_read_at_each_save_from_the_model_directory(self, tmp_path):
        make_variable()
        saver = Saver(max_to_keep=1, model_dir=str(tmp_path))

        def exempt(*names):
            checkpoint_state.save_monolith_checkpoint_state(
                str(tmp_path), MonolithCheckpointState(exempt_model_checkpoint_paths=names)
            )

        assert self.save_all(saver, tmp_path, [1]) == {1}
        # An operator wants to keep the first one, by its full path, while the run goes on.
        exempt(str(tmp_path / "model.ckpt-1"))
        assert self.save_all(saver, tmp_path, [2, 3]) == {1, 3}
        # The file names none: what was known stays.
        exempt()
        assert self.save_all(saver, tmp_path, [4]) == {1, 4}
        # Another one is named: the first may go.
        exempt("model.ckpt-4")
        assert self.save_all(saver, tmp_path, [5, 6]) == {4, 6}
        assert {path.name for path in tmp_path.glob("*.index")} == {
            "model.ckpt-4.index",
            "model.ckpt-6.index",
        }

    def test_unreadable_file_exempts_what_was_known(self, tmp_path):
        make_variable()
        saver = Saver(
            max_to_keep=1, model_dir=str(tmp_path), exempt_checkpoint_paths=["model.ckpt-1"]
        )
        (tmp_path / "monolith_checkpoint").write_text("exempt_model")
        assert self.save_all(saver, tmp_path, [1, 2, 3]) == {1, 3}

    def test_property(self):
        make_variable()
        saver = Saver(exempt_checkpoint_paths=["/other/model.ckpt-1", "model.ckpt-2"])
        assert saver.exempt_checkpoint_paths == {"model.ckpt-1", "model.ckpt-2"}


class TestDeletion:
    def test_tables_filters_and_counts_go_with_their_checkpoint(self, tmp_path):
        make_variable()
        saver = Saver(max_to_keep=1)
        with open_session() as session:
            for step in (1, 10):
                assets = tmp_path / f"model.ckpt-{step}.assets" / "nested"
                assets.mkdir(parents=True)
                (assets / "table-00000-of-00001").write_text("rows")
                (tmp_path / f"ckpt.info-{step}").write_text("counts")
                saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
        # model.ckpt-10 begins like model.ckpt-1 and stays.
        assert sorted(os.listdir(tmp_path)) == [
            "checkpoint",
            "ckpt.info-10",
            "manifest-model.ckpt-10",
            "model.ckpt-10.assets",
            "model.ckpt-10.data-00000-of-00001",
            "model.ckpt-10.index",
            "model.ckpt-10.meta",
        ]

    def test_directory_whose_name_looks_like_a_pattern(self, tmp_path):
        make_variable()
        directory, bystander = tmp_path / "a[bc]*", tmp_path / "ab"
        directory.mkdir()
        bystander.mkdir()
        (bystander / "m-1.index").write_text("not mine")
        saver = Saver(max_to_keep=1)
        with open_session() as session:
            for step in (1, 2):
                saver.save(session, str(directory / "m"), global_step=step)
        assert not list(directory.glob("m-1.*"))
        assert (bystander / "m-1.index").exists()

    def test_lowered_limit_frees_the_disk_at_once(self, tmp_path):
        make_variable()
        with open_session() as session:
            saver = Saver(max_to_keep=5)
            for step in range(5):
                saver.save(session, str(tmp_path / "m"), global_step=step)
            recovered = Saver(max_to_keep=2)
            recovered.recover_last_checkpoints(saver.last_checkpoints)
            recovered.save(session, str(tmp_path / "m"), global_step=5)
        assert get_listed(str(tmp_path)) == [str(tmp_path / "m-4"), str(tmp_path / "m-5")]
        assert {path.name for path in tmp_path.glob("*.index")} == {"m-4.index", "m-5.index"}

    def test_checkpoint_that_cannot_be_deleted_does_not_stop_the_run(
        self, tmp_path, monkeypatch, caplog
    ):
        def refuse(path):
            raise tf.errors.PermissionDeniedError(None, None, "read-only disk")

        monkeypatch.setattr(tf.io.gfile, "remove", refuse)
        make_variable()
        saver = Saver(max_to_keep=1)
        with open_session() as session:
            for step in (1, 2):
                saver.save(session, str(tmp_path / "m"), global_step=step)
        assert get_listed(str(tmp_path)) == [str(tmp_path / "m-2")]
        assert f"could not delete the old checkpoint {tmp_path}/m-1: read-only disk" in caplog.text

    def test_nothing_is_deleted_while_the_state_file_cannot_be_written(self, tmp_path, monkeypatch):
        make_variable()
        saver = Saver(max_to_keep=1)
        with open_session() as session:
            saver.save(session, str(tmp_path / "m"), global_step=1)

            def fail(*args, **kwargs):
                raise tf.errors.ResourceExhaustedError(None, None, "disk full")

            with monkeypatch.context() as patch:
                patch.setattr(checkpoint_state, "write_list", fail)
                with pytest.raises(tf.errors.ResourceExhaustedError):
                    saver.save(session, str(tmp_path / "m"), global_step=2)
            assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "m-1")
            saver.save(session, str(tmp_path / "m"), global_step=3)
        # The failed save has left neither files nor a trace in the list.
        assert {path.name for path in tmp_path.glob("*.index")} == {"m-3.index"}
        assert get_listed(str(tmp_path)) == [str(tmp_path / "m-3")]
