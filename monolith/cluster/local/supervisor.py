"""Runs the members of a job on this machine: restarts what dies, ends what is left.

The job is over when its chief is. A member that is killed is started again, as often as
`max_restarts` allows in sum; one that says why it cannot take part is not, since it would say the
same again. SIGTERM and Ctrl-C tell the workers once to stop, so that the chief saves; the second
one ends everything at once.
"""

import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from monolith.cluster.local.output import LabelledLog
from monolith.cluster.local.processes import Ended, Nursery, NurseryLostError, Process, Started

logger = logging.getLogger(__name__)

# How long members have, by default, to save after a signal.
GRACE_SEC = 300.0

# The same after a failure.
_FAILED_GRACE_SEC = 30.0
# Servers are dismissed by the chief; these are forgotten ones.
_SERVER_GRACE_SEC = 5.0
_KILL_AFTER_SEC = 5.0
_TICK_SEC = 0.25
_LONGEST_DELAY_SEC = 30.0
# One that has lived longer is started again without delay.
_STABLE_SEC = 60.0
_READ_BYTES = 1 << 16
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
_SIGNAL_EXIT_CODE = 128

# What a member reports: figures to show; that it cannot take part, and why; that it has failed.
FIGURES, REFUSED, FAILED = "figures", "refused", "failed"


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a member in its job.

    Attributes:
        role: "ps" or "worker".
        index: Its number in that role; worker 0 is the chief.
    """

    role: str
    index: int

    @property
    def name(self) -> str:
        """What it is called in the log."""
        return "chief" if self.is_chief else f"{self.role} {self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether the job ends with it."""
        return self.role == "worker" and self.index == 0


