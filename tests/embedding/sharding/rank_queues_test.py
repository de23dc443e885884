"""Queues of one rank; that those of several meet, `tests/training/synchronous_test.py` shows."""

import pytest
import tensorflow as tf

from monolith.embedding.sharding.rank_queues import RankQueues
from monolith.graph import collectives

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init()
    yield
    collectives.shutdown()


def run(queues, step, hooks, num_steps):
    session = tf.compat.v1.train.SingularMonitoredSession(hooks=[*queues.forward_hooks, *hooks])
    with session:
        return [int(session.run(step)) for _ in range(num_steps)], session.raw_session()


def test_no_queue():
    queues = RankQueues({})
    assert queues.after_lookup("rows") == "rows"
    assert queues.after_exchange("rows") == "rows"
    assert queues.before_exchange(lambda x: x + 1, (1,)) == 2
    assert (queues.forward_hooks, queues.push_hooks) == ([], [])


def test_batches_stay_in_order():
    queues = RankQueues({"enable_pipelined_fwda2a": 1, "embedding_prefetch_capacity": 2})
    number = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(9)).get_next()
    number = queues.after_exchange(queues.after_lookup(number))
    assert len(queues.forward_hooks) == 2
    assert run(queues, number, [], 9)[0] == list(range(9))


@pytest.mark.parametrize(
    ("settings", "late_steps"),
    [
        ({}, 0),
        ({"enable_async_optimize": 1}, 1),
        ({"enable_pipelined_bwda2a": 1}, 1),
        ({"enable_async_optimize": 1, "enable_pipelined_bwda2a": 1}, 2),
    ],
)
def test_updates_come_late_and_all_come(settings, late_steps):
    queues = RankQueues(settings)
    total = tf.Variable(0)

    def send(x):
        return queues.before_update(lambda y: total.assign_add(y).op, (x,))

    push = queues.before_exchange(send, (tf.constant(1),))
    hooks = queues.push_hooks
    seen = []
    with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
        for _ in range(5):
            session.run(push)
            seen.append(int(session.raw_session().run(total)))
        # At the last step, `late_steps` updates are still under way.
        assert seen[-1] == 5 - late_steps
        for hook in hooks:
            hook.drain(session.raw_session())
        assert int(session.raw_session().run(total)) == 5
