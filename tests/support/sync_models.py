"""A model of `ml.Estimator` that ranks train, and what one rank does with it."""

import os
import pathlib
import signal

import numpy as np
import tensorflow as tf
from support.sync_tasks import write

import monolith as ml
from monolith.checkpoint import failpoints
from monolith.embedding.tables import snapshots
from monolith.graph import collectives

BATCH = 12  # Divided by 1, 2 and 3 ranks.
NUM_IDS = 30


class Ranking(ml.Model):
    """Clicks by user and item; also predicts the rows themselves."""

    def __init__(self):
        super().__init__()
        self.users = ml.Embedding("user", dim=4, initializer="zeros")
        self.items = ml.Embedding("item", dim=3, initializer="zeros")
        self.mlp = ml.MLP([8, 1])

    def call(self, batch):
        rows = tf.concat([self.users(batch), self.items(batch)], 1)
        # Something besides the zeros that rows start with, or no ReLU would let a gradient pass.
        inputs = tf.concat([rows, tf.ones_like(rows[:, :2])], 1)
        head = ml.BinaryHead("click", self.mlp(inputs), batch.get("click"))
        return [head, ml.Output("rows", rows)]


def make_examples(num_batches):
    """Returns batches that do not depend on how many ranks divide them."""
    random = np.random.default_rng(7)
    size = num_batches * BATCH
    users, items = random.integers(0, NUM_IDS, [2, size])
    return {
        "user": users,
        "item": items,
        "click": ((users + items) % 3 == 0).astype(np.float32),
    }


class Data:
    """This rank's part of each batch."""

    def __init__(self, num_batches):
        self._num_batches = num_batches

    def __call__(self):
        size, rank = collectives.size(), collectives.rank()
        dataset = tf.data.Dataset.from_tensor_slices(make_examples(self._num_batches))
        return dataset.shard(size, rank).batch(BATCH // size)


def all_ids():
    ids = np.arange(NUM_IDS)
    return tf.data.Dataset.from_tensor_slices({"user": ids, "item": ids}).batch(NUM_IDS)


def make_estimator(model_dir, optimizer, sync=True, **settings):
    optimizers = {"sgd": ml.SGD(0.5), "adagrad": ml.Adagrad(0.1)}
    config = ml.RunConfig(sync=sync, **settings)
    return ml.Estimator(Ranking(), model_dir, optimizers[optimizer], config=config, progress=False)


def describe(estimator):
    """Returns all rows and all dense variables of the last checkpoint."""
    rows = [prediction["rows"] for prediction in estimator.predict(all_ids)]
    names = [
        n for n in estimator.get_variable_names() if "mlp" in n.lower() or "dense" in n.lower()
    ]
    dense = {name: estimator.get_variable_value(name).tolist() for name in names}
    return {"rows": np.array(rows).tolist(), "dense": dense}


def train_from(directory, optimizers, num_batches):
    """Goes on from the checkpoints of one process, each of another optimizer."""
    collectives.init()
    for optimizer in optimizers:
        model_dir = f"{directory}/{optimizer}"
        estimator = make_estimator(model_dir, optimizer, save_checkpoints_steps=20)
        estimator.train(Data(num_batches))
        if collectives.rank() == 0:
            write(directory, optimizer, describe(estimator))
    collectives.shutdown()


def die_at(point):
    """Kills this process when it comes to a point for the second time."""
    left = [2]

    def count(reached):
        left[0] -= reached == point
        if left[0] == 0:
            print("the victim goes", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.on_reach = count
    write_rows = snapshots.TableSaverListener.before_save

    def write_and_count(self, session, step):
        write_rows(self, session, step)
        count("rows_written")

    snapshots.TableSaverListener.before_save = write_and_count


def train_until_killed(directory, victim, point=None, max_steps=60):
    """Trains with a checkpoint every few steps; rank `victim`, if it is one, dies on the way.

    It does so at a point of its second save: one of `failpoints`, or, in a rank that is not rank 0,
    when it has written its rows.
    """
    collectives.init(timeout_sec=20.0)
    if collectives.rank() == victim:
        die_at(point)
    estimator = make_estimator(f"{directory}/model", "adagrad", save_checkpoints_steps=4)
    # Who goes on with another number of ranks reads its input from the start.
    estimator.train(Data(max(200, max_steps)), max_steps=max_steps)
    write(directory, "done", [len(list(pathlib.Path(directory, "model").iterdir()))])
    collectives.shutdown()