def list_places(num_ps: int, num_workers: int) -> list[Place]:
    """Returns all places of a job.

    Example:
        >>> [place.name for place in list_places(2, 2)]
        ['ps 0', 'ps 1', 'chief', 'worker 1']
    """
    servers = [Place("ps", index) for index in range(num_ps)]
    return servers + [Place("worker", index) for index in range(num_workers)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job has ended.

    Attributes:
        code: What the launcher exits with.
        message: Why it has failed, or what has stopped it; empty if all is well.
        num_restarts: How often members were started again.
        received: The signal that has stopped it.
        is_refused: Whether a member has said that it cannot take part.
    """

    code: int
    message: str = ""
    num_restarts: int = 0
    received: signal.Signals | None = None
    is_refused: bool = False


class Display(Protocol):
    """Shows how a job is getting on."""

    def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Takes what a member has reported."""

    def show(self, running: Sequence[Place], num_restarts: int) -> None:
        """Shows it, if it is time; called again and again."""

    def close(self) -> None:
        """Lets go of the terminal."""


class _Member:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.process: Process | None = None
        self.pid: int | None = None
        self.started_sec = 0.0
        self.start_at_sec: float | None = None
        self.num_restarts = 0
        self.problem: tuple[str, str] | None = None  # What it has reported last.
        self.report = b""


class Supervisor:
    """The members of one job.

    Args:
        nursery: Starts them.
        places: Who they are.
        call: Module and function that each calls, with what `describe` returns.
        describe: Returns the arguments of a member.
        max_restarts: How often members are started again, in sum.
        log: Takes their output.
        display: Shows how the job is getting on.
        grace_sec: How long they have to save after a signal.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        nursery: Nursery,
        places: Sequence[Place],
        call: tuple[str, str],
        describe: Callable[[Place], Mapping[str, Any]],
        *,
        max_restarts: int,
        log: LabelledLog,
        display: Display,
        grace_sec: float = GRACE_SEC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nursery = nursery
        self._members = [_Member(place) for place in places]
        self._call = call
        self._describe = describe
        self._max_restarts = max_restarts
        self._log = log
        self._display = display
        self._grace_sec = grace_sec
        self._clock = clock
        self._num_restarts = 0
        self._signals = _SignalNote()
        self._num_signals = 0
        self._outcome: Outcome | None = None
        self._deadline_sec = float("inf")
        self._alone_since_sec: float | None = None

    def run(self) -> Outcome:
        """Starts the members, and returns when the job is over and none of them is left.

        Call it once. In the main thread it answers to signals, unless the program does so itself.
        """
        try:
            with self._signals:
                for member in self._members:
                    member.start_at_sec = self._clock()
                while self._outcome is None or self._is_anybody_left():
                    self._wait()
                    self._heed_signals()
                    self._end_what_is_left()
                    if self._outcome is None:
                        self._start_what_is_due()
                    self._display.show(
                        [m.place for m in self._members if m.process is not None],
                        self._num_restarts,
                    )
        except NurseryLostError as error:
            self._outcome = self._outcome or Outcome(1, str(error))
        finally:
            self._display.close()
            for member in self._members:
                self._forget(member)
        return dataclasses.replace(self._outcome, num_restarts=self._num_restarts)

    def _is_anybody_left(self) -> bool:
        return any(member.process is not None for member in self._members)

    def _wait(self) -> None:
        """Waits for a moment, or until something happens, and takes note of it."""
        readers: dict[int, _Member | None] = {
            self._nursery.fileno(): None,
            self._signals.fileno(): None,
        }
        for member in self._members:
            if member.process is not None:
                readers[member.process.output] = readers[member.process.report] = member
        ready, _, _ = select.select(list(readers), [], [], _TICK_SEC)
        for descriptor in ready:
            writer = readers[descriptor]
            if writer is not None:
                self._read(writer, descriptor)
        self._signals.drain()
        # Last: what a member has written is read before its end is known.
        if self._nursery.fileno() in ready:
            self._take_event()

    def _take_event(self) -> None:
        event = self._nursery.wait(0)
        if isinstance(event, Started):
            self._find(event.key).pid = event.pid
        elif isinstance(event, Ended):
            member = self._find(event.key)
            while self._read(member, member.process.output):  # type: ignore[union-attr]
                pass
            while self._read(member, member.process.report):  # type: ignore[union-attr]
                pass
            self._log.finish(member.place.name)
            self._forget(member)
            self._note_end(member, event.code)

    def _find(self, key: int) -> _Member:
        return next(m for m in self._members if m.process is not None and m.process.key == key)

    def _forget(self, member: _Member) -> None:
        if member.process is not None:
            member.process.close()
            member.process = None

    def _read(self, member: _Member, descriptor: int) -> bool:
        """Reads what a member has written; returns whether there was something."""
        assert member.process is not None
        try:
            text = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if descriptor == member.process.output:
            self._log.feed(member.place.name, text)
        else:
            *lines, member.report = (member.report + text).split(b"\n")
            for line in lines:
                self._take_report(member, json.loads(line))
        if not text:
            time.sleep(0.01)  # It has closed this, and goes on: not in a busy loop.
        return bool(text)

    def _take_report(self, member: _Member, report: Mapping[str, Any]) -> None:
        if FIGURES in report:
            self._display.report(member.place.name, report[FIGURES])
        for kind in (REFUSED, FAILED):
            if kind in report:
                member.problem = kind, str(report[kind])

    def _start_what_is_due(self) -> None:
        for member in self._members:
            if member.start_at_sec is not None and self._clock() >= member.start_at_sec:
                member.start_at_sec = None
                member.started_sec = self._clock()
                member.problem, member.report = None, b""
                arguments = self._describe(member.place)
                member.process = self._nursery.start(*self._call, arguments)

    def _note_end(self, member: _Member, code: int) -> None:
        """Decides what the end of a member means for the job."""
        name, place = member.place.name, member.place
        if place.is_chief and code == 0:
            self._end(Outcome(0), _FAILED_GRACE_SEC)
        elif self._outcome is not None:
            if place.role == "ps" and code != 0:
                # Without it nothing can be saved, so that nobody needs to wait for that.
                soon_sec = self._clock() + _KILL_AFTER_SEC
                self._deadline_sec = min(self._deadline_sec, soon_sec)
        elif code == 0:
            logger.debug("%s has finished", name)
        elif member.problem is not None and (member.problem[0] == REFUSED or place.is_chief):
            is_refused = member.problem[0] == REFUSED
            self._end(Outcome(1, member.problem[1], is_refused=is_refused), _FAILED_GRACE_SEC)
        elif place.is_chief and code - _SIGNAL_EXIT_CODE in _SIGNALS:
            # A program may end with any other code on its own, also with one above 128.
            received = signal.Signals(code - _SIGNAL_EXIT_CODE)
            text = f"The chief was stopped by {received.name}; the training is saved."
            self._end(Outcome(code, text, received=received), _FAILED_GRACE_SEC)
        elif place.is_chief and code > 0:
            self._end(Outcome(1, f"The chief has ended with {code}."), _FAILED_GRACE_SEC)
        else:
            self._restart(member, code)

    def _restart(self, member: _Member, code: int) -> None:
        name, how = member.place.name, describe_end(code)
        if member.problem is not None:
            how = f"{how} ({member.problem[1]})"
        if self._num_restarts >= self._max_restarts:
            self._end(
                Outcome(
                    1,
                    f"{name[:1].upper()}{name[1:]} {how}, and members were started again "
                    f"{self._num_restarts} times already, which is the limit (max_restarts); see "
                    "its lines above.",
                ),
                _FAILED_GRACE_SEC,
            )
            return
        self._num_restarts += 1
        lived_sec = self._clock() - member.started_sec
        member.num_restarts = 0 if lived_sec > _STABLE_SEC else member.num_restarts + 1
        delay_sec = 0.0
        if member.num_restarts > 1:
            delay_sec = min(2.0 ** (member.num_restarts - 2), _LONGEST_DELAY_SEC)
        member.start_at_sec = self._clock() + delay_sec
        self._log.say(
            f"{name} {how}; starting it again (restart {self._num_restarts} of at most "
            f"{self._max_restarts})"
        )

    def _heed_signals(self) -> None:
        received = self._signals.received
        if len(received) <= self._num_signals:
            return
        self._num_signals = len(received)
        number = received[-1]
        if self._outcome is not None and self._outcome.received is not None:
            self._log.say(f"{number.name} once more: ending all members at once")
            self._deadline_sec = -float("inf")
            return
        outcome = Outcome(
            _SIGNAL_EXIT_CODE + number, f"{number.name} has stopped the job.", received=number
        )
        if self._outcome is None or self._outcome.code == 0:
            self._log.say(
                f"{number.name}: the members stop and save, for which they have "
                f"{self._grace_sec:g} s; once more ends them at once"
            )
            # Who has finished has finished: a signal that comes after that changes nothing.
            self._end(self._outcome or outcome, self._grace_sec)
            self._outcome = dataclasses.replace(self._outcome or outcome, received=number)

    def _end(self, outcome: Outcome, grace_sec: float) -> None:
        """Has the job end in a certain way."""
        self._outcome = outcome
        self._deadline_sec = self._clock() + grace_sec
        for member in self._members:
            member.start_at_sec = None
            # Servers stay: the chief cannot save without them, and dismisses them then.
            if outcome.code != 0 and member.place.role == "worker":
                self._send(member, signal.SIGTERM)

    def _end_what_is_left(self) -> None:
        if self._outcome is None:
            return
        now_sec = self._clock()
        if now_sec >= self._deadline_sec:
            for member in self._members:
                self._send(member, signal.SIGKILL)
            return
        if any(m.process is not None and m.place.role == "worker" for m in self._members):
            return
        if self._alone_since_sec is None:
            self._alone_since_sec = now_sec
            self._deadline_sec = min(
                self._deadline_sec, now_sec + _SERVER_GRACE_SEC + _KILL_AFTER_SEC
            )
        if now_sec - self._alone_since_sec >= _SERVER_GRACE_SEC or self._outcome.code == 1:
            for member in self._members:
                # The first one has a server wait for its chief; there is none any more.
                self._send(member, signal.SIGTERM)

    def _send(self, member: _Member, number: signal.Signals) -> None:
        if member.process is not None:
            self._nursery.signal(member.process.key, number)


def describe_end(code: int) -> str:
    """Returns how a process has ended, for a message.

    Example:
        >>> describe_end(-9), describe_end(1)
        ('was killed by SIGKILL', 'has ended with 1')
    """
    if code >= 0:
        return f"has ended with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class _SignalNote:
    """Notes signals during a block; those that the program handles itself are left alone."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._reader, self._writer = os.pipe()
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptor, False)

    def __enter__(self) -> "_SignalNote":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in _DEFAULT_HANDLERS:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Returns the descriptor that can be read when there was a signal."""
        return self._reader

    def drain(self) -> None:
        """Empties the descriptor."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 64)

    def _handle(self, number: int, frame: object) -> None:
        self.received.append(signal.Signals(number))
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """For a launcher: ends what is below this process in the end, and was not in the beginning.

    So also what has left all groups; but nothing that a program has started which calls it.
    """
    from monolith.cluster.local import nursery

    others = nursery.find_descendants()
    nursery.become_subreaper()
    try:
        yield
    finally:
        nursery.end_descendants(others)
        nursery.become_subreaper(False)
