"""What other users of the machine can reach while a local job runs: nothing but a locked door.

TensorFlow's servers listen on all interfaces and let everybody in, also to write files. So a local
job has none, and what does listen, its controller, is on loopback and asks for a token.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest
from support import sockets, warm

from monolith.training.controller import files

CHILD = pathlib.Path(__file__).with_name("ports_child.py")
PATIENCE_SEC = 120
OTHER_UID = 65534

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def run_child(*arguments):
    result = warm.run([CHILD, *map(str, arguments)], timeout=PATIENCE_SEC)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_training_evaluating_and_predicting_open_no_port_but_the_controllers(tmp_path):
    found = run_child("train", tmp_path / "model")
    ((address, _),) = found["train"]
    assert sockets.is_loopback(address)
    assert found["evaluate"] == []
    assert found["predict"] == []


def test_the_demo_opens_no_port_but_the_controllers(tmp_path):
    command = ["-m", "monolith.cli.app", "demo", "--steps", "300"]
    seen = set()
    with warm.Program(
        [*command, "--model-dir", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            deadline = time.monotonic() + PATIENCE_SEC
            while demo.poll() is None and time.monotonic() < deadline:
                seen |= sockets.get_listening(demo.pid)
                time.sleep(0.01)
        finally:
            demo.kill()
        output = demo.stdout.read()
    assert demo.returncode == 0, output
    # It was looked at while it trained: the controller is there.
    assert len(seen) == 1, seen
    ((address, _),) = seen
    assert sockets.is_loopback(address)


@contextlib.contextmanager
def directory_that_all_may_enter():
    """The modes of temporary directories must not be what keeps the other user out."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="monolith-ports-", dir="/var/tmp"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def running_training(model_dir):
    process = warm.Program(
        [CHILD, "wait", str(model_dir)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_SEC
        while not (model_dir / files.SERVER_ADDR_FILENAME).exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process.pid
        _, messages = process.communicate("", timeout=PATIENCE_SEC)
        assert process.returncode == 0, messages
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reads_no_token_calls_no_controller_and_writes_no_file():
    with directory_that_all_may_enter() as directory:
        model_dir, loot = directory / "model", directory / "loot"
        loot.mkdir()
        loot.chmod(0o777)
        with running_training(model_dir) as pid:
            model_dir.chmod(0o755)
            ports = [f"127.0.0.1:{port}" for _, port in sockets.get_listening(pid)]
            assert len(ports) == 1
            outcome = run_child("attack", model_dir, OTHER_UID, loot / "written", *ports)
            status = warm.run(
                ["-m", "monolith.cli.app", "control", str(model_dir), "status"],
                timeout=PATIENCE_SEC,
            )
        written = list(loot.iterdir())
    assert outcome.pop("token") == "ConfigError"  # Permission denied.
    assert outcome.pop("client") == "ConfigError"
    on_controller = outcome.pop(f"TensorFlow on {ports[0]}")
    assert on_controller != "done"
    assert len(outcome) == 10  # Five calls, without a token and with a wrong one.
    assert set(outcome.values()) == {"UNAUTHENTICATED"}
    assert written == []
    # The user who started it is let in, and nobody has stopped the training.
    assert status.returncode == 0, status.stderr
    assert "not placed" in status.stdout
