"""A saver that restores what is whole, and only where it was lost.

TensorFlow's saver loads whatever it finds under a path, on all servers. Here a restore first sees
that the files are those that were saved, takes the variables of the checkpoint's last delta, leaves
servers alone that still hold their values, and follows `dense_reload` where a model has changed.
The other half, which saves, is in `save`.
"""

import dataclasses
import logging
import os
from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import py_checkpoint_reader
from tensorflow.python.training import saver as tf_saver

from monolith.checkpoint import (
    changed_model,
    custom_restore,
    delta_chain,
    deltas,
    fallback,
    manifest,
    restore_hook,
    unlisted,
)
from monolith.checkpoint.custom_restore import is_checkpoint
from monolith.checkpoint.dense_reload import CUSTOM_RESTORE_OP
from monolith.checkpoint.saver_builder import SaverBuilder
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.checkpoint.state import is_same
from monolith.graph import export_mode

logger = logging.getLogger(__name__)

# TensorFlow's words for what may be wrong with a checkpoint.
_MISSING_KEY = "a Variable name or other graph key that is missing"
_OTHER_GRAPH = "a mismatch between the current graph and the graph"


class RecoveringSaver(tf.compat.v1.train.Saver):  # type: ignore[misc]
    """TensorFlow's saver, as far as it restores; `PartialRecoverySaver` adds the rest."""

    _ps_monitor: PsMonitor | None = None
    _model_dir: str | None = None
    _falls_back = False
    _rebuilds_list = False
    _changed_model: changed_model.OnChange | None = None
    # Checkpoints that a restore has found damaged, and left for older ones.
    _damaged: frozenset[str] = frozenset()

    def restore(self, sess: tf.compat.v1.Session | None, save_path: str) -> None:
        """Restores the variables that have to be restored.

        Args:
            sess: The session to restore them in; None when executing eagerly.
            save_path: What `save` has returned, or `tf.train.latest_checkpoint`.

        Raises:
            ValueError: `save_path` is no checkpoint.
            errors.ConfigError: It does not fit the alias map, or tables have changed since.
            tf.errors.DataLossError: A file of it is missing or damaged; the message names the file.
            tf.errors.OpError: The checkpoint does not fit the graph, or cannot be read.
        """
        if save_path is not None and self._falls_back:
            deltas.cut_damaged(save_path)
        chosen = self._check_files(save_path)
        newest = chosen if chosen is None else delta_chain.get_newest_prefix(chosen)
        with manifest.named_damage(newest):
            self._refuse_changed_tables(sess, chosen, newest)
            self._restore(sess, newest)
        if sess is not None:
            restore_hook.note_restored(sess, chosen)

    def setup_ps_initialized_state(self, sess: tf.compat.v1.Session) -> None:
        """Tells the monitor, if there is one, that all servers hold their values now."""
        if self._ps_monitor is not None:
            self._ps_monitor.setup_ps_initialized_state(sess)

    def require_list(self, save_path: str) -> None:
        """Sees that checkpoints that are there are listed; to be called before a session restores.

        Args:
            save_path: What names of checkpoints begin with.

        Raises:
            tf.errors.DataLossError: The file `checkpoint` is missing, and `rebuild_checkpoint_list`
                is not set; or it is damaged.
        """
        directory, basename = os.path.split(save_path)
        unlisted.require_list(directory, basename, self._rebuilds_list)

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Learns from the state file which checkpoints there are; those known as damaged are not.

        Args:
            checkpoint_paths: The checkpoints, the oldest first.
        """
        super().recover_last_checkpoints(
            [p for p in checkpoint_paths if not any(is_same(p, d) for d in self._damaged)]
        )

    def _get_exempt_names(self) -> Collection[str]:
        """Returns names of checkpoints that stay listed even if they are damaged."""
        return ()

    def _restore(self, sess: tf.compat.v1.Session | None, save_path: str) -> None:
        graph: Any = getattr(sess, "graph", None)
        if graph:
            custom_restore.create_missing_resources(sess, graph)
        custom = graph.get_collection(CUSTOM_RESTORE_OP) if graph else []
        if not custom or export_mode.is_exporting() or not custom_restore.has_state(save_path):
            self._origin_restore(sess, save_path)
            return
        ops, placeholders, alias_map = custom[0]
        if alias_map is not None:
            restored = custom_restore.restore_aliases(
                sess,
                save_path,
                ops,
                placeholders,
                alias_map,
                keeps_what_fits=self._changed_model is changed_model.OnChange.KEEP_WHAT_FITS,
            )
        else:
            restored = custom_restore.clear_nn(sess, save_path, ops, placeholders)
        if not restored:
            self._origin_restore(sess, save_path)
        # Once: a session that is made later restores what this one will have saved. The public
        # method for this refuses a graph that is finalized.
        graph._collections.pop(CUSTOM_RESTORE_OP, None)

    def _refuse_changed_tables(
        self, sess: tf.compat.v1.Session | None, full_path: str | None, save_path: str
    ) -> None:
        """Raises if rows of tables have changed, before anything is restored or initialized."""
        graph: Any = getattr(sess, "graph", None)
        if not graph or full_path is None or not is_checkpoint(full_path):
            return
        if self._changed_model is changed_model.OnChange.KEEP_WHAT_FITS:
            return
        tables = changed_model.find_table_changes(graph, full_path)
        if not tables:
            return
        changes = changed_model.Changes([], {})
        if not graph.get_collection(CUSTOM_RESTORE_OP):
            changes = changed_model.find_changes(graph, save_path)
        raise changed_model.make_refusal(save_path, dataclasses.replace(changes, tables=tables))

    def _check_files(self, save_path: str) -> str:
        """Returns the checkpoint to restore, whose files are as they were saved."""
        if save_path is None or not (self._falls_back or is_checkpoint(save_path)):
            return save_path  # TensorFlow says what is wrong with it.
        if not self._falls_back:
            manifest.verify(save_path)
            return save_path
        model_dir = self._model_dir or os.path.dirname(save_path)
        path, damaged = fallback.choose(save_path, model_dir, self._get_exempt_names())
        self._damaged |= set(damaged)
        return path

    def _origin_restore(self, sess: tf.compat.v1.Session | None, save_path: str) -> None:
        """Restores from a checkpoint with the same names, only on lost servers if monitored."""
        if self._changed_model is not None and sess is not None and is_checkpoint(save_path):
            changes = changed_model.find_changes(sess.graph, save_path)
            if changes:
                self._changed_model.restore(sess, self.saver_def, save_path, changes)
                return
        self._check_shapes(sess, save_path)
        per_device = getattr(self._builder, "restore_ops_per_device", {})
        if self._ps_monitor is None or sess is None or not per_device:
            super().restore(sess, save_path)
            return
        lost = [d for d in per_device if self._ps_monitor.is_ps_uninitialized(sess, d)]
        if len(lost) == len(per_device) or not is_checkpoint(save_path):
            super().restore(sess, save_path)  # Also raises TensorFlow's errors about the path.
            return
        logger.info(
            "restoring %d of %d devices from %s, the others keep what they hold: %s",
            len(lost),
            len(per_device),
            save_path,
            lost,
        )
        try:
            sess.run(
                [per_device[device] for device in lost],
                {self.saver_def.filename_tensor_name: save_path},
            )
        except tf.errors.NotFoundError as e:
            raise tf_saver._wrap_restore_error_with_msg(e, _MISSING_KEY) from e
        except tf.errors.InvalidArgumentError as e:
            raise tf_saver._wrap_restore_error_with_msg(e, _OTHER_GRAPH) from e

    def _check_shapes(self, sess: tf.compat.v1.Session | None, save_path: str) -> None:
        """Refuses a checkpoint in which a variable has another shape."""
        if sess is None or not isinstance(self._builder, SaverBuilder):
            return
        if not is_checkpoint(save_path):
            return
        reader = py_checkpoint_reader.NewCheckpointReader(save_path)
        wrong = self._builder.find_shape_mismatches(reader.get_variable_to_shape_map())
        if wrong:
            error = tf.errors.InvalidArgumentError(None, None, "\n".join(wrong))
            raise tf_saver._wrap_restore_error_with_msg(error, _OTHER_GRAPH)
