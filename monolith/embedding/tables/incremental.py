"""Saves only what has changed, between two full checkpoints.

A full checkpoint of a large model takes minutes, and what is trained after it is lost with the
process. A delta holds the rows that were touched since, and all variables, which are few: it costs
a fraction, so it can be saved often. Deltas build on each other and on the full checkpoint; see
`monolith.checkpoint.delta_chain` for their names. Restoring a checkpoint restores its deltas, too,
in `PartialRecoverySaver` and in the restorer listeners of tables, whether or not the run that
restores saves deltas itself.

A delta is complete when the list of deltas names it, which is written last, by a rename. The first
save of each session is full: only a session that has made the full checkpoint knows all that has
changed since.

Example:
    >>> import tempfile
    >>> from monolith.checkpoint import saver as saving
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     step = tf.compat.v1.train.get_or_create_global_step()
    ...     train = tf.compat.v1.assign_add(step, 1)
    ...     saver = saving.PartialRecoverySaver(sharded=True)
    ...     full = saving.NoFirstSaveCheckpointSaverHook(model_dir, save_steps=4, saver=saver)
    ...     hooks = [full, IncrementalCheckpointSaverHook(full, save_steps=1)]
    ...     with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
    ...         for _ in range(3):
    ...             _ = session.run(train)
    ...         base = tf.train.latest_checkpoint(model_dir)
    ...         [os.path.basename(prefix) for prefix in delta_chain.get_prefixes(base)]
    ['model.ckpt-1.delta-2', 'model.ckpt-1.delta-3']
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.checkpoint import delta_chain, deltas, manifest
from monolith.checkpoint.delta_chain import Delta
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook, _tell_guards
from monolith.core import metrics
from monolith.embedding.tables.touched import TouchedTables
from monolith.embedding.tables.touched_keys import TOUCHED_KEY_SET_CAPACITY

logger = logging.getLogger(__name__)

# After these a session is made anew, and starts from the last complete checkpoint.
_SESSION_LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


class IncrementalCheckpointSaverHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Saves deltas at a pace of its own. Put it behind the hook that saves full checkpoints.

    A delta becomes a full checkpoint if this session has not made one yet, or if more rows have
    changed than the tables remember. A delta that cannot be saved is logged, and training goes on:
    the next one holds what this one lacks.

    Args:
        saver_hook: Saves full checkpoints, at a slower pace. Its guard listeners guard deltas, too,
            and those of its listeners that have `before_delta(session, step, prefix)` are told
            before a delta is written.
        save_secs: Saves a delta every so many seconds.
        save_steps: Saves a delta every so many steps; give this or `save_secs`.
        max_touched_ids: How many changed rows each table of each server remembers; an id costs
            8 to 32 bytes.

    Raises:
        ValueError: Both of `save_secs` and `save_steps` are given, or none.
        errors.ConfigError: A setting is out of range.
    """

    def __init__(
        self,
        saver_hook: NoFirstSaveCheckpointSaverHook,
        save_secs: float | None = None,
        save_steps: int | None = None,
        max_touched_ids: int = TOUCHED_KEY_SET_CAPACITY,
    ) -> None:
        for name, value in (("save_secs", save_secs), ("save_steps", save_steps)):
            if value is not None and value <= 0:
                raise errors.ConfigError(f"`{name}` of deltas must be positive, got {value}.")
        if max_touched_ids <= 0:
            raise errors.ConfigError(f"`max_touched_ids` must be positive, got {max_touched_ids}.")
        self._saver_hook = saver_hook
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=save_secs, every_steps=save_steps
        )
        self._max_touched_ids = max_touched_ids
        self._directory = saver_hook._checkpoint_dir
        self._session: tf.compat.v1.Session | None = None
        self._base: str | None = None
        self._deltas: list[Delta] = []
        # First, since ids must be gathered before other listeners write the tables.
        saver_hook._listeners.insert(0, _FullSaveListener(self))

    def begin(self) -> None:
        """Adds ops to the graph; called by the session."""
        self._tables = TouchedTables(self._max_touched_ids)
        self._global_step = tf.compat.v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError("Saving deltas needs a global step in the graph.")

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Has the tables remember what changes from now on; called by the session."""
        with self._saver_hook._lock:
            self._start(session)
            self._timer.update_last_triggered_step(session.run(self._global_step))
            self._remove_unlisted()

    def before_run(self, run_context: Any) -> Any:
        """Called by the session."""
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves if it is time; called by the session."""
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        # Other workers may have gone further.
        step = int(run_context.session.run(self._global_step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self.save(run_context.session, step)

    def save(self, session: tf.compat.v1.Session, step: int) -> None:
        """Saves a delta now, or a full checkpoint where a delta is not possible.

        Args:
            session: The session of the run.
            step: The global step.

        Raises:
            tf.errors.OpError: The session is lost; or a full checkpoint could not be saved, and the
                hook that saves those does not ignore that.
        """
        with self._saver_hook._lock:
            if self._base is None:
                logger.info("saving all instead of a delta: it is the first save of this session")
            elif step <= self._last_saved_step() or self._save_delta(session, step):
                return
            self._saver_hook.trigger_save(session, self._saver_hook._ignore_save_errors)

    def _save_delta(self, session: tf.compat.v1.Session, step: int) -> bool:
        """Saves a delta; returns False if only a full checkpoint will do."""
        guards = self._saver_hook._guard_saver_listeners
        client = metrics.get_cli(metrics.get_metric_prefix())
        tags = {"mode": "incremental"}
        start_sec = time.monotonic()
        client.emit_counter("save_checkpoint", 1, tags)
        _tell_guards(guards, "before_save", session, step)
        try:
            num_rows = self._write_delta(session, step)
        except _SESSION_LOST:
            raise
        except tf.errors.OpError:
            client.emit_counter("save_checkpoint_failed", 1, tags)
            logger.exception("the delta of step %d is not saved; the next one includes it", step)
            return True
        finally:
            _tell_guards(guards[::-1], "after_save", session, step)
        if num_rows is None:
            logger.warning(
                "saving all instead of a delta at step %d: since the last save more than %d rows "
                "of a table have changed; raise `max_touched_ids`, or save deltas more often",
                step,
                self._max_touched_ids,
            )
            return False
        seconds = time.monotonic() - start_sec
        client.emit_timer("save_checkpoint_time", seconds, tags)
        logger.info("saved %d changed rows at step %d in %.3f s", num_rows, step, seconds)
        return True

    def _write_delta(self, session: tf.compat.v1.Session, step: int) -> int | None:
        """Writes a delta and lists it; returns its rows, None if some changes are not known."""
        assert self._base is not None
        num_rows, is_complete = self._tables.gather(session)
        if not is_complete:
            return None
        prefix = delta_chain.get_delta_prefix(self._base, step)
        listed = [*self._deltas, Delta(step, num_rows)]
        with self._removed_on_error(self._base):
            for listener in self._saver_hook._listeners:
                if hasattr(listener, "before_delta"):
                    listener.before_delta(session, step, prefix)
            self._tables.save(session, SaveHelper.get_ckpt_asset_dir(prefix))
            saver = self._saver_hook._get_saver()
            saver.save(session, prefix, write_meta_graph=False, write_state=False)
            if not tf.io.gfile.exists(manifest.get_path(prefix)):
                manifest.write(prefix)  # TensorFlow's own saver writes none.
            deltas.write_list(self._base, listed)
        self._deltas = listed
        self._tables.forget(session)
        return num_rows

    @contextlib.contextmanager
    def _removed_on_error(self, base: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                deltas.remove(base, {delta.step for delta in self._deltas})
            raise

    def _start(self, session: tf.compat.v1.Session) -> None:
        """Begins with a session, unless that was done: another hook may save before this one."""
        if session is not self._session:
            self._session, self._base, self._deltas = session, None, []
            self._tables.track(session)

    def _last_saved_step(self) -> int:
        if self._deltas:
            return self._deltas[-1].step
        return SaveHelper.get_global_step_value(self._base or "")

    def _before_full_save(self, session: tf.compat.v1.Session, step: int) -> None:
        # Deltas of an earlier checkpoint of the same step do not fit the new one.
        deltas.remove(self._saver_hook._helper.get_ckpt_prefix(step), set())
        self._start(session)
        # Whether these are all does not matter: all rows are going to be written.
        self._tables.gather(session)

    def _after_full_save(self, session: tf.compat.v1.Session, step: int) -> None:
        self._base, self._deltas = self._saver_hook._helper.get_ckpt_prefix(step), []
        self._tables.forget(session)
        # What older deltas hold is in the new checkpoint.
        for base in self._find_bases():
            if base != self._base:
                deltas.remove(base, set())

    def _remove_unlisted(self) -> None:
        """Removes what a killed process has left of deltas that it had not finished."""
        for base in self._find_bases():
            try:
                listed = {delta.step for delta in delta_chain.read(base)}
            except tf.errors.DataLossError:
                continue  # The restore of that checkpoint says so, or its deletion removes it.
            deltas.remove(base, listed)

    def _find_bases(self) -> list[str]:
        """Returns the prefixes of full checkpoints that have files of deltas."""
        basename = os.path.basename(self._saver_hook._helper.get_ckpt_prefix(0)).removesuffix("-0")
        names = delta_chain.find_bases(self._directory, basename)
        return [os.path.join(self._directory, name) for name in names]


class _FullSaveListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Tells the hook of deltas about full saves."""

    def __init__(self, hook: IncrementalCheckpointSaverHook) -> None:
        self._hook = hook

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._hook._before_full_save(session, global_step_value)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._hook._after_full_save(session, global_step_value)
