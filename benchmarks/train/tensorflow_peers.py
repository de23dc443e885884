"""The same model in Keras, and in Keras with TensorFlow Recommenders Addons.

Runs in two environments: with Keras 3 (ours), and with Keras 2, `tf_keras`, whose legacy optimizers
update only the rows of an embedding that a batch has used.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.train import workload

keras = tf.keras


class Peer:
    """A Keras model, trained in the ways that Keras offers."""

    # One function with a loop over steps, or `Model.fit` with `steps_per_execution`.
    ways = ("tf.function", "fit")

    def __init__(self, batches: workload.Batches, users: int) -> None:
        self._users = users
        arrays = (self.inputs_of(batches), batches.labels[..., None])
        dataset = tf.data.Dataset.from_tensor_slices(arrays).repeat()
        self._dataset = dataset.prefetch(tf.data.AUTOTUNE)
        user, movie = (keras.Input((), dtype=tf.int64) for _ in range(2))
        layers = [self.make_embedding(users)(user), self.make_embedding(workload.MOVIES)(movie)]
        hidden = keras.layers.Concatenate()(layers)
        for units in workload.HIDDEN:
            hidden = keras.layers.Dense(units, "relu")(hidden)
        self._model = keras.Model([user, movie], keras.layers.Dense(1)(hidden))
        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self._optimizer = self.make_optimizer()
        self._runs: dict[str, Callable[[], Any]] = {}

    def inputs_of(self, batches: workload.Batches) -> tuple[Any, Any]:
        """Returns users and movies as the embeddings want them."""
        return batches.users % self._users, batches.movies

    def make_embedding(self, rows: int) -> Any:
        return keras.layers.Embedding(rows, workload.DIM)

    def make_optimizer(self) -> Any:
        return keras.optimizers.legacy.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )

    def run(self, way: str, seconds: float) -> tuple[int, float, float]:
        """Returns steps done, the seconds they took, and the last loss."""
        if way not in self._runs:
            self._runs[way] = self._make_fit() if way == "fit" else self._make_function()
            self._runs[way]()  # Traces.
        calls, start = 0, time.perf_counter()
        while True:
            loss = self._runs[way]()
            calls += 1
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return calls * workload.STEPS_PER_CALL, elapsed, float(loss)

    def _make_function(self) -> Callable[[], Any]:
        batches = iter(self._dataset)

        def step() -> tf.Tensor:
            inputs, labels = next(batches)
            with tf.GradientTape() as tape:
                loss = self._loss(labels, self._model(inputs, training=True))
            variables = self._model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        @tf.function
        def steps() -> tf.Tensor:
            loss = tf.constant(0.0)
            for _ in tf.range(workload.STEPS_PER_CALL):
                loss = step()
            return loss

        return lambda: steps().numpy()

    def _make_fit(self) -> Callable[[], Any]:
        self._model.compile(
            self._optimizer, self._loss, steps_per_execution=workload.STEPS_PER_CALL
        )
        # One long epoch, left after each call: a new one would start the input again.
        losses = _fit_in_pieces(self._model, self._dataset)
        return lambda: next(losses)

    def close(self) -> None:
        pass


def _fit_in_pieces(model: Any, dataset: tf.data.Dataset) -> Any:
    """Yields the loss after each call of a `fit` that never ends; it runs in a thread."""
    import queue
    import threading

    go: queue.Queue[None] = queue.Queue()
    done: queue.Queue[float] = queue.Queue()

    class Gate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            go.get()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done.put(float((logs or {}).get("loss", 0.0)))

    forever = {"steps_per_epoch": 10**9, "verbose": 0, "callbacks": [Gate()]}
    threading.Thread(target=lambda: model.fit(dataset, **forever), daemon=True).start()
    for _ in itertools.count():
        go.put(None)
        yield done.get()


class Keras3(Peer):
    """Its Adagrad updates all rows in every step, however few a batch has used."""

    def make_optimizer(self) -> Any:
        return keras.optimizers.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )


class Tfra(Peer):
    """Cuckoo tables, 64-bit ids."""

    def inputs_of(self, batches: workload.Batches) -> tuple[Any, Any]:
        return batches.user_ids, batches.movie_ids

    def make_embedding(self, rows: int) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.keras.layers.BasicEmbedding(
            workload.DIM,
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            initializer=keras.initializers.RandomUniform(),
            init_capacity=rows,
            name=f"table_{rows}",
        )

    def make_optimizer(self) -> Any:
        from tensorflow_recommenders_addons import dynamic_embedding

        return dynamic_embedding.DynamicEmbeddingOptimizer(super().make_optimizer())
