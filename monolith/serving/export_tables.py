"""The hash tables of an exported model: how they get their rows, and how a server changes them.

A SavedModel holds variables but no tables. What it has instead is an op that reads their snapshots
when the model is loaded: from the model's own assets, or from the checkpoint where training left
them.
"""

import os
from typing import Any

import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from monolith import errors
from monolith.checkpoint.paths import SaveHelper
from monolith.embedding.tables.multi import _MULTI_HASH_TABLE_GRAPH_KEY, MultiHashTable
from monolith.embedding.tables.single_snapshots import (
    _HASH_TABLE_GRAPH_KEY,
    find_file_prefix,
    list_saved_tables,
)
from monolith.embedding.tables.table import HashTable
from monolith.graph.signatures import build_signature

ASSIGN_SIGNATURE = "hashtable_assign"
RAW_ASSIGN_SIGNATURE = "raw_assign"

_ASSET_BASE = "ASSET_BASE"
_ASSET_DIRECTORY = "./"
_SHARD_PATTERN = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]"


def create_asset_base() -> tf.Tensor:
    """Returns a string that is the model's directory of assets, with a slash, once it is loaded.

    TensorFlow replaces the value of an asset's tensor by the path of the file. This one stands for
    the directory, so there is nothing to copy; it goes straight to the list of assets.
    """
    base = tf.constant(_ASSET_DIRECTORY, tf.string, name=_ASSET_BASE)
    asset = meta_graph_pb2.AssetFileDef(filename=_ASSET_DIRECTORY)
    asset.tensor_info.name = base.name
    packed = any_pb2.Any()
    packed.Pack(asset)
    tf.compat.v1.add_to_collection(tf.saved_model.ASSETS_KEY, packed)
    return base


def add_ckpt_to_assets(ckpt: str, pattern: str = "*") -> None:
    """Has the model in the default graph take along files of a checkpoint's tables.

    Args:
        ckpt: Prefix of the checkpoint.
        pattern: Which files of its directory of assets.
    """
    for path in sorted(tf.io.gfile.glob(SaveHelper.get_ckpt_asset_dir(ckpt) + pattern)):
        asset = tf.constant(path, tf.string, name="table_file")
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS, asset)


def create_restore_ops(ckpt: str, shared_embedding: bool) -> list[tf.Operation]:
    """Makes the ops that restore the tables of the default graph when the model is loaded.

    Args:
        ckpt: Prefix of the checkpoint.
        shared_embedding: Whether the rows are read from the checkpoint, which must stay where it
            is; if False, the model takes a copy along. A table's `export_share_embedding` decides
            for that table.

    Raises:
        errors.ConfigError: The checkpoint has no files of a table.
    """
    paths = _TablePaths(_make_absolute(ckpt), shared_embedding)
    restore_ops = []
    for table in tf.compat.v1.get_collection(_HASH_TABLE_GRAPH_KEY):
        path = paths.find(table)
        restore_ops.append(table.restore(path).as_op())
    for mtable in tf.compat.v1.get_collection(_MULTI_HASH_TABLE_GRAPH_KEY):
        path = paths.find(mtable)
        with tf.control_dependencies([mtable.initializer]):
            restore_ops.append(mtable.restore(path).as_op())
    return restore_ops


def create_assign_signatures() -> dict[str, Any]:
    """Makes the functions through which a running model gets new rows for its tables.

    Returns:
        `hashtable_assign` for all separate tables, if there are some, and
        `<shared name>/raw_assign` for each multi table.
    """
    signatures = {}
    inputs: dict[str, tf.Tensor] = {}
    outputs: dict[str, tf.Tensor] = {}
    for table in tf.compat.v1.get_collection(_HASH_TABLE_GRAPH_KEY):
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.float32, [None, table.dim_size])
        with tf.control_dependencies([table.assign(ids, rows).as_op()]):
            result = tf.size(ids)
        inputs.update({f"{table.name}_id": ids, f"{table.name}_value": rows})
        outputs[f"{table.name}_result"] = result
    if outputs:
        signatures[ASSIGN_SIGNATURE] = build_signature(inputs, outputs)
    for mtable in tf.compat.v1.get_collection(_MULTI_HASH_TABLE_GRAPH_KEY):
        name = f"{mtable.shared_name}/{RAW_ASSIGN_SIGNATURE}"
        signatures[name] = _create_raw_assign_signature(mtable)
    return signatures


def _create_raw_assign_signature(mtable: MultiHashTable) -> Any:
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    id_split = tf.compat.v1.placeholder(tf.int64, [None])
    flat_value = tf.compat.v1.placeholder(tf.float32, [None])
    ragged_ids = tf.RaggedTensor.from_row_splits(ids, id_split, validate=False)
    with tf.control_dependencies([mtable.raw_assign(ragged_ids, flat_value).as_op()]):
        # An identity, since a constant would not wait.
        result = tf.identity(tf.constant(0))
    return build_signature(
        {"id": ids, "id_split": id_split, "flat_value": flat_value}, {"result": result}
    )


class _TablePaths:
    """Where the tables of a model will find their files.

    Args:
        ckpt: Prefix of the checkpoint, absolute.
        shared_embedding: Whether it is there, unless a table says otherwise.
    """

    def __init__(self, ckpt: str, shared_embedding: bool) -> None:
        self._ckpt = ckpt
        self._shared_embedding = shared_embedding
        self._asset_dir = SaveHelper.get_ckpt_asset_dir(ckpt)
        self._saved = list_saved_tables(self._asset_dir)
        self._asset_base: tf.Tensor | None = None

    def find(self, table: HashTable | MultiHashTable) -> Any:
        """Returns the path that the names of the table's files begin with."""
        if isinstance(table, HashTable):
            name, prefix = table.name, find_file_prefix(table, self._saved)
        else:
            name = table.shared_name
            prefix = name if name in self._saved else None
        if prefix is None:
            tables = sorted(found for found in self._saved if not found.endswith(".meta"))
            raise errors.ConfigError(
                f"The checkpoint {self._ckpt} has no files of table {name}; it has "
                f"{', '.join(tables) or 'no tables at all'}. Export the model as it "
                "was trained: with the same features, `num_ps` and `use_native_multi_hash_table`."
            )
        shared = getattr(table, "export_share_embedding", None)
        if self._shared_embedding if shared is None else shared:
            return self._asset_dir + prefix
        add_ckpt_to_assets(self._ckpt, prefix + _SHARD_PATTERN)
        add_ckpt_to_assets(self._ckpt, f"{prefix}.meta{_SHARD_PATTERN}")
        if self._asset_base is None:
            self._asset_base = create_asset_base()
        return tf.strings.join([self._asset_base, prefix])


def _make_absolute(path: str) -> str:
    """The model may be loaded by a process with another working directory."""
    return path if "://" in path else os.path.abspath(path)
