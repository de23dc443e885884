"""`monolith demo` as a user meets it: in a terminal, stopped by Ctrl-C, and gone on with.

Covers monolith/cli/demo_model.py.
"""

import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from support import interactive, warm

from monolith import errors
from monolith.cli import demo

PATIENCE_SEC = 120

pytestmark = pytest.mark.slow


def make_command(model_dir: pathlib.Path, *options: str) -> list[str]:
    program = ["-m", "monolith.cli.app", "demo"]
    return [*program, "--model-dir", str(model_dir), *options]


SHOWN = r"step [\d,]+ of 2,343, [\d,]+ examples/s, loss [\d.]+, AUC [\d.]+"


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A demo that Ctrl-C has ended: its directory, its exit code, what it showed."""
    model_dir = tmp_path_factory.mktemp("demo")
    program = interactive.Program(make_command(model_dir), warm=True)
    try:
        program.read_until(SHOWN)
        program.type("\x03")
        code = program.read_to_end()
    finally:
        program.close()
    return model_dir, code, program.output


def test_a_terminal_shows_one_line_that_changes(interrupted):
    _, _, output = interrupted
    lines = re.findall(SHOWN, output)
    assert lines
    assert "━" in output  # The bar.
    assert "\x1b[2K" in output or len(lines) == 1  # Erased before it is drawn again.
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h")  # The cursor is back.


def test_ctrl_c_saves(interrupted):
    model_dir, code, output = interrupted
    assert code == 130
    step = int(re.search(r"Stopped at step ([\d,]+) and saved", output)[1].replace(",", ""))
    assert 0 < step < 2343
    checkpoint = tf.train.latest_checkpoint(model_dir)
    assert checkpoint == str(model_dir / f"model.ckpt-{step}")
    assert "Traceback" not in output


def test_the_same_command_goes_on_and_recommends(interrupted):
    model_dir, _, output = interrupted
    step = int(re.search(r"Stopped at step ([\d,]+)", output)[1].replace(",", ""))
    last = step + 300  # Enough to be better than a coin, wherever it was stopped.
    result = warm.run(make_command(model_dir, "--steps", str(last)), timeout=PATIENCE_SEC)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Going on from step {step:,}." in result.stdout
    # Without a terminal: plain lines, no control codes.
    assert re.search(rf"^step {last:,} of {last:,}, ", result.stdout, re.MULTILINE)
    assert "\x1b" not in result.stdout
    assert f"model.ckpt-{last}" in result.stdout
    auc, best = (
        float(re.search(pattern, result.stdout)[1])
        for pattern in (r"AUC (0\.\d+) on", r"model can reach is (0\.\d+)")
    )
    assert 0.5 < auc < best < 1
    assert len(re.findall(r"^User \d+, who likes", result.stdout, re.MULTILINE)) == 3
    assert len(re.findall(r"^│ The .+%", result.stdout, re.MULTILINE)) == 15
    assert str(model_dir) in result.stdout.split("What to try next")[1]


def test_wrong_options_are_refused_before_anything_is_loaded(tmp_path):
    result = subprocess.run(
        [sys.executable, *make_command(tmp_path, "--steps", "0")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "--steps" in result.stderr


@pytest.mark.parametrize("options", [(), ("--restart",)])
def test_directory_that_cannot_be_written_is_one_sentence(tmp_path, options):
    (tmp_path / "file").touch()
    result = warm.run(make_command(tmp_path / "file" / "demo", *options))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: Nothing can be written to {tmp_path}/file/demo: not a directory; set --model-dir "
        "to a directory where you may make files.\n"
    )


class TestRestart:
    @pytest.mark.parametrize("content", ["thesis.tex", "demo.log"])
    def test_only_a_demo_is_removed(self, tmp_path, content):
        model_dir = tmp_path / "home"
        model_dir.mkdir()
        (model_dir / content).touch()
        if content == "demo.log":
            demo._remove(model_dir)
        else:
            with pytest.raises(
                errors.ConfigError, match=rf"{model_dir} has no demo\.log.*--restart"
            ):
                demo._remove(model_dir)
        assert model_dir.exists() == (content != "demo.log")

    def test_nothing_is_there(self, tmp_path):
        (tmp_path / "empty").mkdir()
        for name in ("empty", "missing"):
            demo._remove(tmp_path / name)
            assert not (tmp_path / name).exists()

    def test_file(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(errors.ConfigError, match="file has no demo"):
            demo._remove(tmp_path / "file")


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("on_path", "tensorboard --logdir 'my demo'"),
        ("beside_python", "{}/beside_python/tensorboard --logdir 'my demo'"),
        (None, "pip install \"monolith-recsys[tensorboard]\"; tensorboard --logdir 'my demo'"),
    ],
)
def test_tensorboard_is_named_as_it_can_be_started(tmp_path, monkeypatch, place, command):
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside_python" / "python"))
    if place is not None:
        (tmp_path / place).mkdir()
        (tmp_path / place / "tensorboard").touch(mode=0o755)
    named = demo._describe_tensorboard(pathlib.Path("my demo"))
    assert named == command.format(tmp_path)
