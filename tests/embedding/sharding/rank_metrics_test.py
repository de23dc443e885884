"""Counts of the ids that ranks ask each other for."""

import pytest
import tensorflow as tf
from absl.testing import flagsaver
from support import ranks

from monolith import errors
from monolith.embedding.sharding import rank_metrics
from monolith.graph import collectives

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture(autouse=True)
def initialized(monkeypatch):
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init()
    yield
    collectives.shutdown()


def run_summaries():
    merged = tf.compat.v1.summary.merge_all()
    if merged is None:
        return {}
    with tf.compat.v1.Session() as session:
        session.run(ranks.make_tables())
        summary = tf.compat.v1.Summary.FromString(session.run(merged))
    return {value.tag: value.simple_value for value in summary.value}


def look_up():
    ids = {"item": tf.constant([1, 1, 2], tf.int64), "user": tf.constant([5], tf.int64)}
    table = ranks.make_rank_table(ranks.entry.SgdOptimizer())
    table.lookup(ids, {}, table.reorder(ids))


def test_off_unless_asked_for():
    assert rank_metrics.FLAGS["enable_alltoall_metrics"].default is False
    assert rank_metrics.FLAGS["enable_alltoall_metrics_for_slot"].default is None
    look_up()
    assert run_summaries() == {}


@flagsaver.as_parsed(enable_alltoall_metrics="true")
def test_distinct_ids_of_all_slots():
    look_up()
    assert run_summaries() == {"alltoall/ids_of_rank_0": 3}


@flagsaver.as_parsed(enable_alltoall_metrics="true", enable_alltoall_metrics_for_slot="item")
def test_one_slot_beside_all():
    rank_metrics.count_ids(["item", "user"], tf.constant([3, 2, 1, 0]), num_ranks=2)
    assert run_summaries() == {
        "alltoall/ids_of_rank_0": 5,
        "alltoall/ids_of_rank_1": 1,
        "alltoall/item/ids_of_rank_0": 3,
        "alltoall/item/ids_of_rank_1": 1,
    }


@flagsaver.as_parsed(enable_alltoall_metrics="true", enable_alltoall_metrics_for_slot="shop")
def test_a_slot_that_is_not_there():
    with pytest.raises(errors.ConfigError, match=r"'shop', but the slots are \['item', 'user'\]"):
        look_up()
