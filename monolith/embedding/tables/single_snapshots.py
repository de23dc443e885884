"""Saves hash tables beside TensorFlow's checkpoints, and brings them back.

A table's rows are written to `model.ckpt-STEP.assets/` *before* the variables, so that the file
`checkpoint` only ever names a checkpoint whose tables are complete.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore_hook import CheckpointRestorerListener
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import shards
from monolith.native import ops

if TYPE_CHECKING:
    from monolith.embedding.tables.single import HashTable

logger = logging.getLogger(__name__)

_HASH_TABLE_GRAPH_KEY = "monolith_hash_tables"
_NAME_PREFIX = "MonolithHashTable_"
# Beside the rows: which files are those of one table, on however many servers it was.
SHARD_LIST = "hash_table_shards.json"
_TIMEOUT_IN_MS = 60 * 60 * 1000
# Tables start saving at different moments, so that a server does not write all of them at once.
_SLEEP_MS_PER_TABLE = 15

_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$", re.ASCII)
_SERVER_SUFFIX = re.compile(r"_\d+$", re.ASCII)


class HashTableCheckpointSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Writes all tables of the graph beside each checkpoint, before it becomes visible.

    Make it after the tables: it takes those that the default graph has then.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
    """

    def __init__(self, basename: str) -> None:
        super().__init__()
        self._helper = SaveHelper(basename)
        self._tables: list[HashTable] = tf.compat.v1.get_collection(_HASH_TABLE_GRAPH_KEY)
        self._paths = [tf.compat.v1.placeholder(tf.string, []) for _ in self._tables]
        random_sleep_ms = _SLEEP_MS_PER_TABLE * len(self._tables)
        self._save_ops = [
            table.save(path, random_sleep_ms=random_sleep_ms).as_op()
            for table, path in zip(self._tables, self._paths, strict=True)
        ]

    def before_save(self, sess: tf.compat.v1.Session, global_step_value: int) -> None:
        """Writes the tables; called by the saver hook."""
        if not self._tables:
            return
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        asset_dir = self._helper.get_ckpt_asset_dir(prefix)
        tf.io.gfile.makedirs(asset_dir)
        paths = [asset_dir + _file_prefix(table.name) for table in self._tables]
        run_with_timeout(sess, self._save_ops, dict(zip(self._paths, paths, strict=True)))
        shards.write_list(
            asset_dir + SHARD_LIST,
            {shards.get_shard(table.name): _file_prefix(table.name) for table in self._tables},
        )
        logger.info("saved %d hash tables to %s", len(self._tables), asset_dir)


