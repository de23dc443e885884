"""Starting from a chosen checkpoint: the patched reader and the copied state."""

import contextlib
import logging
import os
import pathlib
import threading

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from google.protobuf import text_format
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.training import checkpoint_management as old_checkpoint_management
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

import monolith.training.runner  # noqa: F401 - defines the flags
from monolith import errors
from monolith.checkpoint import state as checkpoint_state
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState
from monolith.training import restore_override

FLAGS = flags.FLAGS

_PATCHED_MODULES = (
    checkpoint_management,
    old_checkpoint_management,
    tf.train,
    tf.compat.v1.train,
)


@pytest.fixture(autouse=True)
def _unpatched_process(monkeypatch):
    """Every test starts with TensorFlow's own functions and leaves the process as it found it."""
    current = checkpoint_management.get_checkpoint_state
    original = getattr(current, restore_override._ORIGINAL, current)
    for module in _PATCHED_MODULES:
        monkeypatch.setattr(module, "get_checkpoint_state", original)
    monkeypatch.setattr(os.path, "isabs", restore_override._ORIGINAL_ISABS)


@pytest.fixture
def sleeps():
    return []


@pytest.fixture
def get_state(sleeps):
    """The patched reader, which waits without waiting."""
    return restore_override.gen_get_checkpoint_state(sleep=sleeps.append)


@contextlib.contextmanager
def flags_in_state(is_parsed, **values):
    """Flags with these values, parsed or not, whatever other tests have done to them."""
    was_parsed = FLAGS.is_parsed()
    with flagsaver.flagsaver(**values):
        (FLAGS.mark_as_parsed if is_parsed else FLAGS.unparse_flags)()
        try:
            yield
        finally:
            (FLAGS.mark_as_parsed if was_parsed else FLAGS.unparse_flags)()


def parsed_flags(**values):
    return flags_in_state(True, **values)


def write_checkpoint_file(directory, newest, paths):
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    state = CheckpointState(model_checkpoint_path=newest, all_model_checkpoint_paths=paths)
    (pathlib.Path(directory) / "checkpoint").write_text(text_format.MessageToString(state))


def read_raw(directory):
    text = (pathlib.Path(directory) / "checkpoint").read_text()
    return text_format.Parse(text, CheckpointState())


# isabs.


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hdfs:/a", True),
        ("hdfs://cluster/a", True),
        (pathlib.PurePosixPath("hdfs://cluster/a"), True),
        ("/a", True),
        (pathlib.PurePosixPath("/a"), True),
        (b"/a", True),
        ("a", False),
        (b"hdfs:/a", False),
        ("hdfs", False),
        ("", False),
    ],
)
def test_isabs(path, expected):
    assert restore_override.isabs(path) is expected


# Installing.


def test_installing_twice_is_installing_once():
    original = checkpoint_management.get_checkpoint_state
    restore_override.install_process_patches()
    first = [module.get_checkpoint_state for module in _PATCHED_MODULES]
    assert os.path.isabs is restore_override.isabs
    assert len(set(first)) == 1
    assert first[0] is not original
    restore_override.install_process_patches()
    assert [module.get_checkpoint_state for module in _PATCHED_MODULES] == first
    # Nor does wrapping a wrapped function make it retry 5 times 5 times.
    again = restore_override.gen_get_checkpoint_state()
    assert getattr(again, restore_override._ORIGINAL) is original
    assert os.path.isabs("/a")
    assert not os.path.isabs("a")


def test_latest_checkpoint_of_tensorflow_goes_through_the_patch(tmp_path):
    write_checkpoint_file(tmp_path, "hdfs://c/model.ckpt-1", ["hdfs://c/model.ckpt-1"])
    assert tf.train.get_checkpoint_state(str(tmp_path)).model_checkpoint_path == str(
        tmp_path / "hdfs://c/model.ckpt-1"
    ).replace("hdfs:/c", "hdfs://c")
    restore_override.install_process_patches()
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == "hdfs://c/model.ckpt-1"


# Reading with patience.


