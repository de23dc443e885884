"""Calls that may end the process they are made in, each made in one of its own."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

_TREE = pathlib.Path(__file__).parents[2]
_SCRIPT = """
import json, os, resource, signal, sys
import tensorflow as tf
from monolith.native import ops

cases = json.load(sys.stdin)
names = dict(tf=tf, ops=ops, **{word: getattr(tf, word) for word in ("zeros", "int64", "int32")})
outcomes = {}
for name, code in cases.items():
    ours, theirs = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(15)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 3 * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            *lines, last = code.strip().split("\\n")
            exec("\\n".join(lines), names)
            outcome = ["ok", str(eval(last, names))]
        except Exception as e:
            outcome = [type(e).__name__, str(e)]
        os.write(theirs, json.dumps(outcome).encode()[:60000])
        os._exit(0)
    os.close(theirs)
    said = os.fdopen(ours).read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    outcomes[name] = json.loads(said) if said else [signal.Signals(-status).name, ""]
print(json.dumps(outcomes))
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`kind` is "ok", the name of an exception, or of the signal that ended the process."""

    kind: str
    message: str


def run_cases(cases: dict[str, str]) -> dict[str, Outcome]:
    """Runs the code of each case, its last line an expression, for 15 seconds and 3 GB at most.

    One process loads TensorFlow, without using it, and forks one for each case.
    """
    environment = {**os.environ, "PYTHONPATH": str(_TREE), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as directory:  # For files of a name that should be refused.
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            input=json.dumps(cases),
            capture_output=True,
            text=True,
            cwd=directory,
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {name: Outcome(*answer) for name, answer in answers.items()}
