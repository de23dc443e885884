"""`monolith control`, against the controller of a training that runs."""

import contextlib
import os
import pathlib
import threading

import pytest
import tensorflow as tf
from support import warm
from typer import testing

from monolith.checkpoint import saver as saving
from monolith.cli import app
from monolith.training.controller import barrier, files, server

TIMEOUT_SEC = 60


class FailingSaver:
    def trigger_save(self, session):
        raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")


class Training:
    """A training of a chief and one worker that share a session, in a thread of its own."""

    def __init__(self, model_dir, saver="real", has_global_step=True):
        self._model_dir = model_dir
        self._saver = saver
        self._has_global_step = has_global_step
        self._is_running = threading.Event()
        self._should_end = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self.worker_waits = threading.Event()
        self.worker_goes_on = threading.Event()

    def __enter__(self):
        self._thread.start()
        assert self._is_running.wait(TIMEOUT_SEC)
        return self

    def __exit__(self, *exc_info):
        self._should_end.set()
        self._thread.join(TIMEOUT_SEC)
        assert not self._thread.is_alive()

    def _train(self):
        with tf.Graph().as_default():
            if self._has_global_step:
                step = tf.compat.v1.train.get_or_create_global_step()
                train = tf.compat.v1.assign_add(step, 1)
            else:
                train = tf.constant(1)
            barrier_op = barrier.BarrierOp(2, wait_seconds=0.01, sleep=self._sleep)
            hooks = [barrier.BarrierHook(1, barrier_op)]
            saver_hook = None
            if self._saver == "real":
                saver_hook = saving.NoFirstSaveCheckpointSaverHook(self._model_dir, save_secs=10000)
                hooks.append(saver_hook)
            elif self._saver == "failing":
                saver_hook = FailingSaver()
            hooks.append(server.ServerHook(self._model_dir, barrier_op, saver_hook))
            with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
                while not self._should_end.wait(0.005):  # Leaves the cores to the command.
                    session.run(train)
                    if self.worker_waits.is_set():
                        self.worker_goes_on.set()
                    self._is_running.set()

    def _sleep(self, seconds):
        self.worker_waits.set()
        self._should_end.wait(seconds)
        if self._should_end.is_set():
            raise tf.errors.OutOfRangeError(None, None, "the test is over")


