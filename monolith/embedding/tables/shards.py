"""Which files hold the rows of a table, whatever the number of servers was that wrote them.

A table on N parameter servers is saved as N sets of files, one of each server, which has the ids
with its own remainder modulo N. A job that starts on M servers has to find them all: beside the
files lies a list from names of tables to the files of all servers. A server reads those that can
hold its ids, which are all of them only if N and M have no common divisor, and keeps its own.

Example:
    >>> shard = TableShard("user", server=1, num_servers=4)
    >>> shard.choose_files(["user_0", "user_1"])  # 4 servers read what 2 have written.
    ['user_1']
    >>> shard.choose_files(["user_0", "user_1", "user_2"])
    ['user_0', 'user_1', 'user_2']
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.checkpoint.paths import SaveHelper
from monolith.graph import metadata

_FORMAT = 1
_META_KEY = "monolith_table_shards"


@dataclasses.dataclass(frozen=True)
class TableShard:
    """The part of a table that one server has: ids with floormod(id, num_servers) == server.

    Attributes:
        table: Name of the whole table.
        server: Number of the server.
        num_servers: How many servers share the table; 1 also if there is none.
    """

    table: str
    server: int = 0
    num_servers: int = 1

    def choose_files(self, files_of_servers: Sequence[str]) -> list[str]:
        """Returns the files that can hold ids of this server, of those that N servers wrote."""
        # id = a + k * N = b + l * M has a solution just if a and b agree modulo gcd(N, M).
        divisor = math.gcd(len(files_of_servers), self.num_servers)
        return list(files_of_servers[self.server % divisor :: divisor])


def register(name: str, shard: TableShard) -> None:
    """Says that the table `name` of the default graph is a part of a larger one."""
    if not tf.executing_eagerly():
        _get_registered()[name] = shard


def get_shard(name: str) -> TableShard:
    """Returns what was registered for a table; by default it is whole."""
    return _get_registered().get(name) or TableShard(name)


def write_list(path: str, file_of_shard: Mapping[TableShard, str]) -> None:
    """Writes which files hold the tables.

    Args:
        path: Where the list goes, beside the files.
        file_of_shard: What the names of the files of each table and server begin with.
    """
    tables: dict[str, list[str]] = {}
    for shard in sorted(file_of_shard, key=lambda shard: (shard.table, shard.server)):
        tables.setdefault(shard.table, []).append(file_of_shard[shard])
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps({"format": _FORMAT, "tables": tables}, indent=1) + "\n")


def read_list(path: str) -> dict[str, list[str]]:
    """Returns the files of all servers by table; nothing, if a save from before has no list.

    Raises:
        tf.errors.DataLossError: The list is damaged; the message names it.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        return {}
    try:
        saved = json.loads(content)
        if saved["format"] != _FORMAT:
            raise ValueError(f"its format is {saved['format']}, expected {_FORMAT}")
        return {str(table): [str(f) for f in files] for table, files in saved["tables"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise tf.errors.DataLossError(None, None, f"{path} is damaged: {error}") from error


def find_layers(
    prefix: str,
    list_name: str,
    names: Iterable[str],
    shard: TableShard,
    find_unlisted: Callable[[str], str],
) -> tuple[list[str], list[int]]:
    """Returns the files that a server has to read for a table: a checkpoint's, then its deltas'.

    Args:
        prefix: The full checkpoint.
        list_name: Name of the list in the asset directories.
        names: Names that the whole table may have there, the best first.
        shard: The part that is wanted.
        find_unlisted: Gets the asset directory of a save without a list and returns what the names
            of the table's files begin with.

    Returns:
        What the names of the files begin with, and for each the number of its layer: 0 for the
        full checkpoint, 1 for the first delta, and so on.

    Raises:
        tf.errors.DataLossError: A list is damaged.
    """
    names = list(names)
    basenames: list[str] = []
    layers: list[int] = []
    for layer, saved in enumerate([prefix, *delta_chain.get_prefixes(prefix)]):
        asset_dir = SaveHelper.get_ckpt_asset_dir(saved)
        listed = read_list(asset_dir + list_name)
        known = next((name for name in names if name in listed), None)
        files = [find_unlisted(asset_dir)] if known is None else shard.choose_files(listed[known])
        basenames += [asset_dir + file for file in files]
        layers += [layer] * len(files)
    return basenames, layers


def _get_registered() -> dict[str, TableShard]:
    registered: dict[str, TableShard] = metadata.get_meta(_META_KEY, dict[str, TableShard])
    return registered
