"""The same model in Keras 2, trained by `model.fit` under `MultiWorkerMirroredStrategy`.

What a user of TensorFlow would write: every process has a copy of all `Embedding` variables, and
gradients, those of rows as they are, go to all. Set up for speed as the peer of
`benchmarks.distributed.keras_fit` is: every process makes its own part of the input from arrays in
memory and reads it ahead, one call is `workload.STEPS_PER_CALL` steps, there is one fit for the
whole measurement, and of the two Adagrads it has the one that updates rows with one op.
"""

import json
import os
import threading
from typing import Any

import tensorflow as tf

from benchmarks.distributed import workload
from benchmarks.distributed.keras_fit import Turns, make_arrays, make_network
from benchmarks.sync import parts

_STEPS_PER_EPOCH = 2 * workload.STEPS_PER_CALL
_FOREVER = 10**9


class Member:
    """One process of the strategy, with one fit in a thread.

    Args:
        batches: What all processes train on.
        rank: Which of them this is.
        cluster: The addresses of all.
        model: What is trained.
    """

    def __init__(
        self, batches: workload.Batches, rank: int, cluster: list[str], model: workload.Model
    ) -> None:
        import tf_keras

        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": cluster}, "task": {"type": "worker", "index": rank}}
        )
        # It connects the processes, so it comes before all else.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            network = make_network(tf_keras, model)
        own = parts.take(batches, rank, len(cluster))
        arrays = make_arrays(own, model)

        def make_input(context: Any = None) -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices((arrays, own.labels[..., None]))
            return dataset.repeat().prefetch(tf.data.AUTOTUNE)

        self._turns = Turns(tf_keras, _STEPS_PER_EPOCH)
        self._thread = threading.Thread(
            target=network.fit,
            args=(tf_keras.utils.experimental.DatasetCreator(make_input),),
            kwargs={
                "steps_per_epoch": _STEPS_PER_EPOCH,
                "epochs": _FOREVER,
                "verbose": 0,
                "callbacks": [self._turns.callback],
            },
            daemon=True,
        )
        self._thread.start()

    def run(self, steps: int) -> tuple[int, float, float]:
        """Returns steps done, whole epochs, the seconds they took, and a loss."""
        return self._turns.take(0.0, self._thread, least_steps=steps)
