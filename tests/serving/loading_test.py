"""Calling an exported model from Python."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.serving.loading import import_saved_model

pytestmark = pytest.mark.usefixtures("graph_mode")


def save(path, factor=2.0) -> None:
    """Saves a model with the signatures x -> output, and (x, y) -> sum and product."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        y = tf.compat.v1.placeholder(tf.float32, [None])
        w = tf.compat.v1.get_variable("w", initializer=factor)
        session.run(tf.compat.v1.global_variables_initializer())
        make_signature = tf.compat.v1.saved_model.predict_signature_def
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                "serving_default": make_signature({"x": x}, {"output": w * x}),
                "both": make_signature({"x": x, "y": y}, {"sum": x + y, "product": x * y}),
            },
        )
        builder.save()


@pytest.fixture
def exported(tmp_path):
    save(tmp_path / "models" / "9", factor=2.0)
    save(tmp_path / "models" / "10", factor=3.0)
    return tmp_path / "models"


def test_newest_version(exported):
    with import_saved_model(str(exported)) as infer:
        np.testing.assert_array_equal(infer([1.0, 2.0])["output"], [3.0, 6.0])
        np.testing.assert_array_equal(infer({"x": [4.0]})["output"], [12.0])


def test_one_version(exported):
    with import_saved_model(str(exported / "9").encode()) as infer:
        np.testing.assert_array_equal(infer([1.0])["output"], [2.0])


def test_directory_of_a_model_without_version(tmp_path):
    save(tmp_path / "model")
    with import_saved_model(str(tmp_path / "model")) as infer:
        np.testing.assert_array_equal(infer([1.0])["output"], [2.0])


def test_several_inputs_and_all_outputs(exported):
    with import_saved_model(str(exported), output_name=None, signature="both") as infer:
        results = infer({"x": [2.0], "y": [5.0]})
    assert results == {"sum": [7.0], "product": [10.0]}


def test_chosen_output(exported):
    with import_saved_model(str(exported), output_name="sum", signature="both") as infer:
        assert infer({"x": [2.0], "y": [5.0]}) == {"sum": [7.0]}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": [1.0]}, "needs the inputs x, y; y is missing"),
        ({"x": [1.0], "z": [1.0]}, "has no input 'z'; it has x, y"),
        ([1.0], "has no input 'instances'; it has x, y"),
    ],
)
def test_bad_features(exported, features, message):
    with (
        import_saved_model(str(exported), output_name="sum", signature="both") as infer,
        pytest.raises(errors.ConfigError, match=message),
    ):
        infer(features)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"signature": "best"}, "has no signature 'best'; it has "),
        ({"output_name": "pred"}, "has no output 'pred'; it has output"),
    ],
)
def test_bad_names(exported, settings, message):
    with (
        pytest.raises(errors.ConfigError, match=message),
        import_saved_model(str(exported), **settings),
    ):
        pass


@pytest.mark.parametrize("name", ["", "missing"])
def test_no_models(tmp_path, name):
    with pytest.raises(RuntimeError, match="no models in dir"), import_saved_model(tmp_path / name):
        pass
