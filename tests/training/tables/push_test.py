"""The factories between a model and its tables."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import cpu_training
from monolith.tensor import prefetch
from monolith.training.tables import create, push

pytestmark = pytest.mark.usefixtures("graph_mode")


class RecordingTable:
    """Keeps what it was asked to update."""

    def __init__(self):
        self.calls = []

    def apply_gradients(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return self

    def as_op(self):
        return tf.no_op()


def make_embeddings():
    return {"a": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "b": tf.constant([[5.0]])}


def make_ids():
    return {
        "a": tf.ragged.constant([[7, 8]], tf.int64),
        "b": tf.ragged.constant([[9]], tf.int64),
    }


def make_factory(table, embeddings, req_time=None):
    return cpu_training._CpuFeatureFactory(
        table, make_ids(), embeddings, {}, req_time, prefetch.AsyncFunctionMgr(is_async=False)
    )


def run(fetches):
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(fetches)


def test_gradients_of_whole_rows_reach_the_table_with_their_ids():
    table, embeddings = RecordingTable(), make_embeddings()
    grad = tf.constant([[0.1, 0.2], [0.3, 0.4]])
    make_factory(table, embeddings).apply_gradients([(grad, embeddings["a"])])
    (((updates, step), kwargs),) = table.calls
    assert updates["a"][1] is grad  # Nothing in between.
    assert kwargs == {"req_time": None}
    assert list(updates) == ["a"]
    ids, step = run((updates["a"][0], step))
    assert ids.tolist() == [7, 8]
    assert step == 0


def test_gradients_of_derived_tensors_are_propagated_back():
    table, embeddings = RecordingTable(), make_embeddings()
    derived = 3.0 * embeddings["a"]
    make_factory(table, embeddings).apply_gradients(
        [(tf.ones([2, 2]), derived), (None, embeddings["b"])]
    )
    updates = table.calls[0][0][0]
    np.testing.assert_allclose(run(updates["a"][1]), np.full([2, 2], 3.0))
    assert "b" not in updates


def test_two_gradients_of_one_feature_are_added():
    table, embeddings = RecordingTable(), make_embeddings()
    pairs = [(tf.ones([1, 1]), embeddings["b"]), (tf.ones([1, 1]), embeddings["b"])]
    make_factory(table, embeddings).apply_gradients(pairs)
    np.testing.assert_allclose(run(table.calls[0][0][0]["b"][1]), [[2.0]])


def test_no_gradients_are_no_update():
    table, embeddings = RecordingTable(), make_embeddings()
    op = make_factory(table, embeddings).apply_gradients([(None, embeddings["a"])])
    run(op)
    assert table.calls == []


def test_req_time_of_the_batch_and_of_the_caller():
    table, embeddings = RecordingTable(), make_embeddings()
    of_batch, of_caller = tf.constant(5, tf.int64), tf.constant(6, tf.int64)
    factory = make_factory(table, embeddings, req_time=of_batch)
    pairs = [(tf.ones([1, 1]), embeddings["b"])]
    factory.apply_gradients(pairs)
    factory.apply_gradients(pairs, req_time=of_caller)
    assert [kwargs["req_time"] for _, kwargs in table.calls] == [of_batch, of_caller]


@pytest.mark.parametrize(
    ("native", "options"), [(True, {}), (False, {"skip_merge_id": True})], ids=["native", "merged"]
)
def test_fused_factory_sends_gradients_alone(native, options):
    table, embeddings, bundle = RecordingTable(), make_embeddings(), {"key": tf.constant(1)}
    factory = cpu_training._FusedCpuFeatureFactory(
        table, embeddings, {}, tf.constant(5, tf.int64), bundle, native
    )
    factory.apply_gradients([(tf.ones([2, 2]), embeddings["a"])], scale=0.5)
    (((slot_to_grad, sent_bundle, _), kwargs),) = table.calls
    assert sent_bundle is bundle
    assert kwargs.pop("scale") == 0.5
    values = run((slot_to_grad, kwargs.pop("req_time")))
    assert kwargs == options
    # Every slot takes part, also the one that the loss does not depend on.
    np.testing.assert_allclose(values[0]["a"], np.ones([2, 2]))
    np.testing.assert_allclose(values[0]["b"], [[0.0]])
    assert values[1] == 5


def test_get_req_time():
    assert run(push.get_req_time({"req_time": tf.constant([3, 4])})) == 3
    assert push.get_req_time({"label": tf.constant([3])}) is None
    assert push.get_req_time(tf.constant([3])) is None


@pytest.mark.parametrize(
    ("feature_to_slot", "tables"),
    [
        pytest.param({"a": "1", "b": "2"}, {"a": "a", "b": "b"}, id="own_slots"),
        pytest.param(
            {"a": "s", "b": "s", "c": "t"}, {"a": "s", "b": "s", "c": "c"}, id="shared_slot"
        ),
        pytest.param({"a": "a", "b": "a"}, {"a": "a", "b": "a"}, id="named_like_one_of_them"),
    ],
)
def test_names_of_tables(feature_to_slot, tables):
    assert create._name_tables(feature_to_slot, frozenset()) == tables


def test_names_of_tables_must_differ():
    with pytest.raises(ValueError, match=r"Feature 'c' has the name of a slot .*rename the slot"):
        create._name_tables({"a": "c", "b": "c", "c": "t"}, frozenset())
