"""Every program in examples/ runs to its end and prints what it promises."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"

# What the last lines must say; a new example needs a line here.
PROMISES = {
    "first_op.py": r"with Monolith's op +[\d.]+ ms\nSame numbers, in \d+% of the time\.\n$",
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_example(name, tmp_path):
    result = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(PROMISES[name], result.stdout), result.stdout
