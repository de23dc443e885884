"""Ours: an `ml.Model`, trained by its `ml.Estimator` as any user would."""

import functools
import shutil
from typing import Any

import tensorflow as tf

import monolith as ml
from benchmarks.criteo import workload
from benchmarks.criteo.tensorflow_input import make_dataset
from benchmarks.distributed.ours import Turns
from benchmarks.table.workload import ids_of
from monolith.embedding.tables import multi, registry

# Longer than any measurement: nobody is to save during one.
_NEVER_SEC = 10**6


class CriteoModel(ml.Model):
    """26 slots and 13 numbers into 256-64-1, or into DCN v2."""

    def __init__(self, network: str) -> None:
        super().__init__()
        slots = [f"c{slot}" for slot in range(workload.SLOTS)]
        self.embed = ml.Embedding(
            slots, workload.DIM, ml.Adagrad(workload.LEARNING_RATE, workload.INITIAL_ACCUMULATOR)
        )
        self.is_dcn = network == workload.DCN
        if self.is_dcn:
            self.cross = ml.CrossNet(workload.CROSSES, workload.CROSS_RANK)
            self.deep = ml.MLP(list(workload.HIDDEN), output_activation="relu")
            self.logits = ml.Dense(1)
        else:
            self.mlp = ml.MLP([*workload.HIDDEN, 1])

    def call(self, batch: Any) -> ml.BinaryHead:
        inputs = tf.concat([self.embed(batch), batch["numbers"]], axis=1)
        if self.is_dcn:
            both = tf.concat([self.cross(inputs), self.deep(inputs)], axis=1)
            logits = self.logits(both)
        else:
            logits = self.mlp(inputs)
        return ml.BinaryHead("click", logits, batch.get("label"))


class Start(tf.compat.v1.train.SessionRunHook):
    """Gives every id of a slot its row, and the network its first weights: those of the peers."""

    def __init__(self, most: int, network: str) -> None:
        self._rows = workload.make_cardinalities(most)
        self._layers = workload.layer_names(network)

    def begin(self) -> None:
        (entry,) = registry.get_tables(multi.MultiHashTable.COLLECTION)
        self._ids = tf.compat.v1.placeholder(tf.int64, [None])
        self._values = tf.compat.v1.placeholder(tf.float32, [None, workload.DIM])
        self._assigns = [
            entry.table.assign({f"c{slot}": (self._ids, self._values)}, req_time=0).as_op()
            for slot in range(workload.SLOTS)
        ]
        self._variables = tf.compat.v1.trainable_variables()

    def after_create_session(self, session: Any, coord: Any) -> None:
        for slot, (rows, assign) in enumerate(zip(self._rows, self._assigns, strict=True)):
            for places, values in workload.initial_rows(slot, rows):
                session.run(assign, {self._ids: ids_of(places), self._values: values})
        kernels = [variable for variable in self._variables if len(variable.shape) == 2]
        for name, kernel in zip(self._layers, kernels, strict=True):
            kernel.load(workload.initial_weight(name, tuple(kernel.shape)), session)


class Estimator:
    """Tables in the process, no server."""

    def __init__(self, directory: str, most: int, network: str, threads: int) -> None:
        del threads  # `TF_NUM_INTRAOP_THREADS` says it.
        path = workload.path_of(directory, hashed=True)
        model_dir = f"{directory}/model"
        shutil.rmtree(model_dir, ignore_errors=True)
        config = ml.RunConfig(save_checkpoints_secs=_NEVER_SEC)
        optimizer = ml.Adagrad(workload.LEARNING_RATE, workload.INITIAL_ACCUMULATOR)
        estimator = ml.Estimator(
            CriteoModel(network), model_dir, optimizer, config=config, progress=False
        )
        self._turns = Turns()
        train = functools.partial(estimator.train, lambda: make_dataset(path))
        self._turns.start(train, Start(most, network))

    def learn(self, steps: int) -> float:
        """Trains so many steps; returns the loss of the last."""
        return self._turns.take(0.0, steps)[2]

    def run(self, seconds: float) -> tuple[int, float]:
        """Trains for at least that long; returns steps and seconds."""
        return self._turns.take(seconds)[:2]
