"""find_main in the three layouts it knows, each built in a temporary directory."""

import os

import pytest

from monolith.core import paths


@pytest.fixture
def place_package(tmp_path, monkeypatch):
    """Pretends that the package lies below `tmp_path / layout`."""

    def place(layout):
        root = tmp_path / layout
        home = root / "monolith" / "core"
        home.mkdir(parents=True)
        monkeypatch.setattr(paths, "__file__", str(home / "paths.py"))
        return str(root)

    return place


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("bin.runfiles/__main__", id="bazel"),
        pytest.param("venv/lib/python3.11/site-packages", id="installed"),
        pytest.param("src/checkout", id="checkout"),
        pytest.param("monolith", id="checkout_in_a_directory_called_monolith"),
        pytest.param("monolith/src/monolith", id="checkout_below_two_of_them"),
        pytest.param("site-packages/tool/__main__", id="bazel_tree_below_site_packages"),
        pytest.param("site-packages/vendored/src", id="checkout_below_site_packages"),
        pytest.param("monolith/venv/site-packages", id="installed_below_monolith"),
    ],
)
def test_find_main(place_package, layout):
    root = place_package(layout)
    assert paths.find_main() == root
    assert paths.get_libops_path("monolith/a.so") == os.path.join(root, "monolith/a.so")


@pytest.mark.parametrize("layout", ["__main__", "site-packages", "checkout"])
def test_package_directory_must_exist(tmp_path, monkeypatch, layout):
    file = str(tmp_path / layout / "monolith" / "core" / "paths.py")
    monkeypatch.setattr(paths, "__file__", file)
    with pytest.raises(ValueError, match=file):
        paths.find_main()


def test_unknown_layout_is_named_in_full(monkeypatch):
    monkeypatch.setattr(paths, "__file__", "/opt/renamed/core/paths.py")
    with pytest.raises(ValueError, match=r"/opt/renamed/core/paths\.py"):
        paths.find_main()


def test_running_package_is_found():
    # Installed or editable: the directory that is found holds the code that runs.
    assert os.path.samefile(paths.get_libops_path("monolith/core/paths.py"), paths.__file__)
