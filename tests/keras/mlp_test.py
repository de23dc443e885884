"""`ml.keras.MLP`: computes, learns and saves what `keras.layers.Dense` in a row do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import monolith as ml
from monolith import errors

RNG = np.random.default_rng(3)
INPUTS = RNG.normal(size=(6, 5)).astype(np.float32)
LABELS = RNG.normal(size=(6, 1)).astype(np.float32)


def make_dense(like: ml.keras.MLP, inputs=INPUTS) -> keras.Sequential:
    """Returns plain layers with the same weights, for such inputs."""
    settings = [layer.get_config() for layer in like.layers]
    plain = keras.Sequential([keras.layers.Dense.from_config(config) for config in settings])
    plain.build((None, *inputs.shape[1:]))
    plain.set_weights(like.get_weights())
    return plain


def make_mlp(*args, **kwargs) -> ml.keras.MLP:
    mlp = ml.keras.MLP(*args, **kwargs)
    mlp.build((None, INPUTS.shape[-1]))
    mlp.set_weights([RNG.normal(size=weight.shape) / 3 for weight in mlp.get_weights()])
    return mlp


def list_ops(function, *args) -> set[str]:
    graph = tf.function(function).get_concrete_function(*args).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"use_bias": False}, id="no_bias"),
        pytest.param({"output_activation": "relu"}, id="relu_at_the_end"),
        pytest.param({"activation": "tanh", "output_activation": "sigmoid"}, id="other_functions"),
        pytest.param({"dtype": "float64"}, id="float64"),
    ],
)
@pytest.mark.parametrize("inputs", [INPUTS, INPUTS[None], INPUTS[:0]], ids=["2d", "3d", "empty"])
def test_equals_dense_layers(settings, inputs):
    mlp = make_mlp([4, 3, 1], **settings)
    plain = make_dense(mlp, inputs)
    results = []
    for model in (mlp, plain):
        variable = tf.Variable(inputs)
        with tf.GradientTape() as tape:
            outputs = model(variable)
            loss = tf.reduce_sum(tf.square(outputs + 1))
        # Weights of Keras are variables of TensorFlow inside.
        weights = [weight.value for weight in model.trainable_variables]
        results.append([outputs, *tape.gradient(loss, [variable, *weights])])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_is_one_op():
    mlp = make_mlp([4, 3, 1])
    found = list_ops(mlp, tf.constant(INPUTS))
    assert "MonolithMlp" in found
    assert not found & {"MatMul", "_FusedMatMul", "Relu", "BiasAdd"}
    assert "MonolithMlp" not in list_ops(mlp, tf.constant(INPUTS[None]))
    assert "MonolithMlp" not in list_ops(make_mlp([4, 1], "gelu"), tf.constant(INPUTS))


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
def test_fit_learns_what_dense_layers_learn(run_eagerly):
    mlp = make_mlp([4, 1])
    trained = []
    for model in (keras.Sequential([mlp]), make_dense(mlp)):
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=run_eagerly)
        model.fit(INPUTS, LABELS, batch_size=6, epochs=5, verbose=0)
        trained.append(model.get_weights())
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_mixed_precision():
    mlp = ml.keras.MLP([4, 1], dtype="mixed_bfloat16")
    outputs = mlp(INPUTS)
    assert outputs.dtype == tf.bfloat16
    assert {weight.dtype for weight in mlp.weights} == {"float32"}


def test_regularizer():
    mlp = make_mlp([4, 1], kernel_regularizer=keras.regularizers.L2(0.5))
    mlp(INPUTS)
    expected = [0.5 * np.sum(np.square(layer.kernel)) for layer in mlp.layers]
    np.testing.assert_allclose(sum(mlp.losses), sum(expected), rtol=1e-5)


def test_layers_start_with_different_numbers():
    mlp = ml.keras.MLP([5, 5], kernel_initializer=keras.initializers.RandomNormal())
    mlp.build((None, 5))
    first, second = (layer.kernel.numpy() for layer in mlp.layers)
    assert not np.array_equal(first, second)


def test_saved_and_loaded(tmp_path):
    inputs = keras.Input((5,))
    model = keras.Model(inputs, ml.keras.MLP([4, 1], "tanh", "sigmoid", name="tower")(inputs))
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.get_layer("tower").get_config() == model.get_layer("tower").get_config()
    np.testing.assert_allclose(loaded(INPUTS), model(INPUTS), rtol=1e-6)


def test_exported(tmp_path):
    inputs = keras.Input((5,))
    model = keras.Model(inputs, ml.keras.MLP([4, 1])(inputs))
    model.export(str(tmp_path / "exported"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(served.serve(INPUTS), model(INPUTS), rtol=1e-6)


def test_behind_an_embedding():
    model = keras.Sequential([ml.keras.Embedding(4, ml.Adagrad(0.1), "mean"), ml.keras.MLP([8, 1])])
    model.compile("adam", "mse")
    ids = RNG.integers(0, 2**40, (64, 3))
    history = model.fit(ids, ids[:, :1] % 2, epochs=30, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    assert len(model.layers[0].table) == len(np.unique(ids))


@pytest.mark.parametrize(
    ("units", "message"),
    [
        pytest.param([], "must be a list with one width for each layer", id="none"),
        pytest.param(256, "must be a list with one width for each layer", id="number"),
        pytest.param([256, 0], "must be a positive integer, got 0", id="zero"),
        pytest.param([True], "must be a positive integer, got True", id="bool"),
    ],
)
def test_bad_units(units, message):
    with pytest.raises(errors.ConfigError, match=message):
        ml.keras.MLP(units)
