"""The connections by which the ranks of a job meet, agree, and notice that one is gone.

Rank 0 listens; every other rank keeps one connection to it, over which small messages go: lines of
JSON. A connection that ends without a word, or that has been silent for too long, means that the
rank at its other end is gone; rank 0 tells the rest. That holds from the first word on: a rank that
dies while others are still missing ends all that have come. Of one that never came, who has started
it may tell rank 0 (`tell_of_end`), or the others if it was rank 0 (`answer_for_rank_0`).

A process that learns that another rank is gone has a few seconds to end by itself: the collective
that it waits in fails, and the error names the rank. If nobody takes notice by then, because the
wait has no end, the process is ended.
"""

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from monolith import errors
from monolith.graph.rank_place import Place

logger = logging.getLogger(__name__)

TIMEOUT = "MONOLITH_RANKS_TIMEOUT_SEC"
LISTENER = "MONOLITH_RANKS_LISTENER"

# Read when they are used, so that tests can shorten them.
MEET_SEC = 600.0
GRACE_SEC = 5.0

_DEFAULT_TIMEOUT_SEC = 30.0
_POLL_SEC = 0.05
_MAX_LINE = 1 << 20
# What is added to the number of the signal that has ended a program in order.
_SIGNAL_EXIT_CODE = 128
_NO_MEETING = "its connection has ended before all ranks had met"


