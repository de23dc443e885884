"""Listeners that act on one side of a save."""

import pytest
import tensorflow as tf

from monolith.native_training.hooks import hook_utils
from monolith.training.hooks import listener_filters


class RecordingListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def before_save(self, session, global_step_value):
        self.calls.append(("before_save", session, global_step_value))

    def after_save(self, session, global_step_value):
        self.calls.append(("after_save", session, global_step_value))
        return True

    def end(self, session, global_step_value):
        self.calls.append("end")

    def __repr__(self):
        return "<the inner one>"


def test_historical_path():
    assert hook_utils is listener_filters


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (listener_filters.BeforeSaveListener, "before_save"),
        (listener_filters.AfterSaveListener, "after_save"),
    ],
)
def test_only_one_side_is_passed_on(make, expected):
    inner = RecordingListener()
    listener = make(inner)
    listener.begin()
    listener.before_save("session", 3)
    stops = listener.after_save("session", 3)
    listener.end("session", 3)
    assert inner.calls == [(expected, "session", 3)]
    # What a listener returns after a save ends the training.
    assert stops is (True if expected == "after_save" else None)


@pytest.mark.parametrize(
    "make", [listener_filters.BeforeSaveListener, listener_filters.AfterSaveListener]
)
def test_repr_names_both(make):
    text = repr(make(RecordingListener()))
    assert make.__name__ in text
    assert text.endswith("<the inner one>")


@pytest.mark.usefixtures("graph_mode")
def test_in_a_saver_hook(tmp_path):
    inner = RecordingListener()
    step = tf.compat.v1.train.get_or_create_global_step()
    advance = tf.compat.v1.assign_add(step, 1)
    hook = tf.compat.v1.train.CheckpointSaverHook(
        str(tmp_path), save_steps=1, listeners=[listener_filters.BeforeSaveListener(inner)]
    )
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(advance)
    assert {call[0] for call in inner.calls} == {"before_save"}
    assert [call[2] for call in inner.calls] == [0, 1]
