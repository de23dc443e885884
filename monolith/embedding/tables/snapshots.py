"""Saves the tables of a graph beside TensorFlow's checkpoints, and brings them back.

A table's rows are written to `model.ckpt-STEP.assets/` *before* the variables, so that the file
`checkpoint` only ever names a checkpoint whose tables are complete.
"""

import collections
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore_hook import AssetRestorerListener
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import registry, shards
from monolith.embedding.tables.registry import Entry
from monolith.native import ops
from monolith.proto import ckpt_info_pb2

logger = logging.getLogger(__name__)

_TIMEOUT_IN_MS = 60 * 60 * 1000
# Tables start saving at different moments, so that a server does not write all of them at once.
_SLEEP_MS_PER_TABLE = 15


class TableSaverListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Writes all tables of the graph beside each checkpoint, before it becomes visible.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        write_ckpt_info: Whether to write how many rows each feature has, to `ckpt.info-<step>`
            beside the checkpoint, in text format of `CkptInfo`; tables that several features may
            share are not counted.
        tables: Only these; by default all.
    """

    def __init__(
        self, basename: str, write_ckpt_info: bool = True, tables: Sequence[Entry] | None = None
    ) -> None:
        super().__init__()
        self._helper = SaveHelper(basename)
        self._info_prefix = os.path.join(os.path.dirname(basename), "ckpt.info-")
        self._tables = list(registry.get_tables() if tables is None else tables)
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
        if not self._tables:
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
        shards.write_lists(asset_dir, self._tables)
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
    """

    # Whether tables are restored where there are no variables: from the only asset directory.
    _restores_tables_alone = True

    def __init__(
        self,
        basename: str,
        ps_monitor: PsMonitor | None = None,
        tables: Sequence[Entry] | None = None,
    ) -> None:
        super().__init__(basename)
        self._ps_monitor = ps_monitor
        self._restores = [
            _Restore(entry) for entry in (registry.get_tables() if tables is None else tables)
        ]

    def restore(self, session: tf.compat.v1.Session, prefix: str | None) -> None:
        """Restores the tables; called by the restore hook."""
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
        saved = shards.SavedLayers(SaveHelper.strip_asset_dir(path_prefix))
        feeds: dict[tf.Tensor, Any] = {}
        for restore in restores:
            feeds[restore.paths], feeds[restore.layers] = saved.find_files(restore.entry)
        initializers = [restore.initializer for restore in restores if restore.initializer]
        if initializers:
            run_with_timeout(sess, initializers, {})
        run_with_timeout(sess, [restore.op for restore in restores], feeds)
        logger.info("restored %d hash tables from %s", len(restores), path_prefix)

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
    """The op that restores one table, and which files it is to be told."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.device: str = entry.handle.device
        self.initializer = entry.table.initializer
        self.paths = tf.compat.v1.placeholder(tf.string, [None])
        self.layers = tf.compat.v1.placeholder(tf.int64, [None])
        self.op = ops.monolith_table_restore_layers(
            entry.handle,
            self.paths,
            self.layers,
            compression=entry.config.snapshot_format.compression,
            keep_other_rows=entry.config.snapshot_format.keeps_other_rows,
            server=entry.shard.server,
            num_servers=entry.shard.num_servers,
        )


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
