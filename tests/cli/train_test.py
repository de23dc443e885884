"""`monolith train`: what it refuses before anything is started.

tests/integration/launch_test.py starts whole jobs with it.
"""

import json
import re

import pytest
from typer import testing

from monolith.cli import app

JOB = "support.launch_jobs:PARAMS"


def run(*arguments):
    result = testing.CliRunner().invoke(app.app, ["train", *map(str, arguments)])
    return result.exit_code, result.output


def test_help_names_the_roles_and_where_members_meet():
    code, output = run("--help")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    for word in ("--role", "--discovery", "--max-restarts", "--model-dir", "--data"):
        assert word in plain


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["jobs"], "What to train is given as MODULE:NAME, such as jobs.ranking:make_estimator"),
        ([JOB, "--steps", 1, "--max-steps", 2], "Give --steps or --max-steps, not both."),
        ([JOB, "--role", "boss", "--index", 0], "--role must be ps, worker or chief, got 'boss'."),
        ([JOB, "--role", "chief", "--index", 1], "--role chief is worker 0, but --index is 1"),
        ([JOB, "--role", "ps"], "--role ps needs an --index, from 0."),
        ([JOB, "--index", 0], "--index, --discovery and --address are for one member of a job"),
        ([JOB, "--discovery", "file"], "--index, --discovery and --address are for one member"),
        ([JOB, "--model-dir", "/proc/no/such"], "Nothing can be written to /proc/no/such"),
        (
            [JOB, "--role", "ps", "--index", 0, "--address", "192.0.2.1"],
            "Cannot listen on '192.0.2.1' alone: 192.0.2.1 is no address of this machine",
        ),
        (
            [JOB, "--model-dir", "m", "--ps", 1, "--workers", 2, "--metrics-port", 9100],
            "--metrics-port 9100 is one port, and the job has 3 members on this machine; give 0",
        ),
        (
            [JOB, "--role", "ps", "--index", 0, "--max-restarts", 3],
            "--max-restarts is for a job that is on this machine as a whole; leave it out for one",
        ),
        (
            [JOB, "--discovery", "tf_config", "--grace", 0],
            "--grace is for a job that is on this machine as a whole; leave it out for one member",
        ),
        (
            [JOB, "--model-dir", "m", "--metrics-host", "0.0.0.0"],
            "--metrics-host is '0.0.0.0', but nothing says on which port members tell their",
        ),
        ([JOB, "--discovery", "tf_config"], "--discovery tf_config reads the variable TF_CONFIG"),
    ],
)
def test_refusals(arguments, sentence, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    code, output = run(*arguments)
    assert code == 1
    assert output.startswith(f"error: {sentence}")
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("option", ["--sync-token-file", "--sync-ca-file"])
def test_a_job_that_could_send_nothing_ends_at_its_start(tmp_path, option):
    options = ["--ps", 1, "--model-dir", tmp_path / "model", "--sync-to", f"file:{tmp_path}"]
    options += ["--sync-dense-interval", 5, "--sync-timeout", 9, option, tmp_path / "gone"]
    code, output = run(JOB, *options)
    assert code == 1
    sentence = f"error: {tmp_path / 'gone'} cannot be read: No such file or directory."
    assert output.splitlines()[-1] == sentence
    assert not list((tmp_path / "model").glob("model.ckpt*"))


@pytest.mark.parametrize(
    "arguments",
    [["--workers", 0], ["--ps", -1], ["--max-restarts", -1], ["--sync-dense-interval", 0]],
)
def test_numbers_out_of_their_range(arguments):
    assert run(JOB, *arguments)[0] == 2


def test_a_member_that_tf_config_does_not_know(monkeypatch):
    tf_config = {"cluster": {"ps": ["127.0.0.1:1"]}, "task": {"type": "ps", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    code, output = run(JOB, "--discovery", "tf_config")
    assert code == 1
    assert output.startswith("error: TF_CONFIG says this process is 'ps' number 1, but its cluster")
