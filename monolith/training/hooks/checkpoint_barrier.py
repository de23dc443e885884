"""A checkpoint for which all workers are at rest, and that remembers how far each had read.

The chief places the barrier before it saves and removes it afterwards. A worker that arrives at the
barrier saves the position of its input, the chief puts all positions into the checkpoint, and a
worker that starts from that checkpoint goes on reading there.

Example:
    >>> import tempfile
    >>> from monolith.training.controller import barrier
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     helper = WorkerCkptHelper(model_dir, index=0)  # Without iterators there is no position.
    ...     barrier_op = barrier.BarrierOp(
    ...         1, barrier_callbacks=[helper.create_save_iterator_callback()]
    ...     )
    ...     listener = BarrierSaverListener(barrier_op)
    ...     with tf.compat.v1.train.MonitoredSession() as session:
    ...         listener.before_save(session, 10)
    ...         placed = barrier_op.is_barrier_placed(session)
    ...         listener.after_save(session, 10)
    ...         placed, barrier_op.is_barrier_placed(session), get_ckpt_info(session).global_step
    (True, False, 10)
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from monolith import errors
from monolith.checkpoint import delta_chain, restore_hook
from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.paths import SaveHelper
from monolith.graph import metadata
from monolith.proto import ckpt_hooks_pb2
from monolith.training.controller import barrier
from monolith.training.hooks import input_position
from monolith.training.hooks.epochs import Epoch
from monolith.training.hooks.input_position import Found, InputPosition

logger = logging.getLogger(__name__)

# What the barrier is placed for.
SAVE_ACTION = "Save"

_META_KEY = "worker_ckpt_meta"

# How many positions are kept that are in no checkpoint.
_MAX_TO_KEEP = 5


class _WorkerCkptMeta:
    """What chief and workers tell each other about a checkpoint, in a variable that they share.

    No session initializes the variable: a worker that starts during a save would otherwise wipe out
    what the chief has just written.
    """

    def __init__(self) -> None:
        self.enable_iter_save_restore = True
        self.is_used = False
        self._variable = tf.compat.v1.get_variable(
            "WorkerCkptMetaInfo",
            shape=[],
            dtype=tf.string,
            initializer=tf.compat.v1.constant_initializer(""),
            trainable=False,
            use_resource=True,
            collections=[],
        )
        # Monitored sessions finalize the graph, so every op is made here.
        self._value = tf.compat.v1.placeholder(tf.string, [])
        self._assign = self._variable.assign(self._value, read_value=False)
        # Not the function of this name, whose result warns when it is never used.
        self._is_initialized = tf.raw_ops.VarIsInitializedOp(resource=self._variable.handle)
        self._read = self._variable.read_value()

    def assign(self, session: tf.compat.v1.Session, info: ckpt_hooks_pb2.WorkerCkptInfo) -> None:
        session.run(self._assign, {self._value: info.SerializeToString()})

    def get(self, session: tf.compat.v1.Session) -> ckpt_hooks_pb2.WorkerCkptInfo:
        if not session.run(self._is_initialized):
            return ckpt_hooks_pb2.WorkerCkptInfo()
        return ckpt_hooks_pb2.WorkerCkptInfo.FromString(session.run(self._read))


def _get_meta() -> _WorkerCkptMeta:
    return metadata.get_meta(_META_KEY, _WorkerCkptMeta)


def assign_ckpt_info(session: tf.compat.v1.Session, info: ckpt_hooks_pb2.WorkerCkptInfo) -> None:
    """Tells all processes of the job about the checkpoint that is being written.

    In a graph that is finalized, an object of this module must have been made before.
    """
    with session.graph.as_default():
        _get_meta().assign(session, info)


def get_ckpt_info(session: tf.compat.v1.Session) -> ckpt_hooks_pb2.WorkerCkptInfo:
    """Returns what was told last, an empty message if nothing was."""
    with session.graph.as_default():
        return _get_meta().get(session)


def disable_iterator_save_restore() -> None:
    """Leaves the positions of input iterators out, in the default graph.

    Raises:
        errors.ConfigError: A `WorkerCkptHelper` of this graph exists already.
    """
    meta = _get_meta()
    if meta.is_used:
        raise errors.ConfigError(
            "`disable_iterator_save_restore` must be called before a `WorkerCkptHelper` is made in "
            "the graph, but one exists already."
        )
    meta.enable_iter_save_restore = False


class BarrierSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Keeps all workers at the barrier during a save.

    A worker that does not arrive in time does not hold the save up: it is logged, and the save goes
    on without it. Nobody waits for one that is known to be absent. A barrier that somebody else has
    placed is left to them.

    Args:
        barrier_op: The barrier of the job.
        wait_seconds: Seconds between two looks at who has arrived.
        max_pending_seconds: How long to wait for the workers.
        is_absent: Whether a worker is known not to train; None if nobody knows.
        sleep: Waits for some seconds; None is `time.sleep`.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        barrier_op: barrier.BarrierOp,
        wait_seconds: float = 1,
        max_pending_seconds: float = 30,
        *,
        is_absent: Callable[[int], bool] | None = None,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._barrier_op = barrier_op
        self._wait_seconds = wait_seconds
        self._max_pending_seconds = max_pending_seconds
        self._is_absent = is_absent
        self._sleep = sleep
        self._clock = clock
        self._meta = _get_meta()
        self._is_placed_by_me = False

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Places the barrier and waits for the workers; called by the saver hook."""
        self._meta.assign(
            session, ckpt_hooks_pb2.WorkerCkptInfo(global_step=int(global_step_value))
        )
        try:
            self._barrier_op.place_barrier(session, SAVE_ACTION)
            self._is_placed_by_me = True
        except barrier.BarrierAlreadyPlacedError:
            logger.info("somebody else has placed the barrier, and removes it; saving meanwhile")
        except BaseException:
            # A callback failed when the barrier was placed already; nobody else would remove it.
            self._barrier_op.remove_barrier(session)
            raise
        self._wait(session)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Lets the workers go on; called by the saver hook."""
        self._remove(session)

    def end(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Lets the workers go on if a save has failed; called by the saver hook."""
        self._remove(session)

    def _wait(self, session: tf.compat.v1.Session) -> None:
        start_sec = self._clock()
        while missing := self._find_missing(session):
            if self._clock() - start_sec >= self._max_pending_seconds:
                logger.warning(
                    "workers %s are not at the barrier after %s seconds; the checkpoint is saved "
                    "while they train",
                    missing,
                    self._max_pending_seconds,
                )
                return
            (self._sleep or time.sleep)(self._wait_seconds)

    def _find_missing(self, session: tf.compat.v1.Session) -> list[int]:
        unblocked = self._barrier_op.get_unblocked_indices(session)
        return [i for i in unblocked if self._is_absent is None or not self._is_absent(i)]

    def _remove(self, session: tf.compat.v1.Session) -> None:
        if self._is_placed_by_me:
            self._is_placed_by_me = False
            self._barrier_op.remove_barrier(session)


