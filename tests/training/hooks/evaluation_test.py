"""The line of an evaluation: while it runs, and what has come out of it."""

import io
import re

import numpy as np
import pytest
import rich.console
import tensorflow as tf
from rich.text import Text
from support.terminal import Terminal

from monolith import errors
from monolith.training.graph.estimator import GraphEstimator, GraphSpec
from monolith.training.hooks.bottom_line import BottomLine
from monolith.training.hooks.evaluation import EvaluationHook

v1 = tf.compat.v1


class Clock:
    """A clock that shows so many seconds more each time that somebody looks."""

    def __init__(self, tick_sec: float = 1.0) -> None:
        self.now_sec, self.tick_sec = 0.0, tick_sec

    def __call__(self) -> float:
        self.now_sec += self.tick_sec
        return self.now_sec


@pytest.fixture
def out():
    return rich.console.Console(file=io.StringIO(), width=300)


def model_fn(features, mode):
    loss = tf.reduce_mean(features)
    with tf.control_dependencies([loss]):
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
    return GraphSpec(
        mode,
        predictions={"click": features},
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"click_auc": v1.metrics.mean(tf.constant(0.9)), "x_mse": v1.metrics.mean(
            features)},
    )  # fmt: skip


def input_fn(batches=4, size=3):
    return tf.data.Dataset.from_tensors(np.float32([1.25] * size)).repeat(batches)


@pytest.fixture
def estimator(tmp_path):
    return GraphEstimator(model_fn, tmp_path).train(input_fn)


def lines_of(console: rich.console.Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_what_has_come_out_of_it(estimator, out):
    metrics = estimator.evaluate(input_fn, hooks=[EvaluationHook(console=out, clock=Clock())])
    # 1.25 on average; the clock is looked at once at the start, after each batch, at the end.
    assert lines_of(out) == [
        "evaluated 12 examples in 5 s: click_auc 0.9000, loss 1.25, x_mse 1.25"
    ]
    assert metrics["loss"] == 1.25


@pytest.mark.parametrize(("tick_sec", "took"), [(0.01, "0.05 s"), (2.25, "11 s"), (30.0, "2:30")])
def test_how_long_it_took(estimator, out, tick_sec, took):
    hook = EvaluationHook(console=out, clock=Clock(tick_sec), plain_every_sec=1e9)
    estimator.evaluate(input_fn, hooks=[hook])
    assert f"in {took}: " in lines_of(out)[-1]


def test_a_line_now_and_then(estimator, out):
    hook = EvaluationHook(8, console=out, clock=Clock(), plain_every_sec=3.0)
    estimator.evaluate(lambda: input_fn(8), hooks=[hook])
    # After 3 batches in 3 s, 5 are left.
    assert lines_of(out)[:2] == [
        "evaluating: 9 examples, 3 examples/s, 0:05 left",
        "evaluating: 18 examples, 3 examples/s, 0:02 left",
    ]


def test_on_a_terminal_it_is_one_line(estimator):
    terminal = Terminal(60, 8)
    hook = EvaluationHook(4, console=terminal.as_console(), clock=Clock())
    estimator.evaluate(input_fn, hooks=[hook])
    (line,) = terminal.lines
    assert line.startswith("evaluated 12 examples in 5 s: click_auc 0.9000")
    assert terminal.scrolling_rows == 8


def test_below_the_line_of_a_training_it_is_a_line_among_others(estimator):
    """An evaluation in the middle of a training, which has the last row of the terminal."""
    terminal = Terminal(100, 8)
    with BottomLine(terminal.as_console()) as line:
        line.show(Text("training"))
        hook = EvaluationHook(4, console=terminal.as_console(), clock=Clock())
        estimator.evaluate(input_fn, hooks=[hook])
        assert terminal.rows[-1] == "training"
    assert [row.split(" in ")[0] for row in terminal.lines] == ["evaluated 12 examples", "training"]


def test_batches_are_counted_where_examples_cannot_be(tmp_path, out):
    def without_predictions(features, mode):
        return model_fn(features, mode)._replace(predictions=None)

    estimator = GraphEstimator(without_predictions, tmp_path).train(input_fn)
    estimator.evaluate(input_fn, hooks=[EvaluationHook(console=out, clock=Clock())])
    assert re.match(r"evaluated 4 batches in 5 s: ", lines_of(out)[-1])


def test_an_empty_input_has_no_line(estimator, out):
    with pytest.raises(errors.ConfigError, match="Nothing was evaluated"):
        estimator.evaluate(lambda: input_fn(0), hooks=[EvaluationHook(console=out)])
    assert lines_of(out) == []


def test_an_evaluation_that_fails_gives_the_terminal_back(estimator):
    terminal = Terminal(60, 8)

    def failing():
        return (
            input_fn(8)
            .enumerate()
            .map(lambda i, x: tf.debugging.check_numerics(x / tf.cast(3 - i, tf.float32), "broken"))
        )

    hook = EvaluationHook(console=terminal.as_console(), clock=Clock())
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
        estimator.evaluate(failing, hooks=[hook])
    assert terminal.scrolling_rows == 8
