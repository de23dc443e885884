"""static_reshape and its builder: the historical cases, eager use and gradients.

The op itself is tested in tests/native/static_reshape_test.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import static_reshape_op


@pytest.mark.usefixtures("graph_mode")
class StaticReshapeOpTest(tf.test.TestCase):
    def test_static_reshape_n(self):
        inputs = [
            tf.constant(np.arange(5), tf.int64),
            tf.constant(np.arange(40).reshape(4, 10), tf.float32),
            tf.constant(np.arange(12), tf.int32),
        ]
        shapes = [(None,), (2, None, 4), (3, 2, None)]
        outputs, sizes = static_reshape_op.static_reshape(inputs, shapes)
        with self.session() as session:
            output_values, size_values, input_values = session.run((outputs, sizes, inputs))
        self.assertAllEqual(size_values, [5, 40, 12])
        self.assertLen(output_values, 3)
        for output, value, shape, given in zip(
            outputs, output_values, shapes, input_values, strict=True
        ):
            self.assertEqual(len(value.shape), len(shape))
            for dim, (got, wanted) in enumerate(zip(value.shape, shape, strict=True)):
                if wanted is not None:
                    self.assertEqual(got, wanted)
                    self.assertEqual(output.shape[dim], wanted)
            self.assertAllEqual(value.flatten(), given.flatten())

    def test_nested_reshape_n(self):
        arrays = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": [np.arange(8, dtype=np.int64).reshape(2, 2, 2), np.array([9], np.int32)],
            "c": (np.array(7.0),),
        }
        builder = static_reshape_op.StaticReshapeNBuilder()
        indices = tf.nest.map_structure(lambda x: builder.add(tf.constant(x), (None,)), arrays)
        self.assertAllEqual(tf.nest.flatten(indices), [0, 1, 2, 3])
        outputs, sizes = builder.build()
        flat = tf.nest.map_structure(lambda i: outputs[i], indices)
        with self.session() as session:
            flat_values, size_values = session.run((flat, sizes))
        expected = tf.nest.map_structure(lambda x: x.flatten(), arrays)
        tf.nest.map_structure(self.assertAllEqual, flat_values, expected)
        self.assertAllEqual(size_values, [6, 8, 1, 1])


def test_shape_depends_on_what_is_fed():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, [None, 6])
        (output,), sizes = static_reshape_op.static_reshape([fed], [tf.TensorShape([None, 2, 3])])
        assert output.shape.as_list() == [None, 2, 3]
        for batch in (1, 4, 0):
            value, size = session.run((output, sizes), {fed: np.ones([batch, 6])})
            assert value.shape == (batch, 2, 3)
            assert size.tolist() == [batch * 6]


@pytest.mark.parametrize("enable_parallelism", [True, False])
def test_gradient_in_a_function(enable_parallelism):
    weights = tf.constant([[1.0, 2.0], [3.0, 4.0]])

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (output,), _ = static_reshape_op.static_reshape(
                [x], [[2, None]], enable_parallelism=enable_parallelism
            )
            loss = tf.reduce_sum(output * weights)
        return tape.gradient(loss, x)

    np.testing.assert_array_equal(gradient(tf.zeros([4, 1])), [[1], [2], [3], [4]])


def test_empty_builder():
    outputs, sizes = static_reshape_op.StaticReshapeNBuilder().build()
    assert outputs == []
    assert sizes.shape == (0,)


def test_wrong_shape_is_explained():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Input 0 has 5 elements"):
        static_reshape_op.static_reshape([tf.zeros([5])], [[2, None]])
