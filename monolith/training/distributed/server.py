"""What a parameter server does: it keeps what others put into it, until it is dismissed.

The work is done by TensorFlow's runtime. The process itself waits at a queue of its own, into which
the chief puts its incarnation, and how it ends, when it has saved what it can. A chief that was
replaced while it stood still, or that has strayed into another job, is not obeyed. One that ends
before the job has finished makes the server fail, so that a scheduler starts both again.

A server that is told to end while the others train says so in its record. The chief saves then, and
says for whom in its own; so the server leaves with nothing lost but what comes in that moment.
"""

import logging
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.cluster import manager, members
from monolith.cluster.background import BackgroundCall
from monolith.cluster.members import (
    MemberConflictError,
    Membership,
    MemberState,
    describe_conflict,
)
from monolith.cluster.progress import WaitProgress
from monolith.graph import devices
from monolith.native import logging_ops
from monolith.training.config.cluster import RoleSettings
from monolith.training.distributed.recovery import JobFailedError
from monolith.training.hooks import server_health

logger = logging.getLogger(__name__)

# A scheduler that ends a job tells all members at once; the chief still has to save what the
# servers hold.
TERM_GRACE_SEC = 30.0

# How long after the end of its job a server still waits to be dismissed.
FORGOTTEN_AFTER_SEC = 60.0

# Facts in records, see `MemberRecord.details`: of a server, that it has been told to end; of the
# chief, for which servers it has saved since they were, by their incarnations.
STOPPING = "stopping"
SAVED_FOR = "saved_for"

_LOOK_SEC = 2.0
_DISMISS_TIMEOUT_SEC = 20.0
_POLL_SEC = 0.2
_SIGNAL_EXIT_CODE = 128
_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)


def prepare_server(target: str, config: RoleSettings) -> None:
    """Has a parameter server note how much memory it may use; workers do nothing.

    Args:
        target: This process's own server.
        config: What this process is.
    """
    if config.server_type != devices.PS_JOB_NAME:
        return
    name = server_health.get_ps_machine_info_shared_name(config.index)
    with tf.Graph().as_default() as graph:
        info = logging_ops.machine_info(shared_name=name)
        session_config = manager.generate_session_config()
        with tf.compat.v1.Session(target, graph=graph, config=session_config) as session:
            session.run(info.op)


