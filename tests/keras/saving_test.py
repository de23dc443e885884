"""Models with `ml.keras.Embedding` in files: `save`, `save_weights`, `export`, checkpoints."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.keras import Embedding

RNG = np.random.default_rng(0)
DATA = {"user": RNG.integers(0, 20, 32), "item": RNG.integers(0, 20, (32, 3))}
LABELS = RNG.integers(0, 2, 32).astype(np.float32)


def make_model(layer=None):
    layer = layer or Embedding(4, optimizers.Adagrad(0.1), "mean", initializer="zeros")
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "item": keras.Input((3,), dtype="int64", name="item"),
    }
    rows = layer(inputs)
    joined = keras.layers.Concatenate()([rows["user"], rows["item"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def find_layers(model):
    return [layer for layer in model.layers if isinstance(layer, Embedding)]


def assert_same(first, second, data=DATA):
    for _ in range(2):  # Also after one more step, which needs the state of the optimizers.
        np.testing.assert_allclose(
            second.predict(data, verbose=0), first.predict(data, verbose=0), rtol=1e-6
        )
        for model in (first, second):
            model.train_on_batch(data, LABELS)


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = Embedding(4, optimizers.Adam(0.1), "sum", initializer="zeros")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        rows = self.embed(inputs)
        return self.dense(rows["user"] + rows["item"])


def make_subclassed():
    model = Subclassed()
    model.compile("adam", "mse")
    return model


def make_sequential():
    layer = Embedding(4, optimizers.FTRL(0.1), "sqrtn", initializer="zeros")
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("make", "data"),
    [(make_model, DATA), (make_subclassed, DATA), (make_sequential, DATA["item"])],
    ids=["functional", "subclassed", "sequential"],
)
class TestFiles:
    def test_save_and_load_model(self, tmp_path, make, data):
        model = make()
        model.fit(data, LABELS, epochs=2, verbose=0)
        model.save(tmp_path / "m.keras")
        assert_same(model, keras.models.load_model(tmp_path / "m.keras"), data)

    def test_save_and_load_weights(self, tmp_path, make, data):
        model = make()
        model.fit(data, LABELS, epochs=2, verbose=0)
        model.save_weights(tmp_path / "m.weights.h5")
        other = make()
        other.fit(data, LABELS, verbose=0)
        other.load_weights(tmp_path / "m.weights.h5")
        np.testing.assert_allclose(
            other.predict(data, verbose=0), model.predict(data, verbose=0), rtol=1e-6
        )


def test_loaded_in_another_process(tmp_path):
    model = make_model()
    model.fit(DATA, LABELS, verbose=0)
    model.save(tmp_path / "m.keras")
    np.savez("data.npz", **DATA)
    program = f"""
        import keras
        import numpy as np
        import monolith.keras
        model = keras.models.load_model({str(tmp_path / "m.keras")!r})
        np.save("predictions.npy", model.predict(dict(np.load("data.npz")), verbose=0))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    np.testing.assert_allclose(
        np.load("predictions.npy"), model.predict(DATA, verbose=0), rtol=1e-6
    )


def test_counts_of_ids_without_a_row_survive(tmp_path):
    layer = Embedding(4, optimizers.SGD(0.1), "sum", admit_after=1)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.array([[7]]), np.ones(1), verbose=0)
    assert len(layer.table) == 0
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    loaded.fit(np.array([[7], [8]]), np.ones(2), verbose=0)
    assert loaded.layers[0].table.ids().tolist() == [7]


