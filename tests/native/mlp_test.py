"""The op of fully connected layers and its gradients, against the same formulas in TensorFlow's."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from monolith.native import ops

Layers = list[tuple[tf.Tensor, tf.Tensor, bool]]


def make_layers(batch: int, widths: list[int], relu: list[bool]) -> tuple[tf.Tensor, Layers]:
    """Returns inputs, and for each layer its kernel, its bias and whether it ends in ReLU."""
    rng = np.random.default_rng(7)

    def make(*shape: int) -> tf.Tensor:
        return tf.constant(rng.normal(size=shape), tf.float32)

    sizes = zip(widths[:-1], widths[1:], relu, strict=True)
    return make(batch, widths[0]), [(make(dim, n), make(n), r) for dim, n, r in sizes]


def fused(inputs: tf.Tensor, layers: Layers) -> tf.Tensor:
    kernels, biases, relu = (list(part) for part in zip(*layers, strict=True))
    return ops.monolith_mlp(inputs, kernels, biases, relu=relu)[-1]


def plain(inputs: tf.Tensor, layers: Layers) -> tf.Tensor:
    for kernel, bias, relu in layers:
        inputs = tf.matmul(inputs, kernel) + bias
        inputs = tf.nn.relu(inputs) if relu else inputs
    return inputs


def variables(inputs: tf.Tensor, layers: Layers) -> list[tf.Tensor]:
    return [inputs, *[tensor for layer in layers for tensor in layer[:2]]]


@pytest.mark.parametrize(
    ("batch", "widths", "relu"),
    [
        pytest.param(512, [64, 256], [True], id="wide"),
        pytest.param(512, [256, 64], [False], id="deep"),
        pytest.param(100, [33, 1], [False], id="logits"),
        pytest.param(7, [500, 17], [True], id="odd_sizes"),
        pytest.param(0, [4, 3, 2], [True, False], id="empty_batch"),
        pytest.param(100, [64, 100, 40, 1], [True, True, False], id="tower"),
        pytest.param(49, [5, 130, 17, 6], [False, True, True], id="linear_first"),
        pytest.param(13, [3, 4, 5, 6], [False, False, False], id="all_linear"),
    ],
)
class TestAgainstTensorFlow:
    def test_outputs_and_gradients(self, batch, widths, relu):
        inputs, layers = make_layers(batch, widths, relu)
        size = [batch, widths[-1]]
        weights = tf.constant(np.random.default_rng(8).normal(size=size), tf.float32)
        results = []
        for function in (fused, plain):
            with tf.GradientTape() as tape:
                tape.watch(variables(inputs, layers))
                outputs = function(inputs, layers)
                loss = tf.reduce_sum(outputs * weights)
            results.append([outputs, *tape.gradient(loss, variables(inputs, layers))])
        for mine, expected in zip(*results, strict=True):
            # Sums of up to `batch` products, in another order.
            scale = 1 + np.abs(expected).max(initial=0)
            np.testing.assert_allclose(mine / scale, expected / scale, atol=1e-5)

    def test_second_gradients(self, batch, widths, relu):
        inputs, layers = make_layers(batch, widths, relu)
        watched = variables(inputs, layers)
        results = []
        for function in (fused, plain):
            with tf.GradientTape() as outer:
                outer.watch(watched)
                with tf.GradientTape() as inner:
                    inner.watch(watched)
                    loss = tf.reduce_sum(function(inputs, layers) ** 2)
                gradients = inner.gradient(loss, watched)
                penalty = tf.add_n([tf.reduce_mean(g**2) for g in gradients[1:]])
            results.append(outer.gradient(penalty, watched))
        for mine, expected in zip(*results, strict=True):
            scale = 1 + np.abs(expected).max(initial=0)
            np.testing.assert_allclose(mine / scale, expected / scale, atol=1e-5)


def test_hidden_outputs_are_those_of_their_layers():
    inputs, layers = make_layers(20, [3, 8, 4], [True, False])
    kernels, biases, relu = (list(part) for part in zip(*layers, strict=True))
    hidden, _ = ops.monolith_mlp(inputs, kernels, biases, relu=relu)
    np.testing.assert_allclose(hidden, plain(inputs, layers[:1]), rtol=1e-5, atol=1e-5)


def test_without_bias():
    inputs, [(kernel, _, _)] = make_layers(5, [4, 3], [False])
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        [outputs] = ops.monolith_mlp(inputs, [kernel], [tf.zeros([0])], relu=[False])
        loss = tf.reduce_sum(outputs)
    np.testing.assert_allclose(outputs, tf.matmul(inputs, kernel), rtol=1e-5, atol=1e-6)
    expected = np.repeat(np.sum(inputs, axis=0)[:, None], 3, axis=1)
    np.testing.assert_allclose(tape.gradient(loss, kernel), expected, rtol=1e-5, atol=1e-6)


def test_nan_is_not_hidden_by_relu():
    """The check of the loss would miss a model that has diverged."""
    [outputs] = ops.monolith_mlp([[np.nan], [1.0]], [[[1.0]]], [[0.0]], relu=[True])
    assert np.isnan(outputs[0, 0])
    assert outputs[1, 0] == 1


def test_results_do_not_depend_on_threads():
    inputs, layers = make_layers(512, [64, 256, 64, 1], [True, True, False])
    with tf.Graph().as_default():
        constants = [(tf.constant(k.numpy()), tf.constant(b.numpy()), r) for k, b, r in layers]
        rows = tf.constant(inputs.numpy())
        outputs = fused(rows, constants)
        fetches = [outputs, *tf.gradients(outputs, variables(rows, constants))]
        results = []
        for threads in (1, 2, 5):
            config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            with tf.compat.v1.Session(config=config) as session:
                results.append(session.run(fetches))
    for other in results[1:]:
        for mine, expected in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, expected)


ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Threads that come later have it, too.
import tensorflow as tf
from monolith.native import ops

tf.config.threading.set_intra_op_parallelism_threads(2)

rows, kernel, bias = tf.ones([64, 256]), tf.ones([256, 256]) / 256, tf.zeros([256])
for _ in range(5000):
    [rows] = ops.monolith_mlp(rows, [kernel], [bias], relu=[True])
print(rows.numpy().mean())
"""


