"""Ranks that save once, of which one may be unable to write."""

import tensorflow as tf
from support.ranks import make_session, write

from monolith.checkpoint.saver import NoFirstSaveCheckpointSaverHook, PartialRecoverySaver
from monolith.graph import collectives
from monolith.training.hooks import rank_flags, rank_saves
from monolith.training.hooks.step_gate import StepGate


class CountingListener(tf.compat.v1.train.CheckpointSaverListener):
    """Counts what it is told, and fails the first times."""

    def __init__(self, num_failures=0):
        self.num_writes = 0
        self.is_told = False
        self._num_failures = num_failures

    def before_save(self, session, global_step_value):
        self.num_writes += 1
        if self.num_writes <= self._num_failures:
            raise tf.errors.ResourceExhaustedError(None, None, "no space here")

    def after_save(self, session, global_step_value):
        self.is_told = True


def save(directory, num_failures):
    collectives.init()
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        step = tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1)
        agreement = rank_flags.AgreementHook(rank_flags.RankFlags(), rank_flags.StopTogetherHook())
        if collectives.rank() == 0:
            write(directory, "saved", _lead(f"{directory}/model", step))
        else:
            listener = CountingListener(num_failures)
            hook = rank_saves.RankFollowerHook(agreement, StepGate(), [listener])
            hook.begin()
            with make_session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                hook.after_create_session(session, None)
                session.run(step)
                hook.end(session)
            write(directory, "saved", {"writes": listener.num_writes, "is_told": listener.is_told})
    collectives.shutdown()


def _lead(model_dir, step):
    tf.io.gfile.makedirs(model_dir)
    own = CountingListener()
    leader = rank_saves.RankLeader()
    hook = NoFirstSaveCheckpointSaverHook(
        model_dir,
        save_steps=100,
        saver=PartialRecoverySaver(),
        listeners=[leader.first, own, leader.last],
        guard_saver_listeners=[leader.guard],
    )
    hook.begin()
    with make_session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        hook.after_create_session(session, None)
        session.run(step)
        try:
            hook.end(session)
            result = "saved"
        except tf.errors.UnknownError as error:
            print(error.message, flush=True)
            result = "not saved"
    return {"result": result, "attempts": own.num_writes}
