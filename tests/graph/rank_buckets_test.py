"""Gradients travel in buckets, the last ones while the first are still computed."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.graph import rank_library
from monolith.graph.dependence import check_ops_dependence
from monolith.graph.rank_place import Place

pytestmark = pytest.mark.usefixtures("graph_mode")


class TwoRanks:
    """Stands for a job whose other rank always has the same as this one.

    Attributes:
        sent: What has travelled, message by message.
    """

    place = Place(rank=0, size=2, local_size=2)

    def __init__(self):
        self.sent = []

    def reduce(self, tensor):
        self.sent.append(tensor)
        return 2 * tensor


@pytest.fixture
def ranks():
    return TwoRanks()


@pytest.fixture
def library(ranks, monkeypatch):
    monkeypatch.setattr(rank_library, "_BUCKET_BYTES", 32)
    library = rank_library.RankLibrary()
    library._place, library._ranks = ranks.place, ranks
    return library


def test_small_tensors_of_one_type_share_a_message(ranks, library):
    kinds = [(8, tf.float32), (4, tf.float32), (4, tf.int32), (4, tf.float32), (1, tf.float32)]
    tensors = [tf.range(count) for count, _ in kinds]
    tensors = [tf.cast(t, dtype) + 1 for t, (_, dtype) in zip(tensors, kinds, strict=True)]
    tensors[1] = tf.reshape(tensors[1], [2, 2])
    reduced = library.grouped_allreduce(tensors)
    # The last two are 20 bytes together, and with the next of their type they would be 36.
    expected = [(5, tf.float32), (4, tf.int32), (4, tf.float32), (8, tf.float32)]
    assert [(t.shape.num_elements(), t.dtype) for t in ranks.sent] == expected
    assert [t.shape for t in reduced] == [t.shape for t in tensors]
    with tf.compat.v1.Session() as session:
        for found, given in session.run(list(zip(reduced, tensors, strict=True))):
            np.testing.assert_array_equal(found, given)


def test_a_tensor_of_unknown_size_travels_alone(ranks, library):
    unknown = tf.compat.v1.placeholder(tf.float32, [None])
    library.grouped_allreduce([tf.zeros([2]), unknown, tf.zeros([2])])
    # The message of the last tensor goes first.
    assert [t.shape.num_elements() for t in ranks.sent] == [4, None]


def test_a_bucket_waits_for_its_own_gradients_only(ranks, library):
    weights = [tf.compat.v1.get_variable(f"w{i}", [4]) for i in range(3)]
    activation = tf.ones([4])
    for weight in weights:
        activation = tf.tanh(activation * weight)
    grads = tf.gradients(tf.reduce_sum(activation), weights)
    library.grouped_allreduce(grads)
    last, first = (message.op.name for message in ranks.sent)
    # The backward pass comes to the weights of the first layer last.
    check_ops_dependence(last, grads[0].op.name)
    for message, own in ((last, [grads[2], grads[1]]), (first, [grads[0]])):
        for grad in own:
            with pytest.raises(RuntimeError, match="depend on"):
                check_ops_dependence(message, grad.op.name)
