"""All that is known of a job, from the files in its model directory and from its controller.

It needs nothing of the job but that directory, so a dead job can be looked at as well as a living
one: then what members said last is what is known, and since when they have been silent.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     before = read_status(model_dir)
    ...     member = members.Membership(model_dir, "worker", 0, "127.0.0.1:2222")
    ...     member.join()
    ...     running = read_status(model_dir)
    ...     member.leave(members.MemberState.FINISHED)
    ...     after = read_status(model_dir)
    >>> before.state.value, running.state.value, running.members[0].state, after.state.value
    ('unknown', 'running', 'starting', 'finished')
"""

import dataclasses
import enum
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith import errors
from monolith.checkpoint import inventory
from monolith.cluster import liveness, members
from monolith.cluster.liveness import Life
from monolith.cluster.members import MemberRecord, MemberState
from monolith.proto import service_pb2
from monolith.training.controller import client, files
from monolith.training.distributed import sizes

_CHIEF = ("worker", 0)
_CONTROLLER_TIMEOUT_SEC = 3.0
_RECORD_NAME = re.compile(r"[a-z]+-\d+\.json", re.ASCII)
# Facts of a member that others show; the rest of its details is between the members.
_FACTS = (
    "steps",
    "examples",
    "global_step",
    "steps_per_sec",
    "examples_per_sec",
    "steps_behind",
    "requests_per_step",
    "sent_bytes",
    "received_bytes",
    "sent_bytes_per_step",
    "received_bytes_per_step",
    "rows",
    "table_bytes",
    "resident_bytes",
    "facts_sec",
    "metrics",
)


class JobState(enum.Enum):
    """What a job does, all in all."""

    # Nobody has left a record here.
    UNKNOWN = "unknown"
    RUNNING = "running"
    # Some members live, others have ended without a word or stand still.
    IMPAIRED = "impaired"
    # The chief has not said that the job is over, and nobody is left.
    DEAD = "dead"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberStatus:
    """One member.

    Attributes:
        role: "chief", "worker" or "ps".
        index: Its number; the chief is worker 0.
        address: Where its TensorFlow server listens, or did.
        host: Name of its machine.
        pid: Its process.
        state: What it says, such as "running"; or "gone", "frozen" or "silent".
        is_alive: Whether it lives, as far as can be seen from here.
        started_sec: When it started, in seconds since 1970.
        seen_sec: Its last sign of life, by its own clock.
        message: Why it failed, or what it waits for.
        is_past: Whether it is a leftover of an earlier, larger job in this directory.
        steps_missed: Global steps of the job since this worker, which lives no more, said the last.
        facts: What it has told of itself, see `monolith.training.distributed.report`.
    """

    role: str
    index: int
    address: str
    host: str
    pid: int
    state: str
    is_alive: bool
    started_sec: float
    seen_sec: float
    message: str
    is_past: bool = False
    steps_missed: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerStatus:
    """What the controller says.

    Attributes:
        address: Where it is; None if there is none.
        global_step: Steps of all workers; None if it does not say.
        is_paused: Whether the barrier is placed.
        waiting: Workers that wait at it.
        problem: Why it does not answer, empty if it does.
    """

    address: str | None = None
    global_step: int | None = None
    is_paused: bool = False
    waiting: list[int] = dataclasses.field(default_factory=list)
    problem: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job at a moment.

    Attributes:
        model_dir: Its directory.
        time_sec: When it was looked at, in seconds since 1970.
        state: What it does, all in all.
        global_step: The newest that anybody knows.
        members: Its members, servers first.
        damaged: Records that cannot be read, with the reason.
        controller: What the controller says.
        checkpoints: What it could go on from, by step.
    """

    model_dir: str
    time_sec: float
    state: JobState
    global_step: int | None
    members: list[MemberStatus]
    damaged: list[str]
    controller: ControllerStatus
    checkpoints: list[inventory.CheckpointInfo]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as JSON has it."""
        values = dataclasses.asdict(self)
        values["state"] = self.state.value
        for checkpoint in values["checkpoints"]:
            checkpoint["state"] = checkpoint["state"].value
        return values


