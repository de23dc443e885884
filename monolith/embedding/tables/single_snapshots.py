"""The listeners that save and restore only separate tables, for those who name them."""

from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import registry
from monolith.embedding.tables.snapshots import (
    TableRestorerListener,
    TableRestorerSaverListener,
    TableSaverListener,
)


class HashTableCheckpointSaverListener(TableSaverListener):
    """As `TableSaverListener`, of the `HashTable`s of the graph."""

    def __init__(self, basename: str) -> None:
        super().__init__(basename, tables=registry.get_tables(registry._HASH_TABLE_GRAPH_KEY))


class HashTableCheckpointRestorerListener(TableRestorerListener):
    """As `TableRestorerListener`, of the `HashTable`s of the graph."""

    def __init__(self, basename: str, ps_monitor: PsMonitor | None = None) -> None:
        tables = registry.get_tables(registry._HASH_TABLE_GRAPH_KEY)
        super().__init__(basename, ps_monitor, tables)


class HashTableRestorerSaverListener(TableRestorerSaverListener):
    """As `TableRestorerSaverListener`, of the `HashTable`s of the graph."""

    def __init__(self, ckpt_prefix: str) -> None:
        super().__init__(ckpt_prefix, registry.get_tables(registry._HASH_TABLE_GRAPH_KEY))
