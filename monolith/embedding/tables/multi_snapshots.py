"""Saves multi hash tables beside TensorFlow's checkpoints, and brings them back."""

import collections
import logging
import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore_hook import CheckpointRestorerListener
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import shards
from monolith.embedding.tables.single_snapshots import (
    _TIMEOUT_IN_MS,
    run_with_timeout,
    select_by_device,
)
from monolith.native import ops
from monolith.proto import ckpt_info_pb2

if TYPE_CHECKING:
    from monolith.embedding.tables.multi import MultiHashTable

__all__ = [
    "_TIMEOUT_IN_MS",
    "MultiHashTableCheckpointRestorerListener",
    "MultiHashTableCheckpointSaverListener",
    "MultiHashTableRestorerSaverListener",
]

logger = logging.getLogger(__name__)

_MULTI_HASH_TABLE_GRAPH_KEY = "monolith_multi_hash_tables"
# Beside the rows: which files are those of the same tables, on however many servers they were.
SHARD_LIST = "multi_hash_table_shards.json"
COMPRESSION = "SNAPPY"


class MultiHashTableCheckpointSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Writes all multi tables of the graph beside each checkpoint, before it becomes visible.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        write_ckpt_info: Whether to write how many rows each feature has, to `ckpt.info-<step>`
            beside the checkpoint, in text format of `CkptInfo`.
    """

    def __init__(self, basename: str, write_ckpt_info: bool = True) -> None:
        super().__init__()
        self._helper = SaveHelper(basename)
        self._info_prefix = os.path.join(os.path.dirname(basename), "ckpt.info-")
        self._write_ckpt_info = write_ckpt_info
        self._tables: list[MultiHashTable] = tf.compat.v1.get_collection(
            _MULTI_HASH_TABLE_GRAPH_KEY
        )
        self._paths = [tf.compat.v1.placeholder(tf.string, []) for _ in self._tables]
        self._save_ops = []
        self._feature_stats = []
        for table, path in zip(self._tables, self._paths, strict=True):
            saved = table.save(path)
            self._save_ops.append(saved.as_op())
            if write_ckpt_info:
                self._feature_stats.append(saved.feature_stat(path))

    def before_save(self, sess: tf.compat.v1.Session, global_step_value: int) -> None:
        """Writes the tables; called by the saver hook."""
        if not self._tables:
            return
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        asset_dir = self._helper.get_ckpt_asset_dir(prefix)
        tf.io.gfile.makedirs(asset_dir)
        paths = [asset_dir + table.shared_name for table in self._tables]
        _, stats = run_with_timeout(
            sess,
            (self._save_ops, self._feature_stats),
            dict(zip(self._paths, paths, strict=True)),
        )
        shards.write_list(
            asset_dir + SHARD_LIST,
            {shards.get_shard(t.shared_name): t.shared_name for t in self._tables},
        )
        logger.info("saved %d multi hash tables to %s", len(self._tables), asset_dir)
        if self._write_ckpt_info:
            self._write_counts(stats, f"{self._info_prefix}{global_step_value}")

    def _write_counts(self, stats: list[Any], path: str) -> None:
        # A feature has rows in the tables of all servers.
        totals: dict[str, int] = collections.Counter()
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


class MultiHashTableCheckpointRestorerListener(CheckpointRestorerListener):
    """Makes all multi tables of the graph and brings them back from the latest checkpoint.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        ps_monitor: If given, only tables on servers that started anew are restored; the others keep
            what they hold.
    """

    def __init__(self, basename: str, ps_monitor: PsMonitor | None = None) -> None:
        super().__init__()
        self._basename = basename
        self._ps_monitor = ps_monitor
        self._tables: list[MultiHashTable] = tf.compat.v1.get_collection(
            _MULTI_HASH_TABLE_GRAPH_KEY
        )
        self._restores = {table.shared_name: _Restore(table) for table in self._tables}

    def before_restore(self, session: tf.compat.v1.Session) -> None:
        """Restores the tables; called by the restore hook."""
        prefix = tf.train.latest_checkpoint(os.path.dirname(self._basename))
        if prefix is None:
            logger.info("no checkpoint beside %s, multi hash tables start empty", self._basename)
            return
        self._restore_from_path_prefix(session, prefix)

    def _restore_from_path_prefix(self, sess: tf.compat.v1.Session, path_prefix: str) -> None:
        """Restores the tables from the checkpoint that begins with `path_prefix`."""
        tables = select_by_device(
            self._tables, lambda table: table.handle.device, sess, self._ps_monitor
        )
        if not tables:
            return
        run_with_timeout(sess, [table.initializer for table in tables], {})
        restores = [self._restores[table.shared_name] for table in tables]
        feeds: dict[tf.Tensor, Any] = {}
        for restore in restores:
            feeds[restore.paths], feeds[restore.layers] = restore.find_layers(path_prefix)
        run_with_timeout(sess, [restore.op for restore in restores], feeds)
        logger.info("restored %d multi hash tables from %s", len(tables), path_prefix)


class _Restore:
    """The op that restores the tables of one server, and where it finds the rows."""

    def __init__(self, table: "MultiHashTable") -> None:
        self._name = table.shared_name
        self._shard = shards.get_shard(table.shared_name)
        self.paths = tf.compat.v1.placeholder(tf.string, [None])
        self.layers = tf.compat.v1.placeholder(tf.int64, [None])
        self.op = ops.monolith_table_restore_layers(
            table.handle,
            self.paths,
            self.layers,
            compression=COMPRESSION,
            keep_other_rows=True,
            server=self._shard.server,
            num_servers=self._shard.num_servers,
        )

    def find_layers(self, path_prefix: str) -> tuple[list[str], list[int]]:
        return shards.find_layers(
            path_prefix, SHARD_LIST, [self._shard.table], self._shard, lambda _: self._name
        )


class MultiHashTableRestorerSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Restores the multi tables right after they were saved.

    Args:
        ckpt_prefix: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
    """

    def __init__(self, ckpt_prefix: str) -> None:
        super().__init__()
        self._helper = SaveHelper(ckpt_prefix)
        self._restorer = MultiHashTableCheckpointRestorerListener(ckpt_prefix)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Restores what was just saved; called by the saver hook."""
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        self._restorer._restore_from_path_prefix(session, prefix)
