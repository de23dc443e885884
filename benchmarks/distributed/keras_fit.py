"""The same model in Keras, trained by `model.fit` under `tf.distribute.ParameterServerStrategy`.

What a user of TensorFlow would write: `Embedding` layers over plain variables, which the strategy
divides among the servers, sparse gradients, Adagrad. It is Keras 2 (`tf_keras`), since Keras 3,
which TensorFlow 2.21 has, does not train under this strategy.

Set up for speed: every worker makes its own input from arrays in memory and reads it ahead
(`DatasetCreator`), one call of a worker is `workload.STEPS_PER_CALL` steps, and there is one fit
for the whole measurement. Of the two Adagrads that Keras 2 has, the older one updates the rows of
a batch with one op; with the newer one a job of 1 + 1 took a tenth more CPU time.
"""

import threading
import time
from typing import Any

import tensorflow as tf

from benchmarks.distributed import workload
from benchmarks.distributed.parameter_server_strategy import make_strategy

# Of each worker; between two epochs all workers wait for each other.
_CALLS_PER_EPOCH = 10
_FOREVER = 10**9
_LOOK_SEC = 1.0

_HISTORY = "history"


class Coordinator:
    """One fit, in a thread, that does epochs only while it is asked to.

    Args:
        batches: What to train on.
        model: What is trained.
        cluster: The addresses of workers and servers.
    """

    def __init__(
        self, batches: workload.Batches, model: workload.Model, cluster: dict[str, list[str]]
    ) -> None:
        import tf_keras

        strategy = make_strategy(cluster)
        with strategy.scope():
            network = make_network(tf_keras, model)
        arrays = make_arrays(batches, model)

        def make_input(context: Any = None) -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices((arrays, batches.labels[..., None]))
            return dataset.repeat().prefetch(tf.data.AUTOTUNE)

        calls = _CALLS_PER_EPOCH * len(cluster["worker"])
        self._turns = Turns(tf_keras, calls * workload.STEPS_PER_CALL)
        self._thread = threading.Thread(
            target=network.fit,
            args=(tf_keras.utils.experimental.DatasetCreator(make_input),),
            kwargs={
                "steps_per_epoch": calls * workload.STEPS_PER_CALL,
                "epochs": _FOREVER,
                "verbose": 0,
                "callbacks": [self._turns.callback],
            },
            daemon=True,
        )
        self._thread.start()
        self.run(0.0)  # Traces.

    def run(self, seconds: float) -> tuple[int, float, float]:
        """Returns steps done, the seconds they took, and a loss."""
        return self._turns.take(seconds, self._thread)


class Turns:
    """Lets a fit, which runs in a thread, do epochs only while it is asked to."""

    def __init__(self, keras: Any, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._turn = threading.Event()
        self._over = threading.Event()
        self.callback = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._turn.wait(),
            on_epoch_end=lambda epoch, logs: self._end_epoch(logs),
        )

    def take(
        self, seconds: float, thread: threading.Thread, least_steps: int = 0
    ) -> tuple[int, float, float]:
        """Trains for at least that long and so many steps.

        Returns:
            Steps done, the seconds they took, and the last loss.
        """
        self._seconds, self._least_steps = seconds, least_steps
        self._steps, self._start = 0, time.perf_counter()
        self._over.clear()
        self._turn.set()
        while not self._over.wait(_LOOK_SEC):
            if not thread.is_alive():
                raise RuntimeError("model.fit has ended; its log says why.")
        return self._steps, self._elapsed, self._loss

    def _end_epoch(self, logs: dict[str, Any]) -> None:
        self._steps += self._steps_per_epoch
        self._elapsed = time.perf_counter() - self._start
        if self._elapsed < self._seconds or self._steps < self._least_steps:
            return
        self._loss = float(logs["loss"])
        self._turn.clear()
        self._over.set()


def make_arrays(batches: workload.Batches, model: workload.Model) -> dict[str, Any]:
    """Returns the ids of each input of the model."""
    arrays = {f"feature_{number}": batches.get_numbers(number) for number in range(model.features)}
    if model.history:
        arrays[_HISTORY] = batches.draw_history(model.history)
    return arrays


def make_network(keras: Any, model: workload.Model) -> Any:
    """Returns the model, compiled, in the scope of a strategy."""
    inputs = {
        f"feature_{number}": keras.Input((), dtype="int64", name=f"feature_{number}")
        for number in range(model.features)
    }
    tables = [
        keras.layers.Embedding(model.count_rows(number), model.dim)
        for number in range(model.features)
    ]
    rows = [table(ids) for table, ids in zip(tables, inputs.values(), strict=True)]
    if model.history:
        inputs[_HISTORY] = keras.Input((model.history,), dtype="int64", name=_HISTORY)
        seen = tables[workload.MOVIE](inputs[_HISTORY])
        rows.append(keras.layers.GlobalAveragePooling1D()(seen))
    hidden = keras.layers.Concatenate()(rows)
    for width in workload.HIDDEN:
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    network = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    network.compile(
        keras.optimizers.legacy.Adagrad(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        ),
        keras.losses.BinaryCrossentropy(from_logits=True),
        steps_per_execution=workload.STEPS_PER_CALL,
    )
    return network
