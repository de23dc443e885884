"""The hash tables of an exported model: how they get their rows, and how a server changes them.

A SavedModel holds variables but no tables. What it has instead is an op that reads their snapshots
when the model is loaded: from the model's own assets, or from the checkpoint where training left
them.
"""

import logging
import os
from typing import Any

import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from monolith import errors
from monolith.checkpoint.paths import SaveHelper
from monolith.embedding.tables import file_names, registry, shards
from monolith.graph.signatures import build_signature
from monolith.native import ops
from monolith.serving import export_rows
from monolith.serving.export_rows import RowFiles
from monolith.serving.server.writing import VARIABLES_ASSIGN

logger = logging.getLogger(__name__)

# One message sets the variables of a function; as large as those with rows. A larger variable has a
# function for itself.
_MAX_ASSIGNED_BYTES = 4 << 20
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


def create_restore_ops(
    ckpt: str, shared_embedding: bool
) -> tuple[list[tf.Operation], list[RowFiles]]:
    """Makes the ops that restore the tables of the default graph when the model is loaded.

    Args:
        ckpt: Prefix of the checkpoint.
        shared_embedding: Whether the rows are read from the checkpoint, which must stay where it
            is; if False, the model takes them along. A table's `export_share_embedding` decides
            for that table.

    Returns:
        The ops, and the files with rows that have to be written to the model's assets.

    Raises:
        errors.ConfigError: The checkpoint has no files of a table.
    """
    paths = _TablePaths(_make_absolute(ckpt), shared_embedding)
    restore_ops = []
    for entry in registry.get_tables():
        path = paths.find(entry)
        initializer = entry.table.initializer
        with tf.control_dependencies([] if initializer is None else [initializer]):
            restore_ops.append(entry.table.restore(path).as_op())
    return restore_ops, paths.row_files


def create_assign_signatures() -> dict[str, Any]:
    """Makes the functions through which a running model gets new rows for its tables.

    Returns:
        `hashtable_assign` for all separate tables, if there are some, and
        `<shared name>/raw_assign` for each multi table; `hashtable_remove` and
        `<shared name>/raw_remove` remove rows. Those that end with `_packed` take rows in the form
        in which the tables serve them. `hashtable_list_ids/<name>` and
        `<shared name>/raw_list_ids` say which ids have a row.
    """
    calls: dict[str, tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]] = {}
    for entry in registry.get_tables():
        for call in (
            entry.table.make_assign_call(),
            _make_packed_call(entry),
            _make_remove_call(entry),
            _make_list_call(entry),
        ):
            inputs, outputs = calls.setdefault(call.signature, ({}, {}))
            inputs.update(call.inputs)
            outputs.update(call.outputs)
    return {name: build_signature(*tensors) for name, tensors in calls.items()}


class _Call:
    """The inputs that all calls for rows of a table have, in the default graph.

    Args:
        entry: The table.
        multi_signature: What the function is called for a set of tables,
        single_signature: and what for all single ones.
    """

    def __init__(self, entry: registry.Entry, multi_signature: str, single_signature: str) -> None:
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        if entry.config.snapshot_format.counts_features:
            self._signature, self._prefix = f"{entry.name}/{multi_signature}", ""
            self.id_split = tf.compat.v1.placeholder(tf.int64, [None])
            self._inputs = {"id": self.ids, "id_split": self.id_split}
        else:
            # One call for all tables: the names of its arguments tell which is whose.
            self._signature, self._prefix = single_signature, f"{entry.name}_"
            self.id_split = tf.stack([0, tf.size(self.ids, tf.int64)])
            self._inputs = {f"{entry.name}_id": self.ids}

    def add_input(self, name: str, dtype: tf.DType) -> tf.Tensor:
        """Returns another input, a vector."""
        tensor = tf.compat.v1.placeholder(dtype, [None])
        self._inputs[self._prefix + name] = tensor
        return tensor

    def finish(self, done: tf.Tensor) -> registry.AssignCall:
        """Returns the call, whose result is the number of ids once `done` is."""
        with tf.control_dependencies([done]):
            outputs = {self._prefix + "result": tf.size(self.ids)}
        return registry.AssignCall(self._signature, self._inputs, outputs)


def _make_packed_call(entry: registry.Entry) -> registry.AssignCall:
    """Adds what overwrites rows by rows that come as they are served to the default graph."""
    call = _Call(entry, "raw_assign_packed", "hashtable_assign_packed")
    packed, form = call.add_input("packed", tf.uint8), call.add_input("form", tf.int64)
    rows = ops.monolith_table_unpack_rows(entry.handle, call.id_split, packed, form)
    no_time = tf.constant(0, tf.int64)
    return call.finish(
        ops.monolith_multi_hash_table_assign(entry.handle, call.ids, call.id_split, rows, no_time)
    )


