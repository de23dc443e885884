"""What the ranks of a synchronous job do beside training: save, stop and report together.

What would have ranks save or stop in different steps, as a clock or what a file system shows, is
looked up by rank 0 and told to the others, so that all of them do the same thing in the same step.
The one that ends ranks with different amounts of data together, `EofAwareTask`, has a file of its
own.

Example:
    >>> import tempfile
    >>> from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting
    >>> timer = SecondOrStepTimerWithTideSetting(every_steps=1)
    >>> with tempfile.TemporaryDirectory() as model_dir, tf.Graph().as_default():
    ...     step = tf.compat.v1.train.create_global_step()
    ...     hook = SyncTrainingSaverControlHook(model_dir, timer, step_interval=1)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         _ = session.run(step)
    >>> timer.should_trigger_for_step(1)  # There is no file ONLINE.
    False
"""

import datetime
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding.tables import registry
from monolith.graph import collectives
from monolith.serving.sync.client_ops import (
    ParameterSyncClient,
    parameter_sync_client_from_config,
    refresh_sync_config,
)
from monolith.training.hooks.end_of_input import EofAwareTask

__all__ = [
    "EofAwareTask",
    "ParameterSyncHook",
    "ReqTimeControlDumpHook",
    "SyncTrainingBarrierSaverListener",
    "SyncTrainingForceDumpHook",
    "SyncTrainingInfoHook",
    "SyncTrainingSaverControlHook",
    "refresh_sync_config",
]

logger = logging.getLogger(__name__)

ONLINE_FILENAME = "ONLINE"
LIMIT_FILENAME = "limit_req_time"
REQ_TIME_COLLECTION = "req_time"

# Hours (UTC) in which saves are welcome: at night, where the original system runs.
_QUIET_HOURS = range(18, 20)
_INFO_SEC = 600.0


class NoTimer:
    """Stands for the timer of the hook that saves where rank 0 has it, and the others follow."""

    def enable(self) -> None:
        """Does nothing."""

    def disable(self) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""


