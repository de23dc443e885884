"""Saving and restoring a model: the saver, and the names that belong around it.

`PartialRecoverySaver` is TensorFlow's saver with what a long-running job on many servers needs:
checkpoints that are never deleted, tables that go when their checkpoint goes, the restore of only
those servers that were lost, and starting from a checkpoint whose variables had other names. The
half that saves is in `save`, the half that restores in `restore`; which checkpoints stay is decided
here. The hook that decides when to save is in `saver_hook`, the timer in `timer`, the servers'
memory in `server_monitor`; all of them can be imported from here.

Order of a save: listeners write tables and filters to `<prefix>.assets/`, the saver writes the
variables, then the meta graph, then the manifest of all files, and last the file `checkpoint`, by a
rename. So that file only ever names what is complete. What happens when a save does not get that
far is in `unfinished`.

Example:
    >>> import tempfile
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     _ = tf.compat.v1.get_variable("v", initializer=1.0)
    ...     saver = PartialRecoverySaver(max_to_keep=1, exempt_checkpoint_paths=["model.ckpt-1"])
    ...     with tf.compat.v1.Session() as session:
    ...         session.run(tf.compat.v1.global_variables_initializer())
    ...         for step in (1, 2, 3):
    ...             _ = saver.save(session, f"{model_dir}/model.ckpt", global_step=step)
    ...     [os.path.basename(path) for path in saver.last_checkpoints]
    ['model.ckpt-1', 'model.ckpt-3']
"""

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.dense_reload import CUSTOM_RESTORE_OP, calc_feed_dict
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore import RecoveringSaver
from monolith.checkpoint.save import CrashSafeSaver
from monolith.checkpoint.saver_builder import SaverBuilder
from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.checkpoint.state import (
    MONOLITH_CKPT_STATE_FILE_NAME,
    _ckpt_state_cache_map,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
    is_same,
    remove_checkpoint,
)
from monolith.checkpoint.tide import tide_available_now
from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting

__all__ = [
    "CUSTOM_RESTORE_OP",
    "MONOLITH_CKPT_STATE_FILE_NAME",
    "NoFirstSaveCheckpointSaverHook",
    "PartialRecoverySaver",
    "PsMonitor",
    "SaveHelper",
    "SaverBuilder",
    "SecondOrStepTimerWithTideSetting",
    "_ckpt_state_cache_map",
    "calc_feed_dict",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
    "tide_available_now",
]

logger = logging.getLogger(__name__)

_SECONDS_PER_HOUR = 3600


