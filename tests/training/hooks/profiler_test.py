import pytest
import tensorflow as tf

from monolith.training.hooks.profiler import Tf2ProfilerHook


class FakeProfiler:
    """Says in which steps it records."""

    def __init__(self):
        self.recording = False

    def start(self, logdir):
        assert not self.recording
        self.recording = True

    def stop(self):
        assert self.recording
        self.recording = False


def record_steps(hook, profiler, steps):
    recorded = []

    class Observer(tf.compat.v1.train.SessionRunHook):
        def before_run(self, run_context):
            recorded.append(profiler.recording)

    global_step = tf.compat.v1.train.get_or_create_global_step()
    # The hook's read of the step is ordered before the step: beside it, it could be off by one.
    with tf.control_dependencies([global_step.graph.as_graph_element(global_step)]):
        train = global_step.assign_add(1)
    hooks = [Observer(), hook]
    with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
        for _ in range(steps):
            session.run(train)
    assert not profiler.recording
    return [step for step, is_recorded in enumerate(recorded) if is_recorded]


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize(
    ("save_steps", "expected"),
    [(None, [4, 5]), (6, [4, 5, 10, 11])],
    ids=["once", "again_and_again"],
)
def test_some_steps_are_profiled(save_steps, expected, monkeypatch, tmp_path):
    profiler = FakeProfiler()
    monkeypatch.setattr(tf.profiler.experimental, "start", profiler.start)
    monkeypatch.setattr(tf.profiler.experimental, "stop", profiler.stop)
    hook = Tf2ProfilerHook(str(tmp_path), (4, 6), save_steps)
    assert record_steps(hook, profiler, steps=14) == expected


@pytest.mark.usefixtures("graph_mode")
def test_profile_is_written(tmp_path):
    hook = Tf2ProfilerHook(str(tmp_path), (1, 3))
    train = tf.compat.v1.train.get_or_create_global_step().assign_add(1)
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(4):
            session.run(train)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_profiles_that_cannot_be():
    with pytest.raises(ValueError, match=r"got the range \[3, 3\)"):
        Tf2ProfilerHook("", (3, 3))
    with pytest.raises(ValueError, match="below the 10 steps of one profile, got 5"):
        Tf2ProfilerHook("", (0, 10), save_steps=5)
