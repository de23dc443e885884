"""Fixtures for tests of tables."""

import pytest
import tensorflow as tf
from support.snapshots import make_config

from monolith.embedding.tables import single


@pytest.fixture
def make_table(request):
    """Makes tables eagerly; their names are unique in the process, and they go after the test."""
    tables = []

    def make(config=None, saver_parallel: int = -1, **kwargs) -> single.HashTable:
        name = f"{request.node.name}_{len(tables)}"
        table = single.hash_table_from_config(
            config or make_config(**kwargs), name_suffix=name, saver_parallel=saver_parallel
        )
        tables.append(table)
        return table

    yield make
    for table in tables:
        tf.raw_ops.DestroyResourceOp(resource=table.table)