def test_schedule_goes_on(tmp_path):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.0])
    layer = Embedding(1, optimizers.SGD(schedule), initializer="zeros")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile("sgd", "mse")
    model.fit(np.array([7]), np.array([[1.0]]), verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for _ in range(3):
        loaded.fit(np.array([7]), np.array([[1.0]]), verbose=0)
    # Rate 1 twice, 0 -> 2 -> 0, then 0.
    assert loaded.layers[0].table([7]).numpy().tolist() == [[0.0]]


def test_shared_tables_stay_shared(tmp_path):
    first = Embedding(4, optimizers.Adagrad(0.1), initializer="zeros")
    second = Embedding(combiner="mean", table=first)
    user, item = keras.Input((), dtype="int64"), keras.Input((3,), dtype="int64")
    joined = keras.layers.Concatenate()([first(user), second(item)])
    model = keras.Model([user, item], keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    data = [DATA["user"], DATA["item"]]
    model.fit(data, LABELS, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    one, two = find_layers(loaded)
    assert one.table is two.table
    assert len(loaded.trainable_variables) == 3
    assert_same(model, loaded, data)


def test_settings_survive(tmp_path):
    layer = Embedding(
        4,
        optimizers.Adam(0.1, beta2=0.5),
        "sum",
        initializer=0.25,
        admit_after=3,
        expire_after_days=30,
        compressor="fp16",
        mask_zero=True,
        share={"item": "user"},
        name="rows",
    )
    copy = Embedding.from_config(layer.get_config())
    make_model(layer).save(tmp_path / "m.keras")
    (loaded,) = find_layers(keras.models.load_model(tmp_path / "m.keras"))
    for other in (copy, loaded):
        assert other.table is not layer.table
        assert other.table.config == layer.table.config
        assert (other.combiner, other.mask_zero, other.share) == ("sum", True, {"item": "user"})
        assert other.name == "rows"


def test_json():
    model = make_model()
    copy = keras.models.model_from_json(model.to_json())
    assert find_layers(copy)[0].table.config == find_layers(model)[0].table.config


def test_weights_of_another_layer(tmp_path):
    model = keras.Sequential([keras.Input((), dtype="int64"), keras.layers.Embedding(20, 4)])
    model.save_weights(tmp_path / "m.weights.h5")
    other = keras.Sequential([keras.Input((), dtype="int64"), Embedding(4)])
    with pytest.raises((errors.DataError, ValueError)):
        other.load_weights(tmp_path / "m.weights.h5")


def test_files_that_hold_arrays_only_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64"), Embedding(4, combiner="sum")])
    model.compile("sgd", "mse")
    with pytest.raises(errors.ConfigError, match=r"save it as a .keras file"):
        model.save(tmp_path / "model.h5")


def test_weights_of_another_dim(tmp_path):
    model = keras.Sequential([keras.Input((), dtype="int64"), Embedding(4)])
    model.save_weights(tmp_path / "m.weights.h5")
    other = keras.Sequential([keras.Input((), dtype="int64"), Embedding(5)])
    with pytest.raises((errors.DataError, ValueError), match="holds a table of dim 4"):
        other.load_weights(tmp_path / "m.weights.h5")


class TestExport:
    def test_serves_in_another_process(self, tmp_path):
        model = make_model()
        model.fit(DATA, LABELS, verbose=0)
        model.export(tmp_path / "export", verbose=False)
        np.savez("data.npz", **DATA)
        program = f"""
            import numpy as np
            import tensorflow as tf
            import monolith.keras
            loaded = tf.saved_model.load({str(tmp_path / "export")!r})
            data = {{name: tf.constant(ids) for name, ids in np.load("data.npz").items()}}
            np.save("predictions.npy", loaded.serve(data).numpy())
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
        np.testing.assert_allclose(
            np.load("predictions.npy"), model.predict(DATA, verbose=0), rtol=1e-6
        )

    def test_the_model_goes_on(self, tmp_path):
        model = make_model()
        model.fit(DATA, LABELS, verbose=0)
        model.export(tmp_path / "export", verbose=False)
        served = tf.saved_model.load(tmp_path / "export")
        data = {name: tf.constant(ids) for name, ids in DATA.items()}
        before = served.serve(data).numpy()
        model.fit(DATA, LABELS, verbose=0)
        np.testing.assert_array_equal(served.serve(data).numpy(), before)
        assert not np.allclose(model.predict(DATA, verbose=0), before)


def test_checkpoints_of_tensorflow(tmp_path):
    model, other = make_model(), make_model()
    model.fit(DATA, LABELS, verbose=0)
    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(model=other).restore(saved).expect_partial()
    np.testing.assert_allclose(
        other.predict(DATA, verbose=0), model.predict(DATA, verbose=0), rtol=1e-6
    )


def test_callbacks_that_save(tmp_path):
    model = make_model()
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    model.fit(DATA, LABELS, epochs=2, callbacks=[keep], verbose=0)
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert len(find_layers(loaded)[0].table) == len(find_layers(model)[0].table)


@pytest.mark.parametrize("mask_zero", [False, True])
def test_export_of_ragged_inputs_is_refused_where_padding_would_count(mask_zero, tmp_path):
    ids = keras.Input((None,), dtype="int64", ragged=True)
    embed = Embedding(2, optimizers.SGD(1.0), "mean", mask_zero=mask_zero)
    model = keras.Model(ids, keras.layers.Dense(1)(embed(ids)))
    embed.table.assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    if not mask_zero:
        with pytest.raises(errors.ConfigError, match="hand keras"):
            model.export(tmp_path / "served", verbose=False)
        return
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    padded = served.serve(tf.constant([[1, 2], [1, 0]], tf.int64))
    ragged = model(tf.ragged.constant([[1, 2], [1]], dtype=tf.int64))
    np.testing.assert_allclose(padded, ragged, rtol=1e-6)
