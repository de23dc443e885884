"""A checkpoint for which all workers are at rest, and that remembers how far each had read.

The chief places the barrier before it saves and removes it afterwards. A worker that arrives at the
barrier saves the position of its input under the step of the checkpoint, and a worker that starts
anew goes on reading there.

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

import logging
import os
import time
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from monolith import errors
from monolith.graph import metadata
from monolith.proto import ckpt_hooks_pb2
from monolith.training.controller import barrier

logger = logging.getLogger(__name__)

# What the barrier is placed for.
SAVE_ACTION = "Save"

_META_KEY = "worker_ckpt_meta"


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
    on without it. A barrier that somebody else has placed is left to them.

    Args:
        barrier_op: The barrier of the job.
        wait_seconds: Seconds between two looks at who has arrived.
        max_pending_seconds: How long to wait for the workers.
        sleep: Waits for some seconds; None is `time.sleep`.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        barrier_op: barrier.BarrierOp,
        wait_seconds: float = 1,
        max_pending_seconds: float = 30,
        *,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._barrier_op = barrier_op
        self._wait_seconds = wait_seconds
        self._max_pending_seconds = max_pending_seconds
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
        while missing := self._barrier_op.get_unblocked_indices(session):
            if self._clock() - start_sec >= self._max_pending_seconds:
                logger.warning(
                    "workers %s are not at the barrier after %s seconds; the checkpoint is saved "
                    "while they train",
                    missing,
                    self._max_pending_seconds,
                )
                return
            (self._sleep or time.sleep)(self._wait_seconds)

    def _remove(self, session: tf.compat.v1.Session) -> None:
        if self._is_placed_by_me:
            self._is_placed_by_me = False
            self._barrier_op.remove_barrier(session)


class WorkerCkptHelper:
    """Saves and restores how far a worker has read its input.

    Make it after the input: it takes the iterators that the default graph has then.

    Args:
        model_dir: Where the positions are kept: `input_worker_<index>.ckpt-<step>*`, and the file
            `checkpoint_input_worker_<index>` that names the latest.
        index: Which worker this is.
    """

    def __init__(self, model_dir: str, index: int) -> None:
        self._model_dir = model_dir
        self._index = index
        self._basename = os.path.join(model_dir, f"input_worker_{index}.ckpt")
        self._state_filename = f"checkpoint_input_worker_{index}"
        self._meta = _get_meta()
        self._meta.is_used = True
        self._saver = _make_saver() if self._meta.enable_iter_save_restore else None

    def create_save_iterator_callback(self) -> barrier.BarrierCallback:
        """Returns a callback of the barrier that saves the position when it is placed for a save.

        An input that cannot tell its position is left out, with a log line.
        """
        return self._save

    def create_restorer_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns a hook that goes to the latest position when a session is created.

        It does nothing if no position was saved. Goes behind the hook that initializes the input.
        """
        return _RestorerHook(self)

    def restore(self, session: tf.compat.v1.Session) -> None:
        """Goes to the latest saved position, if there is one.

        Raises:
            errors.MonolithError: It does not fit the input, or cannot be read.
        """
        if self._saver is None:
            return
        latest = tf.train.latest_checkpoint(self._model_dir, self._state_filename)
        if latest is None:
            logger.info("worker %d has no saved input position, it starts anew", self._index)
            return
        state = tf.train.get_checkpoint_state(self._model_dir, self._state_filename)
        # So that those of the run before count when old ones are removed.
        self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        try:
            self._saver.restore(session, latest)
        except (tf.errors.OpError, ValueError) as error:
            raise errors.MonolithError(
                f"The input position of worker {self._index} cannot be restored from {latest!r}, "
                f"perhaps because the input has changed since; remove "
                f"{os.path.join(self._model_dir, self._state_filename)!r} to read from the start. "
                f"TensorFlow says: {error}"
            ) from error
        logger.info("worker %d goes on reading its input as of %s", self._index, latest)

    def _save(self, action: str, session: tf.compat.v1.Session) -> None:
        if action != SAVE_ACTION or self._saver is None:
            return
        step = self._meta.get(session).global_step
        tf.io.gfile.makedirs(self._model_dir)
        try:
            self._saver.save(
                session,
                self._basename,
                global_step=step,
                latest_filename=self._state_filename,
                write_meta_graph=False,
            )
        except tf.errors.UnimplementedError as error:
            logger.warning("the input of worker %d has no position to save: %s", self._index, error)


class _RestorerHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, helper: WorkerCkptHelper) -> None:
        self._helper = helper

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._helper.restore(session)


def _make_saver() -> tf.compat.v1.train.Saver | None:
    resources = tf.compat.v1.get_collection(iterator_ops.GLOBAL_ITERATORS)
    if not resources:
        return None
    saveables = [
        iterator_ops._IteratorSaveable(
            resource,
            resource.name,
            # Shuffling and random ops are no reason to lose the position.
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE,
        )
        for resource in resources
    ]
    # Relative, so that a model directory can be moved.
    return tf.compat.v1.train.Saver(saveables, save_relative_paths=True)
