"""clip_by_global_norm: the historical cases, TensorFlow's function, NaN and inf, gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native_training import clip_ops


class ClipOpsTest(tf.test.TestCase):
    def _test_clip_by_global_norm(self, arrays, clip_norm, expected=None):
        arrays = [np.array(array, np.float32) for array in arrays]
        for mode in (self._run_eagerly, self._run_in_a_session, self._run_in_a_function):
            clipped, inputs_after = mode(arrays, clip_norm)
            wanted = expected
            if wanted is None:
                wanted, _ = tf.clip_by_global_norm([tf.constant(a) for a in arrays], clip_norm)
            self.assertLen(clipped, len(arrays))
            for got, want in zip(clipped, wanted, strict=True):
                self.assertAllClose(got, want)
            for after, before in zip(inputs_after, arrays, strict=True):
                self.assertAllEqual(after, before)

    def _run_eagerly(self, arrays, clip_norm):
        inputs = [tf.constant(array) for array in arrays]
        clipped, _ = clip_ops.clip_by_global_norm(inputs, clip_norm)
        return clipped, inputs

    def _run_in_a_session(self, arrays, clip_norm):
        with tf.Graph().as_default(), self.session() as session:
            # Products belong to nobody else, unlike constants: writing to them would be possible.
            fed = [tf.compat.v1.placeholder(tf.float32, array.shape) for array in arrays]
            inputs = [tensor * 2.0 for tensor in fed]
            clipped, _ = clip_ops.clip_by_global_norm(inputs, clip_norm)
            with tf.control_dependencies(clipped):
                after = [tf.identity(tensor) for tensor in inputs]
            halves = {tensor: array / 2 for tensor, array in zip(fed, arrays, strict=True)}
            return session.run((clipped, after), halves)

    def _run_in_a_function(self, arrays, clip_norm):
        @tf.function
        def run(inputs):
            return clip_ops.clip_by_global_norm(inputs, clip_norm)[0]

        inputs = [tf.constant(array) for array in arrays]
        return run(inputs), inputs

    def test_clip_by_global_norm(self):
        simple = [[-3.0, 0.0, 0.0], [4.0, 0.0, 0.0]]
        # norm 5, so everything is multiplied by 4 / 5
        self._test_clip_by_global_norm(simple, 4.0)
        self._test_clip_by_global_norm(simple, 4.0, [[-2.4, 0.0, 0.0], [3.2, 0.0, 0.0]])
        # uneven shapes
        self._test_clip_by_global_norm([[[1.0, -2.0], [3.0, 4.0]], [5.0], 6.0], 3.0)
        # no clipping
        self._test_clip_by_global_norm(simple, 6.0)
        self._test_clip_by_global_norm(simple, 6.0, simple)
        # zero norm
        self._test_clip_by_global_norm([[0.0, 0.0], [0.0]], 6.0)
        self._test_clip_by_global_norm([[0.0, 0.0], [0.0]], 0.0, [[0.0, 0.0], [0.0]])
        # inf -> NaN
        inf = np.inf
        self._test_clip_by_global_norm([[inf, -inf], [inf]], 6.0)
        self._test_clip_by_global_norm([[-2.0, 0.0, inf], [1.0]], 6.0, [[0.0, 0.0, np.nan], [0.0]])
        # many large gradients
        rng = np.random.default_rng(7)
        large = [rng.normal(scale=100.0, size=(rng.integers(1, 200), 100)) for _ in range(50)]
        self._test_clip_by_global_norm(large, 10.0)
        self._test_clip_by_global_norm(large, 1e9)


class NormOpsTest(tf.test.TestCase):
    def test_it(self):
        self.assertIsNone(clip_ops._global_norm([]))
        self.assertAllClose(
            clip_ops._global_norm([tf.constant([-3.0, 0.0]), tf.constant(4.0)]), 5.0
        )
        self.assertAllEqual(clip_ops._global_norm([tf.constant([1.0, np.inf])]), np.inf)
        self.assertAllClose(clip_ops._global_norm([tf.zeros([3]), tf.zeros([0, 2])]), 0.0)
        with tf.Graph().as_default(), self.session() as session:
            norm = clip_ops._global_norm([tf.constant([1.0, np.inf]), tf.constant([2.0])])
            self.assertEqual(norm.shape, ())
            self.assertAllEqual(session.run(norm), np.inf)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    clip_norm=st.sampled_from([0.0, 0.5, 10.0, 1e6]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_agrees_with_numpy(seed, sizes, scale, clip_norm, dtype):
    rng = np.random.default_rng(seed)
    arrays = [(rng.normal(size=size) * scale).astype(dtype) for size in sizes]
    expected_norm = np.sqrt(sum(np.sum(a.astype(np.float64) ** 2) for a in arrays))
    factor = clip_norm / expected_norm if expected_norm > clip_norm else 1.0
    clipped, norm = clip_ops.clip_by_global_norm([tf.constant(a) for a in arrays], clip_norm)
    tolerance = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(norm, expected_norm, rtol=tolerance)
    for got, array in zip(clipped, arrays, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, array * factor, rtol=tolerance)


def test_norm_is_the_same_for_every_number_of_threads():
    arrays = [np.random.default_rng(i).normal(size=100_003).astype(np.float32) for i in range(8)]
    norms = set()
    for threads in (1, 2, 4):
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            norm = clip_ops._global_norm([tf.constant(a) for a in arrays])
            norms.add(session.run(norm).item())
    assert len(norms) == 1


def test_norm_of_values_whose_squares_leave_float32():
    clipped, norm = clip_ops.clip_by_global_norm([tf.constant([3e30, 4e30])], 1.0)
    np.testing.assert_allclose(norm, 5e30, rtol=1e-6)
    np.testing.assert_allclose(clipped[0], [0.6, 0.8], rtol=1e-6)


def test_nan_stays_where_it_is():
    clipped, norm = clip_ops.clip_by_global_norm(
        [tf.constant([np.nan, 2.0]), tf.constant(3.0)], 1.0
    )
    assert np.isnan(norm)
    np.testing.assert_array_equal(clipped[0], [np.nan, 2.0])
    np.testing.assert_array_equal(clipped[1], 3.0)


def test_without_clipping_the_tensors_are_passed_on_without_a_copy():
    tensor = tf.range(1000.0)
    (clipped,), _ = clip_ops.clip_by_global_norm([tensor], 1e9)
    address, passed_on = (
        np.asarray(memoryview(t)).__array_interface__["data"][0] for t in (tensor, clipped)
    )
    assert passed_on == address


def test_use_norm_replaces_the_computed_one():
    clipped, norm = clip_ops.clip_by_global_norm([tf.constant([3.0, 4.0])], 5.0, use_norm=10.0)
    np.testing.assert_allclose(clipped[0], [1.5, 2.0])
    assert norm.numpy() == 10.0
    with tf.Graph().as_default() as graph:
        clip_ops.clip_by_global_norm([tf.constant([3.0])], 5.0, use_norm=tf.constant(10.0))
        assert not [op for op in graph.get_operations() if op.type == "MonolithGlobalNorm"]


def test_limit_of_another_type_is_cast():
    gradient = tf.constant([3.0, 4.0], tf.float64)
    clipped, _ = clip_ops.clip_by_global_norm([gradient], tf.constant(2.5))
    np.testing.assert_allclose(clipped[0], [1.5, 2.0])


def test_none_and_sparse_gradients():
    sparse = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([7]), tf.constant([10, 1]))
    clipped, norm = clip_ops.clip_by_global_norm([None, sparse, tf.constant([4.0])], 2.5)
    assert norm.numpy() == 5.0
    assert clipped[0] is None
    np.testing.assert_allclose(clipped[1].values, [[1.5]])
    np.testing.assert_array_equal(clipped[1].indices, [7])
    np.testing.assert_array_equal(clipped[1].dense_shape, [10, 1])
    np.testing.assert_allclose(clipped[2], [2.0])


def test_nothing_to_clip():
    empty = []
    clipped, norm = clip_ops.clip_by_global_norm(empty, 1.0)
    assert clipped is empty
    assert norm == 0
    assert clip_ops.clip_by_global_norm([None], 1.0) == ([None], 0)


@pytest.mark.parametrize("t_list", [(1.0, 2.0), tf.constant([1.0]), "ab", None])
def test_not_a_list(t_list):
    with pytest.raises(TypeError, match=r"^t_list should be a list$"):
        clip_ops.clip_by_global_norm(t_list, 1.0)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        pytest.param([np.float32([1]), np.float64([1])], "float32, float64", id="mixed"),
        pytest.param([np.int32([1])], "int32", id="integers"),
    ],
)
def test_types_that_do_not_fit(tensors, found):
    with pytest.raises(TypeError, match=f"must be all float32 or all float64, got {found};"):
        clip_ops.clip_by_global_norm(tensors, 1.0)


@pytest.mark.parametrize("clip_norm", [-1.0, np.nan])
def test_limit_must_not_be_negative(clip_norm):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`clip_norm` must be zero or positive"
    ):
        clip_ops.clip_by_global_norm([tf.constant([1.0])], clip_norm)


def test_gpu_is_refused_when_the_graph_is_built():
    with (
        tf.Graph().as_default(),
        tf.device("/device:GPU:0"),
        pytest.raises(tf.errors.UnimplementedError, match=r"clip_by_global_norm .* CPUs only"),
    ):
        clip_ops.clip_by_global_norm([tf.constant([1.0])], 1.0)


def test_static_shapes():
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(tf.float32, [None, 3]), tf.zeros([2])]
        clipped, norm = clip_ops.clip_by_global_norm(inputs, 1.0)
        assert [t.shape.as_list() for t in clipped] == [[None, 3], [2]]
        assert norm.shape.as_list() == []


@pytest.mark.parametrize("limit", [2.0, 100.0])
def test_gradient_agrees_with_tensorflow(limit):
    x, y, clip_norm = tf.constant([1.0, -2.0]), tf.constant([[3.0]]), tf.constant(limit)
    gradients = []
    for clip in (clip_ops.clip_by_global_norm, tf.clip_by_global_norm):
        with tf.GradientTape() as tape:
            tape.watch([x, y, clip_norm])
            (clipped_x, clipped_y), norm = clip([x, y], clip_norm)
            loss = tf.reduce_sum(clipped_x * [5.0, 7.0]) + 11.0 * clipped_y[0, 0] + norm
        gradients.append(tape.gradient(loss, [x, y, clip_norm]))
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