def create_operator_hooks(
    model_dir: str, step_interval: int, timer: Any = None, dense_only_timer: Any = None
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns the hooks of a rank that have all of them act on the files of an operator.

    They go before the hook that saves.

    Args:
        model_dir: Where the files are: `dump_<step>`, `stop_<step>`, `limit_req_time`, `ONLINE`.
        step_interval: Steps between two looks.
        timer: Of rank 0: the timer of the hook that saves. None in the others.
        dense_only_timer: Of rank 0: that of the hook that saves variables alone, if there is one.
    """
    timer = NoTimer() if timer is None else timer
    hooks: list[tf.compat.v1.train.SessionRunHook] = [
        SyncTrainingForceDumpHook(model_dir, timer, step_interval, only_at_night=False),
        ReqTimeControlDumpHook(model_dir, timer, step_interval),
    ]
    if dense_only_timer is not None:
        hooks.append(SyncTrainingSaverControlHook(model_dir, dense_only_timer, step_interval))
    return hooks


class SyncTrainingBarrierSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Holds ranks that have saved until all have; what comes next may read what others wrote."""

    def __init__(self) -> None:
        self._barrier: tf.Tensor | None = None

    def begin(self) -> None:
        step = tf.convert_to_tensor(tf.compat.v1.train.get_global_step())
        self._barrier = collectives.broadcast(step, 0, name="sync_training_save_barrier")

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        try:
            session.run(self._barrier)
        except tf.errors.OpError:
            # The checkpoint is there; whether the job goes on is seen in its next step.
            logger.exception(
                "the ranks have not waited for each other at step %d", global_step_value
            )


class ParameterSyncHook(tf.compat.v1.train.SessionRunHook):
    """Sends rows that training has changed to the serving side, after every step.

    No step waits for that: a thread of its own sends what has changed until then, and steps that
    are over meanwhile are sent together. `monolith.training.hooks.serving_sync` sends variables,
    too, and one server that does not answer holds up no other there.

    Args:
        sync_backend: Knows the servers: `get_sync_targets("ps_<index>")` returns the name of the
            model and their addresses.
        ps_index: Which part of the tables this process has.
        refresh_interval: Seconds after which the servers are asked for again.
        client: What sends: `create_sync_op(config)` returns the op that does; by default, the sync
            client that the tables of part `ps_index` were made with.
        clock: Returns a time in seconds that never goes back.
        flush_sec: How long the end of a training waits for the last rows to be sent.
    """

    def __init__(
        self,
        sync_backend: Any,
        ps_index: int,
        refresh_interval: float = 100,
        *,
        client: Any = None,
        clock: Callable[[], float] = time.monotonic,
        flush_sec: float = 20.0,
    ) -> None:
        self._backend = sync_backend
        self._ps_index = ps_index
        self._refresh_interval = refresh_interval
        self._client = client
        self._clock = clock
        self._flush_sec = flush_sec
        self._config = b""
        self._refreshed_sec: float | None = None
        self._problem = ""
        self._placeholder: tf.Tensor | None = None
        self._sync_op: Any = None
        self._sender: _Beside | None = None

    def begin(self) -> None:
        self._placeholder = tf.compat.v1.placeholder(tf.string, [], name="sync_config_str")
        client = self._client or ParameterSyncClient(
            parameter_sync_client_from_config(name_suffix=str(self._ps_index))
        )
        self._sync_op = client.create_sync_op(self._placeholder)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        if self._sender is not None:
            self._sender.close(0.0)  # After a session that was lost.
        self._sender = _Beside(lambda: self._send(session), "parameter_sync")

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        assert self._sender is not None
        self._sender.ask()

    def end(self, session: tf.compat.v1.Session) -> None:
        assert self._sender is not None
        if not self._sender.close(self._flush_sec):
            logger.warning("the last rows of this training were not sent in %g s", self._flush_sec)

    def close(self) -> None:
        """Ends the thread and waits for nothing; nothing is left to do after a normal end."""
        if self._sender is not None:
            self._sender.close(0.0)

    def _send(self, session: tf.compat.v1.Session) -> None:
        try:
            now_sec = self._clock()
            is_first = self._refreshed_sec is None
            if is_first or now_sec - (self._refreshed_sec or 0.0) >= self._refresh_interval:
                self._config = refresh_sync_config(self._backend, self._ps_index)
                self._refreshed_sec = now_sec
            session.run(self._sync_op, {self._placeholder: self._config})
        except Exception as e:  # noqa: BLE001 - training goes on, and the next time may succeed
            problem = str(e).partition("\n")[0]
            if problem != self._problem:
                logger.warning("rows are not sent at the moment: %s", problem)
            self._problem = problem
        else:
            self._problem = ""


class _Beside:
    """Does something in a thread of its own, once for all that have asked for it meanwhile.

    Args:
        act: What it does; it must not raise.
        name: What the thread is called.
    """

    def __init__(self, act: Callable[[], None], name: str) -> None:
        self._act = act
        self._changed = threading.Condition()
        self._asked = 0
        self._done = 0
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def ask(self) -> None:
        """Has it done, some time from now on."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def close(self, timeout_sec: float) -> bool:
        """Ends the thread; returns whether all that was asked for is done by then."""
        with self._changed:
            is_done = self._changed.wait_for(lambda: self._done == self._asked, timeout_sec)
            self._is_closed = True
            self._changed.notify_all()
        return is_done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._asked > self._done)
                if self._is_closed:
                    return
                asked = self._asked
            self._act()
            with self._changed:
                self._done = asked
                self._changed.notify_all()


class _EveryFewSteps(tf.compat.v1.train.SessionRunHook):
    """Does something when the global step has gone on by so many."""

    def __init__(self, step_interval: int) -> None:
        if step_interval <= 0:
            raise errors.ConfigError(f"step_interval must be above 0, got {step_interval}.")
        self._step_interval = step_interval
        self._last_step: int | None = None
        self._global_step: tf.Tensor | None = None

    def begin(self) -> None:
        self._global_step = tf.convert_to_tensor(tf.compat.v1.train.get_global_step())

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._fetch())

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        # Not fetched with the step, which changes it meanwhile: all ranks must see the same.
        step = int(run_context.session.run(self._global_step))
        if self._last_step is None or step - self._last_step >= self._step_interval:
            self._act(run_context, step, run_values.results)
            self._last_step = step

    def _fetch(self) -> dict[str, tf.Tensor]:
        return {}

    def _act(
        self, run_context: tf.compat.v1.train.SessionRunContext, step: int, results: dict[str, Any]
    ) -> None:
        raise NotImplementedError


class _ToldByRank0:
    """Integers that rank 0 tells all ranks."""

    def __init__(self, count: int) -> None:
        self._values = tf.compat.v1.placeholder(tf.int64, [count])
        self._told = collectives.broadcast(self._values, 0)

    def tell(self, session: tf.compat.v1.Session, values: list[int]) -> list[int]:
        with collectives.named_losses():
            return [int(v) for v in session.run(self._told, {self._values: values})]


class SyncTrainingForceDumpHook(_EveryFewSteps):
    """Lets ranks save at night only, or when an operator asks; also ends a job for one.

    An operator leaves a file `dump_<step>` or `stop_<step>` in the model directory; the ranks act
    on it at the first look at or after that step.

    Args:
        model_dir: Where the files are.
        target_timer: The timer of the hook that saves.
        step_interval: Steps between two looks.
        get_time: Returns the time, in UTC.
        only_at_night: Whether the timer is kept from triggering by day, unless somebody asks.
    """

    def __init__(
        self,
        model_dir: str,
        target_timer: Any,
        step_interval: int = 100,
        *,
        get_time: Callable[[], datetime.datetime] | None = None,
        only_at_night: bool = True,
    ) -> None:
        super().__init__(step_interval)
        self._model_dir = model_dir
        self._timer = target_timer
        self._only_at_night = only_at_night
        self._get_time = get_time or _get_utc
        self._rank0: _ToldByRank0 | None = None

    def begin(self) -> None:
        super().begin()
        self._rank0 = _ToldByRank0(3)

    def _act(
        self, run_context: tf.compat.v1.train.SessionRunContext, step: int, results: dict[str, Any]
    ) -> None:
        flags = [0, 0, 0]
        if collectives.rank() == 0:
            flags = [
                self._is_asked("dump", step),
                self._is_asked("stop", step),
                not self._only_at_night or self._get_time().hour in _QUIET_HOURS,
            ]
        assert self._rank0 is not None
        must_dump, must_stop, may_save = self._rank0.tell(run_context.session, flags)
        if must_dump or must_stop or may_save:
            self._timer.enable()
        else:
            self._timer.disable()
        if must_dump:
            logger.info("a save is forced at step %d", step)
            self._timer.reset()
        if must_stop:
            logger.info("training is stopped at step %d", step)
            run_context.request_stop()

    def _is_asked(self, what: str, step: int) -> bool:
        try:
            names = tf.io.gfile.listdir(self._model_dir)
        except tf.errors.OpError:
            return False  # The directory is made with the first checkpoint.
        numbers = [name.removeprefix(f"{what}_") for name in names if name.startswith(f"{what}_")]
        # What is older than the first look was carried out before a restart.
        first = step if self._last_step is None else self._last_step + 1
        return any(n.isdigit() and first <= int(n) <= step for n in numbers)


def _get_utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class SyncTrainingSaverControlHook(_EveryFewSteps):
    """Lets a timer trigger only while there is a file `ONLINE` in the model directory.

    Each rank that has this hook looks for itself, since it is for the timer of one rank alone, as
    that of rank 0's saves of variables.

    Args:
        model_dir: Where the file is.
        target_timer: The timer of the hook that saves.
        step_interval: Steps between two looks.
    """

    def __init__(self, model_dir: str, target_timer: Any, step_interval: int = 100) -> None:
        super().__init__(step_interval)
        self._path = os.path.join(model_dir, ONLINE_FILENAME)
        self._timer = target_timer

    def _act(
        self, run_context: tf.compat.v1.train.SessionRunContext, step: int, results: dict[str, Any]
    ) -> None:
        if tf.io.gfile.exists(self._path):
            self._timer.enable()
        else:
            self._timer.disable()


class SyncTrainingInfoHook(tf.compat.v1.train.SessionRunHook):
    """Logs every ten minutes how many rows the tables of this rank have.

    Args:
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_sec: float | None = None
        self._sizes: dict[str, tf.Tensor] = {}

    def begin(self) -> None:
        for entry in registry.get_tables():
            sizes = entry.table.sizes()
            for index, name in enumerate(entry.config.table_names):
                self._sizes[name] = sizes[index]

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        now_sec = self._clock()
        if not self._sizes or (self._last_sec is not None and now_sec - self._last_sec < _INFO_SEC):
            return
        self._last_sec = now_sec
        for name, size in run_context.session.run(self._sizes).items():
            logger.info("table %s has %d rows", name, size)


class ReqTimeControlDumpHook(_EveryFewSteps):
    """Saves and stops when the data has come to a certain time.

    An operator writes the time, in seconds since 1970, to `limit_req_time` in the model directory.
    The time of a batch is what the model has put into the collection `req_time`; rank 0's counts.

    Args:
        model_dir: Where the file is.
        target_timer: The timer of the hook that saves.
        step_interval: Steps between two looks.
    """

    def __init__(self, model_dir: str, target_timer: Any, step_interval: int = 1000) -> None:
        super().__init__(step_interval)
        self._path = os.path.join(model_dir, LIMIT_FILENAME)
        self._timer = target_timer
        self._rank0: _ToldByRank0 | None = None
        self._req_time: tf.Tensor | None = None

    def begin(self) -> None:
        super().begin()
        self._rank0 = _ToldByRank0(2)
        times = tf.compat.v1.get_collection(REQ_TIME_COLLECTION)
        if times:
            self._req_time = tf.reduce_max(tf.cast(tf.reshape(times[-1], [-1]), tf.int64))

    def _fetch(self) -> dict[str, tf.Tensor]:
        return {} if self._req_time is None else {"req_time": self._req_time}

    def _act(
        self, run_context: tf.compat.v1.train.SessionRunContext, step: int, results: dict[str, Any]
    ) -> None:
        no_limit = int(tf.int64.max)
        values = [0, no_limit]
        if collectives.rank() == 0:
            values = [int(results.get("req_time", 0)), self._read_limit(no_limit)]
        assert self._rank0 is not None
        req_time, limit = self._rank0.tell(run_context.session, values)
        if req_time >= limit:
            logger.info("step %d is at %d, behind the limit of %d", step, req_time, limit)
            self._timer.enable()
            self._timer.reset()
            run_context.request_stop()

    def _read_limit(self, no_limit: int) -> int:
        try:
            with tf.io.gfile.GFile(self._path) as file:
                return int(file.read())
        except tf.errors.NotFoundError:
            return no_limit
        except ValueError:
            logger.warning("%s must hold seconds since 1970, and does not", self._path)
            return no_limit
