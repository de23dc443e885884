"""Ours: one `MonolithModel`, trained in one process or by the members of a job.

A member is what a user would start: an `Estimator` with the role in its config. The training runs
in a thread, and a hook lets it do steps only while it is asked to.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.distributed import crossings, workload
from monolith import layers
from monolith.cluster.discovery_base import ServiceDiscoveryType
from monolith.embedding import entry
from monolith.model import ranking
from monolith.training.estimator import Estimator, EstimatorSpec, RunConfig

# Longer than any measurement: nobody is to save during one.
_NEVER_SEC = 10**6
# Between two looks whether a training is still there.
_LOOK_SEC = 1.0

_HISTORY = "history"


class RankingModel(ranking.MonolithModel):
    """Features with one id each, a history if the model has one, a network of 256 and 64."""

    def __init__(self, batches: workload.Batches, model: workload.Model) -> None:
        super().__init__()
        self._dim = model.dim
        self._labels = batches.labels
        self._ids = {
            f"feature_{number}": batches.get_numbers(number)[..., None]
            for number in range(model.features)
        }
        if model.history:
            self._ids[_HISTORY] = batches.draw_history(model.history)

    def input_fn(self, mode: str) -> tf.data.Dataset:
        features = {
            name: tf.RaggedTensor.from_tensor(ids, ragged_rank=2) for name, ids in self._ids.items()
        }
        return tf.data.Dataset.from_tensor_slices({**features, "label": self._labels}).repeat()

    def model_fn(self, features: Any, mode: str) -> EstimatorSpec:
        for name in self._ids:
            if name != _HISTORY:
                self.create_embedding_feature_column(name)
            else:
                self.create_embedding_feature_column(
                    name, shared_name=f"feature_{workload.MOVIE}", combiner="reduce_mean"
                )
        optimizer = entry.AdagradOptimizer(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )
        embeddings = self.lookup_embedding_slice(
            list(self._ids), "vector", self._dim, optimizer=optimizer, out_type="concat"
        )
        logits = layers.MLP([*workload.HIDDEN, 1])(embeddings)
        loss, pred = ranking.get_sigmoid_loss_and_pred(
            "click", logits, features["label"], self._labels.shape[1]
        )
        dense_optimizer = tf.compat.v1.train.AdagradOptimizer(
            workload.LEARNING_RATE, workload.INITIAL_ACCUMULATOR
        )
        loss /= self._labels.shape[1]
        return EstimatorSpec(features["label"], pred, "click", loss, dense_optimizer)


class Turns(tf.compat.v1.train.SessionRunHook):
    """Lets a training, which runs in a thread, do steps only while it is asked to."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._turn = threading.Event()
        self._over = threading.Event()
        self._seconds = 0.0
        self._record: crossings.Recording | None = None

    def start(self, train: Callable[..., Any], *hooks: tf.compat.v1.train.SessionRunHook) -> None:
        """Begins the training, with this hook behind others."""
        self._thread = threading.Thread(target=train, kwargs={"hooks": [*hooks, self]}, daemon=True)
        self._thread.start()

    def take(self, seconds: float, least_steps: int = 0) -> tuple[int, float, float]:
        """Trains for at least that long and so many steps.

        Returns:
            Steps done, the seconds they took, and the last loss.
        """
        self._seconds, self._least_steps = seconds, least_steps
        self._steps, self._start = 0, time.perf_counter()
        self._over.clear()
        self._turn.set()
        while not self._over.wait(_LOOK_SEC):
            if self._thread is None or not self._thread.is_alive():
                raise RuntimeError("The training has ended; its log says why.")
        return self._steps, self._elapsed, self._loss

    def record(self, steps: int) -> crossings.Recording:
        """Returns what TensorFlow has noted of that many steps."""
        self._record = crossings.Recording(steps)
        self.take(0.0)
        record, self._record = self._record, None
        return record

    def begin(self) -> None:
        self._loss_tensor = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1]

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._turn.wait()

    def before_run(self, run_context: Any) -> Any:
        options = None if self._record is None else self._record.options
        return tf.compat.v1.train.SessionRunArgs(self._loss_tensor, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._steps += 1
        self._elapsed = time.perf_counter() - self._start
        if self._record is not None:
            self._record.add(run_values.run_metadata)
            if not self._record.is_complete:
                return
        elif self._elapsed < self._seconds or self._steps < self._least_steps:
            return
        self._loss = float(run_values.results)
        self._turn.clear()
        self._over.set()
        self._turn.wait()


class Member:
    """One process of a job: a server, a worker, or the only one.

    Args:
        batches: What to train on.
        role: "ps", "worker", or "local".
        index: Which of its kind.
        shape: How many there are.
        model: What is trained.
        model_dir: Where the members meet.
        threads: How many an op gets.
        queues: Whether lookups run ahead of the steps and updates behind them, as they do by
            default.
    """

    def __init__(
        self,
        batches: workload.Batches,
        role: str,
        index: int,
        shape: workload.Shape,
        model: workload.Model,
        model_dir: str,
        threads: int,
        queues: bool,
    ) -> None:
        tf.compat.v1.disable_eager_execution()
        self._turns = Turns()
        config: Any = RunConfig(
            is_local=role == "local",
            model_dir=model_dir,
            num_ps=shape.servers,
            num_workers=shape.workers,
            save_checkpoints_secs=_NEVER_SEC,
        )
        if role != "local":
            config = config.to_runner_config()
            config.server_type, config.index = role, index
            config.discovery_type = ServiceDiscoveryType.FILE
            if not queues:
                config.embedding_prefetch_capacity = 0
                config.enable_embedding_postpush = False
            config.intra_op_parallelism_threads = threads
        self._turns.start(Estimator(RankingModel(batches, model), config).train)

    def run(self, seconds: float) -> tuple[int, float, float]:
        return self._turns.take(seconds)

    def record(self, steps: int) -> crossings.Recording:
        return self._turns.record(steps)
