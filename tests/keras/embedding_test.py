"""`ml.keras.Embedding` in models of every kind: what it gives, and that `fit` trains it.

Files are in `saving_test.py`.
"""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.keras import Embedding

RNG = np.random.default_rng(0)
USERS = RNG.integers(0, 20, 64)
ITEMS = RNG.integers(0, 20, (64, 3))
LABELS = (USERS % 2).astype(np.float32)


def make_layer(dim=4, rate=0.5, **settings):
    return Embedding(dim, optimizers.SGD(rate), initializer="zeros", **settings)


def make_functional(layer):
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((3,), dtype="int32", name="item")
    rows = layer({"user": user, "item": item})
    joined = keras.layers.Concatenate()([rows["user"], rows["item"]])
    hidden = keras.layers.Dense(8, activation="tanh")(joined)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model({"user": user, "item": item}, outputs)


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.embed = layer
        self.dense = keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs):
        return self.dense(self.embed(inputs["user"]))


class Looping(keras.Model):
    def __init__(self, layer, is_vectorized=False):
        super().__init__()
        self.embed = layer
        self.dense = keras.layers.Dense(1)
        self.is_vectorized = is_vectorized

    def call(self, items):
        if self.is_vectorized:
            return self.dense(tf.vectorized_map(self.embed_one, items))
        return self.dense(tf.map_fn(self.embed_one, items, fn_output_signature=tf.float32))

    def embed_one(self, ids):
        return self.embed(ids[tf.newaxis])[0]