class WorkerCkptHelper:
    """Saves and restores how far a worker has read its input.

    Make it after the input: it takes the iterators that the default graph has then.

    A position is of use only with the model that was saved with it. So in training, `with_model`,
    it is a file of the model's checkpoint, `<prefix>.assets/input_worker_<index>`: it appears and
    goes with it, and whoever goes back to an older checkpoint goes back in the input, too. A worker
    that is not the chief leaves its position beside the checkpoints until the chief, which saves
    when all workers are at the barrier, takes it. Of a worker that is not there the chief takes the
    position that it left when it ended, `input_worker_<index>.last`, or that of the checkpoint
    before: its successor goes on there.

    Without a model that has a listener for it, the position of a step is the one that is used with
    a checkpoint of that step, and the latest where there are no checkpoints.

    Args:
        model_dir: Where checkpoints are and go. Positions that are in no checkpoint are here:
            `input_worker_<index>.ckpt-<step>`, and the file `checkpoint_input_worker_<index>` that
            lists the last five.
        index: Which worker this is.
        with_model: Whether positions are files of checkpoints.
        has_ended: Whether the input was read to its end, see `InputPosition`.
    """

    def __init__(
        self,
        model_dir: str,
        index: int,
        *,
        with_model: bool = False,
        has_ended: Callable[[], bool] | None = None,
    ) -> None:
        self._model_dir = model_dir
        self._index = index
        self._with_model = with_model
        self._has_listener = False
        self._meta = _get_meta()
        self._meta.is_used = True
        self._position = InputPosition(has_ended) if self._meta.enable_iter_save_restore else None

    def create_save_iterator_callback(self) -> barrier.BarrierCallback:
        """Returns a callback of the barrier that saves the position when it is placed for a save.

        An input that cannot tell its position is left out, with a log line.
        """
        return self._save

    def create_saver_listener(
        self, basename: str, num_workers: int = 1
    ) -> "InputPositionSaverListener":
        """Returns what puts positions into checkpoints, in the process that saves them.

        Args:
            basename: What prefixes of checkpoints begin with.
            num_workers: How many workers the job has.
        """
        self._has_listener = True
        return InputPositionSaverListener(self, basename, num_workers)

    def create_restorer_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns a hook that goes to the position of the checkpoint when a session is created.

        It does nothing if no position was saved. Goes behind the hook that initializes the input.
        """
        return _RestorerHook(self)

    def restore(self, session: tf.compat.v1.Session) -> None:
        """Goes on where the checkpoint was saved, or starts at the beginning, and says which."""
        if self._position is None or self._position.is_empty:
            return
        if self._position.why_unknown:
            logger.warning(
                "worker %d reads its input from the beginning, now and whenever it starts: %s",
                self._index,
                self._position.why_unknown,
            )
            return
        checkpoint, path = self._find_saved(session)
        found = self._position.restore(session, path)
        if found is Found.NOTHING and checkpoint is not None and self._with_model:
            path = self._find_earlier(checkpoint) or path
            found = self._position.restore(session, path)
            if found is Found.UNFINISHED:
                logger.warning(
                    "%s has no position of the input of worker %d: what was read after %s is "
                    "trained on again",
                    checkpoint,
                    self._index,
                    path,
                )
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(_get_last_path(self._model_dir, self._index))
        if found is Found.UNFINISHED:
            logger.info("worker %d goes on reading its input where %s ends", self._index, path)
            return
        if checkpoint is None and found is Found.NOTHING:
            logger.info("worker %d reads its input from the beginning", self._index)
            return
        old = _get_list_path(self._model_dir, self._index)
        if found is Found.NOTHING and self._with_model and tf.io.gfile.exists(old):
            logger.warning(
                "worker %d reads its input from the beginning: %s is of an earlier version, whose "
                "positions do not say to which input they belong",
                self._index,
                old,
            )
            return
        # To read a stream again is to train on all of it again.
        is_odd = found is Found.UNREADABLE or self._position.is_stream
        logger.log(
            logging.WARNING if is_odd else logging.INFO,
            "worker %d reads its input from the beginning: %s %s",
            self._index,
            checkpoint or path,
            found.value,
        )

    def save_last(self, session: tf.compat.v1.Session) -> None:
        """Leaves the position of a worker that ends, for checkpoints that are written later."""
        if self._position is None or self._has_listener or not self._with_model:
            return
        try:
            tf.io.gfile.makedirs(self._model_dir)
            self._position.save(session, _get_last_path(self._model_dir, self._index))
        except tf.errors.OpError as error:
            logger.warning("worker %d leaves no position of its input: %s", self._index, error)

    def save_to(self, session: tf.compat.v1.Session, asset_dir: str) -> bool:
        """Writes the position into the directory of a checkpoint.

        Returns:
            Whether the input has one that is missing there.

        Raises:
            tf.errors.OpError: It cannot be written.
        """
        if self._position is None or self._position.is_empty:
            return False
        tf.io.gfile.makedirs(asset_dir)
        path = os.path.join(asset_dir, _get_name(self._index))
        return not self._position.save(session, path) and not self._position.why_unknown

    def _find_saved(self, session: tf.compat.v1.Session) -> tuple[str | None, str]:
        """Returns the checkpoint that is restored, None if there is none, and its position."""
        # Only the process that restores the model knows; the others find what it found.
        checkpoint = restore_hook.get_restored(session)
        checkpoint = checkpoint or tf.train.latest_checkpoint(self._model_dir)
        if checkpoint is not None:
            checkpoint = delta_chain.get_newest_prefix(checkpoint)
        if self._with_model:
            if checkpoint is None:
                return None, ""
            asset_dir = SaveHelper.get_ckpt_asset_dir(checkpoint)
            return checkpoint, os.path.join(asset_dir, _get_name(self._index))
        if checkpoint is not None:
            step = SaveHelper.get_global_step_value(checkpoint)
            return checkpoint, _get_loose_path(self._model_dir, self._index, step)
        listed = _read_list(self._model_dir, self._index)
        return None, listed[-1] if listed else ""

    def _find_earlier(self, checkpoint: str) -> str | None:
        """Returns the newest position in the checkpoints before one."""
        step = SaveHelper.get_global_step_value(checkpoint)
        listed = checkpoint_state.get_listed(
            self._model_dir, checkpoint_state.read_list(self._model_dir)
        )
        for prefix in reversed(listed):
            path = os.path.join(SaveHelper.get_ckpt_asset_dir(prefix), _get_name(self._index))
            if SaveHelper.get_global_step_value(prefix) < step and tf.io.gfile.exists(path):
                return path
        return None

    def _save(self, action: str, session: tf.compat.v1.Session) -> None:
        if action != SAVE_ACTION or self._position is None or self._has_listener:
            return
        step = self._meta.get(session).global_step
        path = _get_loose_path(self._model_dir, self._index, step)
        tf.io.gfile.makedirs(self._model_dir)
        if self._position.save(session, path) and not self._with_model:
            self._list(path)

    def _list(self, path: str) -> None:
        """Says that a position is the latest, and removes those that are too many."""
        listed = [p for p in _read_list(self._model_dir, self._index) if p != path] + [path]
        checkpoint_state.write_list(
            self._model_dir,
            path,
            listed[-_MAX_TO_KEEP:],
            _get_list_name(self._index),
            relative=True,  # So that a model directory can be moved.
        )
        for old in listed[:-_MAX_TO_KEEP]:
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(old)


class InputPositionSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Puts the positions of all workers into a checkpoint, before it is complete.

    `WorkerCkptHelper.create_saver_listener` makes it.

    Args:
        helper: Has the position of this process.
        basename: What prefixes of checkpoints begin with.
        num_workers: How many workers the job has.
    """

    def __init__(self, helper: WorkerCkptHelper, basename: str, num_workers: int) -> None:
        self._helper = helper
        self._paths = SaveHelper(basename)
        self._num_workers = num_workers

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Writes the positions of a full checkpoint; called by the saver hook."""
        self._save(session, global_step_value, self._paths.get_ckpt_prefix(global_step_value))

    def before_delta(
        self, session: tf.compat.v1.Session, global_step_value: int, prefix: str
    ) -> None:
        """Writes the positions of a delta; called by the hook that saves deltas."""
        self._save(session, global_step_value, prefix)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Removes positions that are in no checkpoint and never will be; called by the hook."""
        directory = self._helper._model_dir
        for index in range(self._num_workers):
            name = re.compile(rf"{re.escape(_get_name(index))}\.ckpt-(\d+)(\..*)?", re.ASCII)
            for entry in tf.io.gfile.listdir(directory):
                found = name.fullmatch(entry)
                if entry == _get_list_name(index) or (found and int(found[1]) <= global_step_value):
                    with contextlib.suppress(tf.errors.OpError):
                        tf.io.gfile.remove(os.path.join(directory, entry))

    def _save(self, session: tf.compat.v1.Session, step: int, prefix: str) -> None:
        asset_dir = SaveHelper.get_ckpt_asset_dir(prefix)
        is_missing = self._helper.save_to(session, asset_dir)
        model_dir = self._helper._model_dir
        needs_before = is_missing or self._num_workers > 1
        before = tf.train.latest_checkpoint(model_dir) if needs_before else None
        if before is not None:
            before = SaveHelper.get_ckpt_asset_dir(delta_chain.get_newest_prefix(before))
        if is_missing:
            # Who starts from here then reads some of it again, instead of all.
            name = _get_name(self._helper._index)
            self._copy([os.path.join(before or "", name)], os.path.join(asset_dir, name))
        for index in range(self._num_workers):
            if index == self._helper._index:
                continue
            # The newest first.
            candidates = [
                _get_loose_path(model_dir, index, step),
                _get_last_path(model_dir, index),
                os.path.join(before or "", _get_name(index)),
            ]
            self._copy(candidates, os.path.join(asset_dir, _get_name(index)))

    @staticmethod
    def _copy(candidates: Sequence[str], path: str) -> None:
        """Copies the first of some files that is there."""
        found = next((file for file in candidates if tf.io.gfile.exists(file)), None)
        if found is not None:
            tf.io.gfile.makedirs(os.path.dirname(path))
            tf.io.gfile.copy(found, path, overwrite=True)


