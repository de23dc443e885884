"""The save before a server ends; the tests with processes have real ones."""

import contextlib

import pytest
import tensorflow as tf

from monolith.training.hooks.stopping_servers import SaveForStoppingHook
from monolith.training.hooks.sync import Others


class Chief:
    """What the hook talks to."""

    def __init__(self):
        self.stopping = set()
        self.is_stopping = False
        self.said = []
        self.saved = []
        self.error = None
        self.others = Others(
            check=lambda: None,
            has_left=lambda worker: False,
            is_absent=lambda worker: False,
            is_stopping=lambda: self.is_stopping,
            list_stopping=lambda: self.stopping,
            say_saved=self.said.append,
        )

    def trigger_save(self, session):
        if self.error is not None:
            raise self.error
        self.saved.append(session)


@pytest.fixture
def chief():
    return Chief()


def test_one_save_after_a_step_for_each_server(chief):
    hook = SaveForStoppingHook(chief, chief.others)
    with tf.Graph().as_default(), contextlib.ExitStack() as stack:
        step = tf.constant(1)
        session = stack.enter_context(tf.compat.v1.train.MonitoredSession(hooks=[hook]))
        session.run(step)
        assert (chief.saved, chief.said) == ([], [])
        chief.stopping = {"a"}
        session.run(step)
        session.run(step)
        assert len(chief.saved) == 1
        chief.stopping = {"a", "b"}
        session.run(step)
    assert len(chief.saved) == 2
    assert chief.said == [{"a"}, {"a", "b"}]


def test_chief_that_stops_itself_saves_at_its_end(chief):
    chief.stopping, chief.is_stopping = {"a"}, True
    SaveForStoppingHook(chief, chief.others).save_if_asked(None)
    assert (chief.saved, chief.said) == ([], [])


def test_failed_save_is_no_save(chief):
    chief.stopping, chief.error = {"a"}, tf.errors.UnavailableError(None, None, "gone")
    with pytest.raises(tf.errors.UnavailableError):
        SaveForStoppingHook(chief, chief.others).save_if_asked(None)
    assert chief.said == []
