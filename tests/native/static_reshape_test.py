"""MonolithStaticReshapeN: values, shared memory, shape inference, errors, gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native import ops


def reshape(inputs, shapes, **kwargs):
    return ops.monolith_static_reshape_n(inputs=inputs, shapes=shapes, **kwargs)


def address(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


@pytest.mark.parametrize("enable_parallelism", [True, False])
def test_mixed_types_and_an_inferred_dimension(enable_parallelism):
    outputs, sizes = reshape(
        [tf.range(6.0), tf.constant([[1, 2], [3, 4]], tf.int64), tf.constant([b"a", b"b"])],
        [[2, None], [None], [2, 1]],
        enable_parallelism=enable_parallelism,
    )
    np.testing.assert_array_equal(outputs[0], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(outputs[1], [1, 2, 3, 4])
    np.testing.assert_array_equal(outputs[2], [[b"a"], [b"b"]])
    assert [t.dtype for t in outputs] == [tf.float32, tf.int64, tf.string]
    assert sizes.dtype == tf.int32
    np.testing.assert_array_equal(sizes, [6, 4, 2])


def test_output_shares_the_memory_of_its_input():
    tensor = tf.range(12.0)
    outputs, _ = reshape([tensor], [[3, None]])
    assert address(outputs[0]) == address(tensor)


def test_scalars_and_empty_tensors():
    outputs, sizes = reshape(
        [tf.constant([7.0]), tf.zeros([0, 3]), tf.constant(5)], [[], [None, 4], [None]]
    )
    assert [tuple(t.shape) for t in outputs] == [(), (0, 4), (1,)]
    np.testing.assert_array_equal(sizes, [1, 0, 1])


def test_no_inputs_gives_no_outputs():
    outputs, sizes = reshape([], [])
    assert list(outputs) == []
    assert sizes.shape == (0,)


def test_many_inputs_are_reshaped_in_parallel():
    arrays = [np.arange(2 * i, dtype=np.float32) for i in range(1, 2000)]
    outputs, sizes = reshape(arrays, [[2, None]] * len(arrays))
    np.testing.assert_array_equal(sizes, [a.size for a in arrays])
    for output, array in zip(outputs, arrays, strict=True):
        np.testing.assert_array_equal(output, array.reshape(2, -1))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_agrees_with_numpy(data):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    target = list(data.draw(st.permutations(shape)))
    open_dim = data.draw(st.none() | st.integers(0, len(target) - 1)) if target else None
    shape_attr = [None if d == open_dim else size for d, size in enumerate(target)]
    outputs, sizes = reshape([array], [shape_attr])
    np.testing.assert_array_equal(outputs[0], array.reshape(target))
    assert sizes.numpy().tolist() == [array.size]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        pytest.param([None, None], "input 1 may have at most one unknown dimension", id="two_open"),
        pytest.param([4], r"Input 1 has 6 elements, which do not fit the shape \[4\]", id="size"),
        pytest.param([4, None], r"Input 1 has 6 elements, .* \[4,\?\]", id="not_a_multiple"),
        pytest.param([0, None], r"Input 1 has 6 elements, .* \[0,\?\]", id="open_beside_zero"),
        pytest.param([2**40, 2**40], "too large", id="product_overflows"),
        pytest.param([2**40, 2**40, None], "Input 1 has 6 elements|too large", id="overflow_open"),
        pytest.param(None, "input 1 has no rank", id="unknown_rank"),
    ],
)
class TestBadShape:
    def test_eager(self, shape, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            reshape([tf.zeros([1]), tf.zeros([6])], [[None], tf.TensorShape(shape)])

    def test_graph_with_known_shapes_fails_while_it_is_built(self, shape, message):
        with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
            reshape([tf.zeros([1]), tf.zeros([6])], [[None], tf.TensorShape(shape)])


def test_graph_with_unknown_shapes_fails_when_it_runs():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, None)
        outputs, _ = reshape([fed], [[4, None]])
        assert session.run(outputs[0], {fed: np.ones(8)}).shape == (4, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Input 0 has 6 elements"):
            session.run(outputs[0], {fed: np.ones(6)})


def test_one_shape_per_input():
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 1 shapes for 2 inputs"):
        reshape([tf.zeros([1]), tf.zeros([1])], [[1]])
    with tf.Graph().as_default(), pytest.raises(ValueError, match="got 1 shapes for 2 inputs"):
        reshape([tf.zeros([1]), tf.zeros([1])], [[1]])


def test_static_shapes():
    with tf.Graph().as_default():
        open_batch = tf.compat.v1.placeholder(tf.float32, [None, 4])
        outputs, sizes = reshape([tf.zeros([6]), open_batch], [[2, None], [None, 2]])
        assert outputs[0].shape.as_list() == [2, 3]
        assert outputs[1].shape.as_list() == [None, 2]
        assert sizes.shape.as_list() == [2]


def test_gradient_is_reshaped_back():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    ids = tf.constant([1, 2])
    unused = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch([x, unused])
        outputs, _ = reshape([x, ids, unused], [[None], [2, 1], [1, 1]])
        loss = tf.reduce_sum(outputs[0] * [1.0, 10.0, 100.0, 1000.0])
    x_gradient, unused_gradient = tape.gradient(loss, [x, unused])
    np.testing.assert_array_equal(x_gradient, [[1, 10], [100, 1000]])
    assert unused_gradient is None or not np.any(unused_gradient)


def test_gradient_in_a_graph_with_unknown_shapes():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, [None, None])
        outputs, _ = reshape([fed, tf.constant([1])], [[None], [1]])
        (gradient,) = tf.gradients(tf.reduce_sum(outputs[0] ** 2), [fed])
        value = np.array([[1.0, 2.0, 3.0]])
        np.testing.assert_array_equal(session.run(gradient, {fed: value}), 2 * value)
