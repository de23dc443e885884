"""Every module path and name that users of the original system import is here.

`seed_names.json` lists them.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

SEED_NAMES: dict[str, list[str]] = json.loads(
    pathlib.Path(__file__).with_name("seed_names.json").read_text()
)
SPECIFICATION = pathlib.Path(__file__).parents[2] / "shared" / "spec" / "symbols.json"

# Says for each path which names it offers, null where the module does not exist, or the error of a
# module that exists and does not import. In a process of its own, because some old paths change the
# whole process when they are imported.
IMPORT_ALL = """
import importlib, json, sys, traceback
from monolith import native_training

def offered(path, names):
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as e:
        home = native_training.HISTORICAL_PATHS.get(path)
        if home is None or f"{home}.".startswith(f"{e.name}."):
            return None
        return traceback.format_exc()
    except Exception:
        return traceback.format_exc()
    return [name for name in names if hasattr(module, name)]

print(json.dumps({path: offered(path, names) for path, names in json.load(sys.stdin).items()}))
"""


@pytest.fixture(scope="module")
def offered() -> dict[str, list[str] | str | None]:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input=json.dumps(SEED_NAMES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def find_problem(path: str, names: list[str], offered: list[str] | str | None) -> str | None:
    """Says what is wrong with what a module offers, None if nothing is."""
    if isinstance(offered, str):
        return offered
    if offered is None:
        return f"{path} is missing: give it a home and a row in the table of historical paths."
    missing = set(names) - set(offered)
    return f"{path} must offer {sorted(missing)}." if missing else None


@pytest.mark.parametrize("path", SEED_NAMES)
def test_module_offers_its_names(path, offered):
    problem = find_problem(path, SEED_NAMES[path], offered[path])
    assert problem is None, problem


@pytest.mark.parametrize(
    ("offers", "problem"),
    [
        pytest.param(["f", "g"], None, id="complete"),
        pytest.param(["f"], r"a.b must offer \['g'\]", id="missing_name"),
        pytest.param(None, "a.b is missing", id="missing_module"),
        pytest.param("Traceback ...", "Traceback", id="module_does_not_import"),
    ],
)
def test_what_is_missing_is_found(offers, problem):
    found = find_problem("a.b", ["f", "g"], offers)
    assert (found is None) if problem is None else re.search(problem, found)


def test_list_is_a_copy_of_the_specification():
    if not SPECIFICATION.exists():
        pytest.skip("the specification is not beside this checkout")
    assert json.loads(SPECIFICATION.read_text()) == SEED_NAMES
