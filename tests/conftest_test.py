"""The fixtures of conftest.py: what a test can rely on, whichever test ran before it."""

import dataclasses
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

flags.DEFINE_string("conftest_test_flag", "default", "A flag for the tests of conftest.py.")


@pytest.fixture(scope="class")
def seen():
    """What the cases of a class leave for each other, to compare."""
    return {}


class TestIsolation:
    """Each case runs twice and leaves a mess: the second run must not see it."""

    @pytest.mark.parametrize("run", [1, 2])
    def test_environment(self, run):
        assert "MONOLITH_CONFTEST_TEST" not in os.environ
        os.environ["MONOLITH_CONFTEST_TEST"] = "left behind"

    @pytest.mark.parametrize("run", [1, 2])
    def test_flags(self, run):
        assert not flags.FLAGS.is_parsed()
        flags.FLAGS(["program", "--conftest_test_flag=left behind"])
        assert flags.FLAGS.conftest_test_flag == "left behind"

    def test_flag_values_are_back(self):
        flags.FLAGS.mark_as_parsed()
        assert flags.FLAGS.conftest_test_flag == "default"

    @pytest.mark.parametrize("run", [1, 2])
    def test_default_graph(self, run):
        graph = tf.compat.v1.get_default_graph()
        assert graph.get_operations() == []
        with graph.as_default():
            tf.constant(1)

    @pytest.mark.parametrize("run", [1, 2])
    def test_seeds(self, run, seen):
        drawn = (random.random(), np.random.rand(), tf.random.uniform([]).numpy())
        assert seen.setdefault("drawn", drawn) == drawn


def test_temporary_files_are_below_tmp_path(tmp_path):
    assert os.environ["TEST_TMPDIR"] == str(tmp_path)
    assert pathlib.Path.cwd() == tmp_path
    with tempfile.NamedTemporaryFile() as file:
        assert pathlib.Path(file.name).is_relative_to(tmp_path)
    assert pathlib.Path(tf.compat.v1.test.get_temp_dir()).is_relative_to(tmp_path)


def test_ctrl_c_reaches_what_tests_start_also_if_a_shell_started_the_suite_in_the_background(
    request,
):
    conftest = request.config.rootpath / "conftest.py"
    program = (
        "import runpy, signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"runpy.run_path({str(conftest)!r}); "
        "started = [sys.executable, '-c', 'import signal; print(signal.getsignal(2).__name__)']; "
        "sys.exit(subprocess.run(started, check=True).returncode)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert found.stdout == "default_int_handler\n"


@dataclasses.dataclass
class Item:
    """What the order of tests depends on."""

    nodeid: str
    mark: str = ""

    def get_closest_marker(self, name):
        return name == self.mark


def test_several_processes_begin_with_long_tests_and_keep_scopes_together(request):
    path = str(request.config.rootpath / "conftest.py")
    [conftest] = [p for p in request.config.pluginmanager.get_plugins() if is_from(p, path)]
    items = [
        Item("a_test.py::test_1"),
        Item("b_test.py::test_1"),
        Item("b_test.py::test_2"),
        Item("c_test.py::TestC::test_1"),
        Item("c_test.py::TestC::test_2", "slow"),
        Item("c_test.py::test_1"),
        Item("d_test.py::test_1", "distributed"),
    ]
    ordered = conftest._order_for_several_processes(items)
    assert [item.nodeid.replace("_test.py", "") for item in ordered] == [
        *("c::TestC::test_1", "c::TestC::test_2"),
        *("b::test_1", "b::test_2"),
        "d::test_1",
        "a::test_1",
        "c::test_1",
    ]


def is_from(plugin, path):
    return getattr(plugin, "__file__", None) == path


def test_runs_eagerly_unless_asked():
    assert tf.executing_eagerly()


def test_graph_mode(graph_mode):
    assert not tf.executing_eagerly()
    variable = tf.compat.v1.get_variable("v", initializer=tf.constant(2.0))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(variable) == 2.0


@pytest.mark.usefixtures("graph_mode")
class GraphTestCase(tf.test.TestCase):
    """A case of the historical suite: graph mode, `self.session()`, `get_temp_dir()`."""

    def test_sessions_are_real(self):
        self.assertFalse(tf.executing_eagerly())
        with self.session() as session:
            self.assertIsInstance(session, tf.compat.v1.Session)
            self.assertAllEqual(session.run(tf.constant([1, 2])), [1, 2])

    def test_temporary_directory(self):
        self.assertTrue(pathlib.Path(self.get_temp_dir()).is_relative_to(os.environ["TEST_TMPDIR"]))


class EagerTestCase(tf.test.TestCase):
    """The other modes of the same suite."""

    def test_eager_values(self):
        self.assertAllEqual(tf.constant([1, 2]) + 1, [2, 3])

    def test_own_graph(self):
        with tf.Graph().as_default(), self.session() as session:
            self.assertAllEqual(session.run(tf.constant([1, 2])), [1, 2])
