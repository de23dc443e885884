"""`monolith run -n 4 SCRIPT`: starts the ranks of a synchronous job on this machine.

Each rank is a process that runs the script; `monolith.graph.collectives.init()` in it finds the
others. What ranks write is labelled with their number. When one fails, the others are given a
moment to end by themselves, since they name it; whoever is left then is ended, and nothing stays.
Ranks that have not met yet cannot know of each other's end, so they are told.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Annotated, Any

import typer

from monolith.graph import rank_links

# What stands behind the script is for the script.
CONTEXT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}

_POLL_SEC = 0.05
_KILL_SEC = 5.0
_PR_SET_PDEATHSIG = 1


def run(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python program; its arguments follow.")
    ],
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", min=1, max=4096, help="How many ranks to start.")
    ] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="A rank that is silent for that long is gone; 30."
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long ranks may take to end after a failure.",
        ),
    ] = 8.0,
) -> None:
    """Start a Python program as several ranks of one synchronous job, on this machine."""
    if not os.path.isfile(script):
        typer.echo(f"error: There is no file {script!r}; name a Python program.", err=True)
        raise typer.Exit(2)
    command = [sys.executable, "-u", script, *context.args]
    raise typer.Exit(_Launch(command, ranks, timeout, grace).run())


class _Launch:
    """The ranks of one job."""

    def __init__(
        self, command: list[str], size: int, timeout_sec: float | None, grace_sec: float
    ) -> None:
        self._command = command
        self._size = size
        self._timeout_sec = timeout_sec
        self._grace_sec = grace_sec
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._received: signal.Signals | None = None
        self._listener: socket.socket | None = None
        # The first rank that has ended, and what to say of it.
        self._ended: tuple[int, str] | None = None
        self._answers_for_rank_0 = False
        # Lines of several ranks must not run into each other.
        self._write_lock = threading.Lock()

    def run(self) -> int:
        """Runs the job; returns the exit code for the command."""
        with self._taking_signals():
            try:
                self._start()
                return self._wait()
            finally:
                self._end_all()
                if self._listener is not None:
                    self._listener.close()

    def _start(self) -> None:
        libc = ctypes.CDLL(None)

        def die_with_the_launcher() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        # Rank 0 inherits the socket, so nobody can take the port between its choice and its use.
        listener = socket.create_server(("127.0.0.1", 0), backlog=self._size + 1)
        self._listener = listener
        for rank in range(self._size):
            environment = {
                **os.environ,
                "MONOLITH_RANK": str(rank),
                "MONOLITH_SIZE": str(self._size),
                "MONOLITH_LOCAL_RANK": str(rank),
                "MONOLITH_LOCAL_SIZE": str(self._size),
                "MONOLITH_RANKS_ADDRESS": self._get_address(),
            }
            if self._timeout_sec is not None:
                environment["MONOLITH_RANKS_TIMEOUT_SEC"] = str(self._timeout_sec)
            inherited: tuple[int, ...] = ()
            if rank == 0:
                environment["MONOLITH_RANKS_LISTENER"] = str(listener.fileno())
                inherited = (listener.fileno(),)
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=inherited,
                # A group of its own, to which whatever the rank starts belongs, too.
                start_new_session=True,
                preexec_fn=die_with_the_launcher,
            )
            self._processes.append(process)
            self._label(rank, process.stdout, sys.stdout)
            self._label(rank, process.stderr, sys.stderr)

    def _get_address(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _wait(self) -> int:
        """Waits for the ranks; returns the code of the first one that failed, 0 if none did."""
        failed: tuple[int, int] | None = None
        deadline_sec: float | None = None
        signalled = False
        while alive := [p for p in self._processes if p.poll() is None]:
            if failed is None:
                failed = self._find_failure()
            self._tell_of_end()
            if self._received is not None and not signalled:
                signalled = True
                deadline_sec = time.monotonic() + self._grace_sec
                for process in alive:
                    _signal(process, self._received)
            elif failed is not None and deadline_sec is None:
                deadline_sec = time.monotonic() + self._grace_sec
            if deadline_sec is not None and time.monotonic() >= deadline_sec:
                break
            time.sleep(_POLL_SEC)
        failed = failed or self._find_failure()
        self._end_all()
        if self._received is not None:
            return 128 + self._received
        if failed is None:
            return 0
        rank, code = failed
        typer.echo(f"error: Rank {rank} of {self._size} {_describe(code)}.", err=True)
        return code if code > 0 else 128 - code

    def _find_failure(self) -> tuple[int, int] | None:
        for rank, process in enumerate(self._processes):
            if process.poll():
                return rank, process.returncode
        return None

    def _tell_of_end(self) -> None:
        """Tells those who still wait for a rank that it has ended; who has met it knows better."""
        assert self._listener is not None
        if self._ended is None:
            for rank, process in enumerate(self._processes):
                if process.poll() is not None:
                    name = rank_links.describe_process(rank, process.pid)
                    what = _describe(process.returncode)
                    self._ended = rank, f"{name} is gone: it {what} before all ranks had met"
                    rank_links.tell_of_end(self._get_address(), *self._ended)
                    break
        is_rank_0_gone = self._processes[0].poll() is not None
        if is_rank_0_gone and self._ended is not None and not self._answers_for_rank_0:
            self._answers_for_rank_0 = True
            threading.Thread(
                target=rank_links.answer_for_rank_0,
                args=(self._listener, *self._ended),
                daemon=True,
            ).start()

    def _end_all(self) -> None:
        """Ends what still runs, also what ranks have started, and shows the last of their lines."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [p for p in self._processes if p.poll() is None]
            for process in alive:
                _signal(process, number)
            deadline_sec = time.monotonic() + _KILL_SEC
            for process in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline_sec - time.monotonic(), 0))
        for process in self._processes:
            _signal(process, signal.SIGKILL)  # To its group: the rank itself is gone.
        for reader in self._readers:
            reader.join(_KILL_SEC)

    def _label(self, rank: int, source: IO[bytes] | None, target: Any) -> None:
        assert source is not None
        label = f"[rank {rank}] "

        def copy(lines: IO[bytes]) -> None:
            for line in lines:
                text = line.decode(errors="replace")
                with self._write_lock:
                    target.write(label + text + ("" if text.endswith("\n") else "\n"))
                    target.flush()

        reader = threading.Thread(target=copy, args=(source,), daemon=True)
        reader.start()
        self._readers.append(reader)

    @contextlib.contextmanager
    def _taking_signals(self) -> Iterator[None]:
        def take(number: int, _: object) -> None:
            self._received = signal.Signals(number)

        previous = {n: signal.signal(n, take) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _describe(code: int) -> str:
    if code == 0:
        return "has ended"
    return f"has failed with code {code}" if code > 0 else f"was ended by {_name(-code)}"


def _name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