class ChiefEnd:
    """Tells how a chief that this server has seen alive has ended.

    Args:
        model_dir: Where the records of the members are.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._seen: str | None = None

    def __call__(self) -> MemberState | None:
        """Returns its last state, None while it is there; one of an earlier job does not count."""
        chief = members.read_member(self._model_dir, "worker", 0)
        if chief is None:
            return None
        if chief.is_active:
            self._seen = chief.incarnation
            return None
        return chief.state if chief.incarnation == self._seen else None


class ChiefWait:
    """Says that no chief is to be seen, and gives up after a while; a check of a server that waits.

    Args:
        member: The server.
        timeout_sec: How long there may be no chief.
    """

    def __init__(self, member: Membership, timeout_sec: float) -> None:
        self._member = member
        self._timeout_sec = timeout_sec
        self._deadline_sec = time.monotonic() + timeout_sec
        self._progress = WaitProgress(logger)
        self._has_come = False

    def __call__(self) -> None:
        """Looks for the chief.

        Raises:
            errors.ConfigError: None has come in time.
        """
        if self._has_come:
            return
        chief = members.read_member(self._member.model_dir, "worker", 0)
        if chief is not None and chief.is_active:
            self._has_come = True
            return
        where = os.path.join(self._member.model_dir, members.DIRECTORY)
        name = self._member.record.name.capitalize()
        text = (
            f"{name} waits for the chief, of which there is no sign in {where}, a directory that "
            "all members must share"
        )
        if time.monotonic() > self._deadline_sec:
            raise errors.ConfigError(
                f"{text}; none has come in {self._timeout_sec:g} s "
                "(`session_creation_timeout_secs`)."
            )
        self._progress.report(f"{text}.")


def wait_for_dismissal(
    target: str,
    ps_index: int,
    member: Membership | None = None,
    find_end: Callable[[], MemberState | None] | None = None,
    checks: Sequence[Callable[[], None]] = (),
) -> None:
    """Blocks until the chief dismisses this server.

    After SIGTERM or Ctrl-C it stays for a while, so that the chief can save, which was told the
    same, or finds it in the server's record; then, or at the second signal, it ends as told. A
    server that its chief has forgotten, or could not reach, leaves a while after the job.

    Args:
        target: This process's own server.
        ps_index: Which server this is.
        member: This process among the members; a successor that has taken its place ends it, and
            only the chief that is recorded there dismisses it.
        find_end: Returns how the chief has ended that would save or dismiss it, None while it has
            not; None if servers outlive their jobs.
        checks: Called now and then; what they raise ends it.

    Raises:
        MemberConflictError: Another process has taken this server's place.
        JobFailedError: The chief has ended before the job had finished.
        SystemExit: A signal has ended it.
    """
    waiter = _Waiter(target, ps_index, member)
    with _SignalNote() as received:
        waiter.start()
        deadline_sec = float("inf")
        end: MemberState | None = None
        over_since_sec: float | None = None
        next_look_sec = 0.0
        while not waiter.is_done(_POLL_SEC):
            now_sec = time.monotonic()
            if now_sec >= next_look_sec:
                next_look_sec = now_sec + _LOOK_SEC
                end = None if find_end is None else find_end()
                over_since_sec = None if end is None else over_since_sec or now_sec
                for check in checks:
                    check()
            if end is not None and now_sec - (over_since_sec or now_sec) > FORGOTTEN_AFTER_SEC:
                logger.warning("ps %d leaves: the job is over, and nobody dismisses it", ps_index)
                _check_end(ps_index, end)
                return
            if member is not None and member.superseded_by is not None:
                raise MemberConflictError(
                    describe_conflict(member.record, member.superseded_by, is_older=True)
                )
            if received.number is None:
                continue
            if deadline_sec == float("inf"):
                deadline_sec = now_sec + TERM_GRACE_SEC
                if member is not None:
                    member.update(details={STOPPING: True})
                logger.warning(
                    "%s: ps %d stays up to %g s, for the chief to save; once more ends it at once",
                    received.number.name,
                    ps_index,
                    TERM_GRACE_SEC,
                )
            if now_sec >= deadline_sec or over_since_sec is not None or _is_saved(member):
                raise SystemExit(_SIGNAL_EXIT_CODE + received.number)
        logger.info("ps %d is dismissed", ps_index)
        if received.number is not None and waiter.end is not MemberState.FINISHED:
            raise SystemExit(_SIGNAL_EXIT_CODE + received.number)
    _check_end(ps_index, waiter.end)


def _is_saved(member: Membership | None) -> bool:
    """Returns whether the chief has saved what a server holds that was told to end."""
    if member is None:
        return False
    chief = members.read_member(member.model_dir, "worker", 0)
    return chief is not None and member.record.incarnation in chief.details.get(SAVED_FOR, ())


def _check_end(ps_index: int, end: MemberState) -> None:
    """Has a server fail whose chief has ended before the job had finished."""
    if end is not MemberState.FINISHED:
        how = "was stopped" if end is MemberState.STOPPED else "has failed"
        raise JobFailedError(
            f"Ps {ps_index} ends, since the chief {how}; start the job again, it goes on from its "
            "last checkpoint."
        )


def dismiss_servers(
    target: str,
    cluster: manager.Cluster,
    task: manager.Task,
    num_ps: int,
    chief: str = "",
    end: MemberState = MemberState.FINISHED,
) -> None:
    """Tells all parameter servers that the job is over, or has to be started again.

    One that does not answer in time is named in the log; it does not keep others from leaving.

    Args:
        target: This process's own server.
        cluster: The servers, and this process.
        task: Which part of the cluster this process is.
        num_ps: How many of the servers.
        chief: Incarnation of the chief that does it. A server obeys any one whose is empty.
        end: How the chief ends.
    """
    addrs = cluster[devices.PS_JOB_NAME][:num_ps]
    own = {task["type"]: {task["index"]: cluster[task["type"]][task["index"]]}}
    text = f"{chief} {end.value}"
    messengers = [_Messenger(target, own, index, addr, text) for index, addr in enumerate(addrs)]
    for messenger in messengers:
        messenger.start()
    deadline_sec = time.monotonic() + _DISMISS_TIMEOUT_SEC
    for messenger in messengers:
        messenger.wait(max(0.0, deadline_sec - time.monotonic()))


class _Messenger(BackgroundCall):
    """Dismisses one server, alone with it: one that is dead or frozen must not hold up others."""

    def __init__(self, target: str, own: dict[str, Any], index: int, addr: str, text: str) -> None:
        super().__init__(f"dismiss_ps_{index}")
        self._target = target
        self._cluster = {**own, devices.PS_JOB_NAME: {index: addr}}
        self._index = index
        self._addr = addr
        self._text = text
        self._is_done = threading.Event()
        self._problem = "it does not answer"

    def run(self) -> None:
        try:
            if members.is_refused(self._addr):
                raise ConnectionRefusedError("nobody listens there")
            self._enqueue()
        except Exception as error:  # noqa: BLE001 - told to who waits
            # It may have left so quickly that its answer was lost.
            if not members.is_refused(self._addr) or isinstance(error, ConnectionRefusedError):
                self._problem = str(error).partition("\n")[0]
                return
        self._is_done.set()

    def wait(self, timeout_sec: float) -> None:
        """Waits until the server is dismissed, and says so if it is not."""
        deadline_sec = time.monotonic() + timeout_sec
        while self.is_alive() and time.monotonic() < deadline_sec:
            if self._is_done.wait(_POLL_SEC):
                return
        if not self._is_done.is_set():
            logger.warning(
                "ps %d at %s could not be dismissed: %s", self._index, self._addr, self._problem
            )

    def _enqueue(self) -> None:
        config = manager.generate_session_config()
        config.cluster_def.CopyFrom(tf.train.ClusterSpec(self._cluster).as_cluster_def())
        config.operation_timeout_in_ms = int(_DISMISS_TIMEOUT_SEC * 1000)
        with tf.Graph().as_default() as graph:
            with tf.device(devices.ps_device(self._index)):
                enqueue = _make_queue(self._index).enqueue(self._text)
            with tf.compat.v1.Session(self._target, graph=graph, config=config) as session:
                session.run(enqueue)
                # Not after the session is closed, which asks the server that is leaving.
                self._is_done.set()


def _make_queue(index: int) -> tf.queue.FIFOQueue:
    name = f"ps_queue_{index}"
    return tf.queue.FIFOQueue(1, tf.string, shapes=[()], shared_name=name, name=name)


class _Waiter(BackgroundCall):
    """Waits at the queue, so that the main thread can hear signals."""

    def __init__(self, target: str, index: int, member: Membership | None) -> None:
        super().__init__("ps_queue")
        self._target = target
        self._index = index
        self._member = member
        self._is_done = threading.Event()
        self._end = MemberState.FINISHED
        self._error: Exception | None = None

    @property
    def end(self) -> MemberState:
        """How the chief ends that has dismissed the server."""
        return self._end

    def run(self) -> None:
        try:
            with tf.Graph().as_default() as graph:
                dequeue = _make_queue(self._index).dequeue()
                config = manager.generate_session_config()
                with tf.compat.v1.Session(self._target, graph=graph, config=config) as session:
                    while not self._is_obeyed(session.run(dequeue).decode()):
                        logger.warning(
                            "ps %d stays: a chief has dismissed it that is not its own", self._index
                        )
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        self._is_done.set()

    def _is_obeyed(self, text: str) -> bool:
        """Takes note of a dismissal; returns whether it is of this server's own chief."""
        incarnation, _, end = text.partition(" ")
        if self._member is not None and incarnation:
            chief = members.read_member(self._member.model_dir, "worker", 0)
            if chief is not None and chief.is_active and chief.incarnation != incarnation:
                return False
        self._end = MemberState(end)
        return True

    def is_done(self, timeout_sec: float) -> bool:
        """Returns whether the server is dismissed; waits for a moment."""
        is_done = self._is_done.wait(timeout_sec)
        if self._error is not None:
            raise self._error
        return is_done


class _SignalNote:
    """Notes the first SIGTERM or SIGINT of a block instead of ending the process.

    The second one ends it. Handlers that the program has set itself are left alone.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_SignalNote":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) in _DEFAULT_HANDLERS:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self.number is not None:
            raise SystemExit(_SIGNAL_EXIT_CODE + number)
        self.number = signal.Signals(number)
