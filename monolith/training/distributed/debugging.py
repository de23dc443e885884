"""Variables and rows of a running job, from outside.

The chief writes into the model directory what it takes to look at the servers of its job:
`debugging_info.pb`, who takes part and which features there are; the graph; and, in the plan of the
members, which table each feature is in. `DebuggingWorker` connects to the servers with that. It
only reads, opens no port, and does not disturb the training.

    worker = DebuggingWorker("/models/movies")
    worker.fetch_variables(["global_step:0"])       # {'global_step:0': '1200'}
    worker.fetch_features(["user"], ["42"])["user"]["42"]   # the row, as text of an EntryDump
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.lib.io import file_io

from monolith import errors
from monolith.checkpoint.saver_hook import META_GRAPH_FILE_NAME
from monolith.cluster import manager, members
from monolith.embedding.tables import multi, registry, single
from monolith.embedding.tables.multi_type import MergedMultiTypeHashTable
from monolith.graph import devices
from monolith.proto import debugging_info_pb2
from monolith.proto import embedding_hash_table_pb2 as table_proto
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan
from monolith.training.tables import create
from monolith.training.tables.training import CpuTraining

INFO_FILE_NAME = "debugging_info.pb"

_SERVERS = f"/job:{devices.PS_JOB_NAME}"
_TIMEOUT_IN_MS = 30_000
_INT64_RANGE = 1 << 64

_M = TypeVar("_M", bound=Message)


def save_debugging_info(
    config: DistributedCpuTrainingConfig, cluster: manager.Cluster, training: CpuTraining
) -> None:
    """Writes how a running job can be reached, and what its tables are made of.

    Args:
        config: The job; its model directory gets the file.
        cluster: Addresses by job.
        training: Knows the features.
    """
    info = debugging_info_pb2.DebuggingInfo(num_workers=config.num_workers)
    info.cluster.chief_addr = cluster["chief"][0]
    info.cluster.ps_addrs.extend(cluster["ps"])
    for name, instance in training.feature_configs.name_to_config.items():
        text = text_format.MessageToString(instance.table_config, as_one_line=True)
        info.feature_name_configs.add(feature_name=name, config_str=text)
    tf.io.gfile.makedirs(config.model_dir)
    path = os.path.join(config.model_dir, INFO_FILE_NAME)
    file_io.atomic_write_string_to_file(path, info.SerializeToString())


def name_tables(training: CpuTraining) -> dict[str, str]:
    """Returns the name of each feature's table on the servers."""
    collected = training._collected
    if training.config.use_native_multi_hash_table:
        return create._name_tables(collected.feature_to_table, collected.named_after_slot)
    configs = create._with_table_settings(
        collected.feature_configs.name_to_config, collected.slot_to_expire_time, training.config
    )
    return MergedMultiTypeHashTable(configs, _make_nothing).slot_mapping


