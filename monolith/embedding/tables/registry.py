"""All tables of a graph in one list, whatever their kind.

Who saves, restores, exports or counts rows asks here, and need not know which kinds there are: a
table says of itself what its files look like, which tables stand behind its handle, and which part
of them its server has.

Example:
    >>> from monolith.embedding.tables import single
    >>> with tf.Graph().as_default():
    ...     _ = single.test_hash_table(2, name_suffix="user")
    ...     [(entry.name, entry.config.dims, entry.shard.num_servers) for entry in get_tables()]
    [('MonolithHashTable_user', (2,), 1)]
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from monolith.embedding.tables import file_names
from monolith.embedding.tables.inputs import TensorLike
from monolith.graph import metadata
from monolith.native import ops

_HASH_TABLE_GRAPH_KEY = "monolith_hash_tables"
_MULTI_HASH_TABLE_GRAPH_KEY = "monolith_multi_hash_tables"
_COLLECTIONS = (_HASH_TABLE_GRAPH_KEY, _MULTI_HASH_TABLE_GRAPH_KEY)

# What the names of tables of their own begin with; those in a multi table have names as given.
SINGLE_NAME_PREFIX = "MonolithHashTable_"

_SHARDS_META_KEY = "monolith_table_shards"


@dataclasses.dataclass(frozen=True)
class SnapshotFormat:
    """How the files of a kind of tables look, and what reading them does.

    Attributes:
        shard_list: Name of the list beside the files: which are those of one table.
        compression: That of the records.
        keeps_other_rows: Whether a restore leaves rows alone that the files do not have.
        counts_features: Whether each of the tables behind a handle is that of a feature, so that
            a save can tell how many rows each feature has.
    """

    shard_list: str
    compression: str = ""
    keeps_other_rows: bool = False
    counts_features: bool = False


SINGLE_FORMAT = SnapshotFormat("hash_table_shards.json")
MULTI_FORMAT = SnapshotFormat(
    "multi_hash_table_shards.json",
    compression="SNAPPY",
    keeps_other_rows=True,
    counts_features=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableTraits:
    """What those who know a table from the registry have to know of it.

    Attributes:
        table_names: Names of the tables behind the handle.
        dims: The widths of their rows.
        expire_times: A serialized `SlotExpireTimeConfig`: which rows a save leaves out. Of several
            tables, each has its own, and this is empty.
        snapshot_format: How its files look.
        other_names: Names that it may have in older checkpoints, the best first.
        export_share_embedding: Whether an exported model reads the rows where training left them;
            None lets the export decide.
    """

    table_names: tuple[str, ...]
    dims: tuple[int, ...]
    expire_times: bytes
    snapshot_format: SnapshotFormat
    other_names: tuple[str, ...] = ()
    export_share_embedding: bool | None = None


class AssignCall(NamedTuple):
    """The tensors through which a running model gets new rows for a table.

    Attributes:
        signature: Name of the function; tables may share one.
        inputs: Placeholders by name.
        outputs: What to fetch, by name.
    """

    signature: str
    inputs: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor]


class Table(abc.ABC):
    """What all kinds of tables can do that stand in the registry."""

    COLLECTION: ClassVar[str]
    # Whether an exported model reads the rows where training left them; None: the export decides.
    export_share_embedding: bool | None = None

    @property
    @abc.abstractmethod
    def handle(self) -> tf.Tensor:
        """The handle, a scalar of type resource."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name under which the device finds the table; unique in the graph."""

    @property
    @abc.abstractmethod
    def config(self) -> TableTraits:
        """What the registry tells about it."""

    @property
    @abc.abstractmethod
    def initializer(self) -> tf.Operation | None:
        """The op that makes the table; None if the handle does."""

    @abc.abstractmethod
    def sizes(self) -> tf.Tensor:
        """Returns how many rows each table has, int64, in the order of `config.table_names`."""

    @abc.abstractmethod
    def save(self, basename: TensorLike, random_sleep_ms: int = 0) -> "Table":
        """Writes all rows that have not expired to `<basename>-00000-of-0000N` and so on."""

    @abc.abstractmethod
    def restore(self, basename: TensorLike) -> "Table":
        """Reads the rows of a save."""

    @abc.abstractmethod
    def make_assign_call(self) -> AssignCall:
        """Adds what overwrites rows of a model that serves to the default graph."""

    @abc.abstractmethod
    def as_op(self) -> Any:
        """Returns what to depend on, or to run, for all that was done so far."""

    def feature_stat(self, basename: TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns names of tables and how many rows a save has of each, strings and uint64."""
        # Depends on the handle, so that it can be called on what `save` returned.
        with tf.control_dependencies([self.as_op()]), tf.device(self.handle.device):
            names, counts = ops.monolith_multi_hash_table_feature_stat(basename)
        return names, counts


@dataclasses.dataclass(frozen=True)
class TableShard:
    """The part of a table that one server has: ids with floormod(id, num_servers) == server.

    Attributes:
        table: Name of the whole table.
        server: Number of the server.
        num_servers: How many servers share the table; 1 also if there is none.
        names: If the other parts are in other processes, whose graphs nobody sees here: the names
            of all parts.
        has_rows: Whether this part is one of them; False for a process that has none of the rows.
    """

    table: str
    server: int = 0
    num_servers: int = 1
    names: tuple[str, ...] = ()
    has_rows: bool = True

    def choose_files(self, files_of_servers: Sequence[str]) -> list[str]:
        """Returns the files that can hold ids of this server, of those that N servers wrote."""
        # id = a + k * N = b + l * M has a solution just if a and b agree modulo gcd(N, M).
        divisor = math.gcd(len(files_of_servers), self.num_servers)
        return list(files_of_servers[self.server % divisor :: divisor])

    def list_all(self, name: str) -> dict["TableShard", str]:
        """Returns the names of all parts that are known by this one, which is called `name`."""
        if not self.names:
            return {self: name}
        return {
            TableShard(self.table, server, self.num_servers): other
            for server, other in enumerate(self.names)
        }


@dataclasses.dataclass(frozen=True)
class Entry:
    """One table of a graph.

    Attributes:
        table: The object that looks up, writes and counts.
        handle: The handle, a scalar of type resource.
        name: The name under which the device finds the table; unique in the graph.
        config: What it is made of.
        shard: Which part of the whole table it is.
    """

    table: Table
    handle: tf.Tensor
    name: str
    config: TableTraits
    shard: TableShard

    @property
    def file(self) -> str:
        """What the names of its files begin with."""
        return file_names.get_file_name(self.name)


def add(table: Table) -> None:
    """Adds a table to the default graph; called eagerly, there is no graph to add it to.

    Raises:
        ValueError: The graph has a table of another kind with this name.
    """
    if tf.executing_eagerly():
        return
    others = [collection for collection in _COLLECTIONS if collection != table.COLLECTION]
    if any(entry.name == table.name for entry in get_tables(*others)):
        raise ValueError(f"shared_name {table.name} has already been used.")
    tf.compat.v1.add_to_collection(table.COLLECTION, table)


def set_shard(name: str, shard: TableShard) -> None:
    """Says that the table `name` of the default graph is a part of a larger one."""
    if not tf.executing_eagerly():
        _get_shards()[name] = shard


def get_tables(*collections: str) -> list[Entry]:
    """Returns the tables of the default graph.

    Args:
        collections: Only those of these collections; by default all.
    """
    shards = _get_shards()
    return [
        Entry(
            table=table,
            handle=table.handle,
            name=table.name,
            config=table.config,
            shard=shards.get(table.name) or TableShard(table.name),
        )
        for collection in collections or _COLLECTIONS
        for table in tf.compat.v1.get_collection(collection)
    ]


def _get_shards() -> dict[str, TableShard]:
    shards: dict[str, TableShard] = metadata.get_meta(_SHARDS_META_KEY, dict[str, TableShard])
    return shards