def _make_remove_call(entry: registry.Entry) -> registry.AssignCall:
    """Adds what removes rows of a model that serves to the default graph."""
    call = _Call(entry, "raw_remove", "hashtable_remove")
    return call.finish(ops.monolith_multi_hash_table_erase(entry.handle, call.ids, call.id_split))


def _make_list_call(entry: registry.Entry) -> registry.AssignCall:
    """Adds what says which ids have a row, part by part, to the default graph."""
    is_set = entry.config.snapshot_format.counts_features
    signature = f"{entry.name}/raw_list_ids" if is_set else f"hashtable_list_ids/{entry.name}"
    inputs = {
        name: tf.compat.v1.placeholder(tf.int64, []) for name in ("table", "place", "max_ids")
    }
    listed = ops.monolith_table_list_ids(entry.handle, **inputs)
    outputs = {"id": listed.id, "next_place": listed.next_place}
    return registry.AssignCall(signature, inputs, outputs)


def create_variable_signatures() -> dict[str, Any]:
    """Makes the functions through which a running model gets new values for its variables.

    Returns:
        `variables_assign`, if the default graph has variables: an input for each, by its name. Of
        variables that are too large for one message, `variables_assign/1` and so on take the rest.
    """
    signatures = {}
    for number, variables in enumerate(_divide_variables()):
        inputs, assigned = {}, []
        for variable in variables:
            value = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
            inputs[variable.op.name] = value
            assigned.append(tf.compat.v1.assign(variable, value))
        with tf.control_dependencies(assigned):
            result = tf.identity(tf.constant(len(inputs)))
        name = f"{VARIABLES_ASSIGN}/{number}" if number else VARIABLES_ASSIGN
        signatures[name] = build_signature(inputs, {"result": result})
    return signatures


def _divide_variables() -> list[list[tf.Variable]]:
    """Returns the variables of the default graph, those of one message together."""
    groups: list[list[tf.Variable]] = []
    free = 0
    for variable in tf.compat.v1.global_variables():
        if variable.op.name == tf.compat.v1.GraphKeys.GLOBAL_STEP:
            continue  # No prediction needs it.
        size = (variable.shape.num_elements() or 0) * variable.dtype.base_dtype.size
        if not groups or size > free:
            groups.append([])
            free = _MAX_ASSIGNED_BYTES
        groups[-1].append(variable)
        free -= size
    return groups


class _TablePaths:
    """Where the tables of a model will find their files, and which it takes along.

    Args:
        ckpt: Prefix of the checkpoint, absolute.
        shared_embedding: Whether it is there, unless a table says otherwise.
    """

    def __init__(self, ckpt: str, shared_embedding: bool) -> None:
        self._ckpt = ckpt
        self._shared_embedding = shared_embedding
        self._saved = shards.SavedTables(SaveHelper.get_ckpt_asset_dir(ckpt))
        self._asset_base: tf.Tensor | None = None
        self.row_files: list[RowFiles] = []

    def find(self, entry: registry.Entry) -> Any:
        """Returns the path that the names of the table's files begin with."""
        prefix = self._saved.find_own_file(entry)
        if prefix is None:
            found = ", ".join(self._saved.list_names())
            raise errors.ConfigError(
                f"The checkpoint {self._ckpt} has no files of table {entry.name}; it has "
                f"{found or 'no tables at all'}. Export the model as it "
                "was trained: with the same features, `num_ps` and `use_native_multi_hash_table`."
            )
        shared = entry.config.export_share_embedding
        if self._shared_embedding if shared is None else shared:
            return self._saved.asset_dir + prefix
        row_files = export_rows.find_row_files(entry, self._saved.asset_dir, prefix)
        if row_files is None:
            logger.warning("the model takes %s along with the state of its optimizers", entry.name)
            add_ckpt_to_assets(self._ckpt, prefix + _SHARD_PATTERN)
            add_ckpt_to_assets(self._ckpt, prefix + file_names.META + _SHARD_PATTERN)
        else:
            self.row_files.append(row_files)
        if self._asset_base is None:
            self._asset_base = create_asset_base()
        return tf.strings.join([self._asset_base, prefix])


def _make_absolute(path: str) -> str:
    """The model may be loaded by a process with another working directory."""
    return path if "://" in path else os.path.abspath(path)
