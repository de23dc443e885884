"""The historical module paths: one table, and the same module object under both names.

Covers monolith/native_training/__init__.py.
"""

import importlib
import json
import pickle
import subprocess
import sys
from unittest import mock

import pytest

from monolith import native_training
from monolith.core import paths
from monolith.native_training import HISTORICAL_PATHS
from monolith.proto import embedding_hash_table_pb2

# Imports every row under both names, and pickles each class of the home under both, too. In a
# process of its own, because some old paths change the whole process when they are imported.
CHECK_ALL = """
import importlib, inspect, json, pickle, traceback
from monolith.native_training import HISTORICAL_PATHS

def check(old, home):
    try:
        return find_problem(old, home)
    except Exception:
        return traceback.format_exc()

def find_problem(old, home):
    # The old name first: it must not need the new one to be imported.
    module = importlib.import_module(old)
    if module is not importlib.import_module(home):
        return "gives another module object than its home"
    if module.__name__ != home or module.__spec__.name != home:
        return f"calls its module {module.__name__}, {module.__spec__.name}"
    for name, value in vars(module).items():
        if not inspect.isclass(value) or value.__module__ != home or value.__qualname__ != name:
            continue
        if pickle.loads(pickle.dumps(value)) is not value:
            return f"does not pickle {name}"
        if pickle.loads(f"c{old}\\n{name}\\n.".encode()) is not value:
            return f"does not load a pickle of {name}"
    return None

print(json.dumps({old: check(old, home) for old, home in HISTORICAL_PATHS.items()}))
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def problems() -> dict[str, str | None]:
    result = run_python("-c", CHECK_ALL)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("old", HISTORICAL_PATHS)
class TestEveryRow:
    def test_home_exists(self, old):
        assert importlib.util.find_spec(HISTORICAL_PATHS[old]) is not None

    def test_both_names_give_one_module_whose_classes_pickle(self, old, problems):
        assert problems[old] is None, problems[old]


class TestImportForms:
    def test_import_dotted(self):
        import monolith
        import monolith.path_utils

        assert monolith.path_utils is paths

    def test_import_as(self):
        import monolith.native_training.signal_utils as old
        from monolith.core import signals

        assert old is signals

    def test_from_import(self):
        from monolith.core import signals
        from monolith.native_training import signal_utils

        assert signal_utils is signals

    def test_from_import_a_name(self):
        from monolith.path_utils import find_main

        assert find_main is paths.find_main

    def test_import_module(self):
        assert importlib.import_module("monolith.path_utils") is paths

    def test_below_a_package_that_only_exists_in_old_paths(self):
        from monolith.native_training.runtime.hash_table import embedding_hash_table_pb2 as old

        assert old is embedding_hash_table_pb2

    def test_generated_grpc_module(self):
        from monolith.native_training.hooks.server import service_pb2_grpc
        from monolith.proto import service_pb2_grpc as new

        assert service_pb2_grpc is new

    def test_run_as_a_program(self):
        # -i: the interpreter goes on after the module, with its names.
        result = subprocess.run(
            [sys.executable, "-i", "-m", "monolith.path_utils"],
            input="import sys; print(__name__, find_main(), sys.argv)",
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.stdout.strip() == f"__main__ {paths.find_main()} {[paths.__file__]}"

    def test_several_threads_at_once(self):
        result = run_python(
            "-c",
            "import importlib, threading\n"
            "import monolith\n"
            "names = ['monolith.path_utils', 'monolith.core.paths'] * 8\n"
            "modules = []\n"
            "def load(name): modules.append(importlib.import_module(name))\n"
            "threads = [threading.Thread(target=load, args=[name]) for name in names]\n"
            "[thread.start() for thread in threads]\n"
            "[thread.join() for thread in threads]\n"
            "assert len(modules) == 16 and len(set(map(id, modules))) == 1\n",
        )
        assert result.returncode == 0, result.stderr


class TestPatching:
    def test_old_name_is_seen_through_the_new_one(self):
        with mock.patch("monolith.path_utils.find_main", return_value="/elsewhere"):
            assert paths.find_main() == "/elsewhere"
            assert paths.get_libops_path("x") == "/elsewhere/x"
        assert paths.find_main() != "/elsewhere"

    def test_new_name_is_seen_through_the_old_one(self):
        from monolith import path_utils

        with mock.patch("monolith.core.paths.find_main", return_value="/elsewhere"):
            assert path_utils.find_main() == "/elsewhere"


class TestPickling:
    def test_message_round_trip(self):
        from monolith.native_training.runtime.hash_table import embedding_hash_table_pb2 as old

        dump = old.EntryDump(id=3, num=[1.0], last_update_ts_sec=7)
        copy = pickle.loads(pickle.dumps(dump))
        assert copy == dump
        assert type(copy) is embedding_hash_table_pb2.EntryDump


@pytest.mark.parametrize("name", ["monolith.core.paths", "monolith.path_utils"])
def test_reload(name):
    old, new = importlib.import_module("monolith.path_utils"), paths
    function = new.find_main
    assert importlib.reload(importlib.import_module(name)) is new
    assert new.find_main is not function
    assert old is importlib.import_module("monolith.path_utils") is new
    assert new.__spec__.name == "monolith.core.paths"


class TestUnknownPath:
    MESSAGE = (
        r"No module named 'monolith\.native_training\.signal_util'\. The nearest known historical "
        r"path is 'monolith\.native_training\.signal_utils', which is now 'monolith\.core\.signals'"
    )

    def test_import(self):
        with pytest.raises(ModuleNotFoundError, match=self.MESSAGE):
            import monolith.native_training.signal_util  # noqa: F401

    def test_from_import(self):
        with pytest.raises(ModuleNotFoundError, match=self.MESSAGE):
            from monolith.native_training import signal_util  # noqa: F401

    def test_import_module(self):
        with pytest.raises(ModuleNotFoundError, match=self.MESSAGE):
            importlib.import_module("monolith.native_training.signal_util")

    @pytest.mark.parametrize(
        ("unknown", "nearest"),
        [
            ("monolith.native_training.hooks.server.service_pb", "hooks.server.service_pb2"),
            ("monolith.native_training.runtime.ops.gen_ops", "runtime.ops.gen_monolith_ops"),
            ("monolith.agent_service.agent_pb2", "agent_service.agent_service_pb2"),
        ],
    )
    def test_below_an_old_package(self, unknown, nearest):
        with pytest.raises(ModuleNotFoundError, match=rf"nearest known .*\.{nearest}'"):
            importlib.import_module(unknown)

    def test_a_missing_attribute_of_a_known_path_is_an_ordinary_error(self):
        with pytest.raises(ImportError, match="cannot import name 'find_mane'"):
            from monolith.path_utils import find_mane  # noqa: F401

    def test_it_can_be_asked_for_attributes(self):
        assert not hasattr(native_training, "signal_util")


def test_installing_twice_adds_one_finder():
    before = list(sys.meta_path)
    native_training.install_historical_paths()
    assert sys.meta_path == before
    names = [type(finder).__name__ for finder in sys.meta_path]
    assert names.count("_HistoricalPathFinder") == 1


def test_import_is_light():
    result = run_python("-X", "importtime", "-c", "import monolith")
    assert result.returncode == 0, result.stderr
    # A line of it: "import time:  self us | cumulative us |  name, indented by depth".
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "monolith.native_training" in imported
    assert not {name for name in imported if name.split(".")[0] in ("tensorflow", "numpy")}
