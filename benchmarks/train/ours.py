"""Ours: a `MonolithModel`, trained by its `Estimator` as any user would."""

import tempfile
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.train import workload
from monolith import layers
from monolith.embedding import entry
from monolith.model import ranking
from monolith.training.estimator import Estimator, EstimatorSpec, RunConfig


class RankingModel(ranking.MonolithModel):
    """Two slots of dim 32 and a network of 256 and 64."""

    def __init__(self, batches: workload.Batches) -> None:
        super().__init__()
        self._batches = batches

    def input_fn(self, mode: str) -> tf.data.Dataset:
        def to_ragged(ids: np.ndarray) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_tensor(ids[..., None], ragged_rank=2)

        features = {
            "user": to_ragged(self._batches.user_ids),
            "movie": to_ragged(self._batches.movie_ids),
            "label": self._batches.labels,
        }
        return tf.data.Dataset.from_tensor_slices(features).repeat()

    def model_fn(self, features: Any, mode: str) -> EstimatorSpec:
        for name in ("user", "movie"):
            self.create_embedding_feature_column(name)
        optimizer = entry.AdagradOptimizer(
            workload.LEARNING_RATE, initial_accumulator_value=workload.INITIAL_ACCUMULATOR
        )
        embeddings = self.lookup_embedding_slice(
            ["user", "movie"], "vector", workload.DIM, optimizer=optimizer, out_type="concat"
        )
        logits = layers.MLP([*workload.HIDDEN, 1])(embeddings)
        loss, pred = ranking.get_sigmoid_loss_and_pred(
            "click", logits, features["label"], workload.BATCH
        )
        dense_optimizer = tf.compat.v1.train.AdagradOptimizer(
            workload.LEARNING_RATE, workload.INITIAL_ACCUMULATOR
        )
        loss /= workload.BATCH
        return EstimatorSpec(features["label"], pred, "click", loss, dense_optimizer)


class Turns(tf.compat.v1.train.SessionRunHook):
    """Lets a training, which runs in a thread, do steps only while it is asked to."""

    def __init__(self) -> None:
        self._turn = threading.Event()
        self._over = threading.Event()
        self._is_last = False

    def take(self, seconds: float) -> tuple[int, float, float]:
        """Returns steps done, the seconds they took, and the last loss."""
        self._seconds, self._steps, self._start = seconds, 0, time.perf_counter()
        self._over.clear()
        self._turn.set()
        self._over.wait()
        return self._steps, self._elapsed, self._loss

    def finish(self) -> None:
        self._is_last = True
        self._turn.set()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._turn.wait()

    def begin(self) -> None:
        self._loss_tensor = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._loss_tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._is_last:
            run_context.request_stop()
            return
        self._steps += 1
        self._elapsed = time.perf_counter() - self._start
        if self._elapsed < self._seconds:
            return
        self._loss = float(run_values.results)
        self._turn.clear()
        self._over.set()
        self._turn.wait()


class Ours:
    """Tables in the process, no server."""

    ways = ("Estimator.train",)

    def __init__(self, batches: workload.Batches, users: int) -> None:
        del users  # A table has no vocabulary.
        tf.compat.v1.disable_eager_execution()
        self._directory = tempfile.TemporaryDirectory()
        config = RunConfig(is_local=True, model_dir=self._directory.name)
        self._turns = Turns()
        estimator = Estimator(RankingModel(batches), config)
        self._thread = threading.Thread(target=estimator.train, kwargs={"hooks": [self._turns]})
        self._thread.start()

    def run(self, way: str, seconds: float) -> tuple[int, float, float]:
        return self._turns.take(seconds)

    def close(self) -> None:
        self._turns.finish()
        self._thread.join()
        self._directory.cleanup()