class Links:
    """The connections of this process to the other ranks.

    Args:
        place: Which rank this process is.
        timeout_sec: After how many seconds of silence a rank is gone; None asks the environment
            (`MONOLITH_RANKS_TIMEOUT_SEC`), and takes 30 without it.
        end_process: Called when nobody takes notice of a lost rank.
    """

    def __init__(
        self,
        place: Place,
        timeout_sec: float | None = None,
        *,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        self._place = place
        self._timeout_sec = _read_timeout() if timeout_sec is None else timeout_sec
        self._end_process = end_process
        self._peers: dict[int, _Peer] = {}
        self._state = threading.Condition()
        self._send_lock = threading.Lock()
        self._gathered: dict[int, dict[int, Any]] = {}
        self._round = 0
        self._problem: str | None = None
        self._left: dict[int, str] = {}
        self._left_sec = 0.0
        self._step_sec: float | None = None
        self._exit_code: Any = None
        self._is_noticed = threading.Event()
        self._is_closed = threading.Event()

    def meet(self) -> None:
        """Waits until all ranks are connected.

        Raises:
            ConfigError: They did not come in time, or disagree about how many they are.
            RankLostError: One is gone before all have come.
        """
        deadline_sec = time.monotonic() + MEET_SEC
        with contextlib.ExitStack() as stack:
            if self._place.rank == 0:
                listener, file = _listen(self._place)
                stack.enter_context(listener)
                if file is not None:
                    stack.callback(file.remove)
                self._accept(listener, deadline_sec)
            else:
                self._connect(deadline_sec)
        for peer in self._peers.values():
            self._start(self._read, peer)
        self._start(self._beat)

    @property
    def host(self) -> str:
        """The address of this machine at which the other ranks reach it."""
        peer = next(iter(self._peers.values()))
        return str(peer.connection.getsockname()[0])

    @property
    def problem(self) -> str | None:
        """What keeps the ranks from going on, None as long as all are there."""
        return self._problem

    def check(self) -> None:
        """Raises RankLostError if a rank is gone."""
        if self._problem is not None:
            self._is_noticed.set()
            raise errors.RankLostError(self._problem)

    def begin_step(self) -> None:
        """Says that this process is about to wait for all ranks.

        A rank that has ended well is no loss to who does something alone; to who waits for it,
        until the time limit, it is.
        """
        self._step_sec = time.monotonic()
        self._exit_code = None  # It has not ended, after all.

    def end_step(self) -> None:
        """Says that it does not wait any more."""
        self._step_sec = None

    @contextlib.contextmanager
    def waiting(self, is_waiting: bool) -> Iterator[None]:
        """Says that this process waits for all ranks while a block runs, if it does.

        What the block says itself, by `begin_step` and `end_step`, is forgotten behind it.
        """
        before_sec = self._step_sec
        if is_waiting:
            self.begin_step()
        try:
            yield
        finally:
            self._step_sec = before_sec

    def note_exit(self, code: Any) -> None:
        """Notes that the program is about to end by a `SystemExit` with this code."""
        self._exit_code = code

    def explain(self, wait_sec: float = 2.0) -> None:
        """Raises RankLostError if what has just failed did because a rank is gone.

        The failure may be known a moment before its reason.
        """
        deadline_sec = time.monotonic() + wait_sec
        with self._state:
            while self._problem is None and not self._left and time.monotonic() < deadline_sec:
                self._state.wait(_POLL_SEC)
            if self._problem is None and self._left:
                self._problem = next(iter(self._left.values()))
        self.check()

    def gather(self, value: Any, timeout_sec: float | None = None) -> list[Any]:
        """Returns what each rank has given, in the order of ranks; waits for all of them.

        Args:
            value: What JSON can say.
            timeout_sec: How long to wait, None for as long as all ranks are alive.

        Raises:
            RankLostError: One is gone, or has left.
            TimeoutError: It takes longer than `timeout_sec`.
        """
        deadline_sec = None if timeout_sec is None else time.monotonic() + timeout_sec
        number, self._round = self._round, self._round + 1
        self._note(number, self._place.rank, value)
        if self._place.rank != 0:
            self._send_all({"kind": "value", "round": number, "value": value})
        with self._state:
            while len(self._gathered.get(number, ())) < self._place.size:
                if self._problem is None and self._left:
                    self._problem = next(iter(self._left.values()))
                self.check()
                if deadline_sec is not None and time.monotonic() >= deadline_sec:
                    raise TimeoutError(f"some ranks have not come within {timeout_sec:g} s")
                self._state.wait(_POLL_SEC)
            values = self._gathered.pop(number)
        return [values[rank] for rank in range(self._place.size)]

    def leave(self) -> None:
        """Says goodbye; the others do not take this rank for lost then."""
        if self._is_closed.is_set():
            return
        failure = getattr(sys, "last_value", None)
        # Who ends because another rank is gone has nothing to add.
        why = _describe_exit(self._exit_code) if self._problem is None else None
        if failure is not None and not isinstance(failure, errors.RankLostError):
            why = f"it has failed with {type(failure).__name__}: {_first_line(failure)}"
        self._is_closed.set()
        self._is_noticed.set()
        self._send_all({"kind": "left", "rank": self._place.rank, "why": why})
        for peer in self._peers.values():
            peer.close()

    def _accept(self, listener: socket.socket, deadline_sec: float) -> None:
        place = self._place
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while missing := [r for r in range(1, place.size) if r not in self._peers]:
                ready = selector.select(max(deadline_sec - time.monotonic(), 0.001))
                if not ready and time.monotonic() >= deadline_sec:
                    names = ", ".join(map(str, missing))
                    raise errors.ConfigError(
                        f"Rank 0 of {place.size} has waited {MEET_SEC:g} s, and of the others "
                        f"{names} did not come; see why they have not started, and start all ranks "
                        "again."
                    )
                for key, _ in ready:
                    if key.data is not None:
                        # Nobody has anything to say until all are there.
                        self._give_up(key.data.rank, f"{key.data.name} is gone: {_NO_MEETING}")
                    peer = self._greet(listener)
                    if peer is not None:
                        selector.register(peer.connection, selectors.EVENT_READ, peer)
        for peer in self._peers.values():
            peer.send({"kind": "welcome", "rank": 0, "name": describe_process(0, os.getpid())})

    def _greet(self, listener: socket.socket) -> "_Peer | None":
        """Takes a connection; returns it if it is that of a rank."""
        connection, _ = listener.accept()
        peer = _Peer(connection)
        hello = peer.greet()
        if hello is None:
            peer.close()  # Somebody who looks for open ports.
            return None
        if hello.get("kind") == "ended":
            self._give_up(hello.get("rank"), str(hello.get("why")))
        if refusal := self._find_refusal(hello):
            peer.send({"kind": "refused", "why": refusal})
            peer.close()
            return None
        peer.rank, peer.name = hello["rank"], hello["name"]
        self._peers[peer.rank] = peer
        peer.send({"kind": "here", "name": describe_process(0, os.getpid())})
        return peer

    def _give_up(self, rank: Any, why: str) -> NoReturn:
        """Tells those who wait for all others to come that one of them never will."""
        self._send_all({"kind": "lost", "rank": rank, "why": why}, besides=rank)
        for peer in self._peers.values():
            peer.close()
        raise errors.RankLostError(why)

    def _find_refusal(self, hello: dict[str, Any]) -> str | None:
        rank, size = hello.get("rank"), hello.get("size")
        if size != self._place.size:
            return (
                f"A rank was started as one of {size}, and rank 0 as one of {self._place.size}; "
                "start all ranks with the same number."
            )
        if not isinstance(rank, int) or not 0 < rank < self._place.size or "name" not in hello:
            return f"There is no rank {rank!r} beside rank 0 of {self._place.size}."
        if rank in self._peers:
            return (
                f"{self._peers[rank].name} is here already, and another process claims rank "
                f"{rank}; start each rank once."
            )
        return None

    def _connect(self, deadline_sec: float) -> None:
        place = self._place
        last: object = "its address is not known yet"
        while time.monotonic() < deadline_sec:
            address = place.address or (place.find_address or _MeetingFile(place).read)()
            if address is None:
                time.sleep(_POLL_SEC)
                continue
            try:
                peer = _Peer(socket.create_connection(_parse(address), timeout=5.0))
            except OSError as error:
                last = error
                time.sleep(_POLL_SEC)
                continue
            peer.send(
                {
                    "rank": place.rank,
                    "size": place.size,
                    "name": describe_process(place.rank, os.getpid()),
                }
            )
            if self._is_welcome(peer, deadline_sec):
                self._peers[0] = peer
                return
            peer.close()
            last = "it does not answer as rank 0 does"
            time.sleep(_POLL_SEC)
        raise errors.ConfigError(
            f"Rank {place.rank} of {place.size} has tried {MEET_SEC:g} s to reach rank 0 at "
            f"{place.address or 'this machine'} ({last}); see why it has not started."
        )

    def _is_welcome(self, peer: "_Peer", deadline_sec: float) -> bool:
        """Waits until rank 0 has met all; returns whether it is rank 0 that was reached."""
        peer.connection.settimeout(max(deadline_sec - time.monotonic(), 0.001))
        try:
            while (answer := peer.receive()) is not None:
                kind = answer.get("kind")
                if kind == "refused":
                    raise errors.ConfigError(str(answer["why"]))
                if kind == "lost":
                    raise errors.RankLostError(str(answer["why"]))
                if kind not in ("here", "welcome"):
                    return False
                peer.rank, peer.name = 0, str(answer["name"])
                if kind == "welcome":
                    return True
        except TimeoutError:
            return False
        if peer.rank == 0:
            raise errors.RankLostError(f"{peer.name} is gone: {_NO_MEETING}")
        return False

    def _read(self, peer: "_Peer") -> None:
        """Takes the messages of a rank until it is gone; runs in a thread."""
        peer.connection.settimeout(self._timeout_sec)
        while True:
            try:
                message = peer.receive()
                why = "its connection has ended without a word"
            except TimeoutError:
                message, why = None, f"it has been silent for {self._timeout_sec:g} s"
            if message is None:
                if peer.rank not in self._left and not self._is_closed.is_set():
                    self._lose(peer.rank, f"{peer.name} is gone: {why}")
                return
            self._take(peer, message)

    def _take(self, peer: "_Peer", message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "value":
            self._note(message["round"], peer.rank, message["value"])
        elif kind == "values":
            for rank, value in enumerate(message["values"]):
                self._note(message["round"], rank, value)
        elif kind == "lost":
            self._lose(message["rank"], message["why"])
        elif kind == "left":
            rank, why = message["rank"], message["why"]
            name = message.get("name", peer.name)
            if why is not None:
                self._lose(rank, f"{name} is gone: {why}")
                return
            with self._state:
                self._left[rank] = f"{name} has left while others go on: its program has ended"
                self._left_sec = time.monotonic()
                self._state.notify_all()
            if self._place.rank == 0:
                self._send_all({**message, "name": name}, besides=rank)

    def _note(self, number: int, rank: int, value: Any) -> None:
        with self._state:
            values = self._gathered.setdefault(number, {})
            values[rank] = value
            is_complete = len(values) == self._place.size
            self._state.notify_all()
        if is_complete and self._place.rank == 0:
            everything = [values[r] for r in range(self._place.size)]
            self._send_all({"kind": "values", "round": number, "values": everything})

    def _lose(self, rank: int, problem: str) -> None:
        with self._state:
            if self._problem is not None:
                return
            self._problem = problem
            self._state.notify_all()
        logger.error("%s", problem)
        if self._place.rank == 0:
            self._send_all({"kind": "lost", "rank": rank, "why": problem}, besides=rank)
        self._start(self._end_if_nobody_notices)

    def _end_if_nobody_notices(self) -> None:
        if not self._is_noticed.wait(GRACE_SEC):
            print(
                f"rank {self._place.rank} ends: {self._problem}, and the collective that waits for "
                f"it has not failed within {GRACE_SEC:g} s",
                file=sys.stderr,
                flush=True,
            )
            self._end_process(1)

    def _beat(self) -> None:
        while not self._is_closed.wait(self._timeout_sec / 5):
            self._send_all({"kind": "beat"})
            begun_sec = self._step_sec
            if not self._left or begun_sec is None:
                continue
            if time.monotonic() - max(begun_sec, self._left_sec) >= self._timeout_sec:
                self._lose(*next(iter(self._left.items())))

    def _send_all(self, message: dict[str, Any], besides: int | None = None) -> None:
        # All get messages in the same order: who has got the values of a round may leave before
        # another one has, and that it has left must not come first there.
        with self._send_lock:
            for rank, peer in self._peers.items():
                if rank != besides:
                    peer.send(message)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="RankLinks", daemon=True)
        thread.start()


def describe_process(rank: int, pid: int) -> str:
    """Returns what a rank on this machine is called in messages."""
    return f"rank {rank} (process {pid} on {socket.gethostname()})"


def tell_of_end(address: str, rank: int, why: str) -> None:
    """Tells rank 0, should it still wait for a rank, that this one has ended.

    Args:
        address: Where the ranks meet.
        rank: Which one.
        why: What to say of it, with its name.
    """
    with contextlib.suppress(OSError):
        peer = _Peer(socket.create_connection(_parse(address), timeout=1.0))
        peer.send({"kind": "ended", "rank": rank, "why": why})
        peer.close()


def answer_for_rank_0(listener: socket.socket, rank: int, why: str) -> None:
    """Tells all who come to meet that there will be no meeting; until the listener is closed."""
    listener.settimeout(None)
    with contextlib.suppress(OSError):
        while True:
            peer = _Peer(listener.accept()[0])
            if peer.greet() is not None:
                peer.send({"kind": "lost", "rank": rank, "why": why})
            peer.close()


class _Peer:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank = -1
        self.name = "somebody"
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._write_lock = threading.Lock()

    def greet(self) -> dict[str, Any] | None:
        """Returns the first message, None of somebody who does not speak in time."""
        self.connection.settimeout(5.0)
        try:
            return self.receive()
        except TimeoutError:
            return None

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message, None after the last; raises TimeoutError."""
        while b"\n" not in self._buffer:
            try:
                received = self.connection.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                return None
            self._buffer += received
            if not received or len(self._buffer) > _MAX_LINE:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                return message
        return None

    def send(self, message: dict[str, Any]) -> None:
        # Whether it arrives is known to who reads from this connection.
        with contextlib.suppress(OSError), self._write_lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class _MeetingFile:
    """Where ranks of one machine find the address of rank 0; others cannot put a file there."""

    def __init__(self, place: Place) -> None:
        job = "".join(c if c.isalnum() else "-" for c in place.job or "")
        self._path = os.path.join(tempfile.gettempdir(), f"monolith-ranks-{os.getuid()}-{job}")

    def write(self, address: str) -> None:
        # Renamed into place, so that nobody reads half of it.
        descriptor, path = tempfile.mkstemp(dir=os.path.dirname(self._path))
        with os.fdopen(descriptor, "w") as file:
            file.write(address)
        os.rename(path, self._path)

    def read(self) -> str | None:
        with contextlib.suppress(OSError), open(self._path) as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                return file.read()
        return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.remove(self._path)


def _listen(place: Place) -> tuple[socket.socket, _MeetingFile | None]:
    """Returns the socket at which rank 0 waits, and the file that tells of it."""
    inherited = os.environ.pop(LISTENER, None)
    if inherited is not None:
        return socket.socket(fileno=int(inherited)), None
    if place.address is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=place.size)
        file = _MeetingFile(place)
        file.write(f"127.0.0.1:{listener.getsockname()[1]}")
        return listener, file
    host, port = _parse(place.address)
    try:
        return socket.create_server((host, port), backlog=place.size), None
    except OSError as error:
        raise errors.ConfigError(
            f"Rank 0 cannot listen at {place.address}, where the ranks are to meet ({error}); name "
            "a free port of this machine."
        ) from error


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise errors.ConfigError(
            f"The address where the ranks meet must be HOST:PORT, got {address!r}."
        )
    return host.strip("[]"), int(port)


def _read_timeout() -> float:
    text = os.environ.get(TIMEOUT)
    if text is None:
        return _DEFAULT_TIMEOUT_SEC
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise errors.ConfigError(f"{TIMEOUT} must be a number of seconds above 0, got {text!r}.")


def _first_line(error: object) -> str:
    text = str(error)
    return text.splitlines()[0][:500] if text else ""


def _describe_exit(code: Any) -> str | None:
    """Returns what to say of a program that ends with a code; None if it ends well, or was told."""
    if not code:
        return None
    if not isinstance(code, int):
        return f"its program has ended: {_first_line(code)}"
    is_told = _SIGNAL_EXIT_CODE < code < _SIGNAL_EXIT_CODE + signal.NSIG
    return None if is_told else f"its program has ended with code {code}"
