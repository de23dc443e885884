"""The `monolith` command as a whole."""

import importlib.metadata
import subprocess
import sys

import pytest
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
