"""The same models in Keras 2, and in Keras 2 with TensorFlow Recommenders Addons.

Its legacy optimizers update only the rows that a batch has used. A loop of steps in a
`tf.function` is its fastest way; `fit` is measured by `benchmarks.keras`.
"""

import time
from typing import Any

import tensorflow as tf

from benchmarks.criteo import workload
from benchmarks.criteo.tensorflow_input import make_dataset
from benchmarks.table.workload import ids_of

keras = tf.keras


class Keras2:
    """`keras.layers.Embedding`, an array of rows for each slot."""

    hashed = False

    def __init__(self, directory: str, most: int, network: str, threads: int) -> None:
        del threads  # `TF_NUM_INTRAOP_THREADS` says it.
        self._rows = workload.make_cardinalities(most)
        self._model = self._make_model(network)
        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self._optimizer = self.make_optimizer()
        path = workload.path_of(directory, self.hashed)
        self._batches = iter(make_dataset(path))
        self._train = tf.function(self._steps)

    def make_layer(self, slot: int, rows: int) -> Any:
        """Returns the embedding of a slot."""
        del slot
        return keras.layers.Embedding(rows, workload.DIM, embeddings_initializer="zeros")

    def fill(self, layer: Any, slot: int, rows: int) -> None:
        """Writes the first rows of a slot."""
        for places, values in workload.initial_rows(slot, rows):
            # In place: a table of 10^7 rows is not copied for it.
            layer.embeddings[int(places[0]) : int(places[-1]) + 1].assign(values)

    def make_optimizer(self) -> Any:
        """Returns Adagrad for all variables."""
        return keras.optimizers.legacy.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )

    def _make_model(self, network: str) -> Any:
        slots = [
            keras.Input((), workload.BATCH, dtype=tf.int64, name=f"c{slot}")
            for slot in range(workload.SLOTS)
        ]
        numbers = keras.Input((workload.NUMBERS,), workload.BATCH, name="numbers")
        layers = [self.make_layer(slot, rows) for slot, rows in enumerate(self._rows)]
        found = [layer(ids) for layer, ids in zip(layers, slots, strict=True)]
        inputs = keras.layers.Concatenate()([*found, numbers])
        dense, crossed = [], inputs
        for _ in range(workload.CROSSES if network == workload.DCN else 0):
            dense.append(keras.layers.Dense(workload.CROSS_RANK, use_bias=False))
            dense.append(keras.layers.Dense(workload.WIDTH))
            crossed = inputs * dense[-1](dense[-2](crossed)) + crossed
        hidden = inputs
        for units in workload.HIDDEN:
            dense.append(keras.layers.Dense(units, "relu"))
            hidden = dense[-1](hidden)
        if network == workload.DCN:
            hidden = keras.layers.Concatenate()([crossed, hidden])
        dense.append(keras.layers.Dense(1))
        model = keras.Model([*slots, numbers], dense[-1](hidden))
        for name, layer in zip(workload.layer_names(network), dense, strict=True):
            layer.kernel.assign(workload.initial_weight(name, tuple(layer.kernel.shape)))
        for slot, (layer, rows) in enumerate(zip(layers, self._rows, strict=True)):
            self.fill(layer, slot, rows)
        return model

    def _steps(self, count: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            batch = next(self._batches)
            labels = batch.pop("label")[:, tf.newaxis]
            with tf.GradientTape() as tape:
                loss = self._loss(labels, self._model(batch, training=True))
            variables = self._model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def learn(self, steps: int) -> float:
        """Trains so many steps; returns the loss of the last."""
        return float(self._train(tf.constant(steps)))

    def run(self, seconds: float) -> tuple[int, float]:
        """Trains for at least that long; returns steps and seconds."""
        steps, per_call, start = 0, 5, time.perf_counter()
        while True:
            self.learn(per_call)
            steps += per_call
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return steps, elapsed


class Tfra(Keras2):
    """Cuckoo tables, ids of 64 bits."""

    hashed = True

    def make_layer(self, slot: int, rows: int) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.keras.layers.BasicEmbedding(
            workload.DIM,
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            initializer=keras.initializers.Zeros(),
            init_capacity=rows,
            name=f"table_{slot}",
        )

    def fill(self, layer: Any, slot: int, rows: int) -> None:
        for places, values in workload.initial_rows(slot, rows):
            layer.params.upsert(tf.constant(ids_of(places)), tf.constant(values))

    def make_optimizer(self) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.DynamicEmbeddingOptimizer(super().make_optimizer())
