"""`monolith demo` as a user meets it: in a terminal, stopped by Ctrl-C, and gone on with.

Covers monolith/cli/demo_model.py.
"""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
import tensorflow as tf

PATIENCE_SEC = 120

pytestmark = pytest.mark.slow


def make_command(model_dir: pathlib.Path, *options: str) -> list[str]:
    demo = [sys.executable, "-m", "monolith.cli.app", "demo"]
    return [*demo, "--model-dir", str(model_dir), *options]


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str]) -> None:
        self._mine, theirs = pty.openpty()
        rows_and_columns = struct.pack("HHHH", 40, 200, 0, 0)  # Wide: no line is wrapped.
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, rows_and_columns)
        # A session of its own, whose terminal this is: so that Ctrl-C reaches it.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # The size is the terminal's, not what the one around the tests may have said.
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        )
        os.close(theirs)
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_SEC
        while (match := re.search(pattern, self.output)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.output}"
            self._read(1.0)
        return match

    def read_to_end(self) -> int:
        while self._read(1.0):
            pass
        return self.process.wait(PATIENCE_SEC)

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def _read(self, timeout_sec: float) -> bool:
        """Returns whether there may be more."""
        if not select.select([self._mine], [], [], timeout_sec)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # What a terminal says when its program has ended.
            data = os.read(self._mine, 65536)
        self.output += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A demo that Ctrl-C has ended: its directory, its exit code, what it showed."""
    model_dir = tmp_path_factory.mktemp("demo")
    terminal = Terminal(make_command(model_dir))
    try:
        terminal.read_until(r"step \d+ of 2,343")
        terminal.type("\x03")
        code = terminal.read_to_end()
    finally:
        terminal.close()
    return model_dir, code, terminal.output


def test_a_terminal_shows_one_line_that_changes(interrupted):
    _, _, output = interrupted
    lines = re.findall(
        r"step ([\d,]+) of 2,343, [\d,]+ examples/s, loss [\d.]+, AUC [\d.]+", output
    )
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
    result = subprocess.run(
        make_command(model_dir, "--steps", str(step + 5)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Going on from step {step:,}." in result.stdout
    # Without a terminal: plain lines, no control codes.
    assert re.search(rf"^step {step + 5:,} of {step + 5:,}, ", result.stdout, re.MULTILINE)
    assert "\x1b" not in result.stdout
    assert f"model.ckpt-{step + 5}" in result.stdout
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
        make_command(tmp_path, "--steps", "0"), capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "--steps" in result.stderr
