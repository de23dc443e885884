"""SIGUSR1 prints the stack, after whatever was installed before."""

import signal
import subprocess
import sys
import threading
import unittest

import pytest

from monolith.core import signals
from monolith.native_training import signal_utils


@pytest.fixture(autouse=True)
def restored_handler():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


class SignalUtilsTest(unittest.TestCase):
    def testBasic(self):
        signal_utils.add_siguser1_handler()
        signal_utils.add_siguser1_handler()
        signal.raise_signal(signal.SIGUSR1)


def raise_here():
    signal.raise_signal(signal.SIGUSR1)


def test_stack_of_the_interrupted_code_is_printed(capsys):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signals.add_siguser1_handler()
    raise_here()
    printed = capsys.readouterr().out
    assert printed.count("in raise_here") == 1
    assert "signals_test.py" in printed


def test_previous_handler_runs_first(capsys):
    calls = []

    def previous(sig, frame):
        calls.append((sig, frame.f_code.co_name, capsys.readouterr().out))

    signal.signal(signal.SIGUSR1, previous)
    signals.add_siguser1_handler()
    raise_here()
    assert calls == [(signal.SIGUSR1, "raise_here", "")]
    assert "in raise_here" in capsys.readouterr().out


def test_ignored_signal_is_not_called_as_handler(capsys):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signals.add_siguser1_handler()
    raise_here()
    assert "in raise_here" in capsys.readouterr().out


def test_signal_during_a_print_does_not_raise(monkeypatch, capfd):
    class BusyStdout:
        def write(self, text):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", BusyStdout())
    signals.print_stack_trace(signal.SIGUSR1, sys._getframe())
    assert "test_signal_during_a_print_does_not_raise" in capfd.readouterr().err


def test_import_installs_the_handler():
    program = (
        "import signal, monolith.core.signals\n"
        "def busy():\n"
        "    signal.raise_signal(signal.SIGUSR1)\n"
        "busy()\n"
        "print('still alive')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "in busy" in process.stdout
    assert process.stdout.endswith("still alive\n")


def test_import_in_another_thread_does_not_fail():
    program = (
        "import importlib, threading\n"
        "failures = []\n"
        "threading.excepthook = failures.append\n"
        "load = lambda: importlib.import_module('monolith.core.signals')\n"
        "thread = threading.Thread(target=load)\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert not failures, failures\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_handler_cannot_be_added_outside_of_the_main_thread():
    failures = []

    def add():
        try:
            signals.add_siguser1_handler()
        except ValueError as error:
            failures.append(str(error))

    thread = threading.Thread(target=add)
    thread.start()
    thread.join()
    assert "main thread" in failures[0]