class HashTableCheckpointRestorerListener(CheckpointRestorerListener):
    """Brings all tables of the graph back from the latest checkpoint.

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
        self._restores: list[_Restore] = [
            _Restore(table) for table in tf.compat.v1.get_collection(_HASH_TABLE_GRAPH_KEY)
        ]

    def before_restore(self, session: tf.compat.v1.Session) -> None:
        """Restores the tables; called by the restore hook."""
        prefix = tf.train.latest_checkpoint(os.path.dirname(self._basename))
        prefix = prefix or _find_only_assets(os.path.dirname(self._basename))
        if prefix is None:
            logger.info("no checkpoint beside %s, hash tables start empty", self._basename)
            return
        self._restore_from_path_prefix(session, prefix)

    def _restore_from_path_prefix(self, sess: tf.compat.v1.Session, path_prefix: str) -> None:
        """Restores the tables from the checkpoint that begins with `path_prefix`."""
        restores = select_by_device(
            self._restores, lambda restore: restore.device, sess, self._ps_monitor
        )
        if not restores:
            return
        feeds: dict[tf.Tensor, Any] = {}
        for restore in restores:
            feeds[restore.paths], feeds[restore.layers] = restore.find_layers(path_prefix)
        run_with_timeout(sess, [restore.op for restore in restores], feeds)
        logger.info("restored %d hash tables from %s", len(restores), path_prefix)


class HashTableRestorerSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Restores the tables right after they were saved.

    A save leaves out rows that have expired, and a restore replaces all rows: this is how expired
    rows leave memory.

    Args:
        ckpt_prefix: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
    """

    def __init__(self, ckpt_prefix: str) -> None:
        super().__init__()
        self._helper = SaveHelper(ckpt_prefix)
        self._restorer = HashTableCheckpointRestorerListener(ckpt_prefix)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Restores what was just saved; called by the saver hook."""
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        self._restorer._restore_from_path_prefix(session, prefix)


class _Restore:
    """The op that restores one table, and where it may find the rows."""

    def __init__(self, table: "HashTable") -> None:
        self._table = table
        self._shard = shards.get_shard(table.name)
        self.device: str = table.table.device
        self.paths = tf.compat.v1.placeholder(tf.string, [None])
        self.layers = tf.compat.v1.placeholder(tf.int64, [None])
        self.op = ops.monolith_table_restore_layers(
            table.table,
            self.paths,
            self.layers,
            server=self._shard.server,
            num_servers=self._shard.num_servers,
        )

    def find_layers(self, path_prefix: str) -> tuple[list[str], list[int]]:
        names = [self._shard.table]
        for name in self._table.extra_restore_names:
            names += [name, _NAME_PREFIX + name]
        return shards.find_layers(
            path_prefix, SHARD_LIST, names, self._shard, self._find_file_prefix
        )

    def _find_file_prefix(self, asset_dir: str) -> str:
        prefix = find_file_prefix(self._table, list_saved_tables(asset_dir))
        if prefix is None:
            raise ValueError(
                "Unable to find table checkpoint in '%s' for table: %s. "
                "Maybe the model structure has been changed.",
                asset_dir,
                self._table.name,
            )
        return prefix


def find_file_prefix(table: "HashTable", saved: set[str]) -> str | None:
    """Returns what the names of a table's files begin with, None if it was not saved.

    Args:
        table: The table, which may have had other names when it was saved.
        saved: What `list_saved_tables` found.
    """
    prefixes = (_file_prefix(name) for name in _names(table))
    return next((prefix for prefix in prefixes if prefix in saved), None)


def list_saved_tables(asset_dir: str) -> set[str]:
    """Returns the names of tables of which `asset_dir` holds at least one file."""
    if not tf.io.gfile.isdir(asset_dir):
        return set()
    files = tf.io.gfile.listdir(asset_dir)
    return {_SHARD_SUFFIX.sub("", file) for file in files if _SHARD_SUFFIX.search(file)}


def run_with_timeout(
    sess: tf.compat.v1.Session, fetches: Any, feed_dict: dict[tf.Tensor, Any]
) -> Any:
    """Runs ops that read or write files; a server that hangs ends in `DeadlineExceededError`."""
    options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)
    return sess.run(fetches, feed_dict=feed_dict, options=options)


def select_by_device(
    items: Iterable[Any],
    get_device: Callable[[Any], str],
    sess: tf.compat.v1.Session,
    ps_monitor: PsMonitor | None,
) -> list[Any]:
    """Returns the items on devices that have to be restored: all, if nobody monitors them."""
    by_device = defaultdict(list)
    for item in items:
        by_device[get_device(item)].append(item)
    return [
        item
        for device, on_device in by_device.items()
        if ps_monitor is None or ps_monitor.is_ps_uninitialized(sess, device)
        for item in on_device
    ]


def _find_only_assets(directory: str) -> str | None:
    """Returns the prefix of a checkpoint that has tables but no variables, if there is just one."""
    found = tf.io.gfile.glob(os.path.join(directory, "*.assets"))
    return found[0].removesuffix(".assets") if len(found) == 1 else None


def _names(table: "HashTable") -> Iterable[str]:
    yield table.name
    server = _SERVER_SUFFIX.search(table.name)
    for name in table.extra_restore_names:
        yield name
        # Other names of a merged table come without what the factory adds around them.
        yield _NAME_PREFIX + name + (server.group() if server else "")


def _file_prefix(table_name: str) -> str:
    return table_name.replace(":", "-").replace("/", "-")
