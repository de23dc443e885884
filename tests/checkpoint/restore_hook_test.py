"""The hook that tells listeners when to restore."""

import os
import pathlib

import pytest
import tensorflow as tf

from monolith.checkpoint import restore_hook, saver
from monolith.native_training import basic_restore_hook


class RecordingListener(restore_hook.CheckpointRestorerListener):
    """Notes who was called when."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def begin(self):
        self.calls.append((self.name, "begin"))

    def before_restore(self, session):
        assert isinstance(session, tf.compat.v1.Session)
        self.calls.append((self.name, "before_restore"))

    def after_restore(self, session):
        assert isinstance(session, tf.compat.v1.Session)
        self.calls.append((self.name, "after_restore"))

    def end(self, session):
        self.calls.append((self.name, "end"))


def test_historical_path():
    assert basic_restore_hook is restore_hook


@pytest.mark.usefixtures("graph_mode")
class TestHook:
    def test_restores_once_per_session_whatever_the_number_of_steps(self):
        calls = []
        hook = restore_hook.CheckpointRestorerHook([RecordingListener("a", calls)])
        step = tf.constant(0)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(5):
                session.run(step)
            assert calls == [("a", "begin"), ("a", "before_restore"), ("a", "after_restore")]
        assert calls[3:] == [("a", "end")]

    def test_all_listeners_finish_before_restore_first(self):
        calls = []
        listeners = [RecordingListener(name, calls) for name in "ab"]
        hook = restore_hook.CheckpointRestorerHook(listeners)
        tf.constant(0)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
            pass
        assert calls == [
            (name, stage)
            for stage in ("begin", "before_restore", "after_restore", "end")
            for name in "ab"
        ]

    def test_sees_restored_variables_and_runs_after_each_recovery(self):
        values = []
        variable = tf.compat.v1.get_variable("v", initializer=3)

        class ReadVariable(restore_hook.CheckpointRestorerListener):
            def before_restore(self, session):
                values.append(int(session.run(variable)))

        hook = restore_hook.CheckpointRestorerHook([ReadVariable()])
        fail = [True]

        class FailOnce(tf.compat.v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                if fail.pop() if fail else False:
                    raise tf.errors.AbortedError(None, None, "lost a server")

        with tf.compat.v1.train.MonitoredSession(hooks=[hook, FailOnce()]) as session:
            session.run(variable)
        assert values == [3, 3]

    def test_without_listeners(self):
        step = tf.constant(7)
        hook = restore_hook.CheckpointRestorerHook()
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert session.run(step) == 7

    def test_base_listener_does_nothing(self):
        hook = restore_hook.CheckpointRestorerHook([restore_hook.CheckpointRestorerListener()])
        step = tf.constant(7)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert session.run(step) == 7


class AssetListener(restore_hook.AssetRestorerListener):
    """Notes which checkpoint it gets."""

    def __init__(self, model_dir):
        super().__init__(os.path.join(model_dir, "model.ckpt"))
        self.prefixes = []

    def restore(self, session, prefix):
        self.prefixes.append(prefix)


@pytest.mark.usefixtures("graph_mode")
class TestChoice:
    """Which checkpoint listeners restore from, when the disk has several."""

    @pytest.fixture
    def saver(self):
        tf.compat.v1.train.get_or_create_global_step()
        return saver.PartialRecoverySaver(sharded=True)

    def save(self, saver, session, model_dir, step, assets=True):
        session.run(tf.compat.v1.global_variables_initializer())
        directory = pathlib.Path(f"{model_dir}/model.ckpt-{step}.assets")
        directory.parent.mkdir(exist_ok=True)
        if assets:
            directory.mkdir()
            (directory / "t-00000-of-00001").write_text("ab")
        return saver.save(session, f"{model_dir}/model.ckpt", global_step=step)

    def test_it_is_the_one_that_the_session_was_restored_from(self, saver, tmp_path):
        listeners = [AssetListener(str(tmp_path)) for _ in range(2)]
        hook = restore_hook.CheckpointRestorerHook(listeners)
        with tf.compat.v1.Session() as session:
            first = self.save(saver, session, tmp_path, 1)
        creator = tf.compat.v1.train.ChiefSessionCreator(
            tf.compat.v1.train.Scaffold(saver=saver), checkpoint_filename_with_path=first
        )
        with tf.compat.v1.Session() as session:
            second = self.save(saver, session, tmp_path, 2)
        assert tf.train.latest_checkpoint(str(tmp_path)) == second
        with tf.compat.v1.train.MonitoredSession(creator, [hook]):
            assert [listener.prefixes for listener in listeners] == [[first], [first]]

    def test_the_disk_is_asked_once_where_nobody_knows(self, saver, tmp_path):
        class Saving(AssetListener):
            def restore(listener, session, prefix):
                super().restore(session, prefix)
                self.save(saver, session, tmp_path, 2)

        # As a save of another process would, between one listener and the next.
        listeners = [Saving(str(tmp_path)), AssetListener(str(tmp_path))]
        with tf.compat.v1.Session() as session:
            first = self.save(saver, session, tmp_path, 1)
            hook = restore_hook.CheckpointRestorerHook(listeners)
            hook.after_create_session(session, None)
            assert [listener.prefixes for listener in listeners] == [[first], [first]]
        # A later session asks again.
        with tf.compat.v1.Session() as session:
            restore_hook.CheckpointRestorerHook(listeners[1:]).after_create_session(session, None)
        assert listeners[1].prefixes == [first, str(tmp_path / "model.ckpt-2")]

    @pytest.mark.parametrize("assets", [False, True])
    def test_variables_alone_go_with_the_latest_tables(self, saver, tmp_path, assets):
        listener = AssetListener(str(tmp_path))
        with tf.compat.v1.Session() as session:
            own = self.save(saver, session, tmp_path, 3)
            elsewhere = self.save(saver, session, tmp_path / "elsewhere", 4, assets)
            saver.restore(session, elsewhere)
            assert restore_hook.get_restored(session) == elsewhere
            restore_hook.CheckpointRestorerHook([listener]).after_create_session(session, None)
        assert listener.prefixes == [elsewhere if assets else own]

    def test_no_checkpoint(self, tmp_path):
        listener = AssetListener(str(tmp_path))
        with tf.compat.v1.Session() as session:
            restore_hook.CheckpointRestorerHook([listener]).after_create_session(session, None)
            listener.before_restore(session)
        assert listener.prefixes == [None, None]

    def test_listener_alone_takes_the_latest(self, saver, tmp_path):
        listener = AssetListener(str(tmp_path))
        with tf.compat.v1.Session() as session:
            self.save(saver, session, tmp_path, 1)
            second = self.save(saver, session, tmp_path, 2)
            listener.before_restore(session)
        assert listener.prefixes == [second]

    @pytest.mark.parametrize("alone", [False, True])
    def test_files_that_were_not_saved_like_this_are_refused(self, saver, tmp_path, alone):
        listener = AssetListener(str(tmp_path))
        hook = restore_hook.CheckpointRestorerHook([listener])

        def restore(session):
            if alone:
                listener.before_restore(session)
            else:
                hook.after_create_session(session, None)

        with tf.compat.v1.Session() as session:
            self.save(saver, session, tmp_path, 1)
            (tmp_path / "model.ckpt-1.assets" / "t-00000-of-00001").write_text("abc")
            with pytest.raises(tf.errors.DataLossError, match="t-00000-of-00001 is damaged"):
                restore(session)
        assert listener.prefixes == []
