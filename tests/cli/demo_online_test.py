"""`monolith demo online` as a user meets it: to its end, and in a terminal, stopped by Ctrl-C."""

import json
import pathlib
import re
import xml.etree.ElementTree

import pytest
from support import interactive, warm
from typer import testing

from monolith.cli import app

PATIENCE_SEC = 240


def make_command(model_dir: pathlib.Path, *options: str) -> list[str]:
    program = ["-m", "monolith.cli.app", "demo", "online"]
    return [*program, "--model-dir", str(model_dir), *options]


@pytest.mark.slow
@pytest.mark.distributed
def test_what_was_learned_a_moment_ago_is_worth_something(tmp_path):
    model_dir = tmp_path / "demo"
    result = warm.run(
        make_command(model_dir, "--hours", "2", "--hour-sec", "6"), timeout=PATIENCE_SEC
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # Without a terminal: a line for each hour, no control codes.
    shown = r"^hour (\d): AUC online 0\.\d+, hourly 0\.\d+, frozen 0\.\d+, best 0\.\d+; lag "
    assert re.findall(shown, result.stdout, re.MULTILINE) == ["1", "2"]
    assert "\x1b" not in result.stdout
    assert re.search(r"click of a new user to an answer .* median \d+\.\d\d s", result.stdout)
    figures = json.loads((model_dir / "online.json").read_text())
    # In the first hour nothing has been exported since the start.
    first, second = figures["hours"]
    assert first["hourly"] == pytest.approx(first["frozen"], abs=0.002)
    assert second["hourly"] > second["frozen"]
    for hour in (first, second):
        assert hour["frozen"] < hour["online"] < hour["best"]
    assert figures["margin"] > 0
    assert min(figures["lags_sec"]) > 0
    plot = xml.etree.ElementTree.parse(model_dir / "online.svg")
    assert len(plot.findall("{*}polyline")) == 4
    # The server is gone, and with it what it announced.
    assert not list((model_dir / "servers").glob("*/*"))

    again = warm.run(make_command(model_dir), timeout=PATIENCE_SEC)
    assert (again.returncode, again.stdout) == (1, "")
    assert "is not empty, and this demo begins anew; --restart" in again.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_a_terminal_shows_a_table_that_changes_until_ctrl_c(tmp_path):
    program = interactive.Program(make_command(tmp_path / "demo", "--hour-sec", "60"), warm=True)
    try:
        # Each may take its time on a busy machine.
        for shown in (r"Exported as version", r"hour 1, \d min", r"hour 1, 1\d min"):
            program.read_until(shown)
        program.type("\x03")
        code = program.read_to_end()
    finally:
        program.close()
    assert code == 130
    output = re.sub(r"\x1b\[[\d;]*m", "", program.output)
    assert re.search(r"hour 1, \d+ min[ │]+0\.\d{4}", output)
    assert "median lag from a click to an answer" in output
    assert "Online is better than hourly by" in output
    assert "Traceback" not in output
    assert program.output.count("\x1b[?25l") == program.output.count("\x1b[?25h")
    assert not list((tmp_path / "demo" / "servers").glob("*/*"))


@pytest.mark.parametrize("options", [["--steps", "5"], ["--model-dir", "x"], ["--restart"]])
def test_options_of_the_other_demo_are_refused(options):
    result = testing.CliRunner().invoke(app.app, ["demo", *options, "online"])
    assert result.exit_code == 2
    assert f"{options[0]} stands before online" in " ".join(result.output.replace("│", "").split())


def test_an_unknown_demo_is_refused():
    result = testing.CliRunner().invoke(app.app, ["demo", "onlin"])
    assert result.exit_code == 2
    assert "onlin" in result.output
