"""Figures of a training: right, measured once, and cheap."""

import math
import time

import numpy as np
import pytest
import tensorflow as tf

from monolith import testing
from monolith.data.auc import auc
from monolith.embedding.tables import registry
from monolith.embedding.tables.multi import MultiHashTable
from monolith.graph import metadata
from monolith.model.heads import TRAINED_HEADS, Head
from monolith.optimizer.learning_rate import PolynomialDecay
from monolith.training.hooks import watch

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        v1.train.get_or_create_global_step()
        yield graph


def make_step(*after: tf.Operation) -> tf.Operation:
    """A step that counts itself after every head, and `after`, have read its number."""
    heads = metadata.get_meta(TRAINED_HEADS, list)
    tensors = [tensor for head in heads for tensor in (head.pred, head.label)]
    read = [tensor.op for tensor in tensors if tensor is not None]
    with tf.control_dependencies([*after, *read]):
        return v1.assign_add(v1.train.get_global_step(), 1).op


def add_head(labels, preds, name="click", classification=True) -> None:
    """Adds a head whose batch of step `i` is row `i`."""
    step = v1.train.get_global_step()
    label = None if labels is None else tf.constant(labels)[step]
    head = Head(name, tf.constant(preds)[step], label, classification)
    metadata.get_meta(TRAINED_HEADS, list).append(head)


