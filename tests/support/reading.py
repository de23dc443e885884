"""A training that writes down what it has read, in this process or in a child that gets killed.

The input is text files with one number per line, and a batch is one of them. Each step takes 1 from
the row of its number and from a dense variable, so a checkpoint tells which numbers it has seen.
"""

import functools
import json
import logging
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf
from support import warm

from monolith.checkpoint import failpoints
from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.model.task import NativeTask
from monolith.training import cpu
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.graph.estimator import (
    GraphEstimator,
    GraphRunConfig,
    GraphSpec,
    ModeKeys,
)

v1 = tf.compat.v1

EXTRA: dict[str, list[float]] = {}  # Further features.


class ReadingTask(NativeTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.define("files", [], "What to read.")
        p.define("python", False, "Whether a Python function is part of the input.")
        p.define("stall_at", None, "Number for which the input has to wait.")
        p.define("num_ids", 100, "How many rows a prediction looks up.")
        p.name = "reading"
        return p

    def create_input_fn(self, mode):
        def pass_on(number):
            if number == self.p.stall_at:
                time.sleep(600)
            return number

        def parse(line):
            number = tf.strings.to_number(line, tf.int64)
            if self.p.python or self.p.stall_at is not None:
                number = tf.ensure_shape(tf.numpy_function(pass_on, [number], tf.int64), [])
            ids = tf.RaggedTensor.from_row_lengths([number], [1])
            return {"feature": ids, "number": number, **EXTRA}

        def input_fn():
            if mode == ModeKeys.PREDICT:
                ids = tf.reshape(tf.range(self.p.num_ids, dtype=tf.int64), [-1, 1])
                ids = tf.RaggedTensor.from_tensor(ids)
                return tf.data.Dataset.from_tensors({"feature": ids})
            return tf.data.TextLineDataset(self.p.files).map(parse)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                FeatureSlotConfig(
                    name="slot",
                    default_vec_initializer=entry.ZerosInitializer(),
                    default_vec_optimizer=entry.SgdOptimizer(1.0),
                )
            )
            column = FeatureColumnV1(slot, "feature")
            row = column.embedding_lookup(slot.add_feature_slice(2))
            dense = v1.Variable([0.0], name="dense", use_resource=True)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"row": row[:, 0]})
            rows = column.get_all_embeddings_concat()
            update = self.ctx.apply_embedding_gradients([(tf.ones_like(rows), rows)])
            with tf.control_dependencies([update, dense.assign_sub([1.0])]):
                step = v1.train.get_or_create_global_step().assign_add(1).op
            v1.add_to_collection("read_numbers", tf.identity(features["number"]))
            return GraphSpec(mode, loss=tf.reduce_sum(row), train_op=step)

        return model_fn


class ReadHook(v1.train.SessionRunHook):
    """Notes the number of each step; the numbers also go to a file, one per line, as they come."""

    def __init__(self, path=None):
        self.numbers = []
        self._path = path

    def before_run(self, run_context):
        number = run_context.session.graph.get_collection("read_numbers")[0]
        return v1.train.SessionRunArgs(number)

    def after_run(self, run_context, run_values):
        self.numbers.append(int(run_values.results))
        if self._path:
            with open(self._path, "a") as file:
                file.write(f"{self.numbers[-1]}\n")


def write_numbers(path, numbers):
    """Writes an input; returns its path."""
    path.write_text("".join(f"{number}\n" for number in numbers))
    return str(path)


def train(model_dir, files, steps=None, *, hooks=(), task=None, params=None, path=None, **conf):
    """Trains; returns the numbers that were trained on, in order.

    Args:
        model_dir: The model directory.
        files: The input.
        steps: How many steps.
        hooks: Hooks of the caller.
        task: Further settings of the task.
        params: Settings in `train` of the task.
        path: File that gets the numbers.
        conf: Settings of the job.
    """
    settings, task = task or {}, ReadingTask.params()
    task.set(files=files, **settings)
    for name, value in (params or {}).items():
        task.train[name] = value
    read = ReadHook(path)
    config = CpuTrainingConfig(**{"save_checkpoints_steps": 10, **conf})
    cpu.local_train_internal(
        task, config, os.fspath(model_dir), steps=steps, user_hooks=[*hooks, read]
    )
    return read.numbers


def read_rows(model_dir, num_ids=100):
    """Returns how often each number was trained on, as the tables of the last checkpoint say."""
    task = ReadingTask.params()
    task.set(num_ids=num_ids)
    training = cpu.CpuTraining(CpuTrainingConfig(), task.instantiate())
    estimator = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=os.fspath(model_dir))
    )
    predictions = estimator.predict(training.create_input_fn(ModeKeys.PREDICT))
    return [-round(float(prediction["row"])) for prediction in predictions]


def start_child(ignored=(), **job):
    """Starts `train` with these arguments in a process of its own.

    Args:
        ignored: Signals that it ignores, as those that `nohup` starts do.
        job: Further ones are `die_at`, a failpoint at which the process kills itself from step
            `die_from` on; `sleep_at`, one at which it says "sleeping" and does so; `wait`, seconds
            that each step takes; `say_step`, one whose begin it tells; `handled`, a signal at
            which it exits with 7.
    """
    return warm.Program(
        [__file__, json.dumps(job, default=os.fspath)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        ignored=ignored,
    )


class _SlowHook(v1.train.SessionRunHook):
    def __init__(self, seconds):
        self._seconds = seconds

    def after_run(self, run_context, run_values):
        time.sleep(self._seconds)


class _SayHook(v1.train.SessionRunHook):
    """Says when a step begins."""

    def __init__(self, step):
        self._step, self._num_steps = step, 0

    def before_run(self, run_context):
        self._num_steps += 1
        if self._num_steps == self._step:
            print(f"step {self._step} begins", flush=True)


class _DieHook(v1.train.SessionRunHook):
    """Kills the process at a failpoint, once a step was reached."""

    def __init__(self, point, step):
        self._point, self._step, self._num_steps = point, step, 0

    def before_run(self, run_context):
        self._num_steps += 1
        if self._num_steps == self._step:
            failpoints.on_reach = self._die

    def _die(self, point):
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def _sleep(where, point):
    if point == where:
        print("sleeping", flush=True)
        time.sleep(600)


def main():
    job = json.loads(sys.argv[1])
    v1.disable_eager_execution()
    logging.basicConfig(level=logging.INFO)
    hooks = []
    if "handled" in job:
        signal.signal(job.pop("handled"), lambda number, frame: sys.exit(7))
    if "sleep_at" in job:
        failpoints.on_reach = functools.partial(_sleep, job.pop("sleep_at"))
    if "wait" in job:
        hooks.append(_SlowHook(job.pop("wait")))
    if "say_step" in job:
        hooks.append(_SayHook(job.pop("say_step")))
    if "die_at" in job:
        hooks.append(_DieHook(job.pop("die_at"), job.pop("die_from")))
    train(job.pop("model_dir"), job.pop("files"), hooks=hooks, **job)
    print("trained", flush=True)


if __name__ == "__main__":
    main()
