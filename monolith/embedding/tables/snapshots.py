"""Saves the tables of a graph beside TensorFlow's checkpoints, and brings them back.

A table's rows are written to `model.ckpt-STEP.assets/` *before* the variables, so that the file
`checkpoint` only ever names a checkpoint whose tables are complete.
"""

import collections
import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith import errors
from monolith.checkpoint import changed_model as model_changes
from monolith.checkpoint.changed_model import Changes, OnChange, TableChange
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore_hook import AssetRestorerListener
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import registry, row_forms, shards
from monolith.embedding.tables.registry import Entry
from monolith.embedding.tables.row_forms import FormChange
from monolith.native import ops
from monolith.proto import ckpt_info_pb2

logger = logging.getLogger(__name__)

_TIMEOUT_IN_MS = 60 * 60 * 1000
# Tables start saving at different moments, so that a server does not write all of them at once.
_SLEEP_MS_PER_TABLE = 15
# How a table says that rows are not of its form, of a save that does not tell what form they have.
_MISFIT = re.compile(r"The snapshot does not fit table (?P<table>.*): (?P<why>Cannot .*) \(file ")


class TableSaverListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Writes all tables of the graph beside each checkpoint, before it becomes visible.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        write_ckpt_info: Whether to write how many rows each feature has, to `ckpt.info-<step>`
            beside the checkpoint, in text format of `CkptInfo`; tables that several features may
            share are not counted.
        tables: Only these; by default all.
        write_lists: Whether to write which files there are; of several processes that save parts
            of the same tables, one does.
    """

    def __init__(
        self,
        basename: str,
        write_ckpt_info: bool = True,
        tables: Sequence[Entry] | None = None,
        write_lists: bool = True,
    ) -> None:
        super().__init__()
        self._helper = SaveHelper(basename)
        self._info_prefix = os.path.join(os.path.dirname(basename), "ckpt.info-")
        self._listed = list(registry.get_tables() if tables is None else tables)
        self._write_lists = write_lists
        self._tables = [entry for entry in self._listed if entry.shard.has_rows]
        self._paths = [tf.compat.v1.placeholder(tf.string, []) for _ in self._tables]
        self._save_ops = []
        self._feature_stats = []
        random_sleep_ms = _SLEEP_MS_PER_TABLE * len(self._tables)
        for entry, path in zip(self._tables, self._paths, strict=True):
            saved = entry.table.save(path, random_sleep_ms=random_sleep_ms)
            self._save_ops.append(saved.as_op())
            if write_ckpt_info and entry.config.snapshot_format.counts_features:
                self._feature_stats.append(saved.feature_stat(path))

    def before_save(self, sess: tf.compat.v1.Session, global_step_value: int) -> None:
        """Writes the tables; called by the saver hook."""
        if not self._listed:
            return
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        asset_dir = self._helper.get_ckpt_asset_dir(prefix)
        tf.io.gfile.makedirs(asset_dir)
        paths = [asset_dir + entry.file for entry in self._tables]
        _, stats = run_with_timeout(
            sess,
            (self._save_ops, self._feature_stats),
            dict(zip(self._paths, paths, strict=True)),
        )
        if self._write_lists:
            shards.write_lists(asset_dir, self._listed)
        logger.info("saved %d hash tables to %s", len(self._tables), asset_dir)
        if stats:
            self._write_counts(stats, f"{self._info_prefix}{global_step_value}")

    def _write_counts(self, stats: list[Any], path: str) -> None:
        # A feature has rows in the tables of all servers.
        totals: collections.Counter[str] = collections.Counter()
        for features, counts in stats:
            if len(features) != len(counts):
                raise ValueError(
                    f"Number of features [{len(features)}] does not match number of fid counts "
                    f"[{len(counts)}]"
                )
            for feature, count in zip(features, counts, strict=True):
                totals[feature.decode()] += int(count)
        info = ckpt_info_pb2.CkptInfo(feature_counts=totals)
        file_io.atomic_write_string_to_file(path, text_format.MessageToString(info))


class TableRestorerListener(AssetRestorerListener):
    """Brings all tables of the graph back from the latest checkpoint.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        ps_monitor: If given, only tables on servers that started anew are restored; the others keep
            what they hold.
        tables: Only these; by default all.
        changed_model: What is done where rows have another form than those of the checkpoint. To
            keep what fits, a table whose optimizers alone have changed keeps its weights, any
            other one starts without rows, and so does one that the checkpoint lacks; a warning
            names it. Refused otherwise; None takes a missing table for an error of its own.
    """

    # Whether tables are restored where there are no variables: from the only asset directory.
    _restores_tables_alone = True

    def __init__(
        self,
        basename: str,
        ps_monitor: PsMonitor | None = None,
        tables: Sequence[Entry] | None = None,
        changed_model: OnChange | None = None,
    ) -> None:
        super().__init__(basename)
        self._ps_monitor = ps_monitor
        self._changed_model = changed_model
        self._restores = [
            _Restore(entry, changed_model is OnChange.KEEP_WHAT_FITS)
            for entry in (registry.get_tables() if tables is None else tables)
            if entry.shard.has_rows
        ]

    def begin(self) -> None:
        """Lets the saver know which tables have changed before it restores variables."""
        model_changes.add_table_check(self._find_changes)

    def restore(self, session: tf.compat.v1.Session, prefix: str | None) -> None:
        """Restores the tables; called by the restore hook.

        Raises:
            errors.ConfigError: Rows have another form than those of the checkpoint.
            ValueError: The checkpoint lacks a table.
        """
        if prefix is None and self._restores_tables_alone:
            prefix = _find_only_assets(self.model_dir)
        if prefix is None:
            logger.info("no checkpoint in %s, hash tables start empty", self.model_dir)
            return
        self._restore_from_path_prefix(session, prefix)

    def _restore_from_path_prefix(self, sess: tf.compat.v1.Session, path_prefix: str) -> None:
        """Restores the tables from the checkpoint that begins with `path_prefix`.

        The directory of its tables, `<path_prefix>.assets/`, will do as well.
        """
        restores = list(self._select_lost(sess))
        if not restores:
            return
        prefix = SaveHelper.strip_asset_dir(path_prefix)
        saved = shards.SavedLayers(prefix)
        keeps = self._changed_model is OnChange.KEEP_WHAT_FITS
        changes = self._compare(restores, saved)
        if changes and not keeps:
            raise model_changes.make_refusal(prefix, Changes([], {}, changes))
        found = [restore for restore in restores if not keeps or saved.has(restore.entry)]
        feeds: dict[tf.Tensor, Any] = {}
        for restore in found:
            feeds.update(restore.make_feeds(saved))
        initializers = [restore.initializer for restore in restores if restore.initializer]
        if initializers:
            run_with_timeout(sess, initializers, {})
        with _explained_misfits(prefix):
            run_with_timeout(sess, [restore.op for restore in found], feeds)
        for change in changes:
            kept = "keeps its weights" if change.keeps_weights else "starts without rows"
            logger.warning(
                "the model has changed since %s: %s, and %s", prefix, change.describe(), kept
            )
        logger.info("restored %d hash tables from %s", len(found), path_prefix)

    def _find_changes(self, prefix: str) -> list[TableChange]:
        """Returns the tables that are not as they are in the checkpoint `prefix`."""
        if not tf.io.gfile.isdir(SaveHelper.get_ckpt_asset_dir(prefix)):
            return []  # Variables alone, whose tables come from elsewhere.
        return self._compare(self._restores, shards.SavedLayers(prefix))

    def _compare(
        self, restores: Iterable["_Restore"], saved: shards.SavedLayers
    ) -> list[TableChange]:
        changes: dict[TableChange, None] = {}  # In order; all servers of a table have the same.
        for restore in restores:
            if saved.has(restore.entry):
                changes.update(dict.fromkeys(restore.find_changes(saved)))
            elif self._changed_model is not None:
                changes.update(dict.fromkeys(map(_make_missing, _get_labels(restore.entry))))
        return list(changes)

    def _select_lost(self, sess: tf.compat.v1.Session) -> Iterable["_Restore"]:
        """Yields what is to be restored: everything, if nobody knows what is lost."""
        by_device: dict[str, list[_Restore]] = collections.defaultdict(list)
        for restore in self._restores:
            by_device[restore.device].append(restore)
        for device, on_device in by_device.items():
            if self._ps_monitor is None or self._ps_monitor.is_ps_uninitialized(sess, device):
                yield from on_device


class TableRestorerSaverListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Restores the tables right after they were saved.

    A save leaves out rows that have expired, and a restore replaces all rows: this is how expired
    rows leave memory. Where a restore keeps rows that the save does not have, they are removed.

    Args:
        ckpt_prefix: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        tables: Only these; by default all.
    """

    def __init__(self, ckpt_prefix: str, tables: Sequence[Entry] | None = None) -> None:
        super().__init__()
        self._helper = SaveHelper(ckpt_prefix)
        self._restorer = TableRestorerListener(ckpt_prefix, tables=tables)
        self._evictions = [
            ops.monolith_multi_hash_table_evict(entry.handle, max_update_time=-1).evicted
            for entry in (registry.get_tables() if tables is None else tables)
            if entry.config.snapshot_format.keeps_other_rows
        ]

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Restores what was just saved; called by the saver hook."""
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        self._restorer._restore_from_path_prefix(session, prefix)
        if self._evictions:
            evicted = sum(
                int(counts.sum()) for counts in run_with_timeout(session, self._evictions, {})
            )
            logger.info("%d expired rows left the memory after %s was saved", evicted, prefix)


class _Restore:
    """The op that restores one table, and which files it is to be told.

    Args:
        entry: The table.
        may_have_changed: Whether the op is to take what it can if rows have another form now.
    """

    def __init__(self, entry: Entry, may_have_changed: bool) -> None:
        self.entry = entry
        self.device: str = entry.handle.device
        self.initializer = entry.table.initializer
        self._forms = row_forms.get_forms(entry)
        self._paths = tf.compat.v1.placeholder(tf.string, [None])
        self._layers = tf.compat.v1.placeholder(tf.int64, [None])
        # Names of tables that start anew, and of those that keep their weights.
        self._changed: list[tf.Tensor] = []
        restore = ops.monolith_table_restore_layers
        if may_have_changed:
            self._changed = [tf.compat.v1.placeholder(tf.string, [None]) for _ in range(2)]
            restore = ops.monolith_table_restore_changed
        self.op = restore(
            entry.handle,
            self._paths,
            self._layers,
            *self._changed,
            compression=entry.config.snapshot_format.compression,
            keep_other_rows=entry.config.snapshot_format.keeps_other_rows,
            server=entry.shard.server,
            num_servers=entry.shard.num_servers,
        )

    def find_changes(self, saved: shards.SavedLayers) -> list[TableChange]:
        """Returns which of its tables have rows of another form than those that were saved."""
        labels = dict(zip(self.entry.config.table_names, _get_labels(self.entry), strict=True))
        return [
            TableChange(labels[change.table], change.describe(), change.keeps_weights)
            for change in self._find_form_changes(saved)
        ]

    def make_feeds(self, saved: shards.SavedLayers) -> dict[tf.Tensor, Any]:
        """Returns what the op is to be fed with.

        Raises:
            ValueError: The save lacks the table.
        """
        feeds: dict[tf.Tensor, Any] = {}
        feeds[self._paths], feeds[self._layers] = saved.find_files(self.entry)
        changes = self._find_form_changes(saved)
        for placeholder, keeps_weights in zip(self._changed, (False, True), strict=False):
            feeds[placeholder] = [c.table for c in changes if c.keeps_weights == keeps_weights]
        return feeds

    def _find_form_changes(self, saved: shards.SavedLayers) -> list[FormChange]:
        return row_forms.find_changes(self._forms, saved.get_forms(self.entry))


def _get_labels(entry: Entry) -> list[str]:
    """Returns the names of the tables behind a handle, as people know them."""
    if len(entry.config.table_names) > 1 or entry.config.table_names[0] != entry.name:
        return list(entry.config.table_names)
    # A table of its own has a name for each server.
    return [entry.shard.table.removeprefix(registry.SINGLE_NAME_PREFIX)]


def _make_missing(table: str) -> TableChange:
    return TableChange(table, "is not in the checkpoint")


@contextlib.contextmanager
def _explained_misfits(prefix: str) -> Iterator[None]:
    """Says in one sentence that rows do not fit, where the save does not tell their form."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        misfit = _MISFIT.search(error.message)
        if misfit is None:
            raise
        raise errors.ConfigError(
            f"The rows of table {misfit['table']!r} have another form than those of {prefix}: "
            f"{misfit['why']} The checkpoint is of an older version, which does not note the "
            "form of rows, so it fits either as a whole or not at all: go back to the dim and the "
            "optimizer that it was saved with, or use another model directory."
        ) from None


def run_with_timeout(
    sess: tf.compat.v1.Session, fetches: Any, feed_dict: dict[tf.Tensor, Any]
) -> Any:
    """Runs ops that read or write files; a server that hangs ends in `DeadlineExceededError`."""
    options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)
    return sess.run(fetches, feed_dict=feed_dict, options=options)


def _find_only_assets(directory: str) -> str | None:
    """Returns the prefix of a checkpoint that has tables but no variables, if there is just one."""
    found: list[str] = tf.io.gfile.glob(os.path.join(directory, "*.assets"))
    return found[0].removesuffix(".assets") if len(found) == 1 else None