@pytest.fixture
def model_dir(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    return str(directory)


@pytest.fixture
def run(model_dir):
    runner = testing.CliRunner()
    return lambda *args: runner.invoke(app.app, ["control", model_dir, *args])


def read_rows(output):
    """The two columns of the status."""
    rows = [line.strip().split("  ", 1) for line in output.strip().splitlines()]
    return {name: value.strip() for name, value in rows}


class TestStatus:
    def test_of_a_running_training(self, model_dir, run):
        with Training(model_dir):
            result = run("status")
            assert result.exit_code == 0, result.stderr
            rows = read_rows(result.stdout)
            assert int(rows.pop("global step")) >= 1
            assert rows == {
                "controller": files.read_address(model_dir),
                "barrier": "not placed",
                "waiting workers": "none",
                "other workers": "1",
            }

    def test_of_a_stopped_training(self, model_dir, run):
        with Training(model_dir) as training:
            assert run("stop").exit_code == 0
            assert training.worker_waits.wait(TIMEOUT_SEC)
            rows = read_rows(run("status").stdout)
            assert rows["barrier"] == "placed"
            assert rows["waiting workers"] == "1"
            assert rows["other workers"] == "none"
            # The worker trains no more.
            assert read_rows(run("status").stdout)["global step"] == rows["global step"]

    def test_of_a_graph_without_steps(self, model_dir, run):
        with Training(model_dir, saver=None, has_global_step=False):
            result = run("status")
            assert result.exit_code == 0, result.stderr
            assert read_rows(result.stdout)["global step"].startswith("none")


class TestStopAndResume:
    def test_stop_then_resume(self, model_dir, run):
        with Training(model_dir) as training:
            stopped = run("stop")
            assert stopped.exit_code == 0, stopped.stderr
            assert "each worker waits there after its current step" in stopped.stdout
            assert "of 1 workers besides the chief wait already" in stopped.stdout
            assert f"`monolith control {model_dir} resume`" in stopped.stdout
            assert training.worker_waits.wait(TIMEOUT_SEC)
            resumed = run("resume")
            assert (resumed.exit_code, resumed.stdout) == (
                0,
                "The barrier is removed: the workers go on.\n",
            )
            assert training.worker_goes_on.wait(TIMEOUT_SEC)

    def test_stop_twice(self, model_dir, run):
        with Training(model_dir):
            assert run("stop").exit_code == 0
            result = run("stop")
            assert result.exit_code == 1
            assert result.stdout == ""
            assert result.stderr == (
                f"error: Barrier is placed already. Somebody has stopped the training, or it is "
                f"being saved; look with `monolith control {model_dir} status`, and let it go on "
                f"with `monolith control {model_dir} resume`.\n"
            )

    def test_resume_without_a_stop(self, model_dir, run):
        with Training(model_dir):
            result = run("resume")
            assert (result.exit_code, result.stdout) == (
                0,
                "The barrier was not placed: the workers train already.\n",
            )


class TestSave:
    def test_checkpoint_is_there_when_the_command_is_done(self, model_dir, run):
        with Training(model_dir):
            before = set(os.listdir(model_dir))
            result = run("save")
            assert result.exit_code == 0, result.stderr
            assert result.stdout == (
                f"Saving a checkpoint ...\nA checkpoint is saved in {model_dir}.\n"
            )
            new = set(os.listdir(model_dir)) - before
            (index,) = [name for name in new if name.endswith(".index")]
            step = int(index.removesuffix(".index").rpartition("-")[2])
            reader = tf.train.load_checkpoint(f"{model_dir}/model.ckpt-{step}")
            assert reader.get_tensor("global_step") >= 1

    def test_save_that_fails(self, model_dir, run):
        with Training(model_dir, saver="failing"):
            result = run("save")
            assert result.exit_code == 1
            message = "error: The controller could not save a checkpoint: the disk is full\n"
            assert result.stderr == message
            assert run("status").exit_code == 0

    def test_run_that_saves_nothing(self, model_dir, run):
        with Training(model_dir, saver=None):
            result = run("save")
            assert result.exit_code == 1
            assert "error: This run has no saver hook" in result.stderr

    def test_timeout(self, model_dir, run):
        release = threading.Event()

        class SlowSaver:
            def trigger_save(self, session):
                release.wait(TIMEOUT_SEC)

        with tf.Graph().as_default():
            tf.compat.v1.train.get_or_create_global_step()
            hook = server.ServerHook(model_dir, barrier.BarrierOp(1), SlowSaver())
            with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
                result = run("save", "--timeout", "0.2")
                release.set()
        assert result.exit_code == 1
        assert "did not answer within 0.2 seconds" in result.stderr


class TestNobodyThere:
    def test_no_directory(self, tmp_path):
        result = testing.CliRunner().invoke(app.app, ["control", str(tmp_path / "none"), "status"])
        assert result.exit_code == 1
        assert result.stderr == (
            f"error: There is no directory '{tmp_path}/none'; give the model directory.\n"
        )

    @pytest.mark.parametrize("action", ["status", "stop", "resume", "save"])
    def test_no_address(self, model_dir, run, action):
        result = run(action)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr == (
            f"error: There is no '{model_dir}/controller_server_addr.txt', so no run with a "
            f"controller is active in that model directory; check the directory, or start the "
            f"run.\n"
        )

    def test_training_has_ended(self, model_dir, run):
        with Training(model_dir):
            pass
        result = run("status")
        assert result.exit_code == 1
        assert "no run with a controller is active" in result.stderr

    def test_training_was_killed(self, model_dir, run):
        files.write_address(model_dir, "127.0.0.1:1")  # Nobody listens on port 1.
        result = run("status")
        assert result.exit_code == 1
        assert "The controller at 127.0.0.1:1" in result.stderr
        assert "does not answer: the run was killed, or is on another machine" in result.stderr

    def test_file_that_holds_no_address(self, model_dir, run):
        pathlib.Path(model_dir, files.SERVER_ADDR_FILENAME).write_text("nonsense")
        result = run("status")
        assert result.exit_code == 1
        assert "Invalid addr" in result.stderr

    def test_address_that_cannot_be_read(self, model_dir, run):
        # A directory, because root could read any file.
        pathlib.Path(model_dir, files.SERVER_ADDR_FILENAME).mkdir()
        result = run("status")
        assert result.exit_code == 1
        assert "error: The address of the controller" in result.stderr
        assert "cannot be read" in result.stderr

    def test_unknown_action(self, run):
        result = run("pause")
        assert result.exit_code == 2
        assert "pause" in result.stderr


class TestToken:
    @pytest.fixture
    def token_path(self, model_dir):
        return pathlib.Path(model_dir, files.SERVER_TOKEN_FILENAME)

    def test_token_in_the_directory_is_used(self, model_dir, run, token_path):
        with Training(model_dir):
            token = token_path.read_text()
            result = run("status")
            assert result.exit_code == 0, result.stderr
            assert token not in result.output

    def test_missing_token(self, model_dir, run, token_path):
        with Training(model_dir), moved_away(token_path):
            result = run("stop")
        assert result.exit_code == 1
        assert f"requires a token and there is no {token_path}." in result.stderr

    def test_wrong_token(self, model_dir, run, token_path):
        with Training(model_dir), moved_away(token_path):
            token_path.write_text("a guess")
            result = run("stop")
        assert result.exit_code == 1
        expected = f"requires a token and refuses the one in {token_path}, which belongs to another"
        assert expected in result.stderr
        assert "guess" not in result.stderr

    def test_token_that_cannot_be_read(self, model_dir, run, token_path):
        with Training(model_dir), moved_away(token_path):
            token_path.mkdir()
            try:
                result = run("status")
            finally:
                token_path.rmdir()
        assert result.exit_code == 1
        assert "act as the user who runs the training" in result.stderr


@contextlib.contextmanager
def moved_away(path):
    kept = path.with_suffix(".kept")
    path.rename(kept)
    try:
        yield
    finally:
        kept.replace(path)


@pytest.mark.distributed
def test_command_in_a_process_of_its_own(model_dir):
    def run(directory):
        return warm.run(
            ["-m", "monolith.cli.app", "control", directory, "stop"], timeout=TIMEOUT_SEC * 2
        )

    with Training(model_dir) as training:
        stopped = run(model_dir)
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert stopped.stdout.startswith("The barrier is placed")
        assert training.worker_waits.wait(TIMEOUT_SEC)
    failed = run(f"{model_dir}/none")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: There is no directory")
