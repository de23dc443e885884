"""The launcher's end of a nursery: starts members, signals them, hears of their end.

Example:
    >>> with Nursery(["json"]) as nursery:
    ...     process = nursery.start("monolith.cluster.local.processes", "_say", {"word": "hello"})
    ...     events = nursery.wait(), nursery.wait(), nursery.wait()
    ...     text = os.read(process.output, 100)
    >>> [type(event).__name__ for event in events], text
    (['Ready', 'Started', 'Ended'], b'hello\\n')
"""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from monolith import errors
from monolith.cluster.local import nursery

_END_SEC = 20.0


@dataclasses.dataclass(frozen=True)
class Ready:
    """The nursery has imported what it was told to."""


@dataclasses.dataclass(frozen=True)
class Started:
    """A process is there.

    Attributes:
        key: The process.
        pid: Its number.
    """

    key: int
    pid: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process has ended.

    Attributes:
        key: The process.
        code: Its exit code, or below zero the signal that has ended it.
    """

    key: int
    code: int


class NurseryLostError(errors.MonolithError, RuntimeError):
    """The nursery has ended, and all members with it."""


@dataclasses.dataclass(frozen=True)
class Process:
    """What the launcher holds of a member.

    Attributes:
        key: Tells it from all others of this nursery.
        output: Descriptor to read its standard output and error from.
        report: Descriptor to read what it reports from.
    """

    key: int
    output: int
    report: int

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self.output)
        os.close(self.report)


class Nursery:
    """A nursery, see `monolith.cluster.local.nursery`; a context that leaves no process behind.

    Args:
        preload: Modules that members need, or `module:function` to call one, too, before any member
            is there; that must start no thread.
        environment: Variables of the environment, beside those of this process.
        given: What all members can read, from a descriptor.
        without: Variables of this process that they do not get.
    """

    def __init__(
        self,
        preload: Sequence[str],
        environment: Mapping[str, str] | None = None,
        given: bytes = b"",
        without: Sequence[str] = (),
    ) -> None:
        # Of this user alone; for what the members have to agree on.
        self.directory = tempfile.mkdtemp(prefix="monolith-")
        self._given = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._given.write(given)
        self._given.flush()
        self._next_key = 0
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "descriptor": theirs.fileno(),
            "preload": list(preload),
            "directory": self.directory,
        }
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, json.dumps(settings)],
                env={**inherited, **(environment or {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the launcher, which tells the others what to do.
                start_new_session=True,
            )

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Returns the descriptor that can be read when there is an event."""
        return self._link.fileno()

    def start(self, module: str, function: str, arguments: Mapping[str, Any]) -> Process:
        """Asks for a process that calls a function with its arguments and two descriptors.

        It may report to the first descriptor, and read what all were given from the second.
        """
        self._next_key += 1
        message = {"start": self._next_key, "call": [module, function], "arguments": arguments}
        text = json.dumps(message).encode()
        if len(text) > nursery.MAX_MESSAGE:
            raise errors.ConfigError(
                f"The arguments of a member take {len(text)} bytes, more than "
                f"{nursery.MAX_MESSAGE}; pass less."
            )
        output, theirs = os.pipe()
        report, reported = os.pipe()
        try:
            self._send(text, [theirs, reported, self._given.fileno()])
        finally:
            os.close(theirs)
            os.close(reported)
        for descriptor in (output, report):
            os.set_blocking(descriptor, False)
        return Process(self._next_key, output, report)

    def signal(self, key: int, number: int) -> None:
        """Sends a signal to a process; nothing happens if it has ended."""
        self._send(json.dumps({"signal": key, "number": int(number)}).encode(), [])

    def wait(self, timeout_sec: float | None = None) -> Ready | Started | Ended | None:
        """Returns the next event, None if there is none in time.

        Raises:
            NurseryLostError: There will be none any more.
        """
        ready, _, _ = select.select([self._link], [], [], timeout_sec)
        if not ready:
            return None
        try:
            text = self._link.recv(nursery.MAX_MESSAGE)
        except ConnectionError:
            text = b""
        if not text:
            raise NurseryLostError(self._describe_end())
        message = json.loads(text)
        if "ready" in message:
            return Ready()
        if "started" in message:
            return Started(message["started"], message["pid"])
        return Ended(message["ended"], message["code"])

    def close(self) -> None:
        """Ends all members that are left, and waits until they are gone."""
        self._link.close()
        self._given.close()
        try:
            self._process.wait(_END_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _send(self, text: bytes, descriptors: Sequence[int]) -> None:
        try:
            socket.send_fds(self._link, [text], descriptors)
        except ConnectionError:
            raise NurseryLostError(self._describe_end()) from None

    def _describe_end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SEC)
        return (
            "The process from which the members are started has ended with "
            f"{self._process.returncode}, and all members with it; start the job again, it goes on "
            "from its last checkpoint."
        )


def _say(arguments: Mapping[str, str], report: int, given: int) -> int:
    """What the example above starts."""
    print(arguments["word"])
    return 0
