"""Starts the members of a job as real processes, and sees that none is left.

A process that imports TensorFlow takes seconds to start. So members are forked from a server that
has imported everything and done nothing (`multiprocessing`'s forkserver); from then on they are
processes like any other, with a process group of their own.
"""

import contextlib
import faulthandler
import importlib
import logging
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from multiprocessing import forkserver, resource_tracker

TESTS = pathlib.Path(__file__).parents[1]
# As long as a test may take, on a machine that has much else to do.
PATIENCE_SEC = 240

# What members need, imported once. Nothing here may start a thread or run an op.
_PRELOADED = [
    "support.jobs",
    "monolith.training.cpu",
    "monolith.serving.server.server",
    "monolith.cli.app",
    "kazoo.client",
    "support.frozen",
    "support.described_code",
]


def make_process(target, *args, name=None):
    """Returns a process that will be forked from the one that has imported everything."""
    prepare_server()
    context = multiprocessing.get_context("forkserver")
    return context.Process(target=target, args=args, name=name)


def preload(module):
    """Has the process that forks import one more module; before it is started."""
    _PRELOADED.append(module)


def prepare_server():
    """Starts the process that forks, unless it is there."""
    # The server that forks is started with the first process, and must find the tests.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(TESTS) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, paths)])
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()
    resource_tracker.ensure_running()


def _enter(module, function, args, log_path, environment):
    """Runs in the member."""
    os.setpgid(0, 0)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.update(environment)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", force=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # For who looks into a member that hangs: `kill -USR1` has it write where it is.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    getattr(importlib.import_module(module), function)(*args)


class Member:
    """A process of a job.

    Attributes:
        name: What it is called in messages.
        log_path: Where its output goes.
    """

    def __init__(self, name, process, log_path):
        self.name = name
        self.log_path = log_path
        self._process = process

    @property
    def pid(self):
        return self._process.pid

    @property
    def is_alive(self):
        return self._process.exitcode is None

    @property
    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait(self, timeout_sec=PATIENCE_SEC):
        """Returns its exit code."""
        self._process.join(timeout_sec)
        assert not self.is_alive, f"{self.name} still runs after {timeout_sec} s:\n{self.tail()}"
        return self._process.exitcode

    def send(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """Ends it as a crash would, and waits until it is gone."""
        self._process.kill()
        self._process.join(PATIENCE_SEC)

    def tail(self):
        return "\n".join(self.log.splitlines()[-40:])

    def wait_for_log(self, text, timeout_sec=PATIENCE_SEC):
        """Waits until the member has written `text`."""
        deadline_sec = time.monotonic() + timeout_sec
        while text not in self.log:
            assert self.is_alive, f"{self.name} has ended without {text!r}:\n{self.tail()}"
            assert time.monotonic() < deadline_sec, f"{self.name}: no {text!r}:\n{self.tail()}"
            time.sleep(0.02)


class Job:
    """Members of one test; a context that leaves no process behind.

    Args:
        directory: Where logs go.
    """

    def __init__(self, directory):
        self._directory = pathlib.Path(directory)
        self.members = []

    def __enter__(self):
        self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *unused):
        for member in self.members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(member.pid, signal.SIGKILL)
            member._process.kill()
        for member in self.members:
            member._process.join(PATIENCE_SEC)

    def start(self, name, module, function, *args, environment=None):
        """Starts a member that calls `function` of `module`."""
        log_path = self._directory / f"{name}.log"
        process = make_process(
            _enter, module, function, args, log_path, environment or {}, name=name
        )
        process.start()
        member = Member(name, process, log_path)
        self.members.append(member)
        return member

    def expect_success(self, timeout_sec=PATIENCE_SEC):
        """Waits until all members have ended well."""
        deadline_sec = time.monotonic() + timeout_sec
        for member in self.members:
            while member.is_alive:
                for other in self.members:
                    if not other.is_alive and other._process.exitcode != 0:
                        raise AssertionError(describe_failure(other))
                assert time.monotonic() < deadline_sec, "\n".join(
                    f"{m.name} still runs:\n{m.tail()}" for m in self.members if m.is_alive
                )
                member._process.join(0.05)
            assert member._process.exitcode == 0, describe_failure(member)


def describe_failure(member):
    return f"{member.name} has ended with {member._process.exitcode}:\n{member.tail()}"
