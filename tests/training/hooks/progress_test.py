"""The progress line: what it says, in a terminal and without one, also when training fails."""

import io

import numpy as np
import pytest
import rich.console
import tensorflow as tf

from monolith import errors, testing
from monolith.data.auc import auc
from monolith.embedding.tables.multi import MultiHashTable
from monolith.graph import metadata
from monolith.model.heads import TRAINED_HEADS, Head
from monolith.training.hooks import progress

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        v1.train.get_or_create_global_step()
        yield graph


@pytest.fixture
def out():
    return rich.console.Console(file=io.StringIO(), width=300)


@pytest.fixture
def terminal():
    return rich.console.Console(file=io.StringIO(), width=300, force_terminal=True)


def make_step(*after: tf.Operation) -> tf.Operation:
    """A step that counts itself after every head, and `after`, have read its number."""
    heads = metadata.get_meta(TRAINED_HEADS, list)
    read = [tensor.op for head in heads for tensor in (head.pred, head.label)]
    with tf.control_dependencies([*after, *read]):
        return v1.assign_add(v1.train.get_global_step(), 1).op


def add_head(labels: np.ndarray, preds: np.ndarray, name: str = "click") -> None:
    """Adds a head whose batch of step `i` is row `i`."""
    step = v1.train.get_global_step()
    label, pred = tf.constant(labels)[step], tf.constant(preds)[step]
    metadata.get_meta(TRAINED_HEADS, list).append(Head(name, pred, label, True))


class Clock:
    """A clock that shows one second more each time that somebody looks."""

    def __init__(self) -> None:
        self.now_sec = 0.0

    def __call__(self) -> float:
        self.now_sec += 1
        return self.now_sec


def run(hook: progress.ProgressHook, train_op: tf.Operation, steps: int) -> None:
    with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(steps):
            session.run(train_op)


def lines_of(console: rich.console.Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_auc_and_loss_are_those_of_the_steps(graph, out):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (8, 16)).astype(np.float32)
    preds = rng.random((8, 16)).astype(np.float32)
    add_head(labels, preds)
    loss = tf.cast(v1.train.get_global_step(), tf.float32)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
    run(progress.ProgressHook(8, console=out), make_step(loss.op), steps=4)
    last = lines_of(out)[-1]
    assert last.startswith("step 4 of 8, ")
    assert f"AUC {auc(preds[:4], labels[:4]):.4f}" in last
    assert "loss 1.5000" in last  # (0 + 1 + 2 + 3) / 4


def test_auc_forgets_old_examples(graph, out, monkeypatch):
    monkeypatch.setattr(progress, "_WINDOW_EXAMPLES", 32)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (6, 16)).astype(np.float32)
    preds = rng.random((6, 16)).astype(np.float32)
    add_head(labels, preds)
    run(progress.ProgressHook(console=out), make_step(), steps=6)
    assert f"AUC {auc(preds[3:], labels[3:]):.4f}" in lines_of(out)[-1]


def test_heads_are_named_where_there_are_several(graph, out):
    labels = np.array([[0.0, 1.0]], np.float32)
    add_head(labels, labels, "click")
    add_head(labels, 1 - labels, "skip")
    run(progress.ProgressHook(console=out), make_step(), steps=1)
    assert "click AUC 1.0000, skip AUC 0.0000" in lines_of(out)[-1]


def test_without_both_labels_there_is_no_auc(graph, out):
    add_head(np.ones([1, 4], np.float32), np.ones([1, 4], np.float32))
    run(progress.ProgressHook(console=out), make_step(), steps=1)
    assert lines_of(out)[-1].startswith("step 1")
    assert "AUC" not in lines_of(out)[-1]


def test_speed_and_time_left(graph, out):
    add_head(np.ones([9, 10], np.float32), np.ones([9, 10], np.float32))
    hook = progress.ProgressHook(9, console=out, plain_every_sec=1.0, clock=Clock())
    run(hook, make_step(), steps=4)
    # The clock is read once a step and once a line, so a step takes 2 s; the first is not counted.
    assert lines_of(out)[1] == "step 3 of 9, 7 examples/s, 0:09 left"  # 20 / 3, 6 * 3 / 2


def test_rows_of_all_servers_are_added_up(graph, out):
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
    updates = [
        table.assign({"user": ([server, 7], [[1.0], [1.0]]), "movie": ([3], [[1.0]])}).as_op()
        for server, table in enumerate(tables)
    ]
    initialize = [table.initializer for table in tables]
    scaffold = v1.train.Scaffold(local_init_op=tf.group(*initialize))
    train_op = make_step(*updates)
    creator = v1.train.ChiefSessionCreator(scaffold)
    with v1.train.MonitoredSession(creator, [progress.ProgressHook(console=out)]) as session:
        session.run(train_op)
    assert lines_of(out)[-1].endswith("rows movie 2 user 4")


def test_a_terminal_gets_one_line_and_its_cursor_back(graph, terminal):
    hook = progress.ProgressHook(5, console=terminal, clock=Clock())
    run(hook, make_step(), steps=5)
    written = terminal.file.getvalue()
    assert "step 5 of 5" in written
    assert written.count("\n") == 1
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


def test_a_terminal_gets_its_cursor_back_when_training_fails(graph, terminal):
    train_op = make_step()

    def fail_in_the_third_step():
        with (
            progress.ProgressHook(5, console=terminal, clock=Clock()) as hook,
            v1.train.SingularMonitoredSession(hooks=[hook]) as session,
        ):
            session.run(train_op)
            session.run(train_op)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_third_step()
    written = terminal.file.getvalue()
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


def test_total_steps_must_be_positive():
    with pytest.raises(errors.ConfigError, match="must be positive, got 0"):
        progress.ProgressHook(0)