class DebuggingWorker:
    """Reads from the servers of a running job; a context, or to be closed.

    Args:
        model_dir: Directory of the job.

    Raises:
        errors.ConfigError: No job of several processes has run there, one of the files that it has
            left is damaged, or its servers are gone.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        info = self._read(INFO_FILE_NAME, debugging_info_pb2.DebuggingInfo)
        meta_graph = self._read(META_GRAPH_FILE_NAME, meta_graph_pb2.MetaGraphDef)
        self._features = {config.feature_name for config in info.feature_name_configs}
        found = plan.read_plan(model_dir)
        self._table_names = {} if found is None else found.table_names
        self._ps_addrs = list(info.cluster.ps_addrs)
        gone = [addr for addr in self._ps_addrs if members.is_refused(addr)]
        if gone or not self._ps_addrs:
            raise errors.ConfigError(
                f"The servers of the job in {model_dir} are gone ({', '.join(gone) or 'none'}); "
                "only a running job can be looked at, of others read the checkpoint."
            )
        self._variables = _list_variables(meta_graph)
        for node in meta_graph.graph_def.node:
            # The graph also has ops of the chief, whom nobody asks.
            if not node.device.startswith(_SERVERS):
                node.device = ""
        with tf.Graph().as_default() as graph:
            tf.compat.v1.train.import_meta_graph(meta_graph)
            self._tables = registry.get_tables()
        self._graph = graph
        self._session = self._connect()

    @property
    def features(self) -> frozenset[str]:
        """The features that have embeddings."""
        return frozenset(self._features)

    def fetch_variables(self, variable_names: Sequence[str]) -> dict[str, str]:
        """Returns values of variables as text, by name.

        A variable that is split over the servers can be had as a whole, or in its parts. Names that
        are no variable of the servers are left out.

        Args:
            variable_names: Such as "global_step:0", or "global_step".
        """
        reads = {
            name: self._variables[node].snapshots
            for name in variable_names
            if (node := name.removesuffix(":0")) in self._variables
        }
        return {
            name: str(self._variables[name.removesuffix(":0")].join(parts))
            for name, parts in self._run(reads).items()
        }

    def fetch_features(
        self, feature_names: Sequence[str], ids: Sequence[str | int]
    ) -> dict[str, dict[str, str]]:
        """Returns rows with their optimizer state, as text of `EntryDump`s.

        Args:
            feature_names: The feature of each id; names that are no feature are left out.
            ids: The ids.

        Returns:
            The rows by feature and id; ids that have no row are left out.

        Raises:
            errors.ConfigError: There are not as many features as ids, or an id is no number.
        """
        if len(feature_names) != len(ids):
            raise errors.ConfigError(
                f"There must be one feature for each id, got {len(feature_names)} features and "
                f"{len(ids)} ids."
            )
        wanted: dict[str, dict[str, int]] = {}
        for name, text in zip(feature_names, ids, strict=True):
            if name in self._features:
                wanted.setdefault(name, {})[str(text)] = _parse_id(text)
        rows: dict[str, dict[str, str]] = {}
        for name, numbers in wanted.items():
            found = self._look_up(self._table_names.get(name, name), list(numbers.values()))
            for text, number in numbers.items():
                if number in found:
                    rows.setdefault(name, {})[text] = found[number]
        return rows

    def close(self) -> None:
        """Ends the connection."""
        self._session.close()

    def __enter__(self) -> "DebuggingWorker":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _read(self, name: str, kind: type[_M]) -> _M:
        path = os.path.join(self._model_dir, name)
        try:
            content = file_io.read_file_to_string(path, binary_mode=True)
        except tf.errors.NotFoundError as error:
            raise errors.ConfigError(
                f"There is no {path!r}, so no job of several processes has run in that model "
                "directory, or it is still starting."
            ) from error
        try:
            return kind.FromString(content)
        except DecodeError as error:
            raise errors.ConfigError(
                f"{path!r} is damaged; the chief of the job writes it anew when it starts again."
            ) from error

    def _connect(self) -> tf.compat.v1.Session:
        config = manager.generate_session_config()
        cluster = tf.train.ClusterSpec({devices.PS_JOB_NAME: self._ps_addrs})
        config.cluster_def.CopyFrom(cluster.as_cluster_def())
        config.operation_timeout_in_ms = _TIMEOUT_IN_MS
        # A server is its master, so that this process needs none that listens.
        return tf.compat.v1.Session(f"grpc://{self._ps_addrs[0]}", graph=self._graph, config=config)

    def _look_up(self, table_name: str, ids: list[int]) -> dict[int, str]:
        """Returns the rows of a table, wherever they are."""
        dumps = []
        with self._graph.as_default():
            for known in self._tables:
                with tf.device(known.handle.device):
                    if table_name in known.config.table_names and isinstance(
                        known.table, multi.MultiHashTable
                    ):
                        dumps.append(known.table.lookup_entry({table_name: ids})[table_name])
                    elif isinstance(known.table, single.HashTable) and table_name in known.name:
                        dumps.append(known.table.lookup_entry(ids))
        found = {}
        for entries in self._run(dumps):
            for number, dump in zip(ids, entries, strict=True):
                if dump:
                    entry = table_proto.EntryDump.FromString(dump)
                    entry.id = number
                    found[number] = text_format.MessageToString(entry)
        return found

    def _run(self, fetches: Any) -> Any:
        try:
            return self._session.run(fetches)
        except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError) as error:
            raise errors.ConfigError(
                f"The servers of the job in {self._model_dir} do not answer: "
                f"{error.message.partition(chr(10))[0]}; see whether it is still running."
            ) from error


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable of the servers.

    Attributes:
        snapshots: What to fetch: of one that is split, the parts in their order.
        axis: Along which it is split.
    """

    snapshots: list[str]
    axis: int = 0

    def join(self, parts: list[Any]) -> Any:
        """Returns its value, given those of its parts."""
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.axis)


def _list_variables(meta_graph: meta_graph_pb2.MetaGraphDef) -> dict[str, _Variable]:
    """Returns the variables of the servers by name, those that are split also as a whole."""
    devices_by_node = {node.name: node.device for node in meta_graph.graph_def.node}
    variables = {}
    slices: dict[str, list[tuple[int, int, str]]] = {}
    for key in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.LOCAL_VARIABLES):
        for serialized in meta_graph.collection_def[key].bytes_list.value:
            definition = variable_pb2.VariableDef.FromString(serialized)
            node = definition.variable_name.partition(":")[0]
            if devices_by_node.get(node, "").startswith(_SERVERS):
                variables[node] = _Variable([definition.snapshot_name])
                part = definition.save_slice_info_def
                split = [i for i, size in enumerate(part.full_shape) if size != part.var_shape[i]]
                if split:
                    where = (part.var_offset[split[0]], split[0], definition.snapshot_name)
                    slices.setdefault(part.full_name, []).append(where)
    for name, parts in slices.items():
        snapshots = [snapshot for _, _, snapshot in sorted(parts)]
        variables.setdefault(name, _Variable(snapshots, parts[0][1]))
    return variables


def _parse_id(text: str | int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise errors.ConfigError(f"An id is a whole number, got {text!r}.") from None
    # Ids above 2^63 are stored as the negative numbers with the same bits.
    number %= _INT64_RANGE
    return number - _INT64_RANGE if number >= _INT64_RANGE // 2 else number


def _make_nothing(configs: Any) -> Any:
    """Stands for tables whose names alone are asked for."""
    return None
