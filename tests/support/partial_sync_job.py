"""A job with tables on servers whose workers train the dense part together.

The dense part is a linear model with Adagrad that does not see the rows, so that NumPy can say what
it becomes; the rows count, as those of `support.counting` do.
"""

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf
from support import counting

from monolith.embedding.features import gradients
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.spec import GraphSpec
from monolith.model.task import NativeTask

DIM = 3
NUM_IDS = 17
RATE = 0.5
ACCUMULATED = 0.1  # What TensorFlow's Adagrad begins with.


@dataclasses.dataclass(kw_only=True)
class Settings(counting.Settings):
    """What a test decides about a member."""

    partial: bool = True
    # By how many batches worker 0 has more than the others; None if the input is divided.
    more_batches: int | None = None
    session_creation_timeout_secs: int = 120


class LinearTask(NativeTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.define("settings", None, "What a test has decided.")
        p.name = "linear"
        return p

    def create_input_fn(self, mode):
        settings = self.p.settings

        def input_fn():
            return make_batches(list_batches(settings), settings.batch_size)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            column, embedding = counting.look_up_counts(self.ctx, "item", 2)
            # Each worker begins with other values; those of the chief count.
            start = tf.compat.v1.constant_initializer(10.0 * self.p.settings.index)
            weights = tf.compat.v1.get_variable("w", [DIM], initializer=start, use_resource=True)
            bias = tf.compat.v1.get_variable("b", [], initializer=start, use_resource=True)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"item": features["item"]})
            output = tf.linalg.matvec(features["x"], weights) + bias
            loss = tf.reduce_mean(tf.square(output - features["y"])) + tf.reduce_sum(embedding)
            train_op = gradients.apply_gradients_with_var_optimizer(
                self.ctx,
                [column],
                tf.compat.v1.train.AdagradOptimizer(RATE),
                loss,
                clip_type=gradients.GradClipType.NoClip,
            )
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


class DenseHook(counting.StepHook):
    """Also writes the dense variables of a worker down when it ends."""

    def begin(self):
        graph = tf.compat.v1.get_default_graph()
        self._variables = [v.read_value() for v in graph.get_collection("trainable_variables")]

    def end(self, session):
        values = [np.reshape(value, [-1]) for value in session.run(self._variables)]
        np.save(get_dense_path(self._settings, self._settings.index), np.concatenate(values))


def list_batches(settings):
    """Returns the numbers of the batches of a worker's input, before it is divided."""
    if settings.more_batches is None:
        return list(range(settings.num_batches))
    if settings.index == 0:
        return list(range(settings.num_batches + settings.more_batches))
    first = 100 * settings.index
    return list(range(first, first + settings.num_batches))


