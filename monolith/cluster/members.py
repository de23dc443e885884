"""Who takes part in a job, and who is alive: one small file per member in the model directory.

Every process of a job writes `<model_dir>/members/<role>-<index>.json` when it starts, and again
and again while it lives. So whoever sees the directory sees all members, in a running and in a dead
job: their addresses, what they do, and since when they have been silent.

A member is known by its role and index. The process that has them now is told from one before it by
its incarnation, a random text. A process that finds its place taken by a living one is refused; one
whose place was taken while it stood still gives way when it wakes up. So there are never two chiefs
for longer than a heartbeat.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     member = Membership(model_dir, "ps", 0, "127.0.0.1:2222")
    ...     member.join()
    ...     member.update(MemberState.RUNNING, details={"rows": 3})
    ...     (record,) = read_members(model_dir)
    ...     member.leave(MemberState.FINISHED)
    ...     record.name, record.state.value, record.details, read_members(model_dir)[0].is_active
    ('ps 0', 'running', {'rows': 3}, False)
"""

import contextlib
import dataclasses
import enum
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith import errors
from monolith.cluster import heartbeat, net

logger = logging.getLogger(__name__)

DIRECTORY = "members"

# Read when they are used, so that tests can shorten them.
BEAT_SEC = 3.0
SILENT_AFTER_SEC = 15.0

_RETRY_SEC = 1.0
_POLL_SEC = 0.2
_CONNECT_SEC = 2.0
_FILE_NAME = re.compile(r"([a-z]+)-(\d+)\.json", re.ASCII)


class MemberState(enum.Enum):
    """What a member does."""

    STARTING = "starting"
    RUNNING = "running"
    # Has lost others that it needs, and waits for them.
    WAITING = "waiting"
    FINISHED = "finished"
    # By a signal; may be started again and go on.
    STOPPED = "stopped"
    FAILED = "failed"


_NUMBER = (int, float)
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("role", "address", "host", "process", "incarnation", "message"), str),
    **dict.fromkeys(("index", "pid", "beat"), int),
    **dict.fromkeys(("started_sec", "beat_sec"), _NUMBER),
    "details": dict,
}
_ACTIVE_STATES = (MemberState.STARTING, MemberState.RUNNING, MemberState.WAITING)


class MemberConflictError(errors.ConfigError):
    """Two living processes claim one role and index."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """What a member says of itself.

    Attributes:
        role: "ps" or "worker"; the chief is worker 0.
        index: Its number in that role.
        address: Where its TensorFlow server listens.
        host: Name of its machine.
        pid: Its process.
        process: Tells whether this process is that one: machine, namespace, pid and start.
        incarnation: Another one in each process that takes this place.
        started_sec: When it started, in seconds since 1970, by its own clock.
        beat: How often it has said that it is alive.
        beat_sec: When it did last, by its own clock.
        state: What it does.
        message: Why it failed, or what it waits for.
        details: Further facts, by name.
    """

    role: str
    index: int
    address: str
    host: str
    pid: int
    process: str
    incarnation: str
    started_sec: float
    beat: int
    beat_sec: float
    state: MemberState = MemberState.STARTING
    message: str = ""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Role and index, as in log lines."""
        return get_name(self.role, self.index)

    @property
    def is_active(self) -> bool:
        """Whether it has not said that it is done; it may be dead all the same."""
        return self.state in _ACTIVE_STATES

    def to_json(self) -> str:
        """Returns the content of the member's file."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({**values, "state": self.state.value}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "MemberRecord":
        """Returns what `to_json` wrote; facts that this version does not know are left out.

        Raises:
            ValueError: It is no such text.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("a record must be a JSON object")
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        try:
            record = cls(**{**values, "state": MemberState(values.get("state"))})
        except TypeError as error:
            raise ValueError(f"a record lacks a fact: {error}") from error
        for name, kind in _TYPES.items():
            if not isinstance(getattr(record, name), kind):
                raise ValueError(f"{name!r} of a record is {getattr(record, name)!r}")
        return record


def get_name(role: str, index: int) -> str:
    """Returns what a member is called in messages."""
    return "worker 0, the chief," if (role, index) == ("worker", 0) else f"{role} {index}"


def read_member(model_dir: str, role: str, index: int) -> MemberRecord | None:
    """Returns the record of a member, None if there is none or it cannot be read now."""
    return _read(_get_path(model_dir, role, index))


