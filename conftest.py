"""What every test, and every doctest of the package, gets without asking.

A test starts with the same seeds and an empty default graph, writes below its own temporary
directory, and leaves environment variables, flags and loggers as it found them. Tests run eagerly
unless they enter a graph themselves or ask for the fixture `graph_mode`; nothing may switch eager
execution off for the process, because that cannot be undone.
"""

import gc
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest

SEED = 20220916

# More than a consumer whose brokers are gone takes to close.
_KAFKA_CLOSE_SEC = 10.0

# Read by TensorFlow when it is first imported, here or in a process that a test starts. Two threads
# are enough to meet races, and keep several pytest workers from fighting over the cores.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
# TensorFlow's servers never end, and each would have 64 threads for its calls.
os.environ.setdefault("TF_GRPC_WORKER_CACHE_QUEUES", "2")

# Tests talk to loopback only, which a proxy of the machine must not get between (gRPC asks it even
# for 127.0.0.1), and they do not belong to a cluster that the shell happens to describe.
for _name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)
for _name in ("TF_CONFIG", "MONOLITH_METRIC_PREFIX"):
    os.environ.pop(_name, None)

# What a shell starts in the background ignores Ctrl-C, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, no time limit that a busy machine breaks, no files in the
# checkout. `HYPOTHESIS_PROFILE=random` looks for new examples.
_hypothesis_directory = tempfile.TemporaryDirectory(prefix="monolith-hypothesis-")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", _hypothesis_directory.name)
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("random", deadline=None, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `tf.test.TestCase.test_session` is a context manager, which pytest takes for a test.
    items[:] = [item for item in items if not _is_from_tensorflow(item)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _order_for_several_processes(items)


def pytest_collection_finish() -> None:
    # What the import of TensorFlow and of all tests has left is no garbage: collections, of which
    # the graphs of tests cause many, need not look through it again and again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    """Puts environment variables, flags and the levels of loggers back."""
    environment = os.environ.copy()
    levels = _read_log_levels()
    flags = sys.modules.get("absl.flags")
    flags_state = _read_flags(flags.FLAGS) if flags else None
    yield
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    if flags_state:
        _restore_flags(flags.FLAGS, *flags_state)
    for name, level in _read_log_levels().items():
        # One that the test has brought is left to itself, as a flag is.
        if level != levels.get(name, level):
            logging.getLogger(name).setLevel(levels[name])


@pytest.fixture(autouse=True)
def _temporary_directory(
    _process_state: None, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends every kind of temporary file, and relative paths, below `tmp_path`."""
    directory = os.fspath(tmp_path)
    monkeypatch.setenv("TEST_TMPDIR", directory)
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr(tempfile, "tempdir", directory)
    monkeypatch.chdir(directory)
    # `tf.test.TestCase` makes one directory beside TEST_TMPDIR and keeps it for the whole process.
    googletest = sys.modules.get("tensorflow.python.platform.googletest")
    if googletest is not None:
        monkeypatch.setattr(googletest, "_googletest_temp_dir", directory)


@pytest.fixture(autouse=True)
def _fresh_start() -> None:
    """Same seeds for every test, an empty default graph, nothing noted by an earlier one."""
    random.seed(SEED)
    np.random.seed(SEED)
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.compat.v1.reset_default_graph()
        tf.random.set_seed(SEED)
    # A training that a test made fail leaves its session noted for as long as something holds it.
    sessions = sys.modules.get("monolith.training.hooks.current_session")
    if sessions is not None:
        sessions._INFO = sessions._Info()
    # The list that was parsed last names the features of all parsers.
    feature_list = sys.modules.get("monolith.data.feature_list")
    if feature_list is not None:
        feature_list.FeatureList.forget_parsed()


@pytest.fixture(autouse=True)
def _eager_execution() -> Iterator[None]:
    """Refuses a test after which new threads would not run eagerly."""
    yield
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None and context.default_execution_mode != context.EAGER_MODE:
        context.default_execution_mode = context.EAGER_MODE
        pytest.fail("It has switched eager execution off for the process; use a graph instead.")


@pytest.fixture(autouse=True)
def _kafka_clients() -> Iterator[None]:
    """Refuses a test that leaves a client of Kafka behind, which would log into tests after it."""
    topics = sys.modules.get("monolith.data.kafka_topics")
    if topics is None:
        yield
        return
    connect, has_connected = topics.Broker.connect, threading.Event()

    def connect_and_note(broker: Any) -> Any:
        has_connected.set()
        return connect(broker)

    topics.Broker.connect = connect_and_note
    yield
    topics.Broker.connect = connect
    # To look through the threads of the process costs more than most tests do.
    if not has_connected.is_set():
        return
    from support import kafka_mock

    give_up_sec = time.monotonic() + _KAFKA_CLOSE_SEC
    while left := kafka_mock.find_clients():
        gc.collect()  # Graphs hold what reads for their datasets, and are held by themselves.
        assert time.monotonic() < give_up_sec, f"{len(left)} clients of Kafka are not closed."
        time.sleep(0.01)


@pytest.fixture
def graph_mode(_fresh_start: None) -> Iterator[None]:
    """Runs one test in graph mode, in an empty default graph with a fixed seed.

    Also for test cases: `@pytest.mark.usefixtures("graph_mode")` above a `tf.test.TestCase`, whose
    `self.session()` is then a real session.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    with context.graph_mode():
        tf.compat.v1.set_random_seed(SEED)
        yield


def _order_for_several_processes(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the items in the order in which pytest-xdist hands them out, a scope at a time.

    Scopes with long tests come first, so that no process has one left when the others have nothing
    to do. Long tests wait much, so every second scope is one of the others, which compute.
    """
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(item.nodeid.rpartition("::")[0], []).append(item)
    long, short = [], []
    for scope in sorted(scopes.values(), key=len, reverse=True):
        is_long = any(item.get_closest_marker(m) for item in scope for m in ("slow", "distributed"))
        (long if is_long else short).append(scope)
    pairs = itertools.zip_longest(long, short, fillvalue=[])
    return [item for pair in pairs for scope in pair for item in scope]


def _is_from_tensorflow(item: pytest.Item) -> bool:
    module = getattr(getattr(item, "function", None), "__module__", None) or ""
    return module.startswith("tensorflow.")


def _read_log_levels() -> dict[str, int]:
    loggers = logging.root.manager.loggerDict.items()
    return {name: item.level for name, item in loggers if isinstance(item, logging.Logger)}


def _read_flags(flags: Any) -> tuple[bool, dict[str, dict[str, Any]]]:
    return flags.is_parsed(), {name: dict(vars(flags[name])) for name in flags}


def _restore_flags(flags: Any, parsed: bool, states: dict[str, dict[str, Any]]) -> None:
    # A flag that came with a module imported by the test stays: the module stays imported, too.
    for name, state in states.items():
        if vars(flags[name]) != state:
            vars(flags[name]).update(state)
    if parsed and not flags.is_parsed():
        flags.mark_as_parsed()
    elif flags.is_parsed() and not parsed:
        flags.unparse_flags()