def test_goes_on_where_helpers_never_get_a_core():
    """Each op calls a helper that comes when the op is over; they must not pile up."""
    run = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "1.0", run.stderr


@pytest.mark.parametrize(
    ("inputs", "kernel", "bias", "message"),
    [
        pytest.param([2, 3], [4, 5], [5], r"layer 0 must be \[3, units\].* got \[4,5\]", id="dims"),
        pytest.param([2], [2, 5], [5], r"must be \[batch, dim\], got \[2\]", id="a_vector"),
        pytest.param([2, 3], [3, 5], [4], "must have 5 elements or none, got", id="bias"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(inputs, kernel, bias, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_mlp(tf.zeros(inputs), [tf.zeros(kernel)], [tf.zeros(bias)], relu=[True])


def test_relu_for_each_layer():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one value for each of 1 layers"):
        ops.monolith_mlp(tf.zeros([2, 3]), [tf.zeros([3, 5])], [tf.zeros([5])], relu=[])


@pytest.mark.parametrize(
    ("outputs", "grad", "message"),
    [
        ([2, 5], [2, 4], r"`grad` must have the shape \[2,5\]"),
        ([1, 5], [2, 5], r"`outputs\[0\]` must have the shape \[2,5\]"),
    ],
)
def test_gradient_refuses_shapes_that_do_not_fit(outputs, grad, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_mlp_gradient(
            tf.zeros([2, 3]),
            [tf.zeros([3, 5])],
            [tf.zeros([5])],
            [tf.zeros(outputs)],
            tf.zeros(grad),
            relu=[True],
        )


def test_static_shape():
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, [None, 3])
        layers = [(tf.zeros([3, 5]), tf.zeros([5]), True), (tf.zeros([5, 2]), tf.zeros([2]), False)]
        outputs = fused(inputs, layers)
        assert outputs.shape.as_list() == [None, 2]
        gradients = tf.gradients(outputs, [inputs])
        assert gradients[0].shape.as_list() == [None, 3]
