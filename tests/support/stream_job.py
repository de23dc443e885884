"""A training on a stream that writes down which ids each step has trained on.

Each step takes 1 from the rows of its ids, so a checkpoint tells how often it has seen each. Run as
a program, it takes its arguments as JSON.
"""

import json
import os
import subprocess
import sys

import numpy as np
import tensorflow as tf
from support import reading, warm

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
        p.define("log", "", "File that gets the ids of each step, one step per line.")
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

    def create_model_fn(self):
        make_spec = super().create_model_fn()

        def write(ids):
            with open(self.p.log, "a") as file:
                file.write(" ".join(map(str, ids.tolist())) + "\n")
            return np.int64(len(ids))

        def model_fn(features, mode, config):
            spec = make_spec(features, mode, config)
            if mode == ModeKeys.PREDICT:
                return spec
            # In the step, not in a hook: hooks that save come first, and a step that was not saved
            # is just the one that is trained on again.
            with tf.control_dependencies([spec.train_op]):
                written = tf.numpy_function(write, [features["number"]], tf.int64)
            return spec._replace(train_op=written.op)

        return model_fn


def train(model_dir, log, kind, arguments):
    task = StreamTask.params()
    task.set(kind=kind, arguments=arguments, log=os.fspath(log))
    config = CpuTrainingConfig(save_checkpoints_steps=1)
    cpu.local_train_internal(task, config, os.fspath(model_dir), steps=None)


def start_child(**job):
    return warm.Program(
        ["-m", "support.stream_job", json.dumps(job, default=os.fspath)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    )


if __name__ == "__main__":
    v1.disable_eager_execution()
    train(**json.loads(sys.argv[1]))
