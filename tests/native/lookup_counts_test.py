"""The share of ids that have a row, in all ways of looking them up."""

import pytest
import tensorflow as tf
from support import multi_tables

from monolith.embedding.tables import multi, single
from monolith.native import lookup_counts
from monolith.serving.server.metrics import ServerMetrics


def test_single_tables():
    table = single.test_hash_table(1, name_suffix="hits").assign([1, 2], [[1.0], [2.0]])
    rate = lookup_counts.HitRate()
    assert rate.take() is None
    table.lookup([1, 2, 3, 3])
    assert rate.take() == pytest.approx(2 / 4)


def test_sets_of_tables_and_fused_lookups():
    table = multi.MultiHashTable.from_configs(
        multi_tables.make_configs(a=1, b=2), name_suffix="hits"
    ).assign({"a": ([1], [[1.0]]), "b": ([2], [[1.0, 2.0]])})
    rate = lookup_counts.HitRate()
    table.lookup({"a": tf.constant([1, 5], tf.int64), "b": tf.constant([2], tf.int64)})
    assert rate.take() == pytest.approx(2 / 3)
    table.fused_lookup([1, 2, 9, 9], [1, 3], num_of_shards=1)
    assert rate.take() == pytest.approx(2 / 4)


def test_the_server_shows_it():
    metrics = ServerMetrics()
    single.test_hash_table(1, name_suffix="shown").assign([1], [[1.0]]).lookup([1, 2])
    assert b"monolith_serving_lookup_fid_hit_rate 0.5" in metrics.render()
    assert b"monolith_serving_lookup_fid_hit_rate NaN" in metrics.render()
