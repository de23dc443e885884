"""The `monolith` command as a whole."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from support import interactive
from typer import testing

import monolith
from monolith.cli import app


@pytest.fixture
def run():
    runner = testing.CliRunner()
    return lambda *args: runner.invoke(app.app, args)


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"monolith {monolith.__version__}\n")


def test_help_lists_the_subcommands(run):
    result = run("--help")
    assert result.exit_code == 0
    assert "control" in result.output


def test_without_arguments_help_is_shown(run):
    result = run()
    assert "Usage" in result.output
    assert "control" in result.output


def test_unknown_subcommand(run):
    result = run("contrl")
    assert result.exit_code == 2
    assert "contrl" in result.output


def test_help_does_not_wait_for_tensorflow():
    code = (
        "import sys\n"
        "from typer import testing\n"
        "from monolith.cli import app\n"
        "assert testing.CliRunner().invoke(app.app, ['control', '--help']).exit_code == 0\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_package_installs_the_command():
    scripts = importlib.metadata.entry_points(group="console_scripts", name="monolith")
    assert [script.value for script in scripts] == ["monolith.cli.app:main"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_installed_into_the_shell_that_asks(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "xterm",
    }
    # With a second command: for a single one the shell makes way, and is not found as the parent.
    installed = subprocess.run(
        [shell, "-c", "monolith --install-completion; exit $?"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert f"{shell} completion installed" in installed.stdout
    user = interactive.Program([shell, "-i"], **environment)
    try:
        user.read_until("# |% |\\$ ")
        # One by one: a TAB that comes with other keys may be text that was pasted.
        for keys, shown in (
            ("monolith de", "monolith de"),
            ("\t", "mo"),
            ("--num", "--num"),
            ("\t", "-ps"),
            ("2 --steps none\n", "Invalid value for"),
        ):
            user.output = ""
            user.type(keys)
            user.read_until(shown)
    finally:
        user.close()
