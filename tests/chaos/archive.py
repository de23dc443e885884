"""Copies of all complete checkpoints of a job, and what each of them holds.

A checkpoint counts from the moment that the harness has seen it listed, which is never before it is
complete. Deltas count as checkpoints: a copy has the full one and the deltas that were listed then.
"""

import dataclasses
import os
import pathlib
import shutil
import time

import numpy as np
import tensorflow as tf
from support import counting

from monolith.checkpoint import custom_restore, delta_chain
from monolith.embedding.tables import snapshots
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig
from monolith.training import cpu


@dataclasses.dataclass(frozen=True)
class Copy:
    """A checkpoint that was complete.

    Attributes:
        step: Its global step.
        seen_sec: When it was seen.
        prefix: Of the copy.
    """

    step: int
    seen_sec: float
    prefix: str


class Archive:
    """Copies the checkpoints of a model directory.

    Args:
        model_dir: Where they appear.
        directory: Where copies go.
    """

    def __init__(self, model_dir, directory):
        self._model_dir = pathlib.Path(model_dir)
        self._directory = pathlib.Path(directory)
        self._last = None
        self.copies = []

    def look(self):
        """Copies the newest checkpoint, if it is a new one."""
        try:
            base = tf.train.latest_checkpoint(str(self._model_dir))
            deltas = [] if base is None else delta_chain.read(base)
        except tf.errors.OpError:
            return  # Being replaced.
        seen_sec = time.time()
        if base is None or (base, deltas) == self._last:
            return
        target = self._directory / f"{len(self.copies):05d}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        name = os.path.basename(base)
        wanted = {name} | {f"{name}.delta-{delta.step}" for delta in deltas}
        try:
            for path in self._model_dir.iterdir():
                owner = next((w for w in wanted if _is_of(path.name, w)), None)
                if owner is None or path.suffix == ".meta":
                    continue
                if path.is_dir():
                    shutil.copytree(path, target / path.name)
                else:
                    shutil.copy(path, target)
        except (FileNotFoundError, shutil.Error):
            return  # It was rotated away.
        if deltas:
            path = delta_chain.get_list_path(str(target / name))
            pathlib.Path(path).write_text(delta_chain.serialize(deltas))
        self._last = (base, deltas)
        step = deltas[-1].step if deltas else int(name.rpartition("-")[2])
        self.copies.append(Copy(step, seen_sec, str(target / name)))


def _is_of(name, prefix):
    rest = name.removeprefix(prefix)
    return name.startswith(prefix) and (
        (rest.startswith(".") and not rest.startswith(".delta")) or rest.startswith("_temp")
    )


class Counts:
    """Reads how often each id was trained on, from one checkpoint after the other.

    One graph and one session for all: hundreds of checkpoints take seconds. A context.
    """

    def __init__(self, settings):
        self._settings = settings

    def __enter__(self):
        self._graph = tf.Graph()
        with self._graph.as_default():
            task = counting.CountingTask.params().set(settings=self._settings).instantiate()
            config = cpu.CpuTrainingConfig()
            cpu.make_config_backward_compatible(self._settings.model_dir, config)
            training = cpu.CpuTraining(config, task)
            ids = {
                name: tf.RaggedTensor.from_tensor(
                    tf.constant(counting.FIRST_ID[name] + np.arange(n)[None, :], tf.int64)
                )
                for name, n in counting.NUM_IDS.items()
            }
            run_config = GraphRunConfig(model_dir=self._settings.model_dir)
            spec = training.create_model_fn()(ids, ModeKeys.PREDICT, run_config)
            self._predictions = spec.predictions
            self._tables = snapshots.TableRestorerListener(
                os.path.join(self._settings.model_dir, "model.ckpt")
            )
            (self._steps,) = tf.compat.v1.trainable_variables()
            self._saver = tf.compat.v1.train.Saver([self._steps])
            self._session = tf.compat.v1.Session()
            custom_restore.create_missing_resources(self._session, self._graph)
        return self

    def __exit__(self, *unused):
        self._session.close()

    def read(self, prefix):
        """Returns the counts by feature, and the steps."""
        self._saver.restore(self._session, delta_chain.get_newest_prefix(prefix))
        self._tables.restore(self._session, prefix)
        found = self._session.run(self._predictions)
        for name in counting.NUM_IDS:
            assert (found[name] == found[name][:, :1]).all()  # All parts of a row are equal.
        counts = {name: -found[name][:, 0] for name in counting.NUM_IDS}
        return {**counts, "steps": -found["steps"]}
