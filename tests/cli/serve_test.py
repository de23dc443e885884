"""The command `monolith serve`, in a process of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
from support import warm
from support.serving import Client, save_model
from support.waiting import wait_for
from typer.testing import CliRunner

from monolith.cli.app import app


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models").mkdir()
    save_model(tmp_path / "models" / "1")
    return tmp_path / "models"


@contextlib.contextmanager
def serving(*args: str) -> Iterator[tuple[warm.Program, str]]:
    """Runs the command; gives the process and the line that says where it listens."""
    command = ["-m", "monolith.cli.app", "serve", *args]
    process = warm.Program(
        [*command, "--port", "0", "--rest-port", "0", "--poll", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        yield process, line
    finally:
        process.kill()
        process.communicate()


def test_it_serves_until_it_is_told_to_stop(models):
    with serving(str(models), "--name", "ads", "--batch-rows", "16") as (process, line):
        ports = re.fullmatch(
            r"Serving ads at 127\.0\.0\.1:(\d+) \(gRPC\) and "
            r"http://127\.0\.0\.1:(\d+)/v1/models \(REST\); Ctrl-C ends it\.\n",
            line,
        )
        assert ports, line
        client = Client(int(ports[1]))
        wait_for(lambda: client.get_states("ads") == {1: "AVAILABLE"})
        assert client.predict([1.0], model="ads") == [2]
        url = f"http://127.0.0.1:{ports[2]}/v1/models/ads:predict"
        body = json.dumps({"instances": [1.0]}).encode()
        with urllib.request.urlopen(url, body, timeout=60) as response:
            assert json.load(response) == {"predictions": [2.0]}
        client.close()
        process.send_signal(signal.SIGTERM)
        output, messages = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Stopping" in output
        assert "version 1 of ads is available" in messages
        assert "Traceback" not in messages


def test_several_models_in_a_file_that_changes(models, tmp_path):
    file = tmp_path / "models.config"

    def write(text: str) -> None:
        temporary = tmp_path / "temporary"
        temporary.write_text(text)
        os.replace(temporary, file)

    entry = 'config {{ name: "{}" base_path: "' + str(models) + '" }}'
    write(f"model_config_list {{ {entry.format('a')} }}")
    with serving("--models-file", str(file)) as (process, line):
        client = Client(int(re.search(r":(\d+) \(gRPC\)", line)[1]))
        wait_for(lambda: client.get_states("a") == {1: "AVAILABLE"})
        write("nonsense")
        write(f"model_config_list {{ {entry.format('a')} {entry.format('b')} }}")

        def has_come() -> bool:
            try:
                return client.predict([1.0], model="b") == [2]
            except Exception:  # noqa: BLE001 - not yet
                return False

        wait_for(has_come)
        assert client.predict([1.0], model="a") == [2]
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "either DIR or --models-file"),
        (["{models}", "--models-file", "x"], "either DIR or --models-file"),
        (["{models}/nothing"], "There is no directory"),
        (["{models}/1"], "is one version of a model"),
        (["--models-file", "nothing"], "cannot be read"),
        (["--models-file", "x", "--label", "a=1"], "are in the file"),
        (["{models}", "--versions", "newest"], "Versions to serve are"),
        (["{models}", "--label", "a"], "LABEL=N"),
        (["{models}", "--name", "a/b"], "cannot be the name"),
        (["{models}", "--no-grpc", "--no-rest"], "needs a port"),
        (["{models}", "--tls-cert", "x"], "both a certificate and its key"),
        (["{models}", "--token-file", "nothing"], "cannot be read"),
        (["{models}", "--port", "99999"], "from 0 to 65535"),
    ],
)
def test_what_is_refused(models, args, message):
    result = CliRunner().invoke(app, ["serve", *(arg.format(models=models) for arg in args)])
    assert result.exit_code == 1
    # The words wrap where the terminal ends.
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
