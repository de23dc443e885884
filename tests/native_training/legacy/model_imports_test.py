"""Imports by model name, from a package built for each test."""

import sys

import pytest

from monolith.native_training.legacy import model_imports

ROOT = "model_imports_test_tasks"


@pytest.fixture(autouse=True)
def task_root(tmp_path, monkeypatch):
    """A package `movies` with a module, one below `params`, and one that cannot be imported."""
    for directory in ("", "movies", "movies/params"):
        path = tmp_path / ROOT / directory
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").touch()
    (tmp_path / ROOT / "movies" / "plain.py").touch()
    (tmp_path / ROOT / "movies" / "params" / "small.py").touch()
    (tmp_path / ROOT / "movies" / "broken.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    yield ROOT
    for name in [name for name in sys.modules if name.partition(".")[0] == ROOT]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Model", "", ".Model"])
def test_name_without_module_is_refused(name):
    with pytest.raises(ValueError, match=r"^Invalid model name"):
        model_imports.ImportParams(name)


def test_module_is_imported_directly():
    assert model_imports.ImportParams(f"{ROOT}.movies.plain.Model") is True
    assert f"{ROOT}.movies.plain" in sys.modules


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("movies.small.Model", f"{ROOT}.movies.params.small"),
        ("movies.plain.Model", f"{ROOT}.movies.plain"),
    ],
)
def test_short_name_is_looked_up_in_the_task_directories(name, imported):
    assert model_imports.ImportParams(name, task_root=ROOT, task_dirs=["movies"]) is True
    assert imported in sys.modules


def test_nothing_found():
    with pytest.raises(
        LookupError, match=r"^Could not find any valid import paths for module movies\.small"
    ):
        model_imports.ImportParams("movies.small.Model", task_root=ROOT)
    assert model_imports.ImportParams("movies.small.Model", require_success=False) is False


def test_broken_module_is_logged(caplog):
    assert model_imports.ImportParams(f"{ROOT}.movies.broken.M", require_success=False) is False
    assert "no_such_module_at_all" in caplog.text


def test_import_all():
    assert model_imports.ImportAllParams(ROOT, ["movies", "missing"], require_success=True) is True
    assert {f"{ROOT}.movies.plain", f"{ROOT}.movies.params.small"} <= sys.modules.keys()
    assert f"{ROOT}.movies.broken" not in sys.modules


def test_import_all_without_success():
    assert model_imports.ImportAllParams(ROOT, ["missing"]) is False
    with pytest.raises(LookupError, match="Could not import any task"):
        model_imports.ImportAllParams(ROOT, ["missing"], require_success=True)
