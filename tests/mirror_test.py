"""tests/ mirrors monolith/: who looks for the tests of a module finds them by its name.

`monolith/cluster/net.py` is tested by `tests/cluster/net_test.py`. Where a test of another name
does that, its docstring says so in a paragraph of its own: `Covers monolith/data/flags.py.`, or
several files.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def list_modules() -> list[str]:
    """All modules with code of their own; those of monolith/proto are generated."""
    modules = []
    for path in sorted((ROOT / "monolith").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("monolith/proto/"):
            continue
        if path.name == "__init__.py" and not has_definitions(path):
            continue
        modules.append(name)
    return modules


def has_definitions(path: pathlib.Path) -> bool:
    body = ast.parse(path.read_text()).body
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)


def list_covered() -> dict[str, str]:
    """Modules that tests of other names cover, and these tests."""
    covered = {}
    for path in sorted((ROOT / "tests").rglob("*_test.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for paragraph in docstring.split("\n\n"):
            if paragraph.startswith("Covers "):
                for module in re.findall(r"monolith/[\w/]+\.py", paragraph):
                    covered[module] = path.relative_to(ROOT).as_posix()
    return covered


def find_own_test(module: str) -> pathlib.Path:
    path = ROOT / "tests" / pathlib.Path(module).relative_to("monolith")
    return path.with_name(f"{path.stem}_test.py")


MODULES = list_modules()
COVERED = list_covered()


@pytest.mark.parametrize("module", MODULES)
def test_module_has_a_test(module):
    assert find_own_test(module).exists() or module in COVERED, (
        f"{module} has no test: write {find_own_test(module).relative_to(ROOT)}, or say "
        f"'Covers {module}.' in the docstring of the test that covers it."
    )


@pytest.mark.parametrize("module", sorted(COVERED))
def test_what_is_said_to_be_covered_is_there_and_has_no_test_of_its_own(module):
    assert (ROOT / module).exists(), f"{COVERED[module]} covers {module}, which does not exist."
    assert not find_own_test(module).exists(), (
        f"{module} has a test of its own; {COVERED[module]} need not say that it covers it."
    )
