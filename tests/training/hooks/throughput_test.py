import pytest
import tensorflow as tf

from monolith.core import metrics
from monolith.training.hooks.throughput import ThroughputMetricHook

TAGS = {"model_name": "ranking", "type": "tide"}


class Sink:
    def __init__(self):
        self.emitted = []

    def emit(self, kind, name, value, tags):
        assert dict(tags) == TAGS
        self.emitted.append((kind, name, value))

    def flush(self):
        pass


@pytest.fixture
def sink():
    sink = Sink()
    metrics.set_sink(sink)
    yield sink
    metrics.set_sink(None)


@pytest.mark.usefixtures("graph_mode")
def test_speed_is_reported_once_a_minute(sink):
    # The machines were there at second 100; steps are 25 seconds long.
    times = iter([110, 135, 160, 185, 210])
    hook = ThroughputMetricHook(
        "ranking", start_time_secs=100, cluster_type="tide", clock=lambda: next(times)
    )
    train = tf.compat.v1.train.get_or_create_global_step().assign_add(1)
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(train)
    prefix = "monolith.training"
    assert sink.emitted == [
        ("timer", f"{prefix}.first_run_elapsed_time", 10),
        # 3 steps in the 75 seconds from second 110 to 185.
        ("store", f"{prefix}.run_steps_per_sec", 3 / 75),
        ("store", f"{prefix}.run_steps_elapsed_time", 85),
    ]