class _RestorerHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, helper: WorkerCkptHelper) -> None:
        self._helper = helper

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._helper.restore(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        self._helper.save_last(session)


def read_epoch(checkpoint: str) -> Epoch | None:
    """Returns which epoch of its input the chief was in when a checkpoint was saved.

    None if the checkpoint does not say.
    """
    asset_dir = SaveHelper.get_ckpt_asset_dir(delta_chain.get_newest_prefix(checkpoint))
    return input_position.read_epoch(os.path.join(asset_dir, _get_name(0)))


def _get_name(index: int) -> str:
    return f"input_worker_{index}"


def _get_list_name(index: int) -> str:
    return f"checkpoint_input_worker_{index}"


def _get_list_path(model_dir: str, index: int) -> str:
    return os.path.join(model_dir, _get_list_name(index))


def _get_loose_path(model_dir: str, index: int, step: int) -> str:
    return os.path.join(model_dir, f"{_get_name(index)}.ckpt-{step}")


def _get_last_path(model_dir: str, index: int) -> str:
    return os.path.join(model_dir, f"{_get_name(index)}.last")


def _read_list(model_dir: str, index: int) -> list[str]:
    state = checkpoint_state.read_list(model_dir, _get_list_name(index))
    return checkpoint_state.get_listed(model_dir, state)