class Collector(watch.Reporter):
    """Wants figures after every so many steps."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.figures: list[watch.Figures] = []
        self.last: watch.Figures | None = None
        self.started: list[int] = []
        self.num_closed = 0

    def start(self, step):
        self.started.append(step)

    def plan(self, num_steps, now_sec):
        return num_steps + self.every, math.inf

    def report(self, figures):
        self.figures.append(figures)

    def end(self, figures):
        self.last = figures

    def close(self):
        self.num_closed += 1


class Clock:
    """Stands still; steps move it."""

    now_sec = 100.0

    def __call__(self) -> float:
        return self.now_sec


class Slow(v1.train.SessionRunHook):
    """Makes every step take so many seconds of a clock."""

    def __init__(self, clock: Clock, step_sec: float) -> None:
        self.clock, self.step_sec = clock, step_sec

    def before_run(self, run_context):
        self.clock.now_sec += self.step_sec


def run(hooks, train_op: tf.Operation, steps: int) -> None:
    with v1.train.SingularMonitoredSession(hooks=hooks) as session:
        for _ in range(steps):
            session.run(train_op)


def test_metrics_and_loss_are_those_of_the_steps(graph):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (8, 16)).astype(np.float32)
    preds = rng.random((8, 16)).astype(np.float32)
    add_head(labels, preds)
    add_head(labels, preds, "score", classification=False)
    loss = tf.cast(v1.train.get_global_step(), tf.float32)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
    collector = Collector()
    run([watch.WatchHook([collector])], make_step(loss.op), steps=4)
    last = collector.last
    assert (last.step, last.start_step) == (4, 1)
    assert last.metrics == {
        "click_auc": pytest.approx(auc(preds[:4], labels[:4])),
        "score_mse": pytest.approx(np.mean(np.square(preds[:4] - labels[:4]))),
    }
    assert last.loss == 1.5  # (0 + 1 + 2 + 3) / 4
    assert [figures.loss for figures in collector.figures] == [0, 0.5, 1, 1.5]


def test_old_examples_are_forgotten(graph, monkeypatch):
    monkeypatch.setattr(watch, "_WINDOW_EXAMPLES", (32, 32))
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (6, 16)).astype(np.float32)
    preds = rng.random((6, 16)).astype(np.float32)
    add_head(labels, preds)
    collector = Collector()
    hook = watch.WatchHook([collector])
    run([hook], make_step(), steps=6)
    assert collector.last.metrics["click_auc"] == pytest.approx(auc(preds[4:], labels[4:]))
    assert len(hook._window) == 2


def test_a_batch_that_is_larger_than_the_window(graph, monkeypatch):
    monkeypatch.setattr(watch, "_WINDOW_EXAMPLES", (4, 4))
    labels, preds = np.float32([[0, 1, 0, 1, 1, 0]]), np.float32([[1, 0, 0.1, 0.2, 0.3, 0.4]])
    add_head(labels, preds)
    collector = Collector()
    run([watch.WatchHook([collector])], make_step(), steps=1)
    # Of the last 4: 0.2 and 0.3 are above 0.1, and below 0.4.
    assert collector.last.metrics == {"click_auc": 0.5}


@pytest.mark.parametrize("shape", [[300, 0], [300]], ids=["empty", "scalar"])
def test_odd_batches(graph, shape):
    """Empty ones do not fill the memory; a model that predicts one number has one example."""
    add_head(np.zeros(shape, np.float32), np.zeros(shape, np.float32), classification=False)
    collector = Collector(every=100)
    hook = watch.WatchHook([collector])
    run([hook], make_step(), steps=300)
    assert collector.last.metrics == ({"click_mse": 0.0} if len(shape) == 1 else {})
    assert len(hook._window) <= 4096
    hook._window_limits = 10, 10
    hook._remember(hook._window[-1][1])
    assert len(hook._window) == 10


def test_speed_is_that_of_the_last_seconds(graph):
    add_head(np.ones([200, 10], np.float32), np.ones([200, 10], np.float32))
    clock, collector = Clock(), Collector()
    slow = Slow(clock, 60.0)
    hooks = [slow, watch.WatchHook([collector], clock=clock)]
    train_op = make_step()
    with v1.train.SingularMonitoredSession(hooks=hooks) as session:
        session.run(train_op)  # The first step is slow, and not counted.
        slow.step_sec = 0.5
        for _ in range(4):
            session.run(train_op)
        assert collector.figures[0].examples_per_sec is None
        assert collector.figures[-1].examples_per_sec == 20  # 10 in half a second
        assert collector.figures[-1].elapsed_sec == 2
        slow.step_sec = 0.25
        for _ in range(100):
            session.run(train_op)
        assert collector.figures[-1].examples_per_sec == 40
        assert collector.figures[-1].steps_per_sec == 4


def test_the_last_save_does_not_count_as_training(graph):
    clock, collector = Clock(), Collector(every=3)

    class Saver(v1.train.SessionRunHook):
        def end(self, session):
            clock.now_sec += 600.0

    run(
        [Slow(clock, 0.5), Saver(), watch.WatchHook([collector], clock=clock)],
        make_step(),
        steps=40,
    )
    assert collector.last.steps_per_sec == 2


def test_speed_of_a_model_without_heads(graph):
    clock, collector = Clock(), Collector()
    run([Slow(clock, 0.5), watch.WatchHook([collector], clock=clock)], make_step(), steps=3)
    assert collector.last.examples_per_sec is None
    assert collector.last.steps_per_sec == 2
    assert collector.last.metrics == {}
    assert collector.last.loss is None


def test_heads_without_a_label_count_examples(graph):
    add_head(None, np.ones([9, 10], np.float32))
    clock, collector = Clock(), Collector()
    run([Slow(clock, 0.5), watch.WatchHook([collector], clock=clock)], make_step(), steps=3)
    assert collector.last.examples_per_sec == 20
    assert collector.last.metrics == {}


def test_without_both_labels_there_is_no_auc(graph):
    add_head(np.ones([1, 4], np.float32), np.ones([1, 4], np.float32))
    collector = Collector()
    run([watch.WatchHook([collector])], make_step(), steps=1)
    assert collector.last.metrics == {}


def test_rows_of_all_servers_are_added_up(graph):
    tables = [
        MultiHashTable.from_configs(
            {
                name: testing.generate_test_hash_table_config(1, learning_rate=1.0)
                for name in ("movie", "user")
            },
            name_suffix=str(server),
        )
        for server in range(2)
    ]
    for server, table in enumerate(tables):
        registry.set_shard(table.name, registry.TableShard("all", server, num_servers=2))
    updates = [
        table.assign({"user": ([server, 7], [[1.0], [1.0]]), "movie": ([3], [[1.0]])}).as_op()
        for server, table in enumerate(tables)
    ]
    initialize = [table.initializer for table in tables]
    scaffold = v1.train.Scaffold(local_init_op=tf.group(*initialize))
    train_op = make_step(*updates)
    creator, collector = v1.train.ChiefSessionCreator(scaffold), Collector()
    with v1.train.MonitoredSession(creator, [watch.WatchHook([collector])]) as session:
        session.run(train_op)
    rows = {name: stats.rows for name, stats in collector.last.tables.items()}
    assert rows == {"movie": 2, "user": 4}
    admitted = {name: stats.admitted for name, stats in collector.last.tables.items()}
    assert admitted == rows
    assert all(stats.memory_bytes > 0 for stats in collector.last.tables.values())


def test_learning_rates_that_are_schedules(graph):
    collector = Collector()
    schedule = PolynomialDecay(0.1, decay_steps=4, end_learning_rate=0.5)
    hook = watch.WatchHook([collector], learning_rates={"dense": schedule, "rows": 0.1})
    run([hook], make_step(), steps=4)
    rates = [figures.rates for figures in collector.figures]
    assert rates == [{"dense": pytest.approx(rate)} for rate in (0.2, 0.3, 0.4, 0.5)]


def test_reporters_share_what_was_measured(graph, monkeypatch):
    add_head(np.float32([[0, 1]] * 6), np.float32([[0, 1]] * 6))
    measured = []
    compute = watch.window_metrics.compute
    monkeypatch.setattr(
        watch.window_metrics, "compute", lambda *args: measured.append(1) or compute(*args)
    )
    first, second = Collector(every=2), Collector(every=3)
    run([watch.WatchHook([first, second])], make_step(), steps=6)
    assert [figures.step for figures in first.figures] == [2, 4, 6]
    assert [figures.step for figures in second.figures] == [3, 6]
    assert first.figures[-1] is second.figures[-1] is first.last is second.last
    assert len(measured) == 4  # After steps 2, 3, 4 and 6.


def test_a_longer_training_looks_at_more_examples(graph):
    labels = np.zeros([100, 1024], np.float32)
    labels[:50] = 1
    add_head(labels, np.zeros([100, 1024], np.float32), classification=False)
    collector = Collector()
    hook = watch.WatchHook([collector])
    run([hook], make_step(), steps=60)
    # A fifth of the 59 steps that are counted is at least 11.8 of them: 10 of 12 without a label.
    assert len(hook._window) == 12
    assert collector.last.metrics["click_mse"] == pytest.approx(2 / 12)
    # At first, 4096 examples.
    assert collector.figures[10].metrics["click_mse"] == 1.0


def test_reports_that_take_long_become_rare(graph):
    class Lazy(Collector):
        def report(self, figures):
            if figures.step > 200:
                time.sleep(0.03)
            super().report(figures)

    clock, collector = Clock(), Lazy()
    hooks = [Slow(clock, 1.0), watch.WatchHook([collector], clock=clock)]
    run(hooks, make_step(), steps=300)
    steps = [figures.step for figures in collector.figures]
    assert steps[:200] == list(range(1, 201))  # A short training is seen step by step.
    # 0.03 s, and a bit, are 0.3 % of 10 s.
    assert 5 <= len(steps) - 200 <= 13


@pytest.mark.parametrize(("step_sec", "share"), [(0.001, 1 / 8), (0.02, 1)])
def test_of_many_quick_steps_only_some_are_looked_at(graph, monkeypatch, step_sec, share):
    monkeypatch.setattr(watch, "_WINDOW_EXAMPLES", (10, 100))
    monkeypatch.setattr(watch, "_LARGEST_SHARE", 1e6)  # Real time is not that of the clock.
    labels = np.arange(2000, dtype=np.float32)[:, None] + np.zeros([1, 10], np.float32)
    add_head(labels, np.zeros([2000, 10], np.float32), classification=False)
    clock, collector = Clock(), Collector(every=100)
    hook = watch.WatchHook([collector], clock=clock)
    looked_at = []
    remember = hook._remember
    hook._remember = lambda results: looked_at.append(1) or remember(results)
    run([Slow(clock, step_sec), hook], make_step(), steps=2000)
    # All up to the first report after 200 steps.
    assert len(looked_at) == pytest.approx(300 + 1700 * share, abs=20)
    # What is not looked at is counted.
    assert collector.last.examples_per_sec == pytest.approx(10 / step_sec, rel=0.05)
    # The last 10 steps, or those of the last cycle of 80; the label is the step.
    assert 1910**2 < collector.last.metrics["click_mse"] < 2000**2


def test_a_session_that_is_made_again_starts_anew(graph):
    add_head(np.float32([[0, 1]] * 9), np.float32([[0, 1]] * 9))
    collector = Collector()
    train_op = make_step()
    fails = [True]

    class Fail(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if collector.figures[-1].step == 3 and fails:
                fails.clear()
                raise tf.errors.AbortedError(None, None, "the server has restarted")

    with v1.train.MonitoredSession(hooks=[watch.WatchHook([collector]), Fail()]) as session:
        for _ in range(5):
            session.run(train_op)
    assert len(collector.started) == 2
    assert collector.last.start_step == 1  # The variables of this session are new.


def test_without_a_step_there_is_nothing_to_report(graph):
    collector = Collector()
    run([watch.WatchHook([collector])], make_step(), steps=0)
    assert collector.last is None
    assert collector.num_closed == 1


def test_it_is_closed_also_when_training_fails(graph):
    collector = Collector()
    train_op = make_step()

    def fail():
        with (
            watch.WatchHook([collector]) as hook,
            v1.train.SingularMonitoredSession(hooks=[hook]) as session,
        ):
            session.run(train_op)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert collector.last is None
    assert collector.num_closed == 1
