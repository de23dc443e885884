"""What docs/serving.md says of an exported model is done: it is served, and loaded by others.

Covers tests/support/c_loader.py.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from monolith.native import ops

ROOT = pathlib.Path(__file__).parents[2]
C_LOADER = ROOT / "tests" / "support" / "c_loader.py"
TENSORFLOW = os.path.dirname(tf.__file__)
MONOLITH = pathlib.Path(sys.executable).with_name("monolith")
# Without this package: a fresh process that was told nothing.
PLAIN = [sys.executable, "-I"]

pytestmark = pytest.mark.slow


def read_commands() -> list[str]:
    page = (ROOT / "docs" / "serving.md").read_text()
    block = re.search(r"## From a clone to an answer.*?```bash\n(.*?)```", page, re.DOTALL)[1]
    return block.strip().splitlines()


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Runs the five commands; gives the answer and the directory of the model."""
    directory = tmp_path_factory.mktemp("clone")
    # A clone of this checkout; what it would compile is here already; a short training; free ports.
    changes = {
        "git clone URL": f"git clone --quiet --depth 1 {shlex.quote(ROOT.as_uri())}",
        "make demo": f"{MONOLITH} demo --model-dir build/demo --steps 20 > demo.txt 2>&1",
        ".venv/bin/monolith serve": f"{MONOLITH} serve --port 0",
        "8501": str(find_free_port()),
        "--retry 60": "--retry 240",  # Where others use the machine, too.
    }
    commands = read_commands()
    assert len(commands) == 5
    script = "\n".join(commands)
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    log = directory / "messages.txt"
    with log.open("w") as messages:
        process = subprocess.Popen(
            ["bash", "-e", "-c", f"{script} || echo failed"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            start_new_session=True,
        )
    try:
        # The server holds the pipes open, so the answer is one line and not the end of the file.
        line = ""
        while "predictions" not in line:
            line = process.stdout.readline()
            assert line not in ("", "failed\n"), log.read_text()
        yield json.loads(line), directory / "monolith" / "build" / "demo" / "exported_models"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def version(answered) -> str:
    (version,) = answered[1].iterdir()
    return str(version)


def test_from_a_clone_to_an_answer_in_five_commands(answered):
    answer, _ = answered
    (probability,) = answer["predictions"]
    assert 0 < probability < 1


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    kept = {**os.environ, **environment, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=False)


def run_c_loader(library: str, version: str, **environment: str) -> subprocess.CompletedProcess:
    command = [*PLAIN, str(C_LOADER), TENSORFLOW, library, version, "click_sigmoid_pred:0"]
    return run([*command, "user:0=7176,3", "movie:0=12,12"], **environment)


def test_the_loader_of_tensorflow_serving_runs_it(answered, version):
    result = run_c_loader(str(ops.LIBRARY_PATH), version)
    assert result.returncode == 0, result.stderr
    first, _ = json.loads(result.stdout.splitlines()[-1])
    assert first == pytest.approx(answered[0]["predictions"][0], abs=1e-6)


def test_the_op_library_may_be_preloaded(answered, version):
    libraries = {"LD_PRELOAD": str(ops.LIBRARY_PATH), "LD_LIBRARY_PATH": TENSORFLOW}
    result = run_c_loader("", version, **libraries)
    assert result.returncode == 0, result.stderr
    first, _ = json.loads(result.stdout.splitlines()[-1])
    assert first == pytest.approx(answered[0]["predictions"][0], abs=1e-6)


def test_without_the_op_library_the_missing_op_is_named(version):
    result = run_c_loader("", version)
    assert result.returncode == 1
    assert re.search(r"Op type not registered 'Monolith\w+'", result.stderr)


def test_tensorflow_alone_runs_it(answered, version):
    program = f"""
import sys
import tensorflow as tf

tf.load_op_library({str(ops.LIBRARY_PATH)!r})
model = tf.saved_model.load({version!r})
numbers = dict(user=tf.constant([7176], tf.int64), movie=tf.constant([12], tf.int64))
print(float(model.signatures["serving_default"](**numbers)["output"][0]))
assert "monolith" not in sys.modules
"""
    result = run([*PLAIN, "-c", program])
    assert result.returncode == 0, result.stderr
    answer = float(result.stdout.splitlines()[-1])
    assert answer == pytest.approx(answered[0]["predictions"][0], abs=1e-6)
