"""Notices members that are dead, frozen or replaced while a worker trains.

TensorFlow tells a worker at once when a server's process ends. It does not tell when a machine
vanishes, when a server is started again elsewhere, or when the chief is gone, with which a step has
nothing to do. So a thread looks at the records of the members (`monolith.cluster.members`):

- A server that is silent and whose address refuses or does not answer is gone: the connections to
  it are ended, so that the step that waits for it fails now.
- A server that is silent but whose address takes connections is frozen: steps wait with it.
- A server whose place another process has taken is gone, too, whether it knows or not.
- A server that has been told to end is noted, for the chief to save what it holds.
- A chief that is gone, or replaced, has the next step fail. (Its address is asked as soon as it
  misses a heartbeat or two: nothing else tells a worker that the chief is dead.)
- So does a process that has taken this worker's place, for good.

Workers that do every step together wait for each other on the servers. There the chief looks after
the other workers as well, and whatever keeps a worker from training ends its connections to all
servers, so that the step that waits fails, again and again until it has.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from monolith.cluster import members, net
from monolith.cluster.members import (
    MemberConflictError,
    MemberRecord,
    Membership,
    MemberState,
    describe_conflict,
)
from monolith.training.distributed.server import STOPPING
from monolith.training.tables.members import NodeAliveCheckerError

logger = logging.getLogger(__name__)

# Read when it is used, so that tests can shorten it.
PERIOD_SEC = 2.0

_CHIEF = ("worker", 0)
_LATE_BEATS = 2


class MemberWatch:
    """Looks after the members that one attempt to train depends on; use it as a context.

    Args:
        model_dir: Where the records are.
        servers: The parameter servers, by the addresses at which this process reaches them.
        chief: The same of the chief; nobody in the chief itself.
        member: This process.
        cuts_all: Whether steps of this process may wait for other workers.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        model_dir: str,
        servers: Mapping[str, MemberRecord],
        chief: Mapping[str, MemberRecord],
        member: Membership,
        *,
        cuts_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model_dir = model_dir
        watched = {**servers, **chief}
        # By role and index: what was there at first, and at which address.
        self._first = {(r.role, r.index): r for r in watched.values()}
        self._addrs = {(r.role, r.index): addr for addr, r in watched.items()}
        self._member = member
        self._attempt: object = None
        self._cuts_all = cuts_all
        self._workers: list[MemberRecord] = []
        self._step_sec: float | None = None
        self._left_sec: dict[int, float] = {}
        self._clock = clock
        self._problem: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # What the last beat was, and when it was seen.
        self._last_beat: dict[tuple[str, int], tuple[str, int, float]] = {}
        self._frozen: set[tuple[str, int]] = set()
        self._stopping: frozenset[str] = frozenset()

    def __enter__(self) -> "MemberWatch":
        self._thread = threading.Thread(target=self._run, name="MemberWatch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    @property
    def servers(self) -> dict[str, str]:
        """The incarnation of each server at the beginning, by name."""
        return {
            record.name: record.incarnation
            for (role, _), record in self._first.items()
            if role == "ps"
        }

    @property
    def stopping(self) -> frozenset[str]:
        """The incarnations of servers that have been told to end."""
        return self._stopping

    def check(self) -> None:
        """Raises what has happened to others, if it keeps this worker from training.

        Raises:
            MemberConflictError: Another process has taken the place of this one.
            NodeAliveCheckerError: A member is gone; another one may come.
        """
        other = self._member.superseded_by
        if other is not None:
            raise MemberConflictError(describe_conflict(self._member.record, other, is_older=True))
        if self._problem is not None:
            raise NodeAliveCheckerError(self._problem)

    def is_silent(self, record: MemberRecord, times: float = 1) -> bool:
        """Returns whether a worker has said nothing for a while, or for so many times that.

        For a chief, which notes who says something.
        """
        self._note(record)
        return self._get_silence(record) >= times * members.SILENT_AFTER_SEC

    def is_late(self, record: MemberRecord) -> bool:
        """Returns whether a member has missed a heartbeat or two."""
        self._note(record)
        return self._get_silence(record) >= _LATE_BEATS * members.BEAT_SEC

    def look(self) -> None:
        """Looks once; the thread does it again and again."""
        if self._member.record.index == 0:
            for member in members.read_members(self._model_dir):
                self._note(member)
        for key, first in self._first.items():
            record = members.read_member(self._model_dir, *key)
            if record is None:
                continue  # The file system is away; the next look may find it.
            if key == _CHIEF:
                self._look_at_chief(first, record)
            else:
                self._look_at_server(key, first, record)
        for worker in self._workers:
            now = members.read_member(self._model_dir, worker.role, worker.index)
            if now is not None:
                self._look_at_worker(worker, now)
        if self._problem is not None and self._cuts_all:
            # What is tried again meanwhile would wait again.
            for role, index in self._first:
                if (role, index) != _CHIEF:
                    net.cut_connections(self._addrs[role, index])

    def follow(self, chief: MemberRecord) -> None:
        """From now on, ends this attempt when the chief begins another one than its present one.

        For a job whose chief then restores the whole model to an earlier moment.
        """
        self._attempt = _get_attempt(chief)

    def follow_workers(self, workers: list[MemberRecord]) -> None:
        """From now on, ends this attempt when one of these begins another one, or is gone.

        For the chief of a job whose workers do every step together.
        """
        self._workers = list(workers)

    def begin_step(self) -> None:
        """Says that this process is about to do a step, perhaps with other workers."""
        self._step_sec = self._clock()

    def end_step(self) -> None:
        """Says that the step is done."""
        self._step_sec = None

    def create_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that has steps fail."""
        return _WatchHook(self)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SEC):
            try:
                self.look()
            except Exception:
                logger.exception("the members could not be watched; trying again")

    def _look_at_chief(self, first: MemberRecord, record: MemberRecord) -> None:
        if record.incarnation != first.incarnation:
            self._fail(f"the chief at {first.address} was replaced by one at {record.address}")
        elif not record.is_active:
            self._fail(f"the chief at {record.address} is {record.state.value}")
        elif self._attempt not in (None, _get_attempt(record)):
            self._fail(f"the chief at {record.address} restores the model")
        elif self.is_late(record) and members.is_refused(self._addrs[_CHIEF]):
            self._fail(f"the chief at {record.address} is gone")

    def _look_at_worker(self, first: MemberRecord, record: MemberRecord) -> None:
        if record.incarnation != first.incarnation:
            self._fail(f"{record.name} was replaced by one at {record.address}")
        elif record.state is MemberState.FINISHED:
            self._look_at_leaver(record)
        elif not record.is_active:
            reason = record.message.rstrip(".") or record.state.value
            self._fail(f"{record.name} at {record.address} has ended ({reason})")
        elif _get_attempt(record) != _get_attempt(first):
            self._fail(f"{record.name} at {record.address} begins anew")
        elif (self.is_late(record) and members.is_refused(record.address)) or not self._note_frozen(
            record, record.address
        ):
            self._fail(f"{record.name} at {record.address} is gone")

    def _look_at_leaver(self, record: MemberRecord) -> None:
        """Workers end together, but one may be faster; a step that waits for it never ends."""
        left_sec = self._left_sec.setdefault(record.index, self._clock())
        begun_sec = self._step_sec
        if begun_sec is not None:
            waited_sec = self._clock() - max(begun_sec, left_sec)
            if waited_sec >= members.SILENT_AFTER_SEC:
                self._fail(f"{record.name} at {record.address} has left while others go on")

    def _note_frozen(self, record: MemberRecord, addr: str) -> bool:
        """Returns whether a member that is silent is only frozen; says so once."""
        key = (record.role, record.index)
        if not self.is_silent(record):
            if key in self._frozen:
                self._frozen.discard(key)
                logger.warning("%s at %s is back", record.name, record.address)
            return True
        if not members.is_reachable(addr):
            return False
        if key not in self._frozen:
            self._frozen.add(key)
            logger.warning(
                "%s at %s is frozen: it takes connections but has been silent for %g s; steps "
                "wait until it goes on or is replaced",
                record.name,
                record.address,
                members.SILENT_AFTER_SEC,
            )
        return True

    def _look_at_server(
        self, key: tuple[str, int], first: MemberRecord, record: MemberRecord
    ) -> None:
        if record.incarnation != first.incarnation:
            self._cut(key, f"{record.name} was replaced by one at {record.address}")
        elif not self._note_frozen(record, self._addrs[key]):
            self._cut(key, f"{record.name} at {record.address} is gone")
        elif record.details.get(STOPPING):
            self._stopping |= {record.incarnation}

    def _note(self, record: MemberRecord) -> None:
        """Notes when a beat is seen for the first time, by the clock of this process."""
        key = (record.role, record.index)
        incarnation, beat, _ = self._last_beat.get(key, ("", -1, 0.0))
        if (incarnation, beat) != (record.incarnation, record.beat):
            self._last_beat[key] = record.incarnation, record.beat, self._clock()

    def _get_silence(self, record: MemberRecord) -> float:
        """Returns for how many seconds there was no new beat."""
        return self._clock() - self._last_beat[record.role, record.index][2]

    def _cut(self, key: tuple[str, int], problem: str) -> None:
        self._fail(problem)
        num_cut = net.cut_connections(self._addrs[key])
        if num_cut:
            logger.info("ended %d connections to %s", num_cut, self._addrs[key])

    def _fail(self, problem: str) -> None:
        if self._problem is None:
            logger.warning("%s", problem)
            self._problem = problem


class _WatchHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, watch: MemberWatch) -> None:
        self._watch = watch

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._watch.check()
        self._watch.begin_step()

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._watch.end_step()


def _get_attempt(record: MemberRecord) -> object:
    details: Mapping[str, object] = record.details
    return details.get("attempt")
