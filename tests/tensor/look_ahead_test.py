"""Batches that were read ahead: none is lost, and no more are read than there is room for."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from monolith.tensor import look_ahead, prefetch

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("graph_mode")

TIMEOUT_SEC = 30


class Input:
    """Counts what is read, and waits if told to."""

    def __init__(self, size):
        self.num_read = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._size = size
        dataset = tf.data.Dataset.from_generator(
            self._read, output_signature=tf.TensorSpec([], tf.int64)
        )
        # Otherwise TensorFlow reads ahead, too.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        self.iterator = v1.data.make_initializable_iterator(dataset.with_options(options))

    def _read(self):
        for i in range(self._size):
            self.go_on.wait(TIMEOUT_SEC)
            self.num_read += 1
            yield i


class Initialize(v1.train.SessionRunHook):
    def __init__(self, iterator):
        self._iterator = iterator

    def after_create_session(self, session, coord):
        session.run(self._iterator.initializer)


def make(size, capacity):
    data = Input(size)
    features = {"id": data.iterator.get_next(), "name": "x"}
    features, queue = prefetch.enqueue_dicts_with_queue_return(
        features, look_ahead.get_queue_capacity(capacity)
    )
    hook = look_ahead.LookAheadHook(queue, capacity)
    return data, features["id"], hook, [Initialize(data.iterator), hook]


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_all_batches_come_in_order(capacity):
    _, batch, _, hooks = make(50, capacity)
    seen = []
    with v1.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            seen.append(int(session.run(batch)))
    assert seen == list(range(50))


@pytest.mark.parametrize("capacity", [1, 3])
def test_what_is_ahead_can_be_read_and_stays(capacity):
    data, batch, hook, hooks = make(50, capacity)
    seen, most = [], 0
    with v1.train.SingularMonitoredSession(hooks=hooks) as session:
        raw = session.raw_session()
        while not session.should_stop():
            seen.append(int(session.run(batch)))
            with hook.held() as is_held:
                assert is_held
                ahead = [int(b[0]) for b in hook.read(raw)]
                num_read = data.num_read
            # Whatever was read is trained on or ahead.
            assert seen + ahead == list(range(num_read))
            most = max(most, len(ahead))
    assert seen == list(range(50))
    assert 1 <= most <= look_ahead.get_queue_capacity(capacity)


def test_reads_ahead_of_a_step_that_has_begun():
    """As far as a queue of that capacity, and a thread with a batch in its hands, would."""
    data, batch, _, hooks = make(50, 2)
    with v1.train.SingularMonitoredSession(hooks=hooks) as session:
        session.run(batch)
        deadline = threading.Event()
        for _ in range(100):
            if data.num_read >= 4:
                break
            deadline.wait(0.05)
        deadline.wait(0.2)
        assert data.num_read in (4, 5)


def test_batches_put_back_come_first():
    _, batch, hook, (initialize, _) = make(5, 1)

    class Restore(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            hook.fill(session, [[np.int64(101)], [np.int64(102)]])

    with v1.train.MonitoredSession(hooks=[initialize, Restore(), hook]) as session:
        assert [int(session.run(batch)) for _ in range(4)] == [101, 102, 0, 1]


def test_a_read_that_does_not_end_cannot_be_held(monkeypatch):
    data, batch, hook, hooks = make(50, 1)
    monkeypatch.setattr(look_ahead, "_HOLD_SEC", 0.2)
    with v1.train.SingularMonitoredSession(hooks=hooks) as session:
        session.run(batch)
        data.go_on.clear()
        for _ in range(100):
            with hook.held() as is_held:
                if not is_held:
                    break
            if session.raw_session().run(hook._size):
                session.run(batch)
        data.go_on.set()
        assert not is_held


def test_errors_of_the_input_are_raised():
    dataset = tf.data.Dataset.range(5).map(
        lambda x: tf.debugging.check_numerics(1.0 / tf.cast(3 - x, tf.float32), "bad batch")
    )
    batch, queue = prefetch.enqueue_dicts_with_queue_return(
        v1.data.make_one_shot_iterator(dataset).get_next(), look_ahead.get_queue_capacity(1)
    )
    hook = look_ahead.LookAheadHook(queue, 1)

    def train():
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                session.run(batch)

    with pytest.raises(tf.errors.InvalidArgumentError, match="bad batch"):
        train()
