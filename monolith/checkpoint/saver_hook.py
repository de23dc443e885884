"""The hook that saves a run: when, with whom around it, and what to do when it fails.

One save is, in this order: guard listeners are told (they may stop the workers), listeners write
tables and filters, the saver writes the variables and then the file `checkpoint`, listeners are
told that it is done, `monolith_checkpoint` gets the time, and guard listeners are told, whether the
save went well or not. The whole of it is in `_save`, and nothing else saves. A save that fails
leaves no files behind, if the saver is a `PartialRecoverySaver`.

Example:
    >>> import tempfile
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     step = tf.compat.v1.train.get_or_create_global_step()
    ...     train = tf.compat.v1.assign_add(step, 1)
    ...     hook = NoFirstSaveCheckpointSaverHook(model_dir, save_steps=2)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(train)
    ...     state = tf.train.get_checkpoint_state(model_dir)
    ...     [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    ['model.ckpt-2', 'model.ckpt-3']
"""

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting
from monolith.core import metrics
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState

logger = logging.getLogger(__name__)

META_GRAPH_FILE_NAME = "meta_graph_for_debugging.pb"

_MAX_ATTEMPTS = 2
_NO_SPACE = re.compile("No space left on device|quota exceeded")


class NoFirstSaveCheckpointSaverHook(tf.compat.v1.train.CheckpointSaverHook):  # type: ignore[misc]
    """TensorFlow's saver hook for runs that must not stop because a save failed.

    Unlike TensorFlow's, it does not save when a session is created, since what was just restored
    is on disk already; it tries a failed save again; it can be told to save at any moment from
    another thread; and it can save at another pace outside of the tide.

    Args:
        checkpoint_dir: The model directory.
        save_secs: Saves every so many seconds.
        save_steps: Saves every so many steps; give this or `save_secs`.
        saver: Saves the variables; None takes that of `scaffold`, or that of the graph.
        checkpoint_basename: What names of checkpoints begin with.
        scaffold: Has the saver; give this, `saver` or none of them.
        listeners: Told before the variables are saved, and after; an error fails the save.
        save_graph_def: Whether to write the graph, meta graphs and `monolith_checkpoint`.
        tide_start_hour: Hour (UTC) at which the tide comes in.
        tide_start_minute: Minute of that hour.
        tide_end_hour: Hour (UTC) at which the tide goes out.
        tide_end_minute: Minute of that hour.
        tide_save_secs: Saves every so many seconds while there is no tide.
        ignore_save_errors: Whether a run goes on when a save has failed twice.
        is_dense_only: Whether this hook saves variables between the full saves of another one. It
            then saves at most once per step, and not at the end.
        use_native_multi_hash_table: Which kind of table `monolith_checkpoint` names.
        no_first_save: Whether the save at the creation of a session is left out.
        guard_saver_listeners: Told before everything else and, in reverse order, after everything
            else, whether the save went well or not; their errors are logged.

    Raises:
        ValueError: Both of `save_secs` and `save_steps` are given, or none; or both of `saver` and
            `scaffold` are given.
    """

    # Of the process, as those who set them do not know the hook: whether some hook saves only
    # variables, and whether the run dumps its model. Both make the last save necessary.
    _has_dense_only = False
    _in_model_dump_mode = False
    _last_triggered_step = 0

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Sequence[Any] | None = None,
        save_graph_def: bool = True,
        tide_start_hour: int | None = None,
        tide_start_minute: int | None = None,
        tide_end_hour: int | None = None,
        tide_end_minute: int | None = None,
        tide_save_secs: float | None = None,
        ignore_save_errors: bool = False,
        is_dense_only: bool = False,
        use_native_multi_hash_table: bool = False,
        no_first_save: bool = True,
        guard_saver_listeners: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(
            checkpoint_dir,
            save_secs=save_secs,
            save_steps=save_steps,
            saver=saver,
            checkpoint_basename=checkpoint_basename,
            scaffold=scaffold,
            listeners=listeners,
            save_graph_def=save_graph_def,
        )
        self._helper = SaveHelper(os.path.join(checkpoint_dir, checkpoint_basename))
        self._timer: Any = SecondOrStepTimerWithTideSetting(
            every_secs=save_secs,
            every_steps=save_steps,
            tide_start_hour=tide_start_hour,
            tide_start_minute=tide_start_minute,
            tide_end_hour=tide_end_hour,
            tide_end_minute=tide_end_minute,
            tide_every_secs=tide_save_secs,
            save_helper=self._helper,
        )
        self._ignore_save_errors = ignore_save_errors
        self._is_dense_only = is_dense_only
        self._use_native_multi_hash_table = use_native_multi_hash_table
        self._no_first_save = no_first_save
        self._skips_next_save = no_first_save
        self._guard_saver_listeners = list(guard_saver_listeners or [])
        # Saves come from the training loop and, through `trigger_save`, from other threads.
        self._lock = threading.RLock()

    @property
    def timer(self) -> Any:
        """Decides when to save; who wants to pause saving disables it."""
        return self._timer

    def replace_timer(self, timer: Any) -> None:
        """Has something else decide when to save, with the methods of a `SecondOrStepTimer`."""
        self._timer = timer

    def begin(self) -> None:
        """Removes what a killed process has left in the directory; called by the session.

        Raises:
            tf.errors.DataLossError: The file `checkpoint` is damaged, or missing beside complete
                checkpoints; training would start afresh.
        """
        super().begin()
        saver = self._find_saver()
        # Nobody restores what is saved in between.
        if hasattr(saver, "require_list") and not self._is_dense_only:
            saver.require_list(self._save_path)
        if hasattr(saver, "clean_up"):
            saver.clean_up(self._save_path)
        for listener in self._guard_saver_listeners:
            listener.begin()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Writes the graph, and marks the servers as set up; called by the session."""
        with self._lock:
            # A session that replaces a lost one has just restored what is on disk, too.
            self._skips_next_save = self._no_first_save
            super().after_create_session(session, coord)
            saver = self._get_saver()
            if self._save_graph_def and saver is not None:
                saver.export_meta_graph(os.path.join(self._checkpoint_dir, META_GRAPH_FILE_NAME))
            if hasattr(saver, "setup_ps_initialized_state"):
                saver.setup_ps_initialized_state(session)
            self._create_or_update_monolith_ckpt_state(do_update=False)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves if it is time; called by the session."""
        with self._lock:
            super().after_run(run_context, run_values)

    def save_if_due(self, session: tf.compat.v1.Session) -> None:
        """Saves if it is time, where no step may end for long; between two steps."""
        with self._lock:
            step = session.run(self._global_step_tensor)
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                self._save(session, step)

    def end(self, session: tf.compat.v1.Session) -> None:
        """Saves what the last steps have changed; called by the session."""
        if self._is_dense_only:
            return
        with self._lock:
            last_step = session.run(self._global_step_tensor)
            must_save = self._has_dense_only or self._in_model_dump_mode
            if must_save or last_step != self._timer.last_triggered_step():
                self._save(session, last_step)
            for listener in [*self._listeners, *self._guard_saver_listeners]:
                listener.end(session, last_step)

    def trigger_save(self, session: tf.compat.v1.Session, ignore_save_errors: bool = False) -> None:
        """Saves now; returns when it is done. May be called from any thread.

        Args:
            session: The session of the run, monitored or not.
            ignore_save_errors: Whether an error is only logged.

        Raises:
            tf.errors.OpError: The save has failed twice.
        """
        if hasattr(session, "_tf_sess"):
            # A monitored session would call hooks, this one among them, for what a save runs.
            session = session._tf_sess()
        with self._lock, session.graph.as_default():
            step = session.run(self._global_step_tensor)
            self._timer.reset()
            self._timer.update_last_triggered_step(step)
            self._save(session, step, ignore_save_errors)

    def _save(
        self, session: tf.compat.v1.Session, step: int, ignore_save_errors: bool | None = None
    ) -> bool:
        """Saves; returns whether a listener wants the run to stop."""
        if self._skips_next_save:
            self._skips_next_save = False
            logger.info("step %d is not saved: the session was just created", step)
            return False
        if self._is_dense_only and step == self._last_triggered_step:
            logger.info("step %d is not saved again", step)
            return False
        if ignore_save_errors is None:
            ignore_save_errors = self._ignore_save_errors

        _tell_guards(self._guard_saver_listeners, "before_save", session, step)
        try:
            return self._save_with_retries(session, step)
        except tf.errors.OpError:
            if not ignore_save_errors:
                raise
            logger.error("training goes on without a checkpoint of step %d", step)
            return False
        finally:
            _tell_guards(self._guard_saver_listeners[::-1], "after_save", session, step)

    def _save_with_retries(self, session: tf.compat.v1.Session, step: int) -> bool:
        client = metrics.get_cli(metrics.get_metric_prefix())
        tags = {"mode": "dense_only" if self._is_dense_only else "full"}
        attempt = 1
        while True:
            start_sec = time.monotonic()
            client.emit_counter("save_checkpoint", 1, tags)
            try:
                should_stop = self._save_once(session, step)
            except tf.errors.OpError as e:
                client.emit_counter("save_checkpoint_failed", 1, tags)
                logger.exception(
                    "saving step %d failed, attempt %d of %d", step, attempt, _MAX_ATTEMPTS
                )
                if attempt == _MAX_ATTEMPTS:
                    if _is_disk_full(e):
                        raise self._explain_full_disk(e, step) from e
                    raise
                attempt += 1
                continue
            self._last_triggered_step = step
            client.emit_timer("save_checkpoint_time", time.monotonic() - start_sec, tags)
            return should_stop

    def _save_once(self, session: tf.compat.v1.Session, step: int) -> bool:
        saver = self._get_saver()
        if not hasattr(saver, "begin_save"):
            return self._save_and_tell(session, step)
        saver.begin_save(self._save_path, step)
        try:
            return self._save_and_tell(session, step)
        finally:
            # Does nothing if the checkpoint is listed.
            saver.abandon_save()

    def _save_and_tell(self, session: tf.compat.v1.Session, step: int) -> bool:
        should_stop = super()._save(session, step)
        try:
            self._create_or_update_monolith_ckpt_state(do_update=True)
        except tf.errors.OpError as e:
            # The checkpoint is there; it is not worth to be saved again for the time in this file.
            logger.warning("the time of the save of step %d was not recorded: %s", step, e)
        return bool(should_stop)

    def _explain_full_disk(self, error: tf.errors.OpError, step: int) -> tf.errors.OpError:
        return tf.errors.ResourceExhaustedError(
            error.node_def,
            error.op,
            f"Step {step} was not saved, the disk of {self._checkpoint_dir} is full: "
            f"{_get_first_line(error)}. What was written of it is removed, older checkpoints are "
            "as they were; free some space, or let the saver keep fewer checkpoints.",
        )

    def _find_saver(self) -> Any:
        """Returns the saver if it is known already."""
        saver = self._saver or (self._scaffold and self._scaffold.saver)
        savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
        return savers[0] if not saver and len(savers) == 1 else saver

    def _create_or_update_monolith_ckpt_state(self, do_update: bool) -> None:
        """Writes `monolith_checkpoint` if it is missing, or if a save is to be recorded."""
        if not self._save_graph_def:
            return  # Another process does.
        directory = self._checkpoint_dir
        state = checkpoint_state.get_monolith_checkpoint_state(directory)
        if state is None:
            path = os.path.join(directory, checkpoint_state.MONOLITH_CKPT_STATE_FILE_NAME)
            if tf.io.gfile.exists(path):
                # People edit this file. Writing a new one would lose the checkpoints that it
                # keeps from being deleted.
                logger.error("%s cannot be read and is left as it is; repair or remove it", path)
                return
            state = MonolithCheckpointState(
                builtin_hash_table_type=MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP
                if self._use_native_multi_hash_table
                else MonolithCheckpointState.CUCKOO_HASH_MAP
            )
        elif not do_update:
            return
        if do_update:
            state.last_checkpoint_save_timestamp = int(time.time())
        tf.io.gfile.makedirs(directory)
        checkpoint_state.save_monolith_checkpoint_state(directory, state)


def _is_disk_full(error: tf.errors.OpError) -> bool:
    return isinstance(error, tf.errors.ResourceExhaustedError) and bool(
        _NO_SPACE.search(error.message)
    )


def _get_first_line(error: tf.errors.OpError) -> str:
    """Returns what an op has said, without the places in the program where it was made."""
    lines = [line.strip() for line in error.message.splitlines()]
    return next((line for line in lines if _NO_SPACE.search(line)), lines[0] if lines else "")


def _tell_guards(
    listeners: Sequence[Any], method: str, session: tf.compat.v1.Session, step: int
) -> None:
    for listener in listeners:
        try:
            getattr(listener, method)(session, step)
        except Exception:
            logger.exception("%s of %s failed at step %d", method, listener, step)