class TestShapes:
    @pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
    def test_dense(self, eager, dtype):
        layer = make_layer()
        call = layer if eager else tf.function(layer)
        assert call(tf.constant([1, 2], dtype)).shape == (2, 4)
        assert call(tf.constant([[1, 2, 3]], dtype)).shape == (1, 3, 4)
        assert call(tf.zeros([0, 3], dtype)).shape == (0, 3, 4)
        assert call(tf.constant([[[1], [2]]], dtype)).shape == (1, 2, 1, 4)

    def test_symbolic(self):
        layer = make_layer()
        assert layer(keras.Input((3,), dtype="int64")).shape == (None, 3, 4)
        assert layer(keras.Input((), dtype="int64")).shape == (None, 4)
        ragged = layer(keras.Input((None,), dtype="int64", ragged=True))
        assert (ragged.shape, ragged.ragged) == ((None, None, 4), True)
        combined = make_layer(combiner="sum")
        for settings in ({}, {"ragged": True}, {"sparse": True}):
            output = combined(keras.Input((3,), dtype="int64", **settings))
            assert (output.shape, output.ragged, output.sparse) == ((None, 4), False, False)
        assert combined(keras.Input((), dtype="int64")).shape == (None, 4)
        assert combined(keras.Input((2, 3), dtype="int64")).shape == (None, 2, 4)

    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    def test_dense_ragged_and_sparse_agree(self, combiner):
        layer = make_layer(1, combiner=combiner)
        layer.table.assign([1, 2, 3], [[1.0], [2.0], [4.0]])
        # (1 + 2), (), (3)
        divisors = {"sum": (1, 1), "mean": (2, 1), "sqrtn": (2**0.5, 1)}[combiner]
        expected = [3 / divisors[0], 0, 4 / divisors[1]]
        ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
        for ids in (ragged, ragged.to_sparse()):
            np.testing.assert_allclose(layer(ids).numpy()[:, 0], expected, rtol=1e-6)
        np.testing.assert_allclose(
            layer(tf.constant([[1, 2]], tf.int64)).numpy()[:, 0], expected[:1], rtol=1e-6
        )
        assert layer(tf.constant([3], tf.int64)).numpy().tolist() == [[4.0]]

    def test_without_combiner(self):
        layer = make_layer(1)
        layer.table.assign([1, 2], [[1.0], [2.0]])
        ragged = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
        assert layer(ragged).to_list() == [[[1.0], [2.0]], []]
        assert layer(ragged.to_sparse()).to_list() == [[[1.0], [2.0]], []]

    def test_strings(self):
        layer = make_layer(1)
        layer.table.assign(["a"], [[1.0]])
        assert layer(tf.constant([["a", "b"]])).numpy().tolist() == [[[1.0], [0.0]]]

    @pytest.mark.parametrize(
        "ids", [tf.constant(["a", "b"]), np.array(["a", "b"], object)], ids=["tensor", "object"]
    )
    def test_fit_takes_strings(self, ids):
        layer = make_layer()
        model = keras.Sequential([keras.Input((), dtype="string"), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ids, np.array([0.0, 1.0]), verbose=0)
        assert len(layer.table) == 2

    def test_padding(self):
        layer = make_layer(1, combiner="mean", mask_zero=True)
        layer.table.assign([1, 2], [[1.0], [3.0]])
        padded = tf.constant([[1, 2, 0], [0, 0, 0], [0, 2, 0]], tf.int64)
        assert layer(padded).numpy().tolist() == [[2.0], [0.0], [3.0]]
        rows = make_layer(mask_zero=True, table=None)
        masked = rows(padded)
        assert masked.shape == (3, 3, 4)
        assert rows.compute_mask(padded).numpy().tolist() == (padded != 0).numpy().tolist()

    def test_padding_has_no_row(self):
        for combiner in (None, "sum"):
            layer = make_layer(combiner=combiner, mask_zero=True)
            sequence = [] if combiner else [keras.layers.GRU(2)]
            model = keras.Sequential([layer, *sequence, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.array([[1, 2, 0], [3, 0, 0]]), np.ones(2), verbose=0)
            assert sorted(layer.table.ids()) == [1, 2, 3]

    def test_whole_floats(self):
        layer = make_layer(1)
        layer.table.assign([7], [[1.0]])
        assert layer(tf.constant([7.0])).numpy().tolist() == [[1.0]]
        assert tf.function(layer)(tf.constant([7.0])).numpy().tolist() == [[1.0]]
        for floats in ([0.5], [2.0**25], [float("nan")]):
            for call in (layer, tf.function(layer)):
                with pytest.raises(tf.errors.InvalidArgumentError, match="no whole numbers"):
                    call(tf.constant(floats))

    def test_large_ids_in_a_sequential_model_without_inputs(self):
        layer = make_layer()
        model = keras.Sequential([layer, keras.layers.GlobalAveragePooling1D()])
        model.compile("sgd", "mse")
        ids = np.array([[2**62, 2**62 + 1], [-(2**63), 2**24 + 1]])
        model.fit(ids, np.ones([2, 4]), verbose=0)
        assert sorted(layer.table.ids()) == sorted(ids.ravel())
        int32 = keras.Sequential([make_layer()])
        assert int32(np.array([7], np.int32)).shape == (1, 4)


class TestFeatures:
    def test_features_do_not_meet(self):
        layer = make_layer(1)
        layer.table.assign(layer.row_ids("user", [7]), [[1.0]])
        rows = layer({"user": tf.constant([7]), "item": tf.constant([[7, 8]])})
        assert rows["user"].numpy().tolist() == [[1.0]]
        assert rows["item"].numpy().tolist() == [[[0.0], [0.0]]]
        assert layer(tf.constant([7])).numpy().tolist() == [[0.0]]

    def test_features_that_share_their_rows(self):
        layer = make_layer(1, share={"history": "item"})
        layer.table.assign(layer.row_ids("item", [7]), [[1.0]])
        rows = layer({"history": tf.constant([[7]]), "item": tf.constant([7])})
        assert rows["history"].numpy().tolist() == [[[1.0]]]
        assert rows["item"].numpy().tolist() == [[1.0]]

    def test_a_list_has_one_kind_of_ids(self):
        layer = make_layer(1, combiner="sum")
        layer.table.assign([7], [[1.0]])
        ragged = tf.ragged.constant([[7, 7], []], dtype=tf.int64)
        rows = layer([tf.constant([7]), ragged, ragged.to_sparse()])
        assert [each.numpy().tolist() for each in rows] == [[[1.0]], [[2.0], [0.0]], [[2.0], [0.0]]]

    @pytest.mark.parametrize(
        ("combiner", "lookup", "update"),
        [
            (None, "MonolithHashTableLookup", "MonolithHashTableOptimize"),
            ("mean", "MonolithHashTableLookupBags", "MonolithHashTableOptimizeBags"),
        ],
    )
    def test_many_features_are_one_op(self, combiner, lookup, update):
        layer = make_layer(combiner=combiner)

        @tf.function
        def step(features):
            with tf.GradientTape() as tape:
                found = layer(features).values()
                loss = tf.add_n([tf.reduce_sum(getattr(x, "flat_values", x)) for x in found])
            (gradient,) = tape.gradient(loss, layer.trainable_variables)
            layer.table.apply_gradients(gradient)

        ragged = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
        features = {f"f{i}": ragged if i % 2 else tf.constant([3, 4]) for i in range(20)}
        graph = step.get_concrete_function(features).graph
        kinds = [each.type for each in graph.get_operations()]
        assert sum(kind.startswith("MonolithHashTableLookup") for kind in kinds) == (
            1 if combiner is None else 2  # With its gradient, whose rows nobody asks for.
        )
        assert sum(kind.startswith("MonolithHashTableOptimize") for kind in kinds) == 1
        assert kinds.count(lookup) == kinds.count(update) == 1
        step(features)
        assert len(layer.table) == 40

    def test_no_feature(self):
        with pytest.raises(errors.ConfigError, match="called without any feature"):
            make_layer()({})


class TestFit:
    @pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
    @pytest.mark.parametrize("kind", ["functional", "sequential", "subclassed"])
    def test_models_of_every_kind_learn(self, kind, eager):
        layer = make_layer(rate=5.0, combiner="sum")
        data = {"user": USERS, "item": ITEMS}
        if kind == "functional":
            model = make_functional(layer)
        elif kind == "subclassed":
            model = Subclassed(layer)
        else:
            model = keras.Sequential([layer, keras.layers.Dense(1, activation="sigmoid")])
            data = USERS
        model.compile("adam", "binary_crossentropy", metrics=["auc"], run_eagerly=eager)
        losses = model.fit(data, LABELS, epochs=15, batch_size=16, verbose=0).history["loss"]
        assert losses[-1] < 0.8 * losses[0]
        assert len(layer.table) == len(set(USERS)) + (
            len(np.unique(ITEMS)) if kind == "functional" else 0
        )
        loss, auc = model.evaluate(data, LABELS, verbose=0)
        assert loss < losses[0]
        assert auc > 0.8
        assert model.predict(data, verbose=0).shape == (64, 1)
        before = layer.table.ids().size
        model.train_on_batch(data, LABELS)
        assert layer.table.ids().size == before

    def test_a_model_of_nothing_else_learns(self):
        layer = make_layer(rate=1.0)
        model = keras.Sequential([keras.Input((), dtype="int64"), layer])
        model.compile("adam", "mse")
        model.fit(USERS, np.ones((64, 4)), batch_size=64, verbose=0)
        counts = np.bincount(USERS)
        # The mean over 64 * 4 errors of (0 - 1)^2: each occurrence of an id adds 2 / 256.
        expected = [counts[user] * 2 / 256 for user in range(20)]
        np.testing.assert_allclose(layer.table(np.arange(20)).numpy()[:, 0], expected, rtol=1e-5)

    @pytest.mark.parametrize("steps_per_execution", [1, 4])
    @pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
    def test_the_same_numbers_as_an_embedding_of_keras(self, optimizer, steps_per_execution):
        ids, ours = ITEMS, optimizers.SGD(0.1)
        theirs = keras.optimizers.SGD(0.1)
        if optimizer == "Adagrad":
            # No id twice in a batch: of such ones Keras 3 adds up the squares, not the gradients.
            ids = np.stack([RNG.permutation(48)[:48].reshape(16, 3) for _ in range(4)]).reshape(
                64, 3
            )
            ours = optimizers.Adagrad(0.1, initial_accumulator=0.1)
            theirs = keras.optimizers.Adagrad(0.1, epsilon=0.0)
        models = []
        for layer in (
            keras.layers.Embedding(48, 4, embeddings_initializer="zeros"),
            Embedding(4, ours, initializer="zeros"),
        ):
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [
                    keras.Input((3,), dtype="int64"),
                    layer,
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            copy = type(theirs).from_config(theirs.get_config())
            model.compile(copy, "mse", steps_per_execution=steps_per_execution)
            model.fit(ids, LABELS, epochs=3, batch_size=16, shuffle=False, verbose=0)
            models.append(model)
        expected = models[0].layers[0].get_weights()[0]
        assert np.any(expected != 0)
        rows = models[1].layers[0].table(np.arange(48)).numpy()
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)
        predictions = [model.predict(ids, verbose=0) for model in models]
        np.testing.assert_allclose(predictions[1], predictions[0], rtol=1e-4, atol=1e-6)

    def test_equal_ids_of_a_batch_are_one_step(self):
        layer = Embedding(1, optimizers.Adagrad(1.0), initializer="zeros", share={"b": "a"})
        with tf.GradientTape() as tape:
            rows = layer({"a": tf.constant([[7, 7]]), "b": tf.constant([7])})
            loss = tf.reduce_sum(rows["a"]) + 2 * tf.reduce_sum(rows["b"])
        optimizer = keras.optimizers.SGD(100.0)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        # g = 1 + 1 + 2, one step: 4 / sqrt(16)
        np.testing.assert_allclose(
            layer.table(layer.row_ids("a", [7])).numpy(), [[-1.0]], rtol=1e-6
        )

    def test_ragged_and_sparse_data(self):
        ragged = tf.ragged.constant([[1, 2], [], [3]] * 4, dtype=tf.int64)
        for ids, settings in ((ragged, {"ragged": True}), (ragged.to_sparse(), {"sparse": True})):
            layer = make_layer(combiner="mean")
            inputs = keras.Input((None,), dtype="int64", **settings)
            model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
            model.compile("sgd", "mse")
            data = tf.data.Dataset.from_tensor_slices((ids, np.ones(12))).batch(4)
            model.fit(data, verbose=0)
            assert sorted(layer.table.ids()) == [1, 2, 3]
            assert model.predict(data, verbose=0).shape == (12, 1)

    def test_own_loop(self):
        model = make_functional(make_layer(combiner="sum"))
        optimizer = keras.optimizers.Adam(0.01)

        @tf.function
        def step(data, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(data)[:, 0] - labels) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        step({"user": tf.constant(USERS), "item": tf.constant(ITEMS, tf.int32)}, LABELS)
        assert len(model.layers[2].table) > 0

    def test_asking_for_a_gradient_changes_nothing(self):
        layer = make_layer()
        layer.table.assign([7], [[1.0] * 4])
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(layer(tf.constant([7])) ** 2)
        for _ in range(2):
            (gradient,) = tape.gradient(loss, layer.trainable_variables)
            assert gradient.values.numpy().tolist() == [[2.0] * 4]
        assert layer.table([7]).numpy().tolist() == [[1.0] * 4]

    def test_loss_without_the_layer_is_told(self):
        layer = make_layer(combiner="sum")
        inputs = keras.Input((3,), dtype="int64")
        rows = keras.layers.Lambda(tf.stop_gradient)(layer(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(rows))
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
            model.fit(ITEMS, LABELS, verbose=0)
        assert len(layer.table) == 0

    @pytest.mark.parametrize("is_vectorized", [False, True])
    def test_a_loop_that_no_gradient_leaves_is_refused(self, is_vectorized):
        layer = make_layer(combiner="sum")
        model = Looping(layer, is_vectorized)
        model.compile("sgd", "mse")
        with pytest.raises(errors.ConfigError, match="looked up inside of a loop"):
            model.fit(ITEMS, LABELS, verbose=0)
        assert model.predict(ITEMS, verbose=0).shape == (64, 1)
        layer.trainable = False
        model.compile("sgd", "mse")
        model.fit(ITEMS, LABELS, verbose=0)

    def test_a_loop_of_python_learns(self):
        layer = make_layer(combiner="sum")
        model = Looping(layer)
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(ITEMS[:8], LABELS[:8], verbose=0)
        assert len(layer.table) == len(np.unique(ITEMS[:8]))

    def test_frozen(self):
        layer = make_layer(combiner="sum")
        model = make_functional(layer)
        model.compile("sgd", "mse")
        data = {"user": USERS, "item": ITEMS}
        model.fit(data, LABELS, verbose=0)
        ids = np.sort(layer.table.ids())
        before = layer.table(ids).numpy()
        layer.trainable = False
        model.compile("sgd", "mse")
        model.fit(data, LABELS, verbose=0)
        np.testing.assert_array_equal(layer.table(ids).numpy(), before)
        layer.trainable = True
        model.compile("sgd", "mse")
        model.fit(data, LABELS, verbose=0)
        assert not np.array_equal(layer.table(ids).numpy(), before)

    def test_admission(self):
        layer = make_layer(combiner="sum", admit_after=2)
        model = keras.Sequential([layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        sizes = []
        for _ in range(3):
            model.fit(np.array([[7], [8]]), np.ones(2), verbose=0)
            sizes.append(len(layer.table))
        assert sizes == [0, 0, 2]

    def test_schedule(self):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.0])
        layer = Embedding(1, optimizers.SGD(schedule), initializer="zeros")
        model = keras.Sequential([keras.Input((), dtype="int64"), layer])
        model.compile("sgd", "mse")
        rows = []
        for _ in range(4):
            model.fit(np.array([7]), np.array([[1.0]]), verbose=0)
            rows.append(float(layer.table([7])[0, 0]))
        # (0 - 1)^2 gives 2, (2 - 1)^2 takes it back; then the rate is 0.
        assert rows == [2.0, 0.0, 0.0, 0.0]

    def test_bfloat16(self):
        layer = make_layer(combiner="sum", dtype="mixed_bfloat16")
        assert layer(tf.constant([[7]])).dtype == tf.bfloat16
        model = make_functional(layer)
        model.compile("sgd", "mse")
        model.fit({"user": USERS, "item": ITEMS}, LABELS, verbose=0)
        assert len(layer.table) > 0

    def test_early_stopping_brings_the_best_rows_back(self):
        layer = make_layer(rate=lambda: -1.0, combiner="sum")  # Worse with every step.
        model = keras.Sequential([layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        stop = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
        rows = []
        keep = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: rows.append(layer.table([7]).numpy())
        )
        model.fit(np.array([[7]]), np.ones(1), epochs=5, callbacks=[keep, stop], verbose=0)
        assert len(rows) == 2
        np.testing.assert_array_equal(layer.table([7]).numpy(), rows[0])


class TestSharing:
    @pytest.mark.parametrize("by", ["layer", "table"])
    def test_layers_that_share_a_table(self, by):
        table = Table("shared", 4, optimizers.SGD(0.5), initializer="zeros")
        first = Embedding(table=table)
        second = Embedding(combiner="sum", table=first if by == "layer" else table)
        user, items = keras.Input((), dtype="int64"), keras.Input((3,), dtype="int64")
        joined = keras.layers.Concatenate()([first(user), second(items)])
        model = keras.Model([user, items], keras.layers.Dense(1)(joined))
        assert len(model.trainable_variables) == 3
        model.compile("sgd", "mse")
        model.fit([USERS, ITEMS], LABELS, verbose=0)
        assert len(table) == len(set(USERS) | set(ITEMS.ravel()))
        with pytest.raises(errors.ConfigError, match="shares its table with other layers"):
            keras.models.clone_model(model)

    def test_each_gradient_counts_once(self):
        first = make_layer(1, rate=1.0)
        second = Embedding(table=first)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first(tf.constant([7]))) + tf.reduce_sum(second(tf.constant([7])))
        variables = first.trainable_variables
        assert variables[0] is second.trainable_variables[0]
        gradients = tape.gradient(loss, variables)
        keras.optimizers.SGD().apply_gradients(zip(gradients, variables, strict=True))
        assert first.table([7]).numpy().tolist() == [[-2.0]]

    def test_one_layer_in_two_places_can_be_cloned(self):
        layer = make_layer(combiner="sum")
        user, items = keras.Input((), dtype="int64"), keras.Input((3,), dtype="int64")
        joined = keras.layers.Concatenate()([layer(user), layer(items)])
        model = keras.Model([user, items], keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse")
        model.fit([USERS, ITEMS], LABELS, verbose=0)
        clone = keras.models.clone_model(model)
        (cloned,) = (each for each in clone.layers if isinstance(each, Embedding))
        assert len(cloned.table) == 0
        assert cloned.table.config == layer.table.config


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Embedding(), "needs `dim`"),
            (lambda: Embedding(0), "`dim` of table"),
            (lambda: Embedding(1000, 8), r"Embedding\(8\) in place of Embedding\(1000, 8\)"),
            (lambda: Embedding(input_dim=10, output_dim=4), "no `input_dim`.* `dim` is the width"),
            (lambda: Embedding(output_dim=4), "no `output_dim`"),
            (
                lambda: Embedding(4, embeddings_initializer="zeros"),
                "no `embeddings_initializer`.* `initializer` what a new one starts with",
            ),
            (
                lambda: Embedding(4, embeddings_regularizer="l2"),
                "no `embeddings_regularizer`.* `weight_decay` of its optimizer",
            ),
            (lambda: Embedding(4, combiner="max"), "`combiner` of Embedding must be None or one"),
            (lambda: Embedding(4, keras.optimizers.Adam()), r"use ml.Adam\(0.001\) instead"),
            (lambda: Embedding(4, dtype="float16"), "cannot compute in float16"),
            (lambda: Embedding(4, dtype="mixed_float16"), "cannot compute in float16"),
            (lambda: Embedding(4, table="x"), "must be an ml.Table or another Embedding"),
            (lambda: Embedding(4, table=make_layer(3)), "has dim 4, but the rows of table"),
            (
                lambda: Embedding(optimizer=optimizers.SGD(1.0), table=make_layer(3)),
                "`optimizer` is set there",
            ),
            (lambda: Embedding(admit_after=1, table=make_layer(3)), "`admit_after` is set there"),
        ],
    )
    def test_settings(self, make, message):
        with pytest.raises(errors.ConfigError, match=message):
            make()

    def test_xla(self):
        model = make_functional(make_layer(combiner="sum"))
        with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
            model.compile("sgd", "mse", jit_compile=True)
        model.fit({"user": USERS, "item": ITEMS}, LABELS, verbose=0)
        assert len(model.layers[2].table) > 0
        compiled = tf.function(make_layer(), jit_compile=True, autograph=False)
        with pytest.raises(errors.ConfigError, match="cannot be compiled by XLA"):
            compiled(tf.constant([7]))

    def test_replicas(self):
        code = (
            "import tensorflow as tf\n"
            "cpu = tf.config.list_physical_devices('CPU')[0]\n"
            "tf.config.set_logical_device_configuration("
            "cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
            "from monolith import errors\n"
            "from monolith.keras import Embedding\n"
            "with tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1']).scope():\n"
            "    try:\n"
            "        Embedding(4)(tf.constant([7]))\n"
            "    except errors.ConfigError as e:\n"
            "        print(e)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert "cannot be used by several replicas" in done.stdout

    def test_other_backends(self):
        # None of them is installed here; what they say of themselves is enough.
        code = "import keras; keras.config.backend = lambda: 'jax'; import monolith.keras"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "ConfigError: monolith.keras is for Keras' TensorFlow backend" in done.stderr
        assert "'jax'; set the environment variable KERAS_BACKEND=tensorflow" in done.stderr
