"""Jobs that the tests of the launcher start by name."""

import json
import os
import pathlib
import time

import numpy as np
import tensorflow as tf
from support import counting, partial_sync_job

import monolith as ml
from monolith.training import cpu
from monolith.training.distributed import plan

NUM_EXAMPLES = 256
BATCH_SIZE = 8
USERS = np.arange(NUM_EXAMPLES) % 16


class Clicks(ml.Model):
    """A bias for each user, whom it tells from others: odd ones click."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding("user", dim=4)
        self.mlp = ml.MLP([4, 1])

    def call(self, batch):
        return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("click"))


CLICKS = Clicks()


def read():
    columns = {"user": USERS, "click": (USERS % 2).astype(np.float32)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(BATCH_SIZE)


def make_estimator(model_dir):
    return ml.Estimator(Clicks(), model_dir, ml.Adagrad(0.1)), read


class SlowTask(counting.CountingTask):
    """Its steps may last."""

    def create_model_fn(self):
        model_fn = super().create_model_fn()

        def with_hook(*args, **kwargs):
            spec = model_fn(*args, **kwargs)
            if not self.p.settings.step_sec or spec.train_op is None:
                return spec
            return spec._replace(training_hooks=[_SlowHook(self.p.settings.step_sec)])

        return with_hook


class _SlowHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, step_sec):
        self._step_sec = step_sec

    def after_run(self, run_context, run_values):
        time.sleep(self._step_sec)


def make_params():
    """The task that counts."""
    settings = counting.Settings(
        model_dir="",
        num_batches=int(os.environ.get("BATCHES", "20")),
        step_sec=float(os.environ.get("STEP_SEC", "0")),
    )
    params = SlowTask.params().set(settings=settings)
    params.train.max_pending_seconds_for_barrier = 10
    counting.shorten_times(settings)
    return params


PARAMS = make_params()


def make_features(model_dir):
    """The same task, of which only the features are written."""
    # Not at the top: its module defines flags that other programs define, too.
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    config = RunnerConfig(model_dir=model_dir, only_feature_engineering=True)
    return Estimator(PARAMS, config)


def make_spares(model_dir):
    """The same task, with one server that is measured away and one that is redundant."""
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    cpu._EXTRA_PS_BENCHMARK_SECS = 0.5
    config = RunnerConfig(model_dir=model_dir, num_ps=1, num_extra_ps=1, num_redundant_ps=1)
    return Estimator(PARAMS, config)


def make_partial_sync(model_dir):
    """A task whose workers train the dense part together, beside servers."""
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    settings = partial_sync_job.Settings(model_dir=model_dir)
    params = partial_sync_job.LinearTask.params().set(settings=settings)
    config = RunnerConfig(
        model_dir=model_dir,
        num_ps=1,
        num_workers=2,
        enable_sync_training=True,
        enable_partial_sync_training=True,
    )
    return Estimator(params, config)


def tell_code(arguments, report, given):
    """A member that tells which code it has, while all files have other content."""
    pathlib.Path.read_bytes = lambda path: b"edited"
    os.write(report, json.dumps(plan.describe_code()).encode())
    return 0


class NeedsArguments(Clicks):
    def __init__(self, dim):
        super().__init__()


def needs_arguments(dim):
    return dim


NOTHING = 7
