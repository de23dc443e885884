"""docs/architecture.md is true: what it names is there, and its walks pass the files that run.

The files of a training step are found by looking: which of ours run while a session trains, and
which have made the ops that it runs.
"""

import pathlib
import re
import sys

import pytest
import tensorflow as tf

import monolith
from monolith.cli.demo_model import MovieModel
from monolith.data import movies
from monolith.training.estimator import Estimator, RunConfig

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = pathlib.Path(monolith.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# So many files has whoever follows an example through a training step to read.
MOST_FILES = 30


def read_section(title: str) -> str:
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return section


def find_files(text: str) -> set[str]:
    """Paths below monolith/; a name alone, in the map, is one of the package of its row."""
    return set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))


def test_files_are_there():
    named = find_files(PAGE)
    assert named
    assert sorted(name for name in named if not (PACKAGE / name).exists()) == []


@pytest.mark.parametrize("half", ["core", "ops"])
def test_folders_of_the_cpp_sources_are_all_named(half):
    (text,) = re.findall(rf"`csrc/{half}` (?:is|makes) (.*?)(?=`csrc/|\n\n)", PAGE, re.S)
    folders = {path.name for path in (ROOT / "csrc" / half).iterdir() if path.is_dir()}
    assert set(re.findall(r"`([a-z]+)/`", text)) == folders


def test_map_follows_the_contract_of_the_linter():
    (layers,) = re.findall(
        r"section 1\).*?layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S
    )
    packages = [name.split(".")[1] for name in re.findall(r'"(monolith[\w.]*)"', layers)]
    rows = re.findall(r"^\| `([a-z_]+)[/.]", read_section("The map"), re.M)
    # Parts of a package follow it; the last row has two.
    assert list(dict.fromkeys([*rows[:-1], "proto", rows[-1]])) == packages
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders - {"proto"} <= set(packages)


def test_map_names_every_package():
    paths = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    rows = re.findall(r"^\| (`.*)", read_section("The map"), re.M)
    missing = []
    for folder in sorted(path.relative_to(PACKAGE) for path in paths):
        # In a row of its own, or in that of the package that it is a part of.
        own = any(f"`{folder}/`" in row for row in rows)
        part = any(f"`{folder.parent}/`" in row and f"`{folder.name}/`" in row for row in rows)
        if not own and not part:
            missing.append(str(folder))
    assert missing == []


class Watch(tf.compat.v1.train.SessionRunHook):
    """Finds the files of some steps of a training.

    Attributes:
        running: Those with functions that run.
        making: Those that have made the ops.
    """

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.making: set[str] = set()
        self._steps = 0

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._steps += 1
        if self._steps == 1:
            self.making = find_makers(run_context)
        if self._steps == 3:  # Behind the first ones, which start things.
            sys.setprofile(self._note)

    def after_run(self, run_context, run_values) -> None:
        if self._steps == 6:
            sys.setprofile(None)

    def _note(self, frame, event, arg) -> None:
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            self.running.add(path.relative_to(PACKAGE).as_posix())


def find_makers(run_context: tf.compat.v1.train.SessionRunContext) -> set[str]:
    """The files that have made the ops of a step and of the queue in front of it."""
    graph = run_context.session.graph
    pending = [op for op in graph.get_operations() if op.type == "QueueEnqueueV2"]
    pending += [getattr(x, "op", x) for x in run_context.original_args.fetches]
    seen = set()
    makers = set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        pending += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        paths = [pathlib.Path(frame.filename) for frame in op.traceback]
        ours = [path.relative_to(PACKAGE).as_posix() for path in paths if PACKAGE in path.parents]
        makers.update(ours[-1:])
    return makers


@pytest.mark.usefixtures("graph_mode")
def test_walk_of_a_training_step_passes_its_files(tmp_path):
    watch = Watch()
    model = MovieModel(movies.World(), stop=8 * 512)
    config = RunConfig(is_local=True, model_dir=str(tmp_path))
    try:
        Estimator(model, config).train(hooks=[watch])
    finally:
        sys.setprofile(None)
    # The model and its input are the user's.
    on_the_way = (watch.running | watch.making) - {"cli/demo_model.py"}
    assert watch.running
    assert watch.making
    assert sorted(on_the_way - find_files(read_section("One training step"))) == []
    assert len(on_the_way) <= MOST_FILES
