"""What the tests of several processes share."""

import importlib.util
import pathlib
import sys

# Tests are no package, so a fixture of another directory is brought by hand.
_PATH = pathlib.Path(__file__).parents[1] / "cluster" / "conftest.py"
_NAME = "monolith_cluster_tests_conftest"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, _PATH)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])

make_zookeeper_server = sys.modules[_NAME].make_zookeeper_server
zookeeper_server = sys.modules[_NAME].zookeeper_server
