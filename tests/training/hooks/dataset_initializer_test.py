"""The hook that starts the input of a session."""

import pytest
import tensorflow as tf

from monolith.cluster import mlp
from monolith.training.hooks.dataset_initializer import DatasetInitializerHook

v1 = tf.compat.v1


@pytest.fixture
def iterator(graph_mode):
    return v1.data.make_initializable_iterator(tf.data.Dataset.range(3))


def test_every_session_reads_from_the_start(iterator):
    hook, element = DatasetInitializerHook(iterator), iterator.get_next()
    for _ in range(2):
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            assert [session.run(element), session.run(element)] == [0, 1]


def test_a_session_that_replaces_a_broken_one_reads_from_the_start(iterator):
    element = iterator.get_next()

    class AbortOnce(v1.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context, run_values):
            self.runs += 1
            if self.runs == 2:
                raise tf.errors.AbortedError(None, None, "a server was lost")

    hooks = [DatasetInitializerHook(iterator), AbortOnce()]
    with v1.train.MonitoredSession(hooks=hooks) as session:
        # The second run reads 1, fails, and is tried again in a new session.
        assert [session.run(element) for _ in range(3)] == [0, 0, 1]


def test_a_data_service_can_take_over(iterator, monkeypatch):
    """`mlp_pass` replaces the methods of all classes in this list."""
    assert DatasetInitializerHook in mlp.DATASET_INITIALIZER_HOOKS
    for name in ("begin", "after_create_session"):
        monkeypatch.setattr(DatasetInitializerHook, name, getattr(mlp, name))
    hook, element = DatasetInitializerHook(iterator), iterator.get_next()
    with v1.train.MonitoredSession(hooks=[hook]) as session:
        assert [session.run(element) for _ in range(3)] == [0, 1, 2]
