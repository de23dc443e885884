"""The fuzzer of the ops: a few thousand calls, and that it notices what it looks for."""

import json
import pathlib
import subprocess
import sys

import pytest

FUZZER = pathlib.Path(__file__).with_name("fuzz.py")


def run(tmp_path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Runs the fuzzer in a process of its own, since it forks; returns it and its report."""
    report = tmp_path / "report.json"
    command = [sys.executable, str(FUZZER), "--report", str(report), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    return done, json.loads(report.read_text())


@pytest.mark.slow
def test_no_op_falls_for_odd_input(tmp_path):
    done, report = run(tmp_path, "--calls", "2700", "--seed", "7", "--seconds", "60", "--jobs", "2")
    assert report["findings"] == [], done.stdout
    assert done.returncode == 0
    assert report["calls"] == 2700
    # All ops are there, and half of them at least got past their checks a third of the time.
    succeeded = {op: counts.get("ok", 0) for op, counts in report["ops"].items()}
    assert len(succeeded) >= 90
    assert all(succeeded.values()), succeeded
    often = [
        op for op, counts in report["ops"].items() if 3 * succeeded[op] >= sum(counts.values())
    ]
    assert len(often) >= len(succeeded) / 2


def test_a_crash_and_a_hang_are_found_and_the_others_go_on(tmp_path):
    options = ["--calls", "6", "--seed", "3", "--ops", "MonolithReduceSum", "--seconds", "4"]
    done, report = run(tmp_path, *options, "--pretend", "1:crash,3:hang")
    assert done.returncode == 1
    assert report["calls"] == 6
    crash, hang = report["findings"]
    assert (crash["number"], hang["number"]) == (1, 3)
    assert "SIGSEGV" in crash["what"]
    assert "no answer for 4.0 s" in hang["what"]
    assert crash["call"].startswith("MonolithReduceSum(id_indices=")
    assert "repeat it with: " in done.stdout


def test_a_call_depends_on_seed_and_number_alone(tmp_path):
    def calls(*options: str) -> list[str]:
        done, _ = run(tmp_path, "--seed", "3", "--show", *options)
        return [line for line in done.stdout.splitlines() if line.startswith("call ")]

    assert calls("--first", "20", "--calls", "2") == calls("--calls", "22")[-2:]
