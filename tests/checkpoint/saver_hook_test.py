"""When a run saves, who is told, and what happens when it fails."""

import os
import pathlib
import threading

import pytest
import tensorflow as tf

from monolith.checkpoint import state as checkpoint_state
from monolith.core import metrics
from monolith.native_training import save_utils
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState

pytestmark = pytest.mark.usefixtures("graph_mode")

Hook = save_utils.NoFirstSaveCheckpointSaverHook
v1 = tf.compat.v1


def make_step():
    return v1.assign_add(v1.train.get_or_create_global_step(), 1)


def open_session(*hooks):
    return v1.train.MonitoredSession(hooks=hooks)


def get_saved_steps(model_dir):
    return sorted(
        save_utils.SaveHelper.get_global_step_value(path.stem)
        for path in pathlib.Path(model_dir).glob("model.ckpt-*.index")
    )


class Recorder(v1.train.CheckpointSaverListener):
    """Writes down what it is told, and fails as often as it should."""

    def __init__(self, name, calls, num_failures=0, error=None):
        self.name = name
        self.calls = calls
        self.num_failures = num_failures
        self.error = error or tf.errors.InternalError(None, None, "cannot save")

    def begin(self):
        self.calls.append(f"{self.name} begin")

    def before_save(self, session, global_step_value):
        self.calls.append(f"{self.name} before {global_step_value}")
        if self.num_failures:
            self.num_failures -= 1
            raise self.error

    def after_save(self, session, global_step_value):
        self.calls.append(f"{self.name} after {global_step_value}")

    def end(self, session, global_step_value):
        self.calls.append(f"{self.name} end {global_step_value}")