def read_members(model_dir: str) -> list[MemberRecord]:
    """Returns the records of all members that ever were, servers first, in the order of index."""
    directory = os.path.join(model_dir, DIRECTORY)
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return []
    found = [match for match in map(_FILE_NAME.fullmatch, names) if match]
    found.sort(key=lambda match: (match[1], int(match[2])))
    records = [_read(os.path.join(directory, match[0])) for match in found]
    return [record for record in records if record is not None]


# Who has a place in this process, by path: a slow heartbeat of an earlier job must not write behind
# the record of a later one.
_holders: dict[str, str] = {}
_place_lock = threading.Lock()


class Membership:
    """The place of this process among the members of a job.

    Args:
        model_dir: The directory that all members share.
        role: "ps" or "worker".
        index: Number of the process in its role.
        address: Where its TensorFlow server listens.
        details: Facts to begin with.
        on_superseded: Called, from a thread, with the record of a process that has taken this
            place. The process must not write to the model directory any more.

    Attributes:
        model_dir: The directory that all members share.
    """

    def __init__(
        self,
        model_dir: str,
        role: str,
        index: int,
        address: str,
        *,
        details: dict[str, Any] | None = None,
        on_superseded: Callable[[MemberRecord], None] | None = None,
    ) -> None:
        self.model_dir = model_dir
        self._path = _get_path(model_dir, role, index)
        self._on_superseded = on_superseded
        self._lock = threading.Lock()
        # What is written later must not be older.
        self._write_lock = threading.Lock()
        self._superseded_by: MemberRecord | None = None
        now_sec = time.time()
        self._record = MemberRecord(
            role=role,
            index=index,
            address=address,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=_describe_process(os.getpid()) or "",
            incarnation=uuid.uuid4().hex,
            started_sec=now_sec,
            beat=0,
            beat_sec=now_sec,
            details=dict(details or {}),
        )

    @property
    def record(self) -> MemberRecord:
        """What this process says of itself."""
        with self._lock:
            return self._record

    @property
    def superseded_by(self) -> MemberRecord | None:
        """The record of the process that has taken this place, None while nobody has."""
        return self._superseded_by

    def has_place(self) -> bool:
        """Returns whether no other process has taken this place; looks now.

        A process that has stood still may have been replaced and not know it yet.
        """
        self._beat_quietly()
        return self._superseded_by is None

    def join(self) -> None:
        """Takes the place, unless a living process has it, and keeps saying so from a thread.

        A process on another machine that has just died looks alive until it has been silent for
        a while; this waits for that.

        Raises:
            MemberConflictError: A living process has the place.
            errors.ConfigError: The model directory cannot be written.
        """
        other = _read(self._path)
        if other is not None and other.is_active and self._is_alive(other):
            raise MemberConflictError(describe_conflict(self.record, other))
        try:
            tf.io.gfile.makedirs(os.path.dirname(self._path))
            # Of an earlier job of this process; one that is under way finds the place taken.
            heartbeat.stop(self._path)
            with _place_lock:
                _holders[self._path] = self._record.incarnation
                self._write()
        except (tf.errors.OpError, OSError) as error:
            raise errors.ConfigError(
                f"{_capitalize(self.record.name)} cannot write {self._path!r} "
                f"({_get_message(error)}); the model directory must be one that all members of the "
                "job can write."
            ) from error
        heartbeat.start(
            self._path,
            self._beat,
            thread_name=f"Member-{self.record.role}-{self.record.index}",
            period_sec=BEAT_SEC,
            retry_sec=min(_RETRY_SEC, BEAT_SEC),
        )

    def update(
        self,
        state: MemberState | None = None,
        message: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Says something new, at once; a fact that is None is taken back."""
        with self._lock:
            merged = {**self._record.details, **(details or {})}
            self._record = dataclasses.replace(
                self._record,
                state=self._record.state if state is None else state,
                message=self._record.message if message is None else message,
                details={name: value for name, value in merged.items() if value is not None},
            )
        self._beat_quietly()

    def note(self, details: Mapping[str, Any]) -> None:
        """Says something new with the next heartbeat; costs nothing, so a step may call it."""
        with self._lock:
            # Another one, since who has asked for the record may be reading the old one.
            merged = {**self._record.details, **details}
            self._record = dataclasses.replace(self._record, details=merged)

    def leave(self, state: MemberState, message: str = "") -> None:
        """Says the last thing; the record stays, for who comes later."""
        heartbeat.stop(self._path)
        self.update(state, message)

    def _beat(self) -> None:
        own = self._record.incarnation
        with _place_lock:
            if _holders.get(self._path, own) != own:
                return  # A later job of this process has the place.
            current = _read(self._path)
            if current is None or current.incarnation == own:
                self._write()
                return
        self._give_way(current)

    def _beat_quietly(self) -> None:
        # A file system that is away for a moment must not end a training.
        try:
            if self._superseded_by is None:
                self._beat()
        except (tf.errors.OpError, OSError) as error:
            logger.warning("could not write %s: %s", self._path, _get_message(error))

    def _give_way(self, other: MemberRecord) -> None:
        is_first = self._superseded_by is None
        self._superseded_by = other
        heartbeat.stop(self._path)
        if is_first:
            logger.error("%s", describe_conflict(self.record, other, is_older=True))
            if self._on_superseded is not None:
                self._on_superseded(other)

    def _write(self) -> None:
        with self._write_lock:
            with self._lock:
                self._record = dataclasses.replace(
                    self._record, beat=self._record.beat + 1, beat_sec=time.time()
                )
                text = self._record.to_json()
            file_io.atomic_write_string_to_file(self._path, text)

    def _is_alive(self, other: MemberRecord) -> bool:
        """Returns whether another process that was in this place still lives."""
        if other.process == self.record.process:
            return False  # This very process, in an earlier job.
        if other.process and _get_machine(other.process) == _get_machine(self.record.process):
            return _describe_process(other.pid) == other.process
        if is_refused(other.address):
            return False
        deadline_sec = time.monotonic() + SILENT_AFTER_SEC
        logger.info(
            "%s was %s on %s a moment ago; waiting up to %g s for a sign of life",
            other.name,
            f"process {other.pid}",
            other.host,
            SILENT_AFTER_SEC,
        )
        while time.monotonic() < deadline_sec:
            current = _read(self._path)
            if current is None or not current.is_active:
                return False
            if (current.incarnation, current.beat) != (other.incarnation, other.beat):
                return True
            time.sleep(_POLL_SEC)
        return False


def describe_conflict(record: MemberRecord, other: MemberRecord, *, is_older: bool = False) -> str:
    """Returns the sentence for a process that finds another one in its place."""
    where = f"process {other.pid} on {other.host}, at {other.address}"
    if is_older:
        return (
            f"{_capitalize(record.name)} at {record.address} gives way: {where}, has taken its "
            "place; start each member of a job once."
        )
    frozen = (
        " It is stopped, by SIGSTOP or a debugger, and might go on." if _is_stopped(other) else ""
    )
    return (
        f"{_capitalize(record.name)} of this model directory is running already: {where}.{frozen} "
        "End that process, or give this one another index or another model directory."
    )


def is_refused(address: str, timeout_sec: float | None = None) -> bool:
    """Returns whether nobody listens at an address, as its machine itself says."""
    try:
        host, port = net.parse_address(address)
        with socket.create_connection((host, port), timeout_sec or _CONNECT_SEC):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, errors.ConfigError):
        return False


def is_reachable(address: str, timeout_sec: float | None = None) -> bool:
    """Returns whether an address accepts connections; that of a process that stands still does."""
    try:
        host, port = net.parse_address(address)
        with socket.create_connection((host, port), timeout_sec or _CONNECT_SEC):
            return True
    except (OSError, errors.ConfigError):
        return False


def _get_path(model_dir: str, role: str, index: int) -> str:
    return os.path.join(model_dir, DIRECTORY, f"{role}-{index}.json")


def _read(path: str) -> MemberRecord | None:
    for is_last_try in (False, True):
        try:
            return MemberRecord.from_json(file_io.read_file_to_string(path))
        except (tf.errors.OpError, OSError):
            return None
        except ValueError as error:
            # TensorFlow asks for the size by name: that of the next record, if the file is replaced
            # while it is read, so that the end of this one may be missing.
            if is_last_try:
                logger.warning("ignoring %s: %s", path, error)
    return None


def _describe_process(pid: int) -> str | None:
    """Returns what tells a process from all others that ever were; None if it does not live."""
    with contextlib.suppress(OSError, IndexError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        with open(f"/proc/{pid}/stat") as file:
            # Behind the name, which may hold anything: the state first, the start as number 20.
            fields = file.read().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        # Containers of one machine have namespaces, and process 1, of their own.
        namespace = os.readlink("/proc/self/ns/pid")
        return f"{socket.gethostname()} {boot} {namespace} {pid} {fields[19]}"
    return None


def _get_machine(process: str) -> list[str]:
    return process.split(" ")[:3]


def _is_stopped(record: MemberRecord) -> bool:
    if not record.process or _describe_process(record.pid) != record.process:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{record.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"
    return False


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _get_message(error: Exception) -> str:
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return text.splitlines()[0] if text else type(error).__name__
