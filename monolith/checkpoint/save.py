"""A saver whose checkpoints are complete or not there.

TensorFlow's saver lists a checkpoint when its variables are written, and writes over the files of
one that is listed. Here a save is a protocol, of which `failpoints` names the steps: whatever
happens between two of them, the file `checkpoint` names something whole, and what was half written
is removed, now or by the next process. How is in `unfinished`.
"""

import logging
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.training import training_util

from monolith.checkpoint import failpoints, manifest, unfinished
from monolith.checkpoint import state as checkpoint_state
from monolith.graph import metadata

logger = logging.getLogger(__name__)

# Collections of Python objects that cannot be written to a file.
_ONLY_IN_MEMORY = (metadata._COLLECTION, tf.compat.v1.GraphKeys.RESOURCES)

_STEP_SUFFIX = re.compile(r"-\d+$", re.ASCII)


class CrashSafeSaver(tf.compat.v1.train.Saver):  # type: ignore[misc]
    """TensorFlow's saver, as far as it saves; `PartialRecoverySaver` adds the rest."""

    _skip_save = False
    _unfinished: unfinished.UnfinishedSave | None = None
    _cleaned: frozenset[tuple[str, str]] = frozenset()
    _last_checkpoints: list[tuple[str, float]]
    _checkpoints_to_be_deleted: list[tuple[str, float]]
    _next_checkpoint_time: float

    def save(
        self,
        sess: tf.compat.v1.Session | None,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Saves the variables and deletes what is not to be kept any longer.

        Args:
            sess: The session that holds them; None when executing eagerly.
            save_path: What names of files begin with.
            global_step: Follows in their names: a number, a tensor, or the name of one.
            latest_filename: Name of the state file, `checkpoint` if None.
            meta_graph_suffix: Ends the name of the file with the meta graph.
            write_meta_graph: Whether to write that file.
            write_state: Whether the state file shall name this checkpoint, and old ones go.
            strip_default_attrs: Whether the meta graph is written without default attributes.
            save_debug_info: Whether to write debug information beside the meta graph.

        Returns:
            What names of the files begin with; None if there was nothing to save.

        Raises:
            ValueError: The directory does not exist, or a name is no good.
        """
        if self._skip_save:
            logger.info("another process saves %s, not this one", save_path)
            return None
        if global_step is not None and not isinstance(global_step, int | np.integer):
            global_step = training_util.global_step(sess, global_step)
        save_path = os.fspath(save_path)
        if write_state and self._is_ready():
            prefix = self._get_prefix(save_path, global_step)
            if self._unfinished is None or self._unfinished.prefix != prefix:
                # Who writes tables without calling `begin_save` has written them by now.
                self._begin(prefix, latest_filename, keep_files=True)
        try:
            failpoints.reach(failpoints.TABLES_WRITTEN)
            checkpoint_path: str | None = super().save(
                sess,
                save_path,
                global_step=global_step,
                latest_filename=latest_filename,
                meta_graph_suffix=meta_graph_suffix,
                write_meta_graph=write_meta_graph,
                write_state=False,
                strip_default_attrs=strip_default_attrs,
                save_debug_info=save_debug_info,
            )
            if checkpoint_path is not None:
                failpoints.reach(failpoints.VARIABLES_WRITTEN)
                manifest.write(checkpoint_path)
                failpoints.reach(failpoints.MANIFEST_WRITTEN)
                if write_state:
                    self._publish(checkpoint_path, os.path.dirname(save_path), latest_filename)
        except tf.errors.OpError:
            self.abandon_save()
            raise
        except Exception:
            # Arguments that are no good: nothing was written, and what is there is not ours.
            self.abandon_save(keep_files=True)
            raise
        self._end_save()
        return checkpoint_path

    def begin_save(
        self, save_path: str, global_step: int, latest_filename: str | None = None
    ) -> None:
        """Makes place for a checkpoint: to be called before its tables are written.

        Files that an earlier save of the step has left are removed. If they are listed, they stay
        under other names, listed so, until `save` lists the new ones.

        Args:
            save_path: As of `save`.
            global_step: As of `save`.
            latest_filename: As of `save`.

        Raises:
            tf.errors.OpError: The disk is full, or the state file damaged.
        """
        if not self._skip_save:
            prefix = self._get_prefix(save_path, global_step)
            self._begin(prefix, latest_filename, keep_files=False)

    def abandon_save(self, keep_files: bool = False) -> None:
        """Removes what was written since `begin_save`; does nothing once the checkpoint is listed.

        Args:
            keep_files: Whether to believe that nothing was written.
        """
        save, self._unfinished = self._unfinished, None
        if save is None:
            return
        replaced = save.replaced
        save.abandon(keep_files)
        if replaced is not None and save.replaced is None:
            self._rename_known(replaced, save.prefix)

    def clean_up(self, save_path: str, latest_filename: str | None = None) -> None:
        """Removes what killed processes have left of checkpoints, once; see `unfinished`.

        Args:
            save_path: What names of checkpoints begin with.
            latest_filename: Name of the state file, `checkpoint` if None.

        Raises:
            tf.errors.DataLossError: The state file is damaged.
        """
        directory, basename = os.path.split(save_path)
        if self._skip_save or (directory, basename) in self._cleaned:
            return
        unfinished.clean_up(directory, basename, latest_filename)
        self._cleaned |= {(directory, basename)}

    def export_meta_graph(
        self, filename: str | None = None, collection_list: list[str] | None = None, **kwargs: Any
    ) -> Any:
        """Returns the `MetaGraphDef` of the default graph, and writes it to a file if named.

        Collections that have no place in one are left out, instead of a warning at each save.
        """
        if collection_list is None:
            collections = tf.compat.v1.get_default_graph().get_all_collection_keys()
            collection_list = [name for name in collections if name not in _ONLY_IN_MEMORY]
        return super().export_meta_graph(filename, collection_list, **kwargs)

    def _is_ready(self) -> bool:
        return not self._is_empty and (self._is_built or tf.executing_eagerly())

    def _get_prefix(self, save_path: str, global_step: int | None) -> str:
        if global_step is None:
            return save_path
        number = f"{global_step:08d}" if self._pad_step_number else str(global_step)
        return f"{save_path}-{number}"

    def _begin(self, prefix: str, latest_filename: str | None, keep_files: bool) -> None:
        self.clean_up(_STEP_SUFFIX.sub("", prefix), latest_filename)
        unfinished.remove_temporary_files(os.path.dirname(prefix))
        save = unfinished.UnfinishedSave(prefix, latest_filename, keep_files)
        self._unfinished = save
        if save.replaced is not None:
            self._rename_known(prefix, save.replaced)

    def _end_save(self) -> None:
        save, self._unfinished = self._unfinished, None
        if save is not None:
            save.finish()

    def _rename_known(self, old: str, new: str) -> None:
        self._last_checkpoints = [
            (new if checkpoint_state.is_same(path, old) else path, saved_at_sec)
            for path, saved_at_sec in self._last_checkpoints
        ]

    def _publish(self, checkpoint_path: str, save_dir: str, latest_filename: str | None) -> None:
        """Makes a complete checkpoint the newest, and lets old ones go."""
        if self._unfinished is not None:
            self._unfinished.check_owned()
        known, to_be_deleted = list(self._last_checkpoints), list(self._checkpoints_to_be_deleted)
        next_kept_sec = self._next_checkpoint_time
        self._RecordLastCheckpoint(checkpoint_path)
        self._keep_some_forever()
        try:
            for path, _ in self._checkpoints_to_be_deleted:
                unfinished.mark_for_deletion(path)
            checkpoint_state.write_list(
                save_dir,
                checkpoint_path,
                self.last_checkpoints,
                latest_filename,
                self._save_relative_paths,
            )
        except BaseException:
            for path, _ in self._checkpoints_to_be_deleted:
                unfinished.unmark(path)
            self._last_checkpoints, self._checkpoints_to_be_deleted = known, to_be_deleted
            self._next_checkpoint_time = next_kept_sec
            raise
        failpoints.reach(failpoints.LISTED)
        self._end_save()
        self._MaybeDeleteOldCheckpoints()

    def _keep_some_forever(self) -> None:
        """Takes checkpoints that are kept forever from those to be deleted."""