class SaverHookTest(tf.test.TestCase):
    def get_model_dir(self, name):
        return os.path.join(os.environ["TEST_TMPDIR"], name)

    def test_basic(self):
        model_dir = self.get_model_dir("test_basic")
        step = make_step()
        with open_session(Hook(model_dir, save_secs=1000)) as session:
            session.run(step)
            self.assertEmpty(tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-*")))
        self.assertEmpty(tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-0.*")))
        self.assertNotEmpty(tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-1.*")))

    def test_op_error(self):
        model_dir = self.get_model_dir("test_op_error")
        step = make_step()
        calls = []
        hook = Hook(
            model_dir,
            save_steps=1,
            ignore_save_errors=True,
            listeners=[Recorder("listener", calls, num_failures=2)],
            guard_saver_listeners=[Recorder("guard", calls)],
        )
        with open_session(hook) as session:
            session.run(step)
            self.assertEqual(
                calls[2:],
                ["guard before 1", "listener before 1", "listener before 1", "guard after 1"],
            )
        self.assertEqual(get_saved_steps(model_dir), [])

    def test_trigger_save(self):
        model_dir = self.get_model_dir("test_trigger_save")
        step = make_step()
        hook = Hook(model_dir, save_secs=1000)
        with open_session(hook) as session:
            session.run(step)
            self.assertEmpty(tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-1.*")))
            hook.trigger_save(session)
            self.assertNotEmpty(tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-1.*")))


class TestWhen:
    def test_every_steps_and_at_the_end(self, tmp_path):
        step = make_step()
        with open_session(Hook(str(tmp_path), save_steps=2)) as session:
            for _ in range(5):
                session.run(step)
        assert get_saved_steps(tmp_path) == [2, 4, 5]

    def test_nothing_was_trained(self, tmp_path):
        make_step()
        with open_session(Hook(str(tmp_path), save_steps=1)):
            pass
        assert get_saved_steps(tmp_path) == []
        assert sorted(
            path.name for path in tmp_path.iterdir() if not path.name.startswith("events")
        ) == ["graph.pbtxt", "meta_graph_for_debugging.pb", "monolith_checkpoint"]

    def test_first_save_if_wanted(self, tmp_path):
        make_step()
        with open_session(Hook(str(tmp_path), save_steps=1, no_first_save=False)):
            pass
        assert get_saved_steps(tmp_path) == [0]

    def test_session_that_replaces_a_lost_one_does_not_save_either(self, tmp_path):
        class FailOnce(v1.train.SessionRunHook):
            failed = False

            def after_run(self, run_context, run_values):
                if not self.failed:
                    self.failed = True
                    raise tf.errors.AbortedError(None, None, "lost a server")

        step = make_step()
        hook, failing = Hook(str(tmp_path), save_secs=1000), FailOnce()
        with open_session(hook, failing) as session:
            session.run(step)
            assert failing.failed
            assert get_saved_steps(tmp_path) == []
        assert get_saved_steps(tmp_path) == [1]

    def test_trigger_restarts_the_timer(self, tmp_path):
        step = make_step()
        hook = Hook(str(tmp_path), save_steps=3)
        with open_session(hook) as session:
            for _ in range(2):
                session.run(step)
            hook.trigger_save(session._tf_sess())
            for _ in range(2):
                session.run(step)
            assert get_saved_steps(tmp_path) == [2]
            session.run(step)
            assert get_saved_steps(tmp_path) == [2, 5]

    def test_trigger_from_another_thread_waits_for_a_save_under_way(self, tmp_path):
        calls = []
        saving, may_go_on = threading.Event(), threading.Event()

        class Slow(v1.train.CheckpointSaverListener):
            def before_save(self, session, global_step_value):
                calls.append("start")
                saving.set()
                assert may_go_on.wait(60)

            def after_save(self, session, global_step_value):
                calls.append("end")

        step = make_step()
        hook = Hook(str(tmp_path), save_secs=1000, listeners=[Slow()])
        with open_session(hook) as session:
            session.run(step)
            raw = session._tf_sess()
            threads = [threading.Thread(target=hook.trigger_save, args=(raw,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            assert saving.wait(60)
            may_go_on.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert calls == ["start", "end", "start", "end"]

    def test_disabled_timer(self, tmp_path):
        step = make_step()
        hook = Hook(str(tmp_path), save_steps=1)
        with open_session(hook) as session:
            hook.timer.disable()
            session.run(step)
            assert get_saved_steps(tmp_path) == []
            hook.timer.enable()
            session.run(step)
            assert get_saved_steps(tmp_path) == [2]


class TestListeners:
    def test_order(self, tmp_path):
        step = make_step()
        calls = []
        hook = Hook(
            str(tmp_path),
            save_steps=1,
            listeners=[Recorder("a", calls), Recorder("b", calls)],
            guard_saver_listeners=[Recorder("outer", calls), Recorder("inner", calls)],
        )
        with open_session(hook) as session:
            session.run(step)
        assert calls == [
            "a begin",
            "b begin",
            "outer begin",
            "inner begin",
            "outer before 1",
            "inner before 1",
            "a before 1",
            "b before 1",
            "a after 1",
            "b after 1",
            "inner after 1",
            "outer after 1",
            "a end 1",
            "b end 1",
            "outer end 1",
            "inner end 1",
        ]

    def test_listener_may_stop_the_run(self, tmp_path):
        class Stop(v1.train.CheckpointSaverListener):
            def after_save(self, session, global_step_value):
                return global_step_value == 2

        step = make_step()
        with open_session(Hook(str(tmp_path), save_steps=1, listeners=[Stop()])) as session:
            session.run(step)
            assert not session.should_stop()
            session.run(step)
            assert session.should_stop()

    def test_error_of_a_guard_is_logged_and_the_save_goes_on(self, tmp_path, caplog):
        step = make_step()
        calls = []
        guard = Recorder("guard", calls, num_failures=1, error=RuntimeError("no barrier"))
        hook = Hook(str(tmp_path), save_steps=1, guard_saver_listeners=[guard])
        with open_session(hook) as session:
            session.run(step)
            assert get_saved_steps(tmp_path) == [1]
        assert calls == ["guard begin", "guard before 1", "guard after 1", "guard end 1"]
        assert "no barrier" in caplog.text


class TestErrors:
    def test_second_attempt_succeeds(self, tmp_path, caplog):
        step = make_step()
        calls = []
        hook = Hook(str(tmp_path), save_steps=1, listeners=[Recorder("a", calls, num_failures=1)])
        with open_session(hook) as session:
            session.run(step)
        assert calls == ["a begin", "a before 1", "a before 1", "a after 1", "a end 1"]
        assert get_saved_steps(tmp_path) == [1]
        assert "saving step 1 failed, attempt 1 of 2" in caplog.text

    def test_two_failures_end_the_run_unless_ignored(self, tmp_path):
        step = make_step()
        calls = []
        hook = Hook(str(tmp_path), save_steps=1, listeners=[Recorder("a", calls, num_failures=2)])

        def train():
            with open_session(hook) as session:
                session.run(step)

        with pytest.raises(tf.errors.InternalError, match="cannot save"):
            train()

    def test_ignored_failure_is_made_up_for_by_the_next_save(self, tmp_path):
        step = make_step()
        listener = Recorder("a", [], num_failures=2)
        hook = Hook(str(tmp_path), save_steps=1, listeners=[listener], ignore_save_errors=True)
        with open_session(hook) as session:
            session.run(step)
            assert get_saved_steps(tmp_path) == []
            session.run(step)
            assert get_saved_steps(tmp_path) == [2]

    def test_what_is_no_error_of_an_op_is_not_tried_again(self, tmp_path):
        step = make_step()
        calls = []
        listener = Recorder("a", calls, num_failures=1, error=ValueError("bug"))
        guard = Recorder("guard", calls)
        hook = Hook(
            str(tmp_path),
            save_steps=1,
            listeners=[listener],
            guard_saver_listeners=[guard],
            ignore_save_errors=True,
        )

        def train():
            with open_session(hook) as session:
                session.run(step)

        with pytest.raises(ValueError, match="bug"):
            train()
        assert calls[2:] == ["guard before 1", "a before 1", "guard after 1"]

    @pytest.mark.parametrize("ignore_save_errors", [False, True])
    def test_trigger_tells_who_asked_whatever_the_run_ignores(self, tmp_path, ignore_save_errors):
        step = make_step()
        listener = Recorder("a", [])
        hook = Hook(
            str(tmp_path),
            save_secs=1000,
            listeners=[listener],
            ignore_save_errors=ignore_save_errors,
        )
        with open_session(hook) as session:
            session.run(step)
            listener.num_failures = 2
            with pytest.raises(tf.errors.InternalError):
                hook.trigger_save(session._tf_sess())
            listener.num_failures = 2
            hook.trigger_save(session._tf_sess(), ignore_save_errors=True)
            assert get_saved_steps(tmp_path) == []
            hook.trigger_save(session._tf_sess())
            assert get_saved_steps(tmp_path) == [1]

    def test_saver_and_scaffold(self, tmp_path):
        make_step()
        with pytest.raises(ValueError, match="both saver and scaffold"):
            Hook(str(tmp_path), save_secs=1, saver=v1.train.Saver(), scaffold=v1.train.Scaffold())


class TestDenseOnly:
    def test_saves_a_step_once_and_not_at_the_end(self, tmp_path):
        step = make_step()
        hook = Hook(str(tmp_path), save_steps=2, is_dense_only=True)
        with open_session(hook) as session:
            for _ in range(2):
                session.run(step)
            index = tmp_path / "model.ckpt-2.index"
            written = index.stat().st_mtime_ns
            hook.trigger_save(session._tf_sess())
            assert index.stat().st_mtime_ns == written
            session.run(step)
        assert get_saved_steps(tmp_path) == [2]

    def test_full_save_at_the_same_step_does_not_replace_it(self, tmp_path):
        step = make_step()
        saver = v1.train.Saver()
        full = Hook(str(tmp_path / "full"), save_steps=1, saver=saver)
        dense = Hook(str(tmp_path / "dense"), save_steps=1, saver=saver, is_dense_only=True)
        with open_session(full, dense) as session:
            session.run(step)
        assert get_saved_steps(tmp_path / "full") == [1]
        assert get_saved_steps(tmp_path / "dense") == [1]

    @pytest.mark.parametrize("flag", ["_has_dense_only", "_in_model_dump_mode"])
    def test_last_full_save_is_made_in_any_case(self, tmp_path, monkeypatch, flag):
        monkeypatch.setattr(Hook, flag, True)
        step = make_step()
        calls = []
        hook = Hook(str(tmp_path), save_steps=1, listeners=[Recorder("a", calls)])
        with open_session(hook) as session:
            session.run(step)
        # Without the flag the save of step 1 would do.
        assert calls.count("a before 1") == 2
        assert calls[-1] == "a end 1"


class TestStateFile:
    @pytest.mark.parametrize(
        ("multi", "table_type"),
        [
            (False, MonolithCheckpointState.CUCKOO_HASH_MAP),
            (True, MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP),
        ],
    )
    def test_created_with_the_session_and_updated_by_each_save(self, tmp_path, multi, table_type):
        step = make_step()
        hook = Hook(str(tmp_path), save_steps=1, use_native_multi_hash_table=multi)
        with open_session(hook) as session:
            state = save_utils.get_monolith_checkpoint_state(str(tmp_path))
            assert state.builtin_hash_table_type == table_type
            assert not state.HasField("last_checkpoint_save_timestamp")
            session.run(step)
            state = save_utils.get_monolith_checkpoint_state(str(tmp_path))
            saved_at = os.stat(tmp_path / "model.ckpt-1.index").st_mtime
            assert abs(state.last_checkpoint_save_timestamp - saved_at) < 60

    def test_what_was_there_stays(self, tmp_path):
        before = MonolithCheckpointState(
            exempt_model_checkpoint_paths=["model.ckpt-0"],
            builtin_hash_table_type=MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP,
        )
        checkpoint_state.save_monolith_checkpoint_state(str(tmp_path), before)
        step = make_step()
        with open_session(Hook(str(tmp_path), save_steps=1)) as session:
            session.run(step)
        after = save_utils.get_monolith_checkpoint_state(str(tmp_path))
        assert after.last_checkpoint_save_timestamp > 0
        after.ClearField("last_checkpoint_save_timestamp")
        assert after == before

    def test_file_with_a_slip_of_the_pen_is_not_overwritten(self, tmp_path, caplog):
        text = 'exempt_model_checkpoint_paths "model.ckpt-0'
        (tmp_path / "monolith_checkpoint").write_text(text)
        step = make_step()
        with open_session(Hook(str(tmp_path), save_steps=1)) as session:
            session.run(step)
        assert (tmp_path / "monolith_checkpoint").read_text() == text
        assert "cannot be read and is left as it is; repair or remove it" in caplog.text
        assert get_saved_steps(tmp_path) == [1]

    def test_process_that_does_not_write_the_graph_does_not_write_it(self, tmp_path):
        step = make_step()
        with open_session(Hook(str(tmp_path), save_steps=1, save_graph_def=False)) as session:
            session.run(step)
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("events")}
        assert names == {"checkpoint", "model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index"}


def test_meta_graph_for_debugging(tmp_path):
    step = make_step()
    with open_session(Hook(str(tmp_path), save_steps=1)) as session:
        session.run(step)
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(str(tmp_path / "meta_graph_for_debugging.pb"))
        assert graph.get_operation_by_name("global_step")


def test_metrics(tmp_path):
    emitted = []

    class Sink:
        def emit(self, kind, name, value, tags):
            emitted.append((kind, name, value if kind == "counter" else None, dict(tags)))
            assert kind == "counter" or 0 < value < 60

        def flush(self):
            pass

    step = make_step()
    listener = Recorder("a", [], num_failures=1)
    metrics.set_sink(Sink())
    try:
        with open_session(Hook(str(tmp_path), save_steps=1, listeners=[listener])) as session:
            session.run(step)
    finally:
        metrics.set_sink(None)
    full = {"mode": "full"}
    prefix = "monolith.training.save_checkpoint"
    assert emitted == [
        ("counter", prefix, 1, full),
        ("counter", f"{prefix}_failed", 1, full),
        ("counter", prefix, 1, full),
        ("timer", f"{prefix}_time", None, full),
    ]
