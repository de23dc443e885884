"""Workers start after the chief has restored the model, and the chief leaves last.

A worker that trained before the restore would work on values that are about to be overwritten; a
chief that left before its workers would take the end of their work with it. Both look at flags in
a variable on the chief. A worker that is still starting has not set its flag, so in a job whose
members keep records of themselves the chief looks at those, too (`Others`).

Example:
    >>> helper = TrainingHooksHelper(enable_sync=False, num_workers=1, worker_idx=0)
    >>> helper.training_hooks, helper.training_chief_hooks
    ((), ())
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Set

import tensorflow as tf

from monolith import errors
from monolith.training.config import flags as shared_flags

logger = logging.getLogger(__name__)

_RESTORE_DONE = 0
_POLL_SEC = 1.0
_LOG_EVERY_SEC = 60.0
# A scheduler that has told a chief to end kills it half a minute later, and it still has to save.
_STOPPING_SEC = 10.0

# What reading the flags of a chief raises that is just being replaced.
_NO_FLAGS = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Others:
    """What a process knows of the other members from elsewhere than the flags.

    Attributes:
        check: Raises if this process cannot go on, because a member that it needs is gone. Who
            waits for others calls it again and again.
        has_left: Whether a worker of this run is done; one that has not come yet is not.
        is_absent: Whether a worker does not train now: it is done, dead, or has yet to come.
        is_stopping: Whether a signal has told this process to end.
        is_gone: Whether a worker has left or is dead, and not only frozen or on its way.
        list_stopping: Returns the servers that have been told to end, each by a text of its own.
        say_saved: Tells such servers that the chief has saved what they hold.
    """

    check: Callable[[], None]
    has_left: Callable[[int], bool]
    is_absent: Callable[[int], bool]
    is_stopping: Callable[[], bool]
    is_gone: Callable[[int], bool] = lambda index: False
    list_stopping: Callable[[], Set[str]] = frozenset
    say_saved: Callable[[Set[str]], None] = lambda servers: None

    def sleep(self, seconds: float) -> None:
        """Waits, if there is still somebody to wait for."""
        self.check()
        time.sleep(seconds)


class SyncHelper:
    """What chief and workers know of each other.

    Args:
        num_workers: Number of workers, the chief included.
        is_chief: Whether this process is the chief.
        var_device: Device of the flags, the same in all processes.

    Raises:
        errors.ConfigError: `num_workers` is not positive.
    """

    def __init__(
        self, num_workers: int, is_chief: bool, var_device: str = "/job:chief/task:0"
    ) -> None:
        # Flag 0 says that the restore is done, flag i that worker i is alive.
        with tf.device(var_device):
            self._flags = shared_flags.SharedFlags(
                "monolith_sync_helper/control_var", num_workers, is_chief=is_chief
            )

    @property
    def num_workers(self) -> int:
        """Number of workers, the chief included."""
        return self._flags.size

    def mark_restore_done(self, session: tf.compat.v1.Session) -> None:
        """Lets the workers start."""
        self._flags.set(session, _RESTORE_DONE, True)

    def is_restore_done(self, session: tf.compat.v1.Session) -> bool:
        """Returns whether the chief has restored the model."""
        return self._flags.get(session, _RESTORE_DONE)

    def start_worker(self, session: tf.compat.v1.Session, worker_index: int) -> None:
        """Marks a worker as alive."""
        self.check_worker_index(worker_index)
        self._flags.set(session, worker_index, True)

    def finish_worker(self, session: tf.compat.v1.Session, worker_index: int) -> None:
        """Marks a worker as finished."""
        self.check_worker_index(worker_index)
        self._flags.set(session, worker_index, False)

    def get_alive_workers(self, session: tf.compat.v1.Session) -> list[int]:
        """Returns the workers that have started and not finished, the chief not among them."""
        return [i for i in self._flags.find(session, True) if i != _RESTORE_DONE]

    def get_num_alive_workers(self, session: tf.compat.v1.Session) -> int:
        """Returns how many workers have started and not finished."""
        return len(self.get_alive_workers(session))

    def check_worker_index(self, worker_index: int) -> None:
        """Refuses what is not the index of a worker besides the chief.

        Raises:
            errors.ConfigError: There is no such worker.
        """
        if not 0 < worker_index < self.num_workers:
            raise errors.ConfigError(
                f"A worker's index must be above 0, which is the chief, and below the number of "
                f"workers, {self.num_workers}; got {worker_index}."
            )


class ChiefSyncHook(tf.compat.v1.train.SessionRunHook):
    """Lets the workers start, and at the end waits until all of them have finished.

    Goes behind the hooks that restore, in the list of the chief's hooks.

    Args:
        sync_helper: The flags of the job.
        timeout_seconds: How long the chief waits at the end; a worker that was killed never
            reports that it is done.
        others: Tells of workers that have not started yet; without it, nobody waits for them.
        clock: Returns a time in seconds that never goes back.
        sleep: Waits for some seconds; None is `time.sleep`.
    """

    def __init__(
        self,
        sync_helper: SyncHelper,
        timeout_seconds: float = 1800,
        *,
        others: Others | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._sync_helper = sync_helper
        self._timeout_seconds = timeout_seconds
        self._others = others
        self._clock = clock
        self._sleep = sleep

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator | None
    ) -> None:
        self._sync_helper.mark_restore_done(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        start_sec = self._clock()
        last_log_sec: float | None = None
        while alive := self._find_unfinished(session):
            now_sec = self._clock()
            if now_sec - start_sec >= self._get_timeout():
                logger.warning(
                    "the chief ends after waiting %.0f seconds, workers %s have not finished",
                    now_sec - start_sec,
                    alive,
                )
                return
            if last_log_sec is None or now_sec - last_log_sec >= _LOG_EVERY_SEC:
                last_log_sec = now_sec
                logger.info("the chief waits for workers %s to finish", alive)
            (self._sleep or _get_sleep(self._others))(_POLL_SEC)

    def _find_unfinished(self, session: tf.compat.v1.Session) -> list[int]:
        """Returns the workers that train, and those that are going to."""
        if self._others is None:
            return self._sync_helper.get_alive_workers(session)
        # Not the flags: a worker that is still starting has none yet, and one that was killed left
        # its own behind, while its successor may have finished under another chief.
        everybody = range(1, self._sync_helper.num_workers)
        return [i for i in everybody if not self._others.has_left(i)]

    def _get_timeout(self) -> float:
        if self._others is not None and self._others.is_stopping():
            return min(_STOPPING_SEC, self._timeout_seconds)
        return self._timeout_seconds


class WorkerSyncHook(tf.compat.v1.train.SessionRunHook):
    """Reports a worker as alive while it trains, and holds it back until the restore is done.

    Args:
        worker_index: Which worker this is, above 0.
        sync_helper: The flags of the job.
        others: Tells when there is no chief to wait for.
        clock: Returns a time in seconds that never goes back; only log lines depend on it.
        sleep: Waits for some seconds; None is `time.sleep`.

    Raises:
        errors.ConfigError: There is no such worker, or it is the chief.
    """

    def __init__(
        self,
        worker_index: int,
        sync_helper: SyncHelper,
        *,
        others: Others | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        sync_helper.check_worker_index(worker_index)
        self._worker_index = worker_index
        self._sync_helper = sync_helper
        self._others = others
        self._clock = clock
        self._sleep = sleep

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator | None
    ) -> None:
        last_log_sec: float | None = None
        while not self._has_started(session):
            # A coordinator that stops means that another thread of this worker has failed. A
            # caller who drives the hook without a monitored session has none.
            if coord is not None and coord.should_stop():
                return
            now_sec = self._clock()
            if last_log_sec is None or now_sec - last_log_sec >= _LOG_EVERY_SEC:
                last_log_sec = now_sec
                logger.info("worker %d waits for the chief to restore", self._worker_index)
            (self._sleep or _get_sleep(self._others))(_POLL_SEC)

    def end(self, session: tf.compat.v1.Session) -> None:
        try:
            self._sync_helper.finish_worker(session, self._worker_index)
        except _NO_FLAGS as error:
            # Everything is pushed; that this worker is done, a new chief has to learn elsewhere.
            reason = error.message.partition("\n")[0]
            logger.warning(
                "worker %d cannot tell the chief that it is done: %s", self._worker_index, reason
            )

    def _has_started(self, session: tf.compat.v1.Session) -> bool:
        """Says that this worker is alive; returns whether it may train."""
        try:
            self._sync_helper.start_worker(session, self._worker_index)
            return self._sync_helper.is_restore_done(session)
        except _NO_FLAGS:
            return False  # A chief that starts anew has not made its flags yet.


class TrainingHooksHelper:
    """The hooks that one process of a job needs.

    Args:
        enable_sync: Whether there are any.
        num_workers: Number of workers, the chief included.
        worker_idx: Which of them this process is; 0 is the chief.
        chief_timeout_seconds: How long the chief waits for its workers at the end.
        others: What this process knows of the members from elsewhere.

    Raises:
        errors.ConfigError: `enable_sync`, and there is no worker `worker_idx`.
    """

    def __init__(
        self,
        enable_sync: bool,
        num_workers: int,
        worker_idx: int,
        chief_timeout_seconds: float = 1800,
        others: Others | None = None,
    ) -> None:
        self._training_hooks: tuple[tf.compat.v1.train.SessionRunHook, ...] = ()
        self._training_chief_hooks: tuple[tf.compat.v1.train.SessionRunHook, ...] = ()
        if not enable_sync:
            return
        is_chief = worker_idx == 0
        sync_helper = SyncHelper(num_workers, is_chief)
        if is_chief:
            self._training_chief_hooks = (
                ChiefSyncHook(sync_helper, chief_timeout_seconds, others=others),
            )
        else:
            self._training_hooks = (WorkerSyncHook(worker_idx, sync_helper, others=others),)

    @property
    def training_hooks(self) -> tuple[tf.compat.v1.train.SessionRunHook, ...]:
        """Hooks of a worker; none in the chief."""
        return self._training_hooks

    @property
    def training_chief_hooks(self) -> tuple[tf.compat.v1.train.SessionRunHook, ...]:
        """Hooks of the chief; none in a worker."""
        return self._training_chief_hooks

    @property
    def first_and_last_hooks(self) -> tuple[list["_Part"], list["_Part"]]:
        """What `training_hooks` do at the start and at the end, apart.

        A worker waits for the chief before any other hook acts, and says that it is done after all
        others have ended: what waits to be pushed is pushed by one of them.
        """
        return (
            [_Part(hook, starts=True) for hook in self._training_hooks],
            [_Part(hook, starts=False) for hook in self._training_hooks],
        )


class _Part(tf.compat.v1.train.SessionRunHook):
    """The beginning or the end of a hook."""

    def __init__(self, hook: tf.compat.v1.train.SessionRunHook, *, starts: bool) -> None:
        self._hook = hook
        self._starts = starts

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator | None
    ) -> None:
        if self._starts:
            self._hook.after_create_session(session, coord)

    def end(self, session: tf.compat.v1.Session) -> None:
        if not self._starts:
            self._hook.end(session)


def _get_sleep(others: Others | None) -> Callable[[float], None]:
    return time.sleep if others is None else others.sleep
