"""The listeners that save and restore only multi tables, for those who name them."""

from monolith.checkpoint.server_monitor import PsMonitor
from monolith.embedding.tables import registry
from monolith.embedding.tables.snapshots import (
    TableRestorerListener,
    TableRestorerSaverListener,
    TableSaverListener,
)


class MultiHashTableCheckpointSaverListener(TableSaverListener):
    """As `TableSaverListener`, of the `MultiHashTable`s of the graph."""

    def __init__(self, basename: str, write_ckpt_info: bool = True) -> None:
        tables = registry.get_tables(registry._MULTI_HASH_TABLE_GRAPH_KEY)
        super().__init__(basename, write_ckpt_info, tables)


class MultiHashTableCheckpointRestorerListener(TableRestorerListener):
    """As `TableRestorerListener`, of the `MultiHashTable`s of the graph."""

    _restores_tables_alone = False

    def __init__(self, basename: str, ps_monitor: PsMonitor | None = None) -> None:
        tables = registry.get_tables(registry._MULTI_HASH_TABLE_GRAPH_KEY)
        super().__init__(basename, ps_monitor, tables)


class MultiHashTableRestorerSaverListener(TableRestorerSaverListener):
    """As `TableRestorerSaverListener`, of the `MultiHashTable`s of the graph."""

    def __init__(self, ckpt_prefix: str) -> None:
        super().__init__(ckpt_prefix, registry.get_tables(registry._MULTI_HASH_TABLE_GRAPH_KEY))
