"""The public surface: a change of it is a change of the list below, in the same commit.

Covers monolith/__init__.py.
"""

import importlib
import inspect
import pkgutil
import re

import pytest

import monolith

# Name to signature, or to its type where it is no function or class.
SURFACE = {
    "__version__": "str",
    "version": "module",
}

PACKAGES = [name for _, name, is_package in pkgutil.iter_modules(monolith.__path__) if is_package]


def describe(value: object) -> str:
    return str(inspect.signature(value)) if callable(value) else type(value).__name__


def test_surface():
    assert {name: describe(getattr(monolith, name)) for name in monolith.__all__} == SURFACE


def test_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", monolith.__version__)


@pytest.mark.parametrize("name", PACKAGES)
def test_package_says_what_it_is_for_and_exports_what_it_lists(name):
    package = importlib.import_module(f"monolith.{name}")
    assert package.__doc__
    missing = [n for n in getattr(package, "__all__", []) if not hasattr(package, n)]
    assert not missing