def make_batches(numbers, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices(tf.constant(numbers, tf.int64))

    def make_features(number):
        examples = number * batch_size + tf.range(batch_size, dtype=tf.int64)
        x, y = make_examples(tf.cast(examples, tf.float32), tf.cos)
        ids = tf.RaggedTensor.from_tensor(examples[:, None] % NUM_IDS)
        return {"item": ids, "x": tf.stack(x, 1), "y": y}

    return dataset.map(make_features)


def make_examples(numbers, cos):
    """Returns the parts of inputs, and the outputs; with TensorFlow or with NumPy."""
    return [cos(numbers * (part + 1)) for part in range(DIM)], cos(numbers / 4) * 2


def compute_dense(batches_of_steps, batch_size, dense=0.0, accumulated=ACCUMULATED):
    """Returns the weights and the bias after steps; each averages over some batches."""
    dense = np.zeros(DIM + 1) + dense
    accumulated = np.zeros(DIM + 1) + accumulated
    for batches in batches_of_steps:
        total = 0.0
        for batch in batches:
            numbers = np.arange(batch * batch_size, (batch + 1) * batch_size, dtype=np.float64)
            x, y = make_examples(numbers, np.cos)
            x = np.stack([*x, np.ones_like(numbers)], 1)
            error = x @ dense - y
            total = total + 2 * (error[:, None] * x).mean(0)
        gradient = total / len(batches)
        accumulated += gradient**2
        dense -= RATE * gradient / np.sqrt(accumulated)
    return dense


def count_ids(batches, batch_size):
    """Returns how often each id is in some batches."""
    examples = [b * batch_size + i for b in batches for i in range(batch_size)]
    return np.bincount(np.array(examples) % NUM_IDS, minlength=NUM_IDS)


def get_dense_path(settings, index):
    return pathlib.Path(settings.model_dir) / f"dense-{index}.npy"


def read_dense(settings):
    """Returns what each worker had at its end."""
    return [np.load(get_dense_path(settings, index)) for index in range(settings.num_workers)]


def read_saved(model_dir):
    """Returns the step and the dense variables of the last checkpoint."""
    checkpoint = tf.train.latest_checkpoint(str(model_dir))
    reader = tf.train.load_checkpoint(checkpoint)
    dense = np.append(reader.get_tensor("w"), reader.get_tensor("b"))
    return int(reader.get_tensor("global_step")), dense


def read_accumulated(model_dir):
    """Returns the state of the optimizer of the last checkpoint."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    return np.append(reader.get_tensor("w/Adagrad"), reader.get_tensor("b/Adagrad"))


def read_counts(model_dir):
    """Returns how often each id was trained on, as the last checkpoint has it."""
    from monolith.graph.run_config import GraphRunConfig
    from monolith.training import cpu
    from monolith.training.graph.estimator import GraphEstimator

    task = LinearTask.params().set(settings=Settings(model_dir=str(model_dir))).instantiate()
    config = cpu.CpuTrainingConfig()
    cpu.make_config_backward_compatible(str(model_dir), config)
    training = cpu.CpuTraining(config, task)

    def input_fn():
        ids = tf.RaggedTensor.from_tensor(np.arange(NUM_IDS)[None, :])
        return tf.data.Dataset.from_tensors(
            {"item": ids, "x": tf.zeros([1, DIM]), "y": tf.zeros([1])}
        )

    estimator = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=str(model_dir))
    )
    (found,) = estimator.predict(input_fn, yield_single_examples=False)
    return -found["item"][:, 0]


def run_member(settings):
    """Takes part in a job; the entry of a process."""
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    tf.compat.v1.disable_eager_execution()
    counting.shorten_times(settings)
    config = RunnerConfig(
        server_type=settings.role,
        index=settings.index,
        num_ps=settings.num_ps,
        num_workers=settings.num_workers,
        model_dir=settings.model_dir,
        discovery_type=ServiceDiscoveryType.FILE,
        enable_sync_training=settings.partial,
        enable_partial_sync_training=settings.partial,
        save_checkpoints_steps=settings.save_steps,
        max_retry_times=settings.max_retry_times,
        retry_wait_in_secs=settings.retry_wait_secs,
        chief_timeout_secs=settings.chief_timeout_secs,
        session_creation_timeout_secs=settings.session_creation_timeout_secs,
        use_native_multi_hash_table=settings.native,
        embedding_prefetch_capacity=1 if settings.queues else 0,
        enable_embedding_postpush=settings.queues,
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=4,
    )
    params = LinearTask.params().set(settings=settings)
    params.train.divide_input = settings.more_batches is None
    hooks = [DenseHook(settings)] if settings.role == "worker" else []
    Estimator(params, config).train(steps=settings.steps, max_steps=settings.max_steps, hooks=hooks)
    print("done", os.getpid(), flush=True)


def start_member(job, settings, role, index, name=None, environment=None, **changes):
    """Starts one member."""
    settings = dataclasses.replace(settings, role=role, index=index, **changes)
    name = name or f"{role}-{index}"
    module = "support.partial_sync_job"
    return job.start(name, module, "run_member", settings, environment=environment or {})


def start_job(job, settings, **changes):
    """Starts all members of a job; returns them by name."""
    settings = dataclasses.replace(settings, **changes)
    return {
        f"{role}-{index}": start_member(job, settings, role, index)
        for role, count in (("ps", settings.num_ps), ("worker", settings.num_workers))
        for index in range(count)
    }
