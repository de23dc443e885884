"""One model in Keras, with the embedding layer of each contender.

Runs in two environments: with Keras 3 (ours), and with Keras 2, `tf_keras`, for TensorFlow
Recommenders Addons, and for the legacy optimizers, which update only the rows that a batch uses.
"""

import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.keras import workload
from benchmarks.keras.workload import Batches, Feature

keras = tf.keras


class Contender:
    """`keras.layers.Embedding`, an array of rows for each kind of ids.

    Args:
        features: The columns of the model.
    """

    def __init__(self, features: list[Feature]) -> None:
        self._features = features
        self._models: dict[str, Any] = {}
        self._speeds: dict[str, float] = {}

    def make_inputs(self, batches: Batches) -> dict[str, np.ndarray]:
        """Returns ids by feature."""
        return {f.name: batches.numbers[f.name] % f.rows for f in self._features}

    def look_up(self, inputs: dict[str, Any]) -> list[Any]:
        """Returns the embeddings of all features, `[batch, dim]` each."""
        layers = {f.kind: f.rows for f in self._features}
        layers = {kind: self.make_layer(kind, rows) for kind, rows in layers.items()}
        found = []
        for feature in self._features:
            rows = layers[feature.kind](inputs[feature.name])
            found.append(keras.layers.GlobalAveragePooling1D()(rows) if feature.length else rows)
        return found

    def make_layer(self, name: str, rows: int) -> Any:
        """Returns the layer of one kind of ids."""
        del name
        return keras.layers.Embedding(rows, workload.DIM)

    def make_logits(self, hidden: Any) -> Any:
        """Returns the outputs of the layers behind the embeddings."""
        for units in workload.HIDDEN:
            hidden = keras.layers.Dense(units, activation="relu")(hidden)
        return keras.layers.Dense(1)(hidden)

    def make_optimizer(self) -> Any:
        """Returns Adagrad, whose squares start at the same value everywhere."""
        return keras.optimizers.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )

    def make_model(self, steps_per_execution: int) -> Any:
        keras.utils.set_random_seed(1)
        inputs = {
            f.name: keras.Input((f.length,) if f.length else (), dtype="int64", name=f.name)
            for f in self._features
        }
        joined = keras.layers.Concatenate()(self.look_up(inputs))
        model = keras.Model(inputs, self.make_logits(joined))
        model.compile(
            self.make_optimizer(),
            keras.losses.BinaryCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
        return model

    def make_dataset(self, batches: Batches) -> tf.data.Dataset:
        arrays = (self.make_inputs(batches), batches.labels[..., None])
        return tf.data.Dataset.from_tensor_slices(arrays).prefetch(tf.data.AUTOTUNE)

    def run(self, batches: Batches, way: str, seconds: float) -> dict[str, float]:
        """Fits for about that long; returns steps per second, without the start of `fit`."""
        steps_per_execution = workload.WAYS[way]
        if way not in self._models:
            self._models[way] = self.make_model(steps_per_execution)
        times = _Times()
        executions = max(4, round(self._speeds.get(way, 100) * seconds / steps_per_execution))
        history = self._models[way].fit(
            self.make_dataset(batches).repeat(),
            steps_per_epoch=executions * steps_per_execution,
            callbacks=[times],
            verbose=0,
        )
        steps = (len(times.ends) - 1) * steps_per_execution
        self._speeds[way] = steps / (times.ends[-1] - times.ends[0])
        return {
            "steps_per_sec": self._speeds[way],
            "cpu_ms_per_step": 1000 * (times.cpus[-1] - times.cpus[0]) / steps,
            "loss": history.history["loss"][-1],
        }

    def learn(self, batches: Batches) -> float:
        """Fits a new model to all but the last batches, in order; returns the AUC on these."""
        taught = batches.part(0, workload.TAUGHT_BATCHES)
        asked = batches.part(workload.TAUGHT_BATCHES, len(batches.labels))
        model = self.make_model(workload.WAYS["fit, 50 steps per execution"])
        model.fit(self.make_dataset(taught), epochs=workload.EPOCHS, verbose=0)
        scores = model.predict(self.make_dataset(asked), verbose=0)
        return workload.auc(asked.labels, scores)


class OurEmbedding(Contender):
    """Tables without collisions, ids of 64 bits, one layer and one op for all features."""

    def make_inputs(self, batches: Batches) -> dict[str, np.ndarray]:
        return {f.name: batches.ids[f.name] for f in self._features}

    def look_up(self, inputs: dict[str, Any]) -> list[Any]:
        import monolith as ml

        layer = ml.keras.Embedding(
            workload.DIM,
            ml.Adagrad(workload.LEARNING_RATE, workload.INITIAL_ACCUMULATOR),
            "mean",
            share={f.name: f.kind for f in self._features if f.name != f.kind},
        )
        return list(layer(inputs).values())


class Ours(OurEmbedding):
    """With layers in one op as well."""

    def make_logits(self, hidden: Any) -> Any:
        import monolith as ml

        return ml.keras.MLP([*workload.HIDDEN, 1])(hidden)


class NoEmbedding(Ours):
    """Only the network, on numbers made of the ids: what no embedding can be faster than."""

    def look_up(self, inputs: dict[str, Any]) -> list[Any]:
        ones = keras.ops.ones((1, workload.DIM))
        found = []
        for feature in self._features:
            ids = inputs[feature.name][:, 0] if feature.length else inputs[feature.name]
            found.append(keras.ops.cast(ids, "float32")[:, None] * 2.0**-63 * ones)
        return found


class SparseKeras2(Contender):
    """Its legacy optimizers update the rows of a batch, and no others."""

    def make_optimizer(self) -> Any:
        return keras.optimizers.legacy.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )


class Tfra(SparseKeras2):
    """Cuckoo tables, ids of 64 bits."""

    make_inputs = Ours.make_inputs

    def make_layer(self, name: str, rows: int) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.keras.layers.BasicEmbedding(
            workload.DIM,
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            initializer=keras.initializers.RandomUniform(),
            init_capacity=rows,
            name=f"{name}_{len(self._models)}_{rows}",
        )

    def make_optimizer(self) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.DynamicEmbeddingOptimizer(super().make_optimizer())


class _Times(keras.callbacks.Callback):
    """When each call of the train function had ended, and how long CPUs had worked until then."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.cpus: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())
        self.cpus.append(time.process_time())
