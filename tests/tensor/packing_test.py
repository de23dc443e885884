"""Packing: the historical cases, and round trips eagerly, in a function and in a session."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native_training import tensor_utils


@pytest.mark.usefixtures("graph_mode")
class TensorUtilsTest(tf.test.TestCase):
    def test_maybe_squeeze_3d_tensor(self):
        flat = tf.ragged.constant([[1, 2], [], [3]])
        deep = tf.ragged.constant([[[1, 2]], [[]], [[3]]])
        uniform = tf.RaggedTensor.from_uniform_row_length(flat, 1)
        self.assertIs(tensor_utils.maybe_squeeze_3d_tensor(flat), flat)
        with self.session() as session:
            for x in (deep, uniform):
                squeezed = tensor_utils.maybe_squeeze_3d_tensor(x)
                self.assertIsInstance(squeezed, tf.RaggedTensor)
                self.assertEqual(session.run(squeezed).to_list(), [[1, 2], [], [3]])

    def test_pack_tensors(self):
        arrays = {
            "b": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a": np.array([[7], [8]], np.float32),
            "c": np.float32(9),
        }
        packed, sizes = tensor_utils.pack_tensors({k: tf.constant(v) for k, v in arrays.items()})
        shapes = {"a": [None, 1], "b": [None, 3], "c": []}
        unpacked = tensor_utils.unpack_tensors(shapes, (packed, sizes))
        self.assertEqual(list(unpacked), ["a", "b", "c"])
        for key, tensor in unpacked.items():
            self.assertEqual(tensor.shape[1:].as_list() if key != "c" else [], shapes[key][1:])
        with self.session() as session:
            packed_value, size_values, values = session.run((packed, sizes, unpacked))
        # Sorted by key: a, then b, then c.
        self.assertAllEqual(packed_value, [7, 8, 0, 1, 2, 3, 4, 5, 9])
        self.assertAllEqual(size_values, [2, 6, 1])
        for key, array in arrays.items():
            self.assertAllEqual(values[key], array)

    def test_get_keyed_shape(self):
        rows = tf.compat.v1.placeholder(tf.float32, [None, 2])
        tensors = {"rows": rows, "scale": tf.constant(0.5)}
        shapes = tensor_utils.get_keyed_shape(tensors)
        self.assertEqual(shapes, {"rows": [None, 2], "scale": []})
        unpacked = tensor_utils.unpack_tensors(shapes, tensor_utils.pack_tensors(tensors))
        with self.session() as session:
            values = session.run(unpacked, {rows: [[1, 2], [3, 4]]})
        self.assertAllEqual(values["rows"], [[1, 2], [3, 4]])
        self.assertAllEqual(values["scale"], 0.5)

    def test_get_keyed_shape_of_an_unknown_rank(self):
        with self.assertRaisesRegex(ValueError, "'rows' has an unknown rank"):
            tensor_utils.get_keyed_shape({"rows": tf.compat.v1.placeholder(tf.float32)})

    def test_get_typed_keyed_shape(self):
        dicts = [{"x": tf.ones([2, 2])}, {"y": tf.constant([5, 6]), "z": tf.constant([[7]])}]
        shapes = tensor_utils.get_typed_keyed_shape(dicts)
        self.assertEqual(shapes, [{"x": [2, 2]}, {"y": [2], "z": [1, 1]}])
        packed = tensor_utils.pack_typed_keyed_tensors(dicts)
        unpacked = tensor_utils.unpack_packed_tensors(shapes, packed)
        with self.session() as session:
            values = session.run(unpacked)
        self.assertAllEqual(values[0]["x"], [[1, 1], [1, 1]])
        self.assertAllEqual(values[1]["y"], [5, 6])
        self.assertAllEqual(values[1]["z"], [[7]])

    def test_pack_typed_keyed_tensors(self):
        floats = {"x": np.ones([2, 2], np.float32), "w": np.arange(3, dtype=np.float32)}
        ints = {"z": np.arange(4).reshape(4, 1), "y": np.array([5, 6])}
        dicts = [{k: tf.constant(v) for k, v in d.items()} for d in (floats, ints)]
        packed = tensor_utils.pack_typed_keyed_tensors(dicts)
        self.assertLen(packed, 3)
        shapes = [{"x": [2, None], "w": [None]}, {"z": [None, 1], "y": [None]}]
        unpacked = tensor_utils.unpack_packed_tensors(shapes, packed)
        with self.session() as session:
            packed_values, values = session.run((packed, unpacked))
        self.assertAllEqual(packed_values[0], [0, 1, 2, 1, 1, 1, 1])  # w, x
        self.assertAllEqual(packed_values[1], [5, 6, 0, 1, 2, 3])  # y, z
        self.assertAllEqual(packed_values[2], [3, 4, 2, 4])
        for got, want in zip(values, (floats, ints), strict=True):
            self.assertEqual(got.keys(), want.keys())
            for key, array in want.items():
                self.assertEqual(got[key].dtype, array.dtype)
                self.assertAllEqual(got[key], array)

    def test_pack_typed_keyed_tensors_with_placeholder(self):
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.float32, [None, 2])
        packed = tensor_utils.pack_typed_keyed_tensors(
            [{"ids": ids}, {"rows": rows, "scale": tf.constant(0.5)}]
        )
        # The receiver has nothing but tensors of unknown length.
        received = [tf.compat.v1.placeholder(tensor.dtype, [None]) for tensor in packed]
        unpacked = tensor_utils.unpack_packed_tensors(
            [{"ids": [None]}, {"rows": [None, 2], "scale": []}], received
        )
        with self.session() as session:
            for n in (3, 0, 1):
                feed = {ids: np.arange(n), rows: np.full([n, 2], n)}
                sent = session.run(packed, feed)
                self.assertAllEqual(sent[-1], [n, 2 * n, 1])
                got = session.run(unpacked, dict(zip(received, sent, strict=True)))
                self.assertAllEqual(got[0]["ids"], np.arange(n))
                self.assertAllEqual(got[1]["rows"], np.full([n, 2], n))
                self.assertAllEqual(got[1]["scale"], 0.5)

    def test_split_tensors_with_type_and_merge_dicts(self):
        tensors = {
            "i1": tf.constant(1),
            "f1": tf.constant(1.0),
            "l1": tf.constant(1, tf.int64),
            "i2": tf.constant([2]),
            "f2": tf.constant([2.0]),
        }
        split = tensor_utils.split_tensors_with_type(tensors)
        self.assertCountEqual([sorted(d) for d in split], [["f1", "f2"], ["i1", "i2"], ["l1"]])
        merged = tensor_utils.merge_dicts(split)
        self.assertEqual(merged.keys(), tensors.keys())
        for key, tensor in tensors.items():
            self.assertIs(merged[key], tensor)


def test_split_does_not_depend_on_the_order_of_the_dict():
    tensors = {"a": tf.constant(1), "b": tf.constant(1.0), "c": tf.constant(2)}
    backwards = dict(reversed(tensors.items()))
    split = tensor_utils.split_tensors_with_type(tensors)
    assert tensor_utils.split_tensors_with_type(backwards) == split
    assert tensor_utils.split_tensors_with_type({}) == []
    assert tensor_utils.merge_dicts([]) == {}


array_dicts = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=3),
    st.tuples(
        st.sampled_from([np.float32, np.int64, np.int32]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@settings(max_examples=25)
@given(specs=array_dicts)
def test_round_trip_of_any_tensors(specs, in_function):
    rng = np.random.default_rng(0)
    arrays = {
        key: rng.integers(0, 100, shape).astype(dtype) for key, (dtype, shape) in specs.items()
    }

    def round_trip(tensors):
        split = tensor_utils.split_tensors_with_type(tensors)
        shapes = [{key: tensor.shape for key, tensor in d.items()} for d in split]
        packed = tensor_utils.pack_typed_keyed_tensors(split)
        return packed[-1], tensor_utils.merge_dicts(
            tensor_utils.unpack_packed_tensors(shapes, packed)
        )

    if in_function:
        round_trip = tf.function(round_trip)
    sizes, result = round_trip({key: tf.constant(array) for key, array in arrays.items()})
    assert sum(sizes.numpy()) == sum(array.size for array in arrays.values())
    assert result.keys() == arrays.keys()
    for key, array in arrays.items():
        assert result[key].dtype == array.dtype
        np.testing.assert_array_equal(result[key], array)


def test_gradient_goes_through():
    x, y = tf.constant([[1.0, 2.0]]), tf.constant([3.0])
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        packed = tensor_utils.pack_tensors({"x": x, "y": y})
        unpacked = tensor_utils.unpack_tensors({"x": [1, 2], "y": [None]}, packed)
        loss = tf.reduce_sum(unpacked["x"] ** 2) + 5 * tf.reduce_sum(unpacked["y"])
    x_gradient, y_gradient = tape.gradient(loss, [x, y])
    np.testing.assert_array_equal(x_gradient, [[2, 4]])
    np.testing.assert_array_equal(y_gradient, [5])


def test_squeeze_rejects_other_tensors():
    with pytest.raises(ValueError, match="must be a RaggedTensor of rank 2 or 3"):
        tensor_utils.maybe_squeeze_3d_tensor(tf.zeros([1, 1, 2]))
    with pytest.raises(ValueError, match="got rank 4"):
        tensor_utils.maybe_squeeze_3d_tensor(tf.ragged.constant([[[[1]]]]))


def test_squeeze_works_eagerly_and_in_a_function():
    deep = tf.ragged.constant([[[1, 2]], [[]]], dtype=tf.int32)
    for f in (
        tensor_utils.maybe_squeeze_3d_tensor,
        tf.function(tensor_utils.maybe_squeeze_3d_tensor),
    ):
        assert f(deep).to_list() == [[1, 2], []]


def test_types_must_not_be_mixed():
    with pytest.raises(ValueError, match=r"one type .* \['float32', 'int32'\]; divide them"):
        tensor_utils.pack_tensors({"a": tf.constant(1), "b": tf.constant(1.0)})


def test_nothing_to_pack():
    with pytest.raises(ValueError, match="nothing to pack"):
        tensor_utils.pack_tensors({})
    with pytest.raises(ValueError, match="nothing to pack"):
        tensor_utils.pack_typed_keyed_tensors([])
    assert tensor_utils.unpack_tensors({}, (tf.zeros([0]), tf.zeros([0], tf.int32))) == {}


def test_wrong_number_of_packed_tensors():
    packed = tensor_utils.pack_typed_keyed_tensors([{"a": tf.constant(1)}])
    with pytest.raises(ValueError, match="each of the 2 dicts and the sizes, got 2 tensors"):
        tensor_utils.unpack_packed_tensors([{"a": []}, {"b": []}], packed)


def test_wrong_shape_is_explained():
    packed = tensor_utils.pack_tensors({"a": tf.zeros([4]), "b": tf.zeros([2])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Input 0 has 4 elements"):
        tensor_utils.unpack_tensors({"a": [3], "b": [2]}, packed)