def test_no_file_is_none_at_once(tmp_path, get_state, sleeps):
    assert get_state(str(tmp_path)) is None
    assert get_state(tmp_path, latest_filename="other") is None
    assert sleeps == []


@pytest.mark.parametrize(
    "content", [b"", b'model_checkpoint_path: "mod', b"\xff\xfe\x00", b"all_is_lost"]
)
def test_unreadable_file_is_read_again_and_then_an_error(tmp_path, get_state, sleeps, content):
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(errors.MonolithError, match=r"^read ckpt error! .*is not a checkpoint"):
        get_state(str(tmp_path))
    assert sleeps == [1] * 5


def test_half_written_file_that_gets_whole(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "mod')
    sleeps = []

    def finish_writing(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 5:
            write_checkpoint_file(tmp_path, "model.ckpt-1", ["model.ckpt-1"])

    get_state = restore_override.gen_get_checkpoint_state(sleep=finish_writing)
    assert get_state(str(tmp_path)).model_checkpoint_path == str(tmp_path / "model.ckpt-1")
    assert len(sleeps) == 5


def test_file_that_vanishes_is_none(tmp_path):
    (tmp_path / "checkpoint").write_text("")
    get_state = restore_override.gen_get_checkpoint_state(
        sleep=lambda _: (tmp_path / "checkpoint").unlink()
    )
    assert get_state(str(tmp_path)) is None


# Going back to an older checkpoint of the same model.


@pytest.fixture
def model_dir(tmp_path):
    """A model with the checkpoints 10, 20 and 30, given by relative paths."""
    directory = tmp_path / "model"
    names = [f"model.ckpt-{step}" for step in (10, 20, 30)]
    write_checkpoint_file(directory, names[-1], names)
    return directory


def test_unparsed_flags_change_nothing(model_dir, get_state, caplog):
    with flags_in_state(False, restore_ckpt="model.ckpt-10"):
        state = get_state(str(model_dir))
    assert state.model_checkpoint_path == str(model_dir / "model.ckpt-30")
    assert os.listdir(model_dir) == ["checkpoint"]
    assert not caplog.records


@pytest.mark.parametrize("restore_ckpt", ["model.ckpt-10", "/some/where/model.ckpt-10"])
def test_training_goes_back_once(model_dir, get_state, restore_ckpt):
    before = read_raw(model_dir)
    with parsed_flags(restore_ckpt=restore_ckpt, mode="train"):
        state = get_state(str(model_dir))
        assert state.model_checkpoint_path == str(model_dir / "model.ckpt-10")
        assert len(state.all_model_checkpoint_paths) == 3
        assert (model_dir / "restore_ckpt").read_text() == str(model_dir / "model.ckpt-10")
        # The file still has relative paths, and nothing else of it changed.
        after = read_raw(model_dir)
        assert after.model_checkpoint_path == "model.ckpt-10"
        assert after.all_model_checkpoint_paths == before.all_model_checkpoint_paths

        # The training has gone on to step 40 and restarts with the same command line.
        write_checkpoint_file(model_dir, "model.ckpt-40", ["model.ckpt-10", "model.ckpt-40"])
        state = get_state(str(model_dir))
        assert state.model_checkpoint_path == str(model_dir / "model.ckpt-40")


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_other_modes_leave_the_disk_alone(model_dir, get_state, mode):
    (model_dir / "restore_ckpt").write_text("somewhere")  # Only a training cares for the marker.
    before = read_raw(model_dir)
    with parsed_flags(restore_ckpt="model.ckpt-10", mode=mode):
        for _ in range(2):
            state = get_state(str(model_dir))
            assert state.model_checkpoint_path == str(model_dir / "model.ckpt-10")
    assert read_raw(model_dir) == before
    assert (model_dir / "restore_ckpt").read_text() == "somewhere"


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_unknown_checkpoint_is_a_warning(model_dir, get_state, caplog, mode):
    with parsed_flags(restore_ckpt="model.ckpt-11", mode=mode):
        state = get_state(str(model_dir))
    assert state.model_checkpoint_path == str(model_dir / "model.ckpt-30")
    assert os.listdir(model_dir) == ["checkpoint"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "model.ckpt-11" in caplog.text


def test_newest_checkpoint_is_a_warning_and_counts_as_done(model_dir, get_state, caplog):
    with parsed_flags(restore_ckpt="model.ckpt-30", mode="train"):
        state = get_state(str(model_dir))
        assert state.model_checkpoint_path == str(model_dir / "model.ckpt-30")
        assert "is the newest checkpoint anyway" in caplog.text
        # Otherwise a restart at step 40 would go back to 30 and lose ten steps.
        assert (model_dir / "restore_ckpt").exists()


def test_other_state_files_are_left_alone(model_dir, get_state):
    (model_dir / "checkpoint").rename(model_dir / "checkpoint_input_worker_1")
    with parsed_flags(restore_ckpt="model.ckpt-10", mode="train"):
        state = get_state(str(model_dir), "checkpoint_input_worker_1")
    assert state.model_checkpoint_path == str(model_dir / "model.ckpt-30")


def test_failure_to_apply_is_logged_and_the_state_still_there(model_dir, get_state, caplog):
    with (
        parsed_flags(restore_ckpt="model.ckpt-10", mode="train"),
        pytest.MonkeyPatch.context() as p,
    ):

        def fail(path, content):
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")

        p.setattr(restore_override, "_write_atomically", fail)
        state = get_state(str(model_dir))
    assert state.model_checkpoint_path == str(model_dir / "model.ckpt-30")
    assert "disk full" in caplog.text
    assert "Traceback" in caplog.text


def test_crash_between_the_two_writes_repeats_the_restore(model_dir, get_state, monkeypatch):
    write = restore_override._write_atomically

    def crash_at_marker(path, content):
        if path.endswith("restore_ckpt"):
            raise KeyboardInterrupt
        write(path, content)

    with parsed_flags(restore_ckpt="model.ckpt-10", mode="train"):
        monkeypatch.setattr(restore_override, "_write_atomically", crash_at_marker)
        with pytest.raises(KeyboardInterrupt):
            get_state(str(model_dir))
        monkeypatch.setattr(restore_override, "_write_atomically", write)
        state = get_state(str(model_dir))
    assert state.model_checkpoint_path == str(model_dir / "model.ckpt-10")
    assert (model_dir / "restore_ckpt").exists()


def test_threads_do_not_disturb_each_other(model_dir, get_state):
    results = []
    with parsed_flags(restore_ckpt="model.ckpt-10", mode="train"):
        threads = [
            threading.Thread(target=lambda: results.append(get_state(str(model_dir))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {state.model_checkpoint_path for state in results} == {str(model_dir / "model.ckpt-10")}


# Of one job, whatever the flags of the process say.


@pytest.fixture
def saved_dir(model_dir):
    """The same model, as far as the files tell whether a checkpoint exists."""
    for step in (10, 20, 30):
        (model_dir / f"model.ckpt-{step}.index").touch()
    return model_dir


@pytest.fixture(params=[False, True], ids=["unparsed", "parsed"])
def _flags(request):
    with flags_in_state(request.param, mode="train"):
        yield


def go_back(model_dir, restore_ckpt):
    restore_override.go_back(str(model_dir), restore_ckpt)
    return os.path.basename(tf.train.latest_checkpoint(str(model_dir)))


@pytest.mark.usefixtures("_flags")
class TestGoBack:
    @pytest.mark.parametrize("restore_ckpt", ["model.ckpt-10", "/some/where/model.ckpt-10"])
    def test_once(self, saved_dir, restore_ckpt):
        before = read_raw(saved_dir)
        assert go_back(saved_dir, restore_ckpt) == "model.ckpt-10"
        after = read_raw(saved_dir)
        assert after.model_checkpoint_path == "model.ckpt-10"
        assert after.all_model_checkpoint_paths == before.all_model_checkpoint_paths
        # The training has gone on, and the job starts again.
        write_checkpoint_file(saved_dir, "model.ckpt-30", ["model.ckpt-10", "model.ckpt-30"])
        assert go_back(saved_dir, restore_ckpt) == "model.ckpt-30"

    def test_to_yet_another_one(self, saved_dir):
        assert go_back(saved_dir, "model.ckpt-20") == "model.ckpt-20"
        assert go_back(saved_dir, "model.ckpt-10") == "model.ckpt-10"
        assert (saved_dir / "restore_ckpt").read_text() == str(saved_dir / "model.ckpt-10")

    def test_the_newest_counts_as_done(self, saved_dir):
        assert go_back(saved_dir, "model.ckpt-30") == "model.ckpt-30"
        write_checkpoint_file(saved_dir, "model.ckpt-40", ["model.ckpt-30", "model.ckpt-40"])
        (saved_dir / "model.ckpt-40.index").touch()
        assert go_back(saved_dir, "model.ckpt-30") == "model.ckpt-40"

    def test_to_one_that_is_no_longer_listed(self, saved_dir):
        write_checkpoint_file(saved_dir, "model.ckpt-30", ["model.ckpt-30"])
        assert go_back(saved_dir, "model.ckpt-10") == "model.ckpt-10"

    def test_a_crash_before_the_marker_repeats_it(self, saved_dir, monkeypatch):
        write = restore_override._write_atomically

        def crash_at_marker(path, content):
            if path.endswith("restore_ckpt"):
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(restore_override, "_write_atomically", crash_at_marker)
        with pytest.raises(KeyboardInterrupt):
            go_back(saved_dir, "model.ckpt-10")
        monkeypatch.setattr(restore_override, "_write_atomically", write)
        assert go_back(saved_dir, "model.ckpt-10") == "model.ckpt-10"
        assert (saved_dir / "restore_ckpt").exists()

    @pytest.mark.parametrize("act", [restore_override.go_back, restore_override.find_checkpoint])
    def test_refused(self, tmp_path, saved_dir, act):
        (saved_dir / "model.ckpt-20.index").unlink()
        for name in ("model.ckpt-11", "model.ckpt-20"):
            with pytest.raises(
                errors.ConfigError, match=rf"'{name}', which is not in .*model.ckpt-30"
            ):
                act(str(saved_dir), name)
        with pytest.raises(errors.ConfigError, match=r"there is no checkpoint in .*; leave"):
            act(str(tmp_path / "empty"), "model.ckpt-10")
        assert not (saved_dir / "restore_ckpt").exists()
        assert read_raw(saved_dir).model_checkpoint_path == "model.ckpt-30"

    def test_who_does_not_train_leaves_the_disk_alone(self, saved_dir):
        before = sorted(os.listdir(saved_dir)), read_raw(saved_dir)
        for _ in range(2):
            path = restore_override.find_checkpoint(str(saved_dir), "elsewhere/model.ckpt-10")
            assert path == str(saved_dir / "model.ckpt-10")
        assert (sorted(os.listdir(saved_dir)), read_raw(saved_dir)) == before


def test_flags_of_a_historical_program_do_not_count_for_one_job(saved_dir):
    restore_override.install_process_patches()
    with parsed_flags(restore_ckpt="model.ckpt-20", mode="eval"):
        path = restore_override.find_checkpoint(str(saved_dir), "model.ckpt-10")
        assert path == str(saved_dir / "model.ckpt-10")
        restore_override.go_back(str(saved_dir), "model.ckpt-10")
    assert read_raw(saved_dir).model_checkpoint_path == "model.ckpt-10"


def train(model_dir, until_step):
    """Trains a real model, one checkpoint every ten steps; returns where it had started."""
    started = []

    class RememberStart(tf.compat.v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            started.append(int(session.run(tf.compat.v1.train.get_global_step())))

    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        train_op = tf.compat.v1.assign_add(step, 1)
        saver = tf.compat.v1.train.Saver(max_to_keep=100)
        scaffold = tf.compat.v1.train.Scaffold(saver=saver)
        hooks = [
            RememberStart(),
            tf.compat.v1.train.StopAtStepHook(last_step=until_step),
            tf.compat.v1.train.CheckpointSaverHook(
                str(model_dir), save_steps=10, scaffold=scaffold
            ),
        ]
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(model_dir), scaffold=scaffold, hooks=hooks, save_checkpoint_secs=None
        ) as sess:
            while not sess.should_stop():
                sess.run(train_op)
    return started[0]


def test_a_real_training_goes_back_and_then_on(tmp_path):
    model_dir = tmp_path / "model"
    restore_override.install_process_patches()
    assert train(model_dir, until_step=31) == 0
    older = os.path.basename(read_raw(model_dir).all_model_checkpoint_paths[1])
    step = int(older.rpartition("-")[2])
    assert 0 < step < 31
    with parsed_flags(restore_ckpt=older, mode="train"):
        assert train(model_dir, until_step=step + 3) == step
        assert train(model_dir, until_step=step + 7) == step + 3


def test_training_goes_back_to_a_checkpoint_that_is_no_longer_listed(tmp_path, caplog):
    model_dir = tmp_path / "model"
    restore_override.install_process_patches()
    train(model_dir, until_step=31)
    state = read_raw(model_dir)
    unlisted = state.all_model_checkpoint_paths.pop(1)
    assert unlisted != state.model_checkpoint_path
    (model_dir / "checkpoint").write_text(text_format.MessageToString(state))
    with parsed_flags(restore_ckpt=os.path.basename(unlisted), mode="train"):
        assert train(model_dir, until_step=32) == int(unlisted.rpartition("-")[2])
    assert "exists but is not listed" in caplog.text


# Starting from another model.


@pytest.fixture
def restore_dir(tmp_path):
    """Another model, whose checkpoint file has absolute paths."""
    directory = tmp_path / "restore"
    paths = [str(directory / f"model.ckpt-{step}") for step in (10, 20, 30)]
    write_checkpoint_file(directory, paths[-1], paths)
    return directory


def copy(restore_dir, restore_ckpt, model_dir):
    restore_override.copy_checkpoint_state(str(restore_dir), restore_ckpt, str(model_dir))


def test_new_model_starts_from_the_chosen_checkpoint(tmp_path, restore_dir):
    model_dir = tmp_path / "deep" / "new"
    copy(restore_dir, "model.ckpt-20", model_dir)
    chosen = str(restore_dir / "model.ckpt-20")
    assert read_raw(model_dir) == CheckpointState(
        model_checkpoint_path=chosen, all_model_checkpoint_paths=[chosen]
    )
    assert (model_dir / "restore_ckpt").read_text() == chosen
    state = checkpoint_state.get_monolith_checkpoint_state(str(model_dir))
    assert state == MonolithCheckpointState(exempt_model_checkpoint_paths=[chosen])
    assert os.listdir(restore_dir) == ["checkpoint"]


@pytest.mark.parametrize("restore_ckpt", [None, "", "model.ckpt-21"])
def test_new_model_starts_from_the_newest_checkpoint(tmp_path, restore_dir, caplog, restore_ckpt):
    copy(restore_dir, restore_ckpt, tmp_path / "new")
    assert read_raw(tmp_path / "new").model_checkpoint_path == str(restore_dir / "model.ckpt-30")
    assert ("model.ckpt-21 is not one of the checkpoints" in caplog.text) is bool(restore_ckpt)


def test_model_with_a_checkpoint_of_its_own_is_left_alone(tmp_path, restore_dir):
    model_dir = tmp_path / "new"
    write_checkpoint_file(model_dir, "model.ckpt-5", ["model.ckpt-5"])
    copy(restore_dir, "model.ckpt-20", model_dir)
    assert read_raw(model_dir).model_checkpoint_path == "model.ckpt-5"
    assert os.listdir(model_dir) == ["checkpoint"]


def test_restore_dir_without_a_checkpoint_is_a_warning(tmp_path, caplog):
    copy(tmp_path / "nothing", None, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert f"restore_dir {tmp_path / 'nothing'} has no checkpoint file" in caplog.text


def test_unreadable_restore_dir_is_an_error_not_a_fresh_start(tmp_path, monkeypatch):
    monkeypatch.setattr(restore_override.time, "sleep", lambda _: None)
    (tmp_path / "checkpoint").write_text("model_checkpoint_path: ")
    with pytest.raises(errors.MonolithError, match="read ckpt error!"):
        copy(tmp_path, None, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_relative_restore_dir_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint_file("other", "model.ckpt-1", ["model.ckpt-1"])
    copy("other", None, "new")
    assert read_raw("new").model_checkpoint_path == str(tmp_path / "other" / "model.ckpt-1")


def test_paths_on_hdfs_stay_as_they_are(tmp_path):
    restore_override.install_process_patches()
    path = "hdfs://cluster/model/model.ckpt-1"
    write_checkpoint_file(tmp_path / "other", path, [path])
    copy(tmp_path / "other", None, tmp_path / "new")
    assert read_raw(tmp_path / "new").model_checkpoint_path == path


def test_existing_monolith_checkpoint_is_merged(tmp_path, restore_dir):
    model_dir = tmp_path / "new"
    model_dir.mkdir()
    existing = MonolithCheckpointState(
        exempt_model_checkpoint_paths=["model.ckpt-1"], last_checkpoint_save_timestamp=7
    )
    checkpoint_state.save_monolith_checkpoint_state(str(model_dir), existing)
    copy(restore_dir, None, model_dir)
    existing.exempt_model_checkpoint_paths.append(str(restore_dir / "model.ckpt-30"))
    assert checkpoint_state.get_monolith_checkpoint_state(str(model_dir)) == existing


def test_kind_of_table_is_taken_over(tmp_path, restore_dir):
    kind = MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP
    checkpoint_state.save_monolith_checkpoint_state(
        str(restore_dir),
        MonolithCheckpointState(
            exempt_model_checkpoint_paths=["theirs"], builtin_hash_table_type=kind
        ),
    )
    copy(restore_dir, None, tmp_path / "new")
    state = checkpoint_state.get_monolith_checkpoint_state(str(tmp_path / "new"))
    assert state.builtin_hash_table_type == kind
    assert list(state.exempt_model_checkpoint_paths) == [str(restore_dir / "model.ckpt-30")]


@pytest.mark.parametrize("file_name", ["restore_ckpt", "checkpoint"])
def test_crash_while_copying_is_repaired_by_the_next_start(
    tmp_path, restore_dir, monkeypatch, file_name
):
    model_dir = tmp_path / "new"
    write = restore_override._write_atomically

    def crash(path, content):
        if os.path.basename(path) == file_name:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(restore_override, "_write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        copy(restore_dir, None, model_dir)
    assert not (model_dir / "checkpoint").exists()
    monkeypatch.setattr(restore_override, "_write_atomically", write)
    copy(restore_dir, None, model_dir)
    path = str(restore_dir / "model.ckpt-30")
    assert read_raw(model_dir).model_checkpoint_path == path
    assert (model_dir / "restore_ckpt").exists()
    state = checkpoint_state.get_monolith_checkpoint_state(str(model_dir))
    assert list(state.exempt_model_checkpoint_paths) == [path]


def test_others_wait_for_the_chief_and_say_so(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 3:
            (tmp_path / "monolith_checkpoint").write_text("")

    restore_override.wait_for_checkpoint_state(str(tmp_path), sleep)
    assert sleeps == [30, 30, 30]
    path = tmp_path / "monolith_checkpoint"
    assert caplog.text.count(f"Waiting for the chief to write {path}.") == 1


def test_others_do_not_start_between_the_two_writes_of_the_chief(tmp_path, restore_dir):
    model_dir = tmp_path / "new"
    model_dir.mkdir()
    exempt = MonolithCheckpointState(exempt_model_checkpoint_paths=["model.ckpt-30"])
    checkpoint_state.save_monolith_checkpoint_state(str(model_dir), exempt)
    num_waits = []

    def sleep(seconds):
        num_waits.append(seconds)
        copy(restore_dir, None, model_dir)

    restore_override.wait_for_checkpoint_state(str(model_dir), sleep)
    assert len(num_waits) == 1