def read_status(
    model_dir: str,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> JobStatus:
    """Looks at a job.

    A member of another machine that seems to be silent may have another clock, so this waits for
    two heartbeats before it says so.

    Args:
        model_dir: Directory of the job.
        clock: Returns the time in seconds since 1970.
        sleep: Waits for some seconds.
    """
    records, damaged = _read_records(model_dir)
    now_sec = clock()
    lives = [liveness.look(record, now_sec) for record in records]
    if Life.SILENT in lives:
        sleep(2 * members.BEAT_SEC)
        now_sec = clock()
        later, damaged = _read_records(model_dir)
        beats = {(r.role, r.index): (r.incarnation, r.beat) for r in records}
        lives = [
            Life.ALIVE
            if r.is_active and beats.get((r.role, r.index)) != (r.incarnation, r.beat)
            else liveness.look(r, now_sec)
            for r in later
        ]
        records = later
    controller = _ask_controller(model_dir)
    told = next((r.details.get(sizes.SIZES) for r in records if (r.role, r.index) == _CHIEF), None)
    pairs = list(zip(records, lives, strict=True))
    found = [_describe(record, life, told) for record, life in pairs]
    present = [pair for pair, member in zip(pairs, found, strict=True) if not member.is_past]
    steps = [step for m in found if isinstance(step := m.facts.get("global_step"), int)]
    if controller.global_step is not None:
        steps.append(controller.global_step)
    newest = max(steps, default=None)
    return JobStatus(
        model_dir=model_dir,
        time_sec=now_sec,
        state=_judge(present, controller),
        global_step=newest,
        members=[_count_missed(member, newest) for member in found],
        damaged=damaged,
        controller=controller,
        checkpoints=inventory.list_checkpoints(model_dir),
    )


def _read_records(model_dir: str) -> tuple[list[MemberRecord], list[str]]:
    """Returns the records, and what is wrong with those that cannot be read."""
    directory = os.path.join(model_dir, members.DIRECTORY)
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return [], []
    records, damaged = [], []
    for name in sorted(filter(_RECORD_NAME.fullmatch, names)):
        try:
            text = file_io.read_file_to_string(os.path.join(directory, name))
            record = MemberRecord.from_json(text)
        except tf.errors.NotFoundError:
            continue
        except (tf.errors.OpError, ValueError) as error:
            damaged.append(f"{members.DIRECTORY}/{name} cannot be read: {error}")
            continue
        records.append(record)
    return sorted(records, key=lambda record: (record.role, record.index)), damaged


def _describe(record: MemberRecord, life: Life, told: Mapping[str, int] | None) -> MemberStatus:
    is_alive = life in (Life.ALIVE, Life.FROZEN)
    says_itself = life in (Life.ALIVE, Life.LEFT)
    return MemberStatus(
        role="chief" if (record.role, record.index) == _CHIEF else record.role,
        index=record.index,
        address=record.address,
        host=record.host,
        pid=record.pid,
        state=record.state.value if says_itself else life.value,
        is_alive=is_alive,
        started_sec=record.started_sec,
        seen_sec=record.beat_sec,
        message=record.message,
        is_past=not is_alive and told is not None and _is_beyond(record, told),
        facts={name: record.details[name] for name in _FACTS if name in record.details},
    )


def _is_beyond(record: MemberRecord, told: Mapping[str, int]) -> bool:
    """Returns whether a job whose chief was told of so many members has no place for this one."""
    return record.index >= sizes.count(told, record.role)


def _count_missed(member: MemberStatus, newest: int | None) -> MemberStatus:
    step = member.facts.get("global_step")
    if member.is_alive or newest is None or not isinstance(step, int):
        return member
    return dataclasses.replace(member, steps_missed=newest - step)


def _judge(present: list[tuple[MemberRecord, Life]], controller: ControllerStatus) -> JobState:
    """Returns what a job of these members does."""
    lives = {life for _, life in present}
    if not present:
        answers = controller.address is not None and not controller.problem
        return JobState.RUNNING if answers else JobState.UNKNOWN
    if Life.ALIVE in lives and lives <= {Life.ALIVE, Life.LEFT}:
        return JobState.RUNNING
    if lives & {Life.ALIVE, Life.FROZEN, Life.SILENT}:
        return JobState.IMPAIRED
    chief = next((r for r, _ in present if (r.role, r.index) == _CHIEF), None)
    if chief is None or chief.is_active:
        return JobState.DEAD
    states = {
        MemberState.FINISHED: JobState.FINISHED,
        MemberState.STOPPED: JobState.STOPPED,
        MemberState.FAILED: JobState.FAILED,
    }
    return states[chief.state]


def _ask_controller(model_dir: str) -> ControllerStatus:
    try:
        address = files.read_address(model_dir)
    except (files.ControllerNotFoundError, tf.errors.OpError):
        return ControllerStatus()
    try:
        with client.connect(model_dir) as stub:
            blocked = stub.GetBlockStatus(
                service_pb2.GetBlockStatusRequest(), timeout=_CONTROLLER_TIMEOUT_SEC
            ).blocked_indices
            step = None
            try:
                step = stub.GetTrainingStatus(
                    service_pb2.GetTrainingStatusRequest(), timeout=_CONTROLLER_TIMEOUT_SEC
                ).global_step
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
    except errors.MonolithError as error:
        return ControllerStatus(address=address, problem=str(error))
    except grpc.RpcError as error:
        return ControllerStatus(address=address, problem=_explain(error))
    return ControllerStatus(
        address=address,
        global_step=step,
        is_paused=0 in blocked,
        waiting=[index for index in blocked if index > 0],
    )


def _explain(error: grpc.RpcError) -> str:
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return "nobody answers there"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"it does not answer within {_CONTROLLER_TIMEOUT_SEC:g} s"
    return str(error.details())
