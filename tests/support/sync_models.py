"""A model of `ml.Estimator` that ranks train, and what one rank does with it."""

import os
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
# More than any test of kills reads.
NUM_BATCHES = 20000


class Ranking(ml.Model):
    """Clicks by user and item; also predicts the rows themselves."""

    def __init__(self):
        super().__init__()
        self.users = ml.Embedding("user", dim=4, initializer="zeros")
        self.items = ml.Embedding("item", dim=3, initializer="zeros")
        # A network that passes no gradient at first, as one of 256 would with biases of zero, would
        # leave rows at zero.
        self.mlp = ml.MLP([8, 1], bias_initializer="ones")

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


def evaluate_and_train(directory, num_batches):
    """Uses a checkpoint before it meets the other ranks, which training does first."""
    estimator = make_estimator(f"{directory}/adagrad", "adagrad")
    examples = make_examples(1)
    estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices(examples).batch(BATCH))
    describe(estimator)
    estimator.train(Data(num_batches))
    write(directory, "place", [collectives.rank(), collectives.size()])
    collectives.shutdown()


def kill_at(point, hits, pid):
    """Kills a process when this one comes to a point for the given time."""
    left = [hits]

    def count(reached):
        left[0] -= reached == point
        if left[0] == 0:
            print("the victim goes", flush=True)
            os.kill(pid, signal.SIGKILL)

    failpoints.on_reach = count
    write_rows = snapshots.TableSaverListener.before_save

    def write_and_count(self, session, step):
        count("position_written")
        write_rows(self, session, step)
        count("rows_written")

    snapshots.TableSaverListener.before_save = write_and_count


def train_until_killed(directory, kill=None, max_steps=NUM_BATCHES):
    """Trains with a checkpoint every few steps; a rank may die on the way.

    Args:
        directory: Of the test.
        kill: None, or: which rank comes to a point, which one; for which time; and which rank is
            killed then. Points are those of `failpoints`, and in any rank `position_written` and
            `rows_written`.
        max_steps: Where training ends.
    """
    collectives.init(timeout_sec=20.0)
    pids = [pid for (pid,) in collectives.gather_numbers([os.getpid()])]
    print("the ranks have met", flush=True)
    if kill is not None and collectives.rank() == kill[0]:
        _, point, hits, victim = kill
        kill_at(point, hits, pids[victim])
    settings = {"save_checkpoints_steps": 4, "checkpoints_max_to_keep": 2}
    estimator = make_estimator(f"{directory}/model", "adagrad", **settings)
    # Who goes on with another number of ranks reads its input from the start.
    estimator.train(Data(NUM_BATCHES), max_steps=max_steps)
    collectives.shutdown()


def train_for_servers(directory, num_batches, place=None):
    """Trains; without a place of servers to keep up to date, rank 0 exports."""
    collectives.init()
    settings = {} if place is None else {"sync_to": place, "sync_model": "m"}
    estimator = make_estimator(
        f"{directory}/model",
        "adagrad",
        sync_interval_secs=0.1,
        sync_dense_interval_secs=0.2,
        **settings,
    )
    estimator.train(Data(num_batches))
    if place is None and collectives.rank() == 0:
        estimator.export()
    collectives.shutdown()
