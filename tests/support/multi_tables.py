"""Small sets of tables, made as a graph that is loaded makes them."""

import tensorflow as tf
from tensorflow.python.ops import resources

from monolith.embedding import entry
from monolith.embedding.tables import multi
from monolith.testing import generate_test_hash_table_config

MultiHashTable = multi.MultiHashTable


def make_configs(**slot_to_dim) -> dict[str, entry.HashTableConfigInstance]:
    return {slot: generate_test_hash_table_config(dim) for slot, dim in slot_to_dim.items()}


def round_trip(make_table) -> MultiHashTable:
    """Makes a table in a name scope and finds it again through its proto."""
    with tf.compat.v1.name_scope("table") as scope:
        table = make_table()
    scope = scope.rstrip("/")
    table_proto = table.to_proto(export_scope=scope)
    assert not table_proto.handle_tensor.startswith(scope)
    return MultiHashTable.from_proto(table_proto, import_scope=scope)


def make_table(configs, **kwargs) -> MultiHashTable:
    return round_trip(lambda: MultiHashTable.from_configs(configs, **kwargs))


def make_session() -> tf.compat.v1.Session:
    session = tf.compat.v1.Session()
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(resources.initialize_resources(resources.shared_resources()))
    return session


def run(fetches):
    with make_session() as session:
        return session.run(fetches)


def to_lists(slot_to_rows):
    return {slot: rows.tolist() for slot, rows in slot_to_rows.items()}
