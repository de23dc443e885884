"""fused_value_rowids: values, and a cache that outlives the graph it was asked in.

The op itself is tested in tests/native/ragged_test.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from monolith.native_training import ragged_utils


@pytest.mark.usefixtures("graph_mode")
class RaggedUtilsTestCase(tf.test.TestCase):
    def test_basic(self):
        rt = tf.ragged.constant([[], [1], [2, 3]])
        rowids = ragged_utils.fused_value_rowids(rt)
        self.assertIs(ragged_utils.fused_value_rowids(rt), rowids)
        self.assertIs(rt.monolith_fused_value_rowids, rowids)
        with self.session() as session:
            self.assertAllEqual(session.run(rowids), [1, 2, 2])


@given(st.lists(st.integers(0, 4), max_size=10), st.sampled_from([tf.int32, tf.int64]))
def test_agrees_with_tensorflow_for_both_types_of_splits(lengths, dtype):
    lengths = tf.constant(lengths, dtype)
    rt = tf.RaggedTensor.from_row_lengths(tf.zeros([tf.reduce_sum(lengths)]), lengths)
    rowids = ragged_utils.fused_value_rowids(rt)
    assert rowids.dtype == tf.int64
    np.testing.assert_array_equal(rowids, rt.value_rowids())
    assert ragged_utils.fused_value_rowids(rt) is rowids


def test_argument_of_a_function():
    @tf.function
    def sum_rows(rt):
        rowids = ragged_utils.fused_value_rowids(rt)
        assert ragged_utils.fused_value_rowids(rt) is rowids
        return tf.math.unsorted_segment_sum(rt.values, rowids, rt.nrows())

    assert sum_rows(tf.ragged.constant([[], [1], [2, 3]])).numpy().tolist() == [0, 1, 5]
    assert sum_rows(tf.ragged.constant([[4], [], []])).numpy().tolist() == [4, 0, 0]


def test_captured_by_a_function_it_is_usable_outside():
    rt = tf.ragged.constant([[], [1], [2, 3]])

    @tf.function
    def rowids():
        return ragged_utils.fused_value_rowids(rt) + 0

    assert rowids().numpy().tolist() == [1, 2, 2]
    # Cached as a tensor of the function's graph, it could not be read here.
    assert ragged_utils.fused_value_rowids(rt).numpy().tolist() == [1, 2, 2]


def test_first_asked_in_a_branch_it_is_usable_after_it():
    @tf.function
    def f(rt, condition):
        counted = tf.cond(
            condition,
            lambda: tf.reduce_sum(ragged_utils.fused_value_rowids(rt)),
            lambda: tf.constant(-1, tf.int64),
        )
        return counted, ragged_utils.fused_value_rowids(rt)

    counted, rowids = f(tf.ragged.constant([[], [1], [2, 3]]), tf.constant(True))
    assert counted.numpy() == 5
    assert rowids.numpy().tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    "wrong", [tf.constant([1]), [[1], [2]], None], ids=["dense", "list", "None"]
)
def test_other_types_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"^rt must be RaggedTensor$"):
        ragged_utils.fused_value_rowids(wrong)
