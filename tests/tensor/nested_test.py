"""NestedTensors: the historical cases, what a structure may hold, and that it stays untouched."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import nested_tensors


@pytest.mark.usefixtures("graph_mode")
class NestedTensorTest(tf.test.TestCase):
    def testBasic(self):
        nested = {"a": tf.ones([]), "b": (tf.ones([]), tf.ones([]))}
        nested_tensor = nested_tensors.NestedTensors(nested)
        tensors = nested_tensor.get_tensors()
        self.assertLen(tensors, 3)
        replaced = [tf.zeros_like(tensor) for tensor in tensors]
        with self.session() as session:
            result = session.run(nested_tensor.get_nested_result(replaced))
        self.assertDictEqual(result, {"a": 0, "b": (0, 0)})

    def testConstant(self):
        nested_tensor = nested_tensors.NestedTensors({"a": {"b": 2}})
        self.assertEqual(nested_tensor.get_tensors(), [])
        self.assertDictEqual(nested_tensor.get_nested_result([]), {"a": {"b": 2}})

    def testRaggedTensor(self):
        ragged = tf.ragged.constant([[], [1], [2, 3]])
        nested_tensor = nested_tensors.NestedTensors(ragged)
        self.assertLen(nested_tensor.get_tensors(), 2)
        result = nested_tensor.get_nested_result(nested_tensor.get_tensors())
        with self.session() as session:
            self.assertEqual(session.run(result).to_list(), [[], [1], [2, 3]])

    def testRaggedTensorWithPlaceHolder(self):
        ragged = tf.ragged.constant([[], [1], [2, 3]])
        nested_tensor = nested_tensors.NestedTensors(ragged)
        placeholders = [
            tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
            for tensor in nested_tensor.get_tensors()
        ]
        result = nested_tensor.get_nested_result(placeholders)
        # The original only called this; the placeholders must be what the result is made of.
        values, row_splits = placeholders
        with self.session() as session:
            fed = session.run(result, {values: [7, 8, 9], row_splits: [0, 3, 3, 3]})
        self.assertEqual(fed.to_list(), [[7, 8, 9], [], []])


def test_dense_tensors_come_first_then_ragged_pairs():
    first, second = tf.constant(1), tf.constant(2)
    ragged = [tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[4.0]])]
    tensors = nested_tensors.NestedTensors([ragged[0], first, (ragged[1], second)]).get_tensors()
    expected = [first, second]
    expected += [ragged[0].values, ragged[0].row_splits, ragged[1].values, ragged[1].row_splits]
    assert len(tensors) == len(expected)
    for got, want in zip(tensors, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_constants_and_variables_stay():
    variable = tf.Variable(1.0)
    constants = {"none": None, "bool": True, "int": 3, "str": "x", "variable": variable}
    nested_tensor = nested_tensors.NestedTensors([constants, tf.constant(1)])
    assert len(nested_tensor.get_tensors()) == 1
    result, _ = nested_tensor.get_nested_result([tf.constant(5)])
    assert result == constants
    assert result["variable"] is variable


def test_a_tensor_that_is_there_twice_is_moved_once():
    tensor = tf.constant(1)
    nested_tensor = nested_tensors.NestedTensors({"a": tensor, "b": [tensor]})
    assert nested_tensor.get_tensors() == [tensor]
    replacement = tf.constant(2)
    assert nested_tensor.get_nested_result([replacement]) == {"a": replacement, "b": [replacement]}


def test_what_is_given_is_not_changed():
    tensor = tf.constant(1)
    inner = {"b": tensor}
    nested = {"a": inner, "c": [tensor, "x"], "d": inner}
    nested_tensor = nested_tensors.NestedTensors(nested)
    zero = tf.constant(0)
    first = nested_tensor.get_nested_result([zero])
    first["c"].append("mine")
    assert nested == {"a": {"b": tensor}, "c": [tensor, "x"], "d": {"b": tensor}}
    # A second result is independent of the first.
    expected = {"a": {"b": zero}, "c": [zero, "x"], "d": {"b": zero}}
    assert nested_tensor.get_nested_result([zero]) == expected


def test_containers_keep_their_class():
    point = collections.namedtuple("point", ["x", "y"])
    nested = [
        (1, point(tf.constant(1), None)),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {"c": True}),
    ]
    result = nested_tensors.NestedTensors(nested).get_nested_result([tf.constant(9)])
    assert type(result) is list
    assert type(result[0]) is tuple
    assert type(result[0][1]) is point
    assert result[0][1].x.numpy() == 9
    assert type(result[1]) is collections.OrderedDict
    assert list(result[1]) == ["b", "a"]
    assert type(result[2]) is collections.defaultdict
    assert result[2]["new"] == []


def test_nested_ragged_tensor_is_rejected():
    with pytest.raises(ValueError, match=r"^Nested tensor doesn't support nested RaggedTensor\.$"):
        nested_tensors.NestedTensors({"a": tf.ragged.constant([[[1], [2, 3]], []])})


@pytest.mark.parametrize("leaf", [1.5, object, np.zeros(2), {1}], ids=lambda x: type(x).__name__)
def test_other_leaves_are_rejected(leaf):
    with pytest.raises(ValueError, match=r"^Tensor is not supported\. "):
        nested_tensors.NestedTensors({"a": leaf})


@pytest.mark.parametrize("count", [0, 2, 4])
def test_wrong_number_of_tensors_is_rejected(count):
    nested_tensor = nested_tensors.NestedTensors([tf.constant(1), tf.ragged.constant([[1]])])
    with pytest.raises(AssertionError, match=rf"into 3 tensors, got {count}"):
        nested_tensor.get_nested_result([tf.constant([0])] * count)


def test_iterate_changes_a_dict_in_place_and_skips_none():
    nested = {"a": 1, "b": [2, None], "c": (3,)}
    result = nested_tensors._iterate(nested, lambda leaf: leaf * 10)
    assert result is nested
    assert nested == {"a": 10, "b": [20, None], "c": (30,)}


def test_inside_a_function():
    @tf.function
    def double(x, ragged):
        nested_tensor = nested_tensors.NestedTensors({"x": x, "ragged": ragged, "n": 2})
        result = nested_tensor.get_nested_result(
            [nested_tensor.get_tensors()[0] * 2, *nested_tensor.get_tensors()[1:]]
        )
        return result["x"] * result["n"], result["ragged"]

    x, ragged = double(tf.constant(3), tf.ragged.constant([[1], []], dtype=tf.int32))
    assert x.numpy() == 12
    assert ragged.to_list() == [[1], []]
