"""The process from which the members of a local cluster are forked.

A process that imports TensorFlow takes seconds to start. This one imports it once and does nothing
with it; each member is a fork, so that a cluster starts, and replaces a member that was killed,
without that wait. It talks with the launcher over a socket (`processes.Nursery`), and stands
between it and the members: however the launcher ends, also by SIGKILL, the socket closes, and the
nursery ends all members and whatever they have started. However the nursery ends, the system ends
its members.

Messages are JSON. From the launcher:

    {"start": ID, "call": ["module", "function"], "arguments": {...}}   with its descriptors
    {"signal": ID, "number": 15}

To the launcher: `{"ready": true}` once, `{"started": ID, "pid": PID}`, and
`{"ended": ID, "code": CODE}` with an exit code, or the number of a signal below zero.
"""

import contextlib
import ctypes
import importlib
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from monolith.core import silence

MAX_MESSAGE = 1 << 20
# Standard output and error, what the member reports, and what it was given.
NUM_DESCRIPTORS = 3

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_SEC = 10.0
_CRASHED = 70
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main(arguments: Sequence[str]) -> None:
    """Runs until the launcher is gone.

    Args:
        arguments: A JSON object: `descriptor` of the socket, `preload`, names of modules, or
            `module:function` to be called once, and `directory`, which is removed at the end.
    """
    settings = json.loads(arguments[0])
    with socket.socket(fileno=settings["descriptor"]) as link:
        _prepare()
        with silence.silenced_stderr():
            for name in settings["preload"]:
                module, _, function = name.partition(":")
                loaded = importlib.import_module(module)
                if function:
                    getattr(loaded, function)()
        try:
            _Nursery(link).run()
        finally:
            end_descendants()
            shutil.rmtree(settings["directory"], ignore_errors=True)


def become_subreaper(is_one: bool = True) -> None:
    """Makes orphans below this process its children, so that it can find and end them; or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_one))


def end_descendants(spared: Collection[int] = ()) -> None:
    """Ends all processes below this one, by SIGKILL, and waits for them.

    Of those that have made themselves independent, only if this process is their subreaper.

    Args:
        spared: Processes that are left alone, and whatever is below them.
    """
    deadline_sec = time.monotonic() + _SWEEP_SEC
    while found := find_descendants(spared=spared):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            # Whose parent another one of them is, is waited for when that has gone.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline_sec:
            break  # One that waits for a disk cannot be ended; it ends when the disk answers.
        time.sleep(0.005)


def find_descendants(root: int | None = None, spared: Collection[int] = ()) -> list[int]:
    """Returns the processes below one, by default this one, but for some and what is below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                # Behind the name, which may hold anything: the state, then the parent.
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), []) if pid not in spared]
        found += below
        waiting += below
    return found


class _Nursery:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._ids: dict[int, int] = {}  # By pid.

    def run(self) -> None:
        """Serves until the launcher is gone."""
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        self._wakeup = reader, writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if not self._send({"ready": True}):
            return
        while True:
            ready, _, _ = select.select([self._link.fileno(), reader], [], [])
            if reader in ready:
                with contextlib.suppress(BlockingIOError):
                    received = os.read(reader, 4096)
                    if any(number in received for number in (signal.SIGTERM, signal.SIGHUP)):
                        return
                if not self._reap():
                    return
            if self._link.fileno() in ready and not self._serve():
                return

    def _serve(self) -> bool:
        """Does what the launcher asks for; returns whether it is still there."""
        try:
            text, descriptors, _, _ = socket.recv_fds(self._link, MAX_MESSAGE, NUM_DESCRIPTORS)
        except ConnectionError:
            return False
        if not text:
            return False
        message = json.loads(text)
        if "start" in message:
            pid = self._fork(message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            self._ids[pid] = message["start"]
            return self._send({"started": message["start"], "pid": pid})
        for pid, member in self._ids.items():
            if member == message["signal"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, message["number"])
        return True

    def _reap(self) -> bool:
        """Tells of members that have ended; returns whether the launcher is still there."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return True
            if found is None:
                return True
            pid = found.si_pid
            # Before it is reaped, so that its number is of nobody else: what it has started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid in self._ids:
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if pid not in self._ids:
                continue  # An orphan of a member.
            code = os.waitstatus_to_exitcode(status)
            if not self._send({"ended": self._ids.pop(pid), "code": code}):
                return False

    def _send(self, message: dict[str, Any]) -> bool:
        try:
            self._link.send(json.dumps(message).encode())
        except ConnectionError:
            return False
        return True

    def _fork(self, message: dict[str, Any], descriptors: Sequence[int]) -> int:
        parent = os.getpid()
        # Or a signal for a new member could meet the handlers of this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._be_member(parent, message, descriptors)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid

    def _be_member(
        self, parent: int, message: dict[str, Any], descriptors: Sequence[int]
    ) -> NoReturn:
        """Runs in the member."""
        code = _CRASHED
        try:
            # A group of its own: it ends with all that it starts.
            os.setpgid(0, 0)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(code)  # The parent has ended before the call above.
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._link.close()
            for descriptor in self._wakeup:
                os.close(descriptor)
            output, report, given = descriptors
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
            random.seed()  # Or all members would draw the same numbers.
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed()
            module, function = message["call"]
            call = getattr(importlib.import_module(module), function)
            code = call(message["arguments"], report, given)
        except SystemExit as error:
            code = _get_exit_code(error)
        except BaseException:  # noqa: BLE001 - the outermost frame of the process
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            # Not further up, where the launcher's messages would be served once more.
            os._exit(code & 0xFF)


def _get_exit_code(error: SystemExit) -> int:
    """Returns the code with which Python ends for it; what is no code it prints, as Python does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def _prepare() -> None:
    # Should a copy of the launcher's end of the socket live on in another process.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    become_subreaper()
    # A handler in Python is needed for the wakeup descriptor to be written to.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


if __name__ == "__main__":
    main(sys.argv[1:])
