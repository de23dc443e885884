"""A training on a stream that writes down which ids each step has trained on.

Each step takes 1 from the rows of its ids, so a checkpoint tells how often it has seen each. Run as
a program, it takes its arguments as JSON.
"""

import json
import os
import subprocess
import sys

import tensorflow as tf
from support import reading

import monolith as ml
from monolith.training import cpu
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.graph.estimator import ModeKeys

v1 = tf.compat.v1


class StreamTask(reading.ReadingTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.define("kind", "tail", "What stream.")
        p.define("arguments", {}, "Of the stream.")
        return p

    def create_input_fn(self, mode):
        if mode == ModeKeys.PREDICT:
            return super().create_input_fn(mode)
        stream = getattr(ml.data, self.p.kind)(
            **self.p.arguments, schema=[ml.data.Ids("feature", column="id")]
        )

        def add_number(batch):
            return {**batch, "number": batch["feature"].values}

        return lambda: stream().map(add_number)


class IdsHook(v1.train.SessionRunHook):
    """Writes the ids of each step to a file, one step per line."""

    def __init__(self, path):
        self._path = path

    def before_run(self, run_context):
        ids = run_context.session.graph.get_collection("read_numbers")[0]
        return v1.train.SessionRunArgs(ids)

    def after_run(self, run_context, run_values):
        with open(self._path, "a") as file:
            file.write(" ".join(map(str, run_values.results.tolist())) + "\n")


def train(model_dir, log, kind, arguments):
    task = StreamTask.params()
    task.set(kind=kind, arguments=arguments)
    config = CpuTrainingConfig(save_checkpoints_steps=1)
    cpu.local_train_internal(task, config, os.fspath(model_dir), user_hooks=[IdsHook(log)])


def start_child(**job):
    return subprocess.Popen(
        [sys.executable, "-m", "support.stream_job", json.dumps(job, default=os.fspath)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    )


if __name__ == "__main__":
    v1.disable_eager_execution()
    train(**json.loads(sys.argv[1]))