class PartialRecoverySaver(CrashSafeSaver, RecoveringSaver):
    """TensorFlow's saver for models on several servers that run for months.

    It differs from TensorFlow's in these points:
    - Checkpoints named in `exempt_checkpoint_paths` are not counted and not deleted.
    - Deleting a checkpoint deletes its `.assets/`, where tables and filters are, too.
    - If there are more checkpoints than `max_to_keep`, for instance because the setting was
      lowered, a save deletes all that are too many, not one.
    - The file `checkpoint` is written last, when also the meta graph is there, and a manifest of
      all files, tables and filters among them.
    - A save that fails leaves no files. Saving a listed step again leaves it whole until the new
      one is.
    - A restore compares the files with the manifest before it loads any.
    - With `ps_monitor` and `sharded`, a restore leaves servers alone that still hold their values.
    - A restore also makes the tables that `MultiHashTable` registers with the graph, empty.
    - A restore refuses a resource variable of another shape, unless `reshape` is set.
    - A restore follows what `dense_reload.CustomRestoreListener` has put into the graph.

    Args:
        var_list: What to save: variables and saveables, or a dictionary from names to them; None
            is everything in the graph.
        reshape: Whether a variable may be restored from one of another shape.
        sharded: Whether each device writes its own files.
        max_to_keep: How many checkpoints, besides exempt ones, are kept; 0 or None keeps all on
            disk, but lists only the newest.
        keep_checkpoint_every_n_hours: One checkpoint per so many hours is kept forever.
        name: Prefix of the names of ops.
        restore_sequentially: Taken for compatibility; a device restores its variables in one op.
        saver_def: Makes the saver of a graph that has one, instead of adding ops.
        builder: Adds the ops; a `SaverBuilder` if None.
        defer_build: Whether ops are added by `build()`, later.
        allow_empty: Whether a graph without variables is fine, with nothing to save.
        pad_step_number: Whether steps in file names have at least 8 digits.
        save_relative_paths: Whether `checkpoint` names files relative to its directory, so that
            the directory can be moved.
        filename: File name to save to, if it is known already.
        ps_monitor: Tells which servers have to be restored; None restores all.
        exempt_checkpoint_paths: Checkpoints that are never deleted; only the last part of each path
            counts.
        skip_save: Whether `save` does nothing, for processes of which another one saves.
        model_dir: If given, each save reads the exempt checkpoints from the file
            `monolith_checkpoint` there, if that names some.
        fall_back_to_older_checkpoint: Whether a restore of the newest checkpoint, if that is
            damaged, takes the newest older one that is not, and lists the damaged ones no more.
            The whole checkpoint is read once before it is restored, tables included.
        rebuild_checkpoint_list: Whether training goes on from the newest checkpoint of a directory
            whose file `checkpoint` is missing, instead of being refused.
        changed_model: What a restore does where variables are missing in the checkpoint, or have
            another shape there; None leaves that to TensorFlow, whose errors are for experts.
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        ps_monitor: PsMonitor | None = None,
        exempt_checkpoint_paths: Iterable[str] | None = None,
        skip_save: bool = False,
        model_dir: str | None = None,
        fall_back_to_older_checkpoint: bool = False,
        rebuild_checkpoint_list: bool = False,
        changed_model: OnChange | None = None,
    ) -> None:
        builder = builder or SaverBuilder()
        if ps_monitor is not None and not hasattr(builder, "restore_ops_per_device"):
            raise errors.ConfigError(
                "`ps_monitor` needs a `builder` with `restore_ops_per_device`, such as "
                f"SaverBuilder, got {type(builder).__name__}; leave `builder` out."
            )
        self._ps_monitor = ps_monitor
        self._exempt_checkpoint_paths = _get_names(exempt_checkpoint_paths or ())
        self._skip_save = skip_save
        self._model_dir = model_dir
        self._falls_back = fall_back_to_older_checkpoint
        self._rebuilds_list = rebuild_checkpoint_list
        self._changed_model = changed_model
        super().__init__(
            var_list=var_list,
            reshape=reshape,
            sharded=sharded,
            max_to_keep=max_to_keep,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            name=name,
            restore_sequentially=restore_sequentially,
            saver_def=saver_def,
            builder=builder,
            defer_build=defer_build,
            allow_empty=allow_empty,
            pad_step_number=pad_step_number,
            save_relative_paths=save_relative_paths,
            filename=filename,
        )

    @property
    def exempt_checkpoint_paths(self) -> set[str]:
        """Names, without a directory, of checkpoints that are not deleted."""
        if self._model_dir is not None:
            state = get_monolith_checkpoint_state(self._model_dir)
            if state is not None and state.exempt_model_checkpoint_paths:
                self._exempt_checkpoint_paths = _get_names(state.exempt_model_checkpoint_paths)
        return self._exempt_checkpoint_paths

    @staticmethod
    def from_proto(saver_def: Any, import_scope: str | None = None) -> "PartialRecoverySaver":
        """Returns a saver for a graph that has the ops that `saver_def` names."""
        return PartialRecoverySaver(saver_def=saver_def, name=import_scope)

    def _get_exempt_names(self) -> set[str]:
        return self.exempt_checkpoint_paths

    def _RecordLastCheckpoint(self, latest_save_path: str) -> None:
        """Lists a checkpoint as the newest; the oldest that are too many leave the list."""
        self._damaged = frozenset(p for p in self._damaged if not is_same(p, latest_save_path))
        if not self.saver_def.max_to_keep:
            return
        replaced = self._unfinished.replaced if self._unfinished is not None else None
        known = [
            p
            for p in self._last_checkpoints
            if not any(is_same(p[0], path) for path in (latest_save_path, replaced) if path)
        ]
        self._last_checkpoints = [*known, (latest_save_path, time.time())]

        exempt = self.exempt_checkpoint_paths
        counted = [p for p in self._last_checkpoints if os.path.basename(p[0]) not in exempt]
        for checkpoint in counted[: -self.saver_def.max_to_keep]:
            self._last_checkpoints.remove(checkpoint)
            self._checkpoints_to_be_deleted.append(checkpoint)

    def _keep_some_forever(self) -> None:
        """Takes one checkpoint per `keep_checkpoint_every_n_hours` from those to be deleted."""
        to_be_deleted = []
        for path, saved_at_sec in self._checkpoints_to_be_deleted:
            if saved_at_sec > self._next_checkpoint_time:
                hours = self.saver_def.keep_checkpoint_every_n_hours
                self._next_checkpoint_time += hours * _SECONDS_PER_HOUR
            else:
                to_be_deleted.append((path, saved_at_sec))
        self._checkpoints_to_be_deleted = to_be_deleted

    def _MaybeDeleteOldCheckpoints(self, meta_graph_suffix: str = "meta") -> None:
        """Deletes what has left the list and is not kept."""
        while self._checkpoints_to_be_deleted:
            path, _ = self._checkpoints_to_be_deleted.pop(0)
            try:
                remove_checkpoint(path)
            except tf.errors.OpError as e:
                logger.warning("could not delete the old checkpoint %s: %s", path, e)


def _get_names(paths: Iterable[str]) -> set[str]:
    return {os.path.basename(path) for path in paths}
