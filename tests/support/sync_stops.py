"""Ranks that stop, or leave, while others would go on."""

import atexit
import threading

import tensorflow as tf
from support import sync_models
from support.sync_tasks import write

import monolith as ml
from monolith.checkpoint.paths import SaveHelper
from monolith.graph import collectives, rank_library, rank_links
from monolith.training.hooks import rank_saves

SETTINGS = {"save_checkpoints_steps": 1000}


class Line(ml.Model):
    """Clicks by the number of a user, without embeddings."""

    def __init__(self):
        super().__init__()
        self.mlp = ml.MLP([1])

    def call(self, batch):
        inputs = tf.reshape(tf.cast(batch["user"], tf.float32), [-1, 1]) / sync_models.NUM_IDS
        return ml.BinaryHead("click", self.mlp(inputs), batch.get("click"))


MODELS = {"dense": Line, "embeddings": sync_models.Ranking}


def make_estimator(model_dir, kind, **settings):
    config = ml.RunConfig(sync=True, **SETTINGS, **settings)
    return ml.Estimator(MODELS[kind](), model_dir, ml.SGD(0.1), config=config, progress=False)


class OnceAfter(tf.compat.v1.train.SessionRunHook):
    """Does something after some steps, once."""

    def __init__(self, num_steps, act):
        self._left = num_steps
        self._act = act

    def after_run(self, run_context, run_values):
        self._left -= 1
        if self._left == 0:
            self._act(run_context)


def get_step(estimator):
    return SaveHelper.get_global_step_value(estimator.latest_checkpoint())


def stop_alone(directory, kind):
    """Rank 1 asks to stop after three steps, alone; then there is a limit of steps for all."""
    collectives.init(timeout_sec=20.0)
    estimator = make_estimator(f"{directory}/model", kind)
    stop = OnceAfter(3, lambda run_context: run_context.request_stop())
    hooks = [stop] if collectives.rank() == 1 else []
    data = sync_models.Data(20)
    steps = [get_step(estimator.train(data, hooks=hooks))]
    steps.append(get_step(estimator.train(data, max_steps=7)))
    write(directory, "steps", steps)
    collectives.shutdown()


def train_until_told(directory, kind):
    collectives.init(timeout_sec=20.0)
    estimator = make_estimator(f"{directory}/model", kind)
    begun = OnceAfter(3, lambda run_context: print("it trains", flush=True))
    estimator.train(sync_models.Data(sync_models.NUM_BATCHES), hooks=[begun])


def leave():
    """Does what a program does at its end, and then stands still: its goodbye is all that shows."""
    atexit._run_exitfuncs()
    threading.Event().wait()


def train_until_left(directory, place):
    """Rank 1 leaves, where it is not in a step."""
    rank_links.GRACE_SEC = 1.0
    collectives.init(timeout_sec=3.0)
    if collectives.rank() == 1:
        owner, method = {
            "session": (rank_library.BroadcastGlobalVariablesHook, "after_create_session"),
            "save": (rank_saves.RankFollowerHook, "_write"),
        }[place]
        setattr(owner, method, lambda *args: leave())
    estimator = make_estimator(f"{directory}/model", "dense")
    estimator.train(sync_models.Data(2))
