"""`make site`: the documentation as a site, which needs nothing from elsewhere.

Covers docs/site_hooks.py and benchmarks/speed_plot.py.
"""

import pathlib
import re
import subprocess
import sys

import pytest

import monolith
from benchmarks import speed_plot

ROOT = pathlib.Path(__file__).parents[1]
PLOT = ROOT / "docs" / "images" / "speed.svg"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
    """The site; that it is built at all says that no link and no docstring of it is broken."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return directory


def test_every_page_is_there(site):
    for page in (ROOT / "docs").glob("**/*.md"):
        name = "index" if page.name == "README.md" else page.stem
        assert (site / f"{name}.html").exists(), f"{page} is not on the site."


def test_files_of_the_checkout_that_pages_link_to_are_pages(site):
    assert "class DeepFM" in read_text(site / "checkout" / "examples" / "deepfm.py.html")
    assert "checkout/examples/deepfm.py.html" in (site / "models.html").read_text()


def test_nothing_is_loaded_from_elsewhere(site):
    elsewhere = r"=\"?(https?:)?//"
    loads = rf"<(script|img|iframe|source)[^>]*\ssrc{elsewhere}|<link[^>]*\shref{elsewhere}"
    for page in site.glob("**/*.html"):
        assert not re.search(loads, page.read_text()), f"{page} loads something from elsewhere."
    for style in site.glob("**/*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style


def test_public_names_have_their_docstrings_in_the_reference(site):
    page = (site / "api.html").read_text()
    names = set(monolith.__all__) - {"__version__", "layers", "version"}
    missing = [name for name in names if f'id="monolith.{name}"' not in page]
    assert not missing, "docs/api.md has no line `::: monolith.NAME` of these."


def test_plot_shows_the_figures_of_results():
    drawn = speed_plot.draw(speed_plot.read_panels(speed_plot.RESULTS.read_text()))
    assert PLOT.read_text() == drawn, "benchmarks/RESULTS.md has other figures: run `make site`."


def test_plot_has_the_figures_of_a_table():
    text = "# Training steps\n\n| contender | way | examples/s |\n| --- | --- | --- |\n"
    text += "| ours | a | 2,000 |\n| ours | b | 3,000 |\n| other | a | 500 |\n\nEnd.\n"
    assert speed_plot._read_training(text).bars == [("ours", 3.0), ("other", 0.5)]
    with pytest.raises(ValueError, match="no section 'Speeds'"):
        speed_plot.read_table(text, "Training steps", "Speeds")


def read_text(page: pathlib.Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())
