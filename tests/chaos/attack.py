"""Attacks a real job for a while, and starts again what it has killed, as a scheduler would.

Everything happens in one loop, which looks at the job every few milliseconds: who has ended, whose
pause is over, whether there is a new checkpoint, whether it is time for the next fault.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import time

from chaos import archive, faults
from chaos.faults import Fault, Kind, Link, Place
from support import jobs, proxies

from monolith.cluster import members

_LOOK_SEC = 0.05
# A job that has written no checkpoint for so long after the last fault hangs.
_END_SEC = 240.0
# A job whose members have not begun to train by then hangs.
_START_SEC = 120.0


@dataclasses.dataclass
class Outcome:
    """What was done to a job, and how that ended.

    Attributes:
        faults: Each fault with its time.
        restarts: How often a member of each role was started again.
        copies: Its complete checkpoints.
        problems: What must not happen.
        chaos_sec: How long faults were made.
        end_sec: How long the job took to end after that.
    """

    faults: list[tuple[float, Fault]] = dataclasses.field(default_factory=list)
    restarts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    copies: list[archive.Copy] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    chaos_sec: float = 0.0
    end_sec: float = 0.0


class Attack:
    """A job and what is done to it.

    Args:
        settings: Of the members.
        directory: Where logs, ledgers and copies go.
        seed: Decides the faults.
        seconds: How long faults are made.
        mean_gap_sec: Between two faults.
        say: Is told what happens.
    """

    def __init__(self, settings, directory, *, seed, seconds, mean_gap_sec, say=print):
        self._directory = pathlib.Path(directory)
        self._settings = settings
        self._plan = faults.plan(seed, mean_gap_sec)
        self._seconds = seconds
        self._say = say
        self._archive = archive.Archive(settings.model_dir, self._directory / "copies")
        self._members: dict[Place, jobs.Member] = {}
        self._generation: collections.Counter[Place] = collections.Counter()
        self._killed_pids: set[int] = set()
        # Whether the next process of a place is seen at another address.
        self._moves: dict[Place, bool] = {}
        self._addresses: dict[Place, str] = {}
        self._proxies: dict[Link, proxies.Proxy] = {}
        # What is to be done later: when, to whom, how.
        self._later: list[tuple[float, Place, str]] = []
        self._frozen: collections.Counter[Place] = collections.Counter()
        # Whose connections are cut or stalled.
        self._disturbed: collections.Counter[Link] = collections.Counter()
        self.outcome = Outcome(copies=self._archive.copies)

    def run(self) -> Outcome:
        """Makes faults, waits for the end of the job, and returns what was seen."""
        pathlib.Path(self._settings.ledger).mkdir(parents=True)
        with jobs.Job(self._directory / "logs") as job, contextlib.ExitStack() as stack:
            self._job = job
            self._stack = stack
            for place in faults.PLACES:
                self._start(place)
            if self._wait_until(lambda: bool(self._archive.copies), _START_SEC):
                self._make_faults()
                self._come_to_an_end()
            else:
                self._problem("the job has not written a checkpoint: " + self._describe_living())
            self._check_processes()
        return self.outcome

    def _make_faults(self) -> None:
        start_sec = time.monotonic()
        fault = next(self._plan)
        due_sec = start_sec + fault.gap_sec
        while time.monotonic() < start_sec + self._seconds:
            self._look()
            if any(self._has_finished(place) for place in faults.PLACES):
                self._say("a member has finished, so that this is the end of the faults")
                break
            if time.monotonic() < due_sec:
                time.sleep(_LOOK_SEC)
                continue
            if self._do(fault):
                self.outcome.faults.append((time.time(), fault))
                if len(self.outcome.faults) % 10 == 0:
                    self._say(self._describe())
            fault = next(self._plan)
            due_sec = time.monotonic() + fault.gap_sec
        self.outcome.chaos_sec = time.monotonic() - start_sec

    def _come_to_an_end(self) -> None:
        """Takes everything back, and waits until the job has ended by itself."""
        start_sec = time.monotonic()
        self._later = [(0.0, place, what) for _, place, what in self._later]
        pathlib.Path(self._settings.hurry).touch()
        self._say(f"no more faults; {self._describe()}")
        has_ended = False
        num_copies = -1
        # As long as it goes on, it may take its time, on a machine that has much else to do.
        while not has_ended and len(self._archive.copies) > num_copies:
            num_copies = len(self._archive.copies)
            has_ended = self._wait_until(
                lambda: all(map(self._has_finished, faults.PLACES)), _END_SEC
            )
        if not has_ended:
            self._problem(f"the job does not go on: {self._describe_living()}")
        self._archive.look()
        self.outcome.end_sec = time.monotonic() - start_sec

    def _wait_until(self, condition, timeout_sec: float) -> bool:
        deadline_sec = time.monotonic() + timeout_sec
        while not condition():
            if time.monotonic() > deadline_sec:
                return False
            self._look()
            time.sleep(_LOOK_SEC)
        return True

    def _look(self) -> None:
        """Does whatever is due."""
        now_sec = time.monotonic()
        due = [entry for entry in self._later if entry[0] <= now_sec]
        self._later = [entry for entry in self._later if entry[0] > now_sec]
        for _, place, what in due:
            getattr(self, f"_{what}")(place)
        for place, member in list(self._members.items()):
            is_waiting = any(p == place and what == "start" for _, p, what in self._later)
            if member.is_alive or self._has_finished(place) or is_waiting:
                continue
            if member.pid not in self._killed_pids:
                self._problem(f"nobody has killed it: {jobs.describe_failure(member)}")
            self._later.append((now_sec + 0.5, place, "start"))
        self._lead_to_members()
        self._archive.look()

    def _do(self, fault: Fault) -> bool:
        """Does it, unless there is nobody to do it to; returns whether it was done."""
        place, member = fault.place, self._members[fault.place]
        if not member.is_alive:
            return False
        until_sec = time.monotonic() + fault.duration_sec
        if fault.kind is Kind.KILL:
            self._killed_pids.add(member.pid)
            member.kill()
            self._moves[place] = fault.moves
            self._later.append((until_sec, place, "start"))
        elif fault.kind is Kind.FREEZE:
            if self._frozen[place]:
                return False
            self._frozen[place] += 1
            member.send(signal.SIGSTOP)
            self._later.append((until_sec, place, "thaw"))
        else:
            links = faults.find_links(place)
            if any(link not in self._proxies or self._disturbed[link] for link in links):
                return False
            self._disturbed.update(links)
            for link in links:
                if fault.kind is Kind.CUT:
                    self._proxies[link].cut()
                else:
                    self._proxies[link].stall()
            what = "mend" if fault.kind is Kind.CUT else "flow"
            self._later.append((until_sec, place, what))
        return True

    def _start(self, place: Place) -> None:
        role, index = place
        number = self._generation[place]
        self._generation[place] += 1
        if number:
            self.outcome.restarts["chief" if place == ("worker", 0) else role] += 1
        settings = dataclasses.replace(self._settings, role=role, index=index)
        name = f"{role}-{index}-{number:03d}"
        self._members[place] = self._job.start(name, "chaos.member", "run_member", settings)

    def _thaw(self, place: Place) -> None:
        self._frozen[place] -= 1
        with contextlib.suppress(ProcessLookupError):
            self._members[place].send(signal.SIGCONT)

    def _mend(self, place: Place) -> None:
        for link in faults.find_links(place):
            self._disturbed[link] -= 1
            self._proxies[link].mend()

    def _flow(self, place: Place) -> None:
        for link in faults.find_links(place):
            self._disturbed[link] -= 1
            self._proxies[link].flow()

    def _lead_to_members(self) -> None:
        """Has connections lead to processes that were started again."""
        has_changed = False
        for place in faults.ASKED:
            record = members.read_member(self._settings.model_dir, *place)
            is_there = record is not None and record.pid == self._members[place].pid
            if not is_there or record.address == self._addresses.get(place):
                continue
            links = [link for link in faults.LINKS if link[1] == place]
            is_disturbed = any(self._disturbed[link] for link in links)
            for link in links:
                if link not in self._proxies or (self._moves.get(place) and not is_disturbed):
                    self._proxies[link] = self._stack.enter_context(proxies.Proxy(record.address))
                else:
                    self._proxies[link].lead_to(record.address)
            self._addresses[place] = record.address
            has_changed = True
        if has_changed:
            instead: dict[int, dict[str, str]] = collections.defaultdict(dict)
            for ((_, index), asked), proxy in self._proxies.items():
                instead[index][self._addresses[asked]] = proxy.address
            path = pathlib.Path(self._settings.proxies)
            path.with_suffix(".new").write_text(json.dumps(instead))
            path.with_suffix(".new").replace(path)

    def _has_finished(self, place: Place) -> bool:
        member = self._members[place]
        return not member.is_alive and member.wait() == 0

    def _check_processes(self) -> None:
        """Sees that a job that has ended has left no process behind."""
        for member in self._job.members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.pid, 0)
                if not member.is_alive:
                    self._problem(f"{member.name} has left a process behind")

    def _problem(self, text: str) -> None:
        self._say(f"PROBLEM: {text}")
        self.outcome.problems.append(text)

    def _describe(self) -> str:
        step = self._archive.copies[-1].step if self._archive.copies else 0
        return (
            f"{len(self.outcome.faults)} faults, {sum(self.outcome.restarts.values())} restarts, "
            f"{len(self._archive.copies)} checkpoints, the last one of step {step}"
        )

    def _describe_living(self) -> str:
        texts = []
        for member in self._members.values():
            if member.is_alive:
                # Where it stands goes to its log.
                member.send(signal.SIGUSR1)
                time.sleep(0.5)
                texts.append(f"{member.name}:\n{member.tail()}")
        return "\n".join(texts)
