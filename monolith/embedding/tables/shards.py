"""Which files hold the rows of a table, whatever the number of servers was that wrote them.

A table on N parameter servers is saved as N sets of files, one of each server, which has the ids
with its own remainder modulo N. A job that starts on M servers has to find them all: beside the
files lies a list from names of tables to the files of all servers. A server reads those that can
hold its ids, which are all of them only if N and M have no common divisor, and keeps its own. The
list also says what the rows are made of, so that a table that has changed since is known as such.

Example:
    >>> shard = TableShard("user", server=1, num_servers=4)
    >>> shard.choose_files(["user_0", "user_1"])  # 4 servers read what 2 have written.
    ['user_1']
    >>> shard.choose_files(["user_0", "user_1", "user_2"])
    ['user_0', 'user_1', 'user_2']
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.checkpoint.paths import SaveHelper
from monolith.embedding.tables import file_names, row_forms
from monolith.embedding.tables.registry import Entry, TableShard
from monolith.embedding.tables.row_forms import Form

logger = logging.getLogger(__name__)

_FORMAT = 1
# Of the lists of all kinds of tables, see `SnapshotFormat.shard_list`.
_LIST_SUFFIX = "_shards.json"
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$", re.ASCII)


def write_lists(asset_dir: str, tables: Iterable[Entry]) -> None:
    """Writes which files hold the tables, beside the files.

    Args:
        asset_dir: The directory of the files, with a slash at its end.
        tables: All tables that are saved there.
    """
    lists: dict[str, dict[TableShard, str]] = {}
    forms: dict[str, dict[str, dict[str, Form]]] = {}
    for entry in tables:
        name = entry.config.snapshot_format.shard_list
        for shard, part in entry.shard.list_all(entry.name).items():
            lists.setdefault(name, {})[shard] = file_names.get_file_name(part)
        # Of each server the same.
        forms.setdefault(name, {})[entry.shard.table] = row_forms.get_forms(entry)
    for name, file_of_shard in lists.items():
        write_list(asset_dir + name, file_of_shard, forms[name])


def write_list(
    path: str,
    file_of_shard: Mapping[TableShard, str],
    forms: Mapping[str, Mapping[str, Form]] | None = None,
) -> None:
    """Writes which files hold the tables of one kind.

    Args:
        path: Where the list goes, beside the files.
        file_of_shard: What the names of the files of each table and server begin with.
        forms: What the rows are made of, by table, and there by the names of the tables behind its
            handle.
    """
    tables: dict[str, list[str]] = {}
    for shard in sorted(file_of_shard, key=lambda shard: (shard.table, shard.server)):
        tables.setdefault(shard.table, []).append(file_of_shard[shard])
    content: dict[str, Any] = {"format": _FORMAT, "tables": tables}
    rows = {table: row_forms.to_json(of_table) for table, of_table in (forms or {}).items()}
    if any(rows.values()):
        content["rows"] = rows
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(content, indent=1) + "\n")


class SavedList(NamedTuple):
    """What a list beside saved tables says, by table.

    Attributes:
        files: The files of all servers.
        forms: What the rows are made of; those of lists from before do not say.
    """

    files: dict[str, list[str]]
    forms: dict[str, dict[str, Form]]


def read_list(path: str) -> SavedList:
    """Reads what `write_list` wrote; nothing, if a save from before has no list.

    Raises:
        tf.errors.DataLossError: The list is damaged; the message names it.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        return SavedList({}, {})
    try:
        saved = json.loads(content)
        if saved["format"] != _FORMAT:
            raise ValueError(f"its format is {saved['format']}, expected {_FORMAT}")
        return SavedList(
            {str(table): [str(f) for f in files] for table, files in saved["tables"].items()},
            {str(table): row_forms.from_json(f) for table, f in saved.get("rows", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise tf.errors.DataLossError(None, None, f"{path} is damaged: {error}") from error


def count_servers(asset_dir: str) -> int | None:
    """Returns how many servers have written the tables of a save, None if it does not say.

    Args:
        asset_dir: Where the files are, with a slash at its end.

    Raises:
        tf.errors.DataLossError: The list of tables is damaged.
    """
    counts = [
        len(files)
        for path in tf.io.gfile.glob(f"{asset_dir}*{_LIST_SUFFIX}")
        for files in read_list(path).files.values()
    ]
    return max(counts, default=None)


class SavedTables:
    """The tables that one save has written; looks at the disk once, and only if asked.

    Args:
        asset_dir: Where the files are, with a slash at its end.
    """

    def __init__(self, asset_dir: str) -> None:
        self.asset_dir = asset_dir
        self._lists: dict[str, SavedList] = {}
        self._listings: dict[str, set[str]] = {}

    def find_files(self, entry: Entry) -> list[str]:
        """Returns what the names of files that can hold rows of a table on its server begin with.

        Raises:
            ValueError: The save does not have the table.
            tf.errors.DataLossError: The list of tables is damaged.
        """
        files = self._search(entry)
        if not files:
            raise ValueError(
                f"Unable to find table checkpoint in '{self.asset_dir}' for table: {entry.name}. "
                "Maybe the model structure has been changed."
            )
        return files

    def has(self, entry: Entry) -> bool:
        """Returns whether the save has the table.

        Raises:
            tf.errors.DataLossError: The list of tables is damaged.
        """
        return bool(self._search(entry))

    def find_own_file(self, entry: Entry) -> str | None:
        """Returns what the names of the files of just this table on this server begin with.

        None, if there are none, or if another number of servers has written the table.
        """
        files = self._get_listed(entry)
        if not files:
            return next(iter(self._find_unlisted(entry)), None)
        own = files[entry.shard.server] if len(files) == entry.shard.num_servers else None
        return own if own is not None and self._has(own) else None

    def get_forms(self, entry: Entry) -> dict[str, Form]:
        """Returns what the rows of a table were made of; empty, if the save does not say.

        Raises:
            tf.errors.DataLossError: The list of tables is damaged.
        """
        forms = self._read_list(entry).forms
        return next((forms[name] for name in _list_names(entry) if name in forms), {})

    def list_names(self) -> list[str]:
        """Returns what the names of files begin with, without those of counts, in order."""
        names = self._list_files(self.asset_dir.rstrip("/"))
        return sorted(name for name in names if not name.endswith(file_names.META))

    def _search(self, entry: Entry) -> list[str]:
        return entry.shard.choose_files(self._get_listed(entry)) or self._find_unlisted(entry)

    def _read_list(self, entry: Entry) -> SavedList:
        name = entry.config.snapshot_format.shard_list
        if name not in self._lists:
            self._lists[name] = read_list(self.asset_dir + name)
            _warn_of_shared_files(self._lists[name].files)
        return self._lists[name]

    def _get_listed(self, entry: Entry) -> list[str]:
        """Returns the files of all servers; none, if the list does not have the table."""
        files = self._read_list(entry).files
        return next((files[name] for name in _list_names(entry) if name in files), [])

    def _find_unlisted(self, entry: Entry) -> list[str]:
        """Returns the file of a save without a list, or with one that does not have the table."""
        # A file that the list has is that of another table, whatever its name.
        taken = {file for files in self._read_list(entry).files.values() for file in files}
        taken |= {file + file_names.META for file in taken}
        for name in (entry.name, *entry.config.other_names):
            for file in file_names.get_possible_names(name):
                if file not in taken and self._has(file):
                    return [file]
        return []

    def _has(self, file: str) -> bool:
        # A multi table with a slash in its name once had its files in a directory below.
        directory, stem = os.path.split(self.asset_dir + file)
        return stem in self._list_files(directory)

    def _list_files(self, directory: str) -> set[str]:
        """Returns what the names of all files that come in numbered parts begin with."""
        if directory not in self._listings:
            files = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
            self._listings[directory] = {
                _SHARD_SUFFIX.sub("", file) for file in files if _SHARD_SUFFIX.search(file)
            }
        return self._listings[directory]


class SavedLayers:
    """The tables of a full checkpoint and of the deltas that follow it.

    Args:
        prefix: The full checkpoint.

    Raises:
        tf.errors.DataLossError: The list of deltas is damaged.
    """

    def __init__(self, prefix: str) -> None:
        self._layers = [
            SavedTables(SaveHelper.get_ckpt_asset_dir(saved))
            for saved in (prefix, *delta_chain.get_prefixes(prefix))
        ]

    def has(self, entry: Entry) -> bool:
        """Returns whether the full checkpoint has a table."""
        return self._layers[0].has(entry)

    def get_forms(self, entry: Entry) -> dict[str, Form]:
        """Returns what the rows of a table were made of; see `SavedTables`."""
        return self._layers[0].get_forms(entry)

    def find_files(self, entry: Entry) -> tuple[list[str], list[int]]:
        """Returns the paths that a server has to read for a table, and for each its layer.

        Layer 0 is the full checkpoint, 1 the first delta, and so on. A path is what the names of
        the files begin with.

        Raises:
            ValueError: The checkpoint, or a delta, does not have the table.
            tf.errors.DataLossError: A list of tables is damaged.
        """
        paths: list[str] = []
        layers: list[int] = []
        for layer, saved in enumerate(self._layers):
            for file in saved.find_files(entry):
                paths.append(saved.asset_dir + file)
                layers.append(layer)
        return paths, layers


def _list_names(entry: Entry) -> tuple[str, ...]:
    """Returns the names that the list may have for a table, the best first."""
    return (entry.shard.table, *entry.config.other_names)


def _warn_of_shared_files(listed: Mapping[str, list[str]]) -> None:
    """Says which tables were saved to one file, when a name could stand for two tables."""
    tables_of_file: dict[str, list[str]] = {}
    for table, files in listed.items():
        for file in files:
            tables_of_file.setdefault(file, []).append(table)
    for file, tables in tables_of_file.items():
        if len(tables) > 1:
            logger.warning(
                "the tables %s were all saved to %s by an older version of Monolith, so the rows "
                "of only one of them are there",
                " and ".join(sorted(tables)),
                file,
            )
