"""The progress line: what it says, in a log and on a terminal, whoever else writes there."""

import io
import textwrap

import pytest
import rich.console
import tensorflow as tf
from support.terminal import Terminal, run_on_terminal

from monolith import errors
from monolith.embedding.tables.stats import TableStats
from monolith.training.hooks import progress, watch
from monolith.training.hooks.watch import Figures

v1 = tf.compat.v1


def make_tables(**rows: int) -> dict[str, TableStats]:
    return {name: TableStats(number, 0, 0, 0, 0, 0) for name, number in rows.items()}


FIGURES = Figures(
    step=300,
    start_step=100,
    elapsed_sec=20.0,
    examples_per_sec=4096.4,
    steps_per_sec=8.0,
    loss=0.40861,
    metrics={"click_auc": 0.89306},
    tables=make_tables(movie=200, user=1000),
)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def out():
    return rich.console.Console(file=io.StringIO(), width=300)


def make_step() -> tf.Operation:
    return v1.assign_add(v1.train.get_or_create_global_step(), 1).op


class Clock:
    """A clock that shows one second more each time that somebody looks."""

    now_sec = 0.0

    def __call__(self) -> float:
        self.now_sec += 1
        return self.now_sec


def run(hook: progress.ProgressHook, train_op: tf.Operation, steps: int) -> None:
    with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(steps):
            session.run(train_op)


def lines_of(console: rich.console.Console) -> list[str]:
    return console.file.getvalue().splitlines()


class TestDescribe:
    def test_everything(self):
        assert progress.describe(FIGURES, 1000) == (
            # 200 steps took 20 s, so 700 take 70 s.
            "step 300 of 1,000, 4,096 examples/s, loss 0.4086, AUC 0.8931, rows movie 200 user "
            "1,000, 1:10 left"
        )

    def test_what_nobody_knows_is_left_out(self):
        figures = Figures(step=1, start_step=1, elapsed_sec=0.0)
        assert progress.describe(figures) == "step 1"
        assert progress.describe(figures, 9) == "step 1 of 9"

    def test_steps_where_there_are_no_examples(self):
        figures = Figures(step=9, start_step=1, elapsed_sec=2.0, steps_per_sec=4.0)
        assert progress.describe(figures) == "step 9, 4.0 steps/s"

    def test_heads_are_named_where_there_are_several(self):
        metrics = {"click_auc": 0.75, "rate_it_mse": 2.0, "kind_accuracy": 0.5}
        figures = Figures(step=9, start_step=1, elapsed_sec=2.0, metrics=metrics)
        assert progress.describe(figures) == (
            "step 9, click AUC 0.7500, rate_it MSE 2.0000, kind accuracy 0.5000"
        )

    def test_many_tables_are_counted_together(self):
        tables = make_tables(**{f"slot_{i}": 1000 for i in range(57)})
        figures = Figures(step=9, start_step=1, elapsed_sec=2.0, tables=tables)
        assert progress.describe(figures) == "step 9, rows 57,000 in 57 tables"

    def test_at_the_end_no_time_is_left(self):
        assert "left" not in progress.describe(FIGURES, 300, is_over=True)
        # Beyond the end, it does not count backwards.
        assert progress.describe(FIGURES, 200).endswith("0:00 left")

    def test_names_cannot_move_the_cursor(self):
        tables = make_tables(**{"a\x1b[2J\nb": 1})
        figures = Figures(step=9, start_step=1, elapsed_sec=2.0, tables=tables)
        assert progress.describe(figures) == "step 9, rows a?[2J?b 1"


class TestLog:
    def test_a_line_now_and_then_and_a_last_one(self, graph, out):
        hook = progress.ProgressHook(30, console=out, plain_every_sec=10.0, clock=Clock())
        run(hook, make_step(), steps=25)
        steps = [line.split(" of ")[0] for line in lines_of(out)]
        # The clock is looked at once a step, and once more at the start and for each line.
        assert steps == ["step 10", "step 20", "step 25"]
        assert "\x1b" not in out.file.getvalue()

    def test_of_a_short_training_only_the_last_line(self, graph, out):
        run(progress.ProgressHook(console=out), make_step(), steps=3)
        (line,) = lines_of(out)
        assert line.startswith("step 3, ")

    def test_a_second_training_with_the_same_hook(self, graph, out):
        hook, train_op = progress.ProgressHook(console=out), make_step()
        run(hook, train_op, steps=2)
        run(hook, train_op, steps=3)
        assert [line.split(",")[0] for line in lines_of(out)] == ["step 2", "step 3"]

    def test_steps_from_where_training_starts(self, graph, out):
        step = v1.train.get_or_create_global_step()
        start = v1.train.Scaffold(init_op=step.assign(40))
        train_op = make_step()
        creator = v1.train.ChiefSessionCreator(start)
        hook = progress.ProgressHook(steps=20, console=out)
        with v1.train.MonitoredSession(creator, [hook]) as session:
            for _ in range(5):
                session.run(train_op)
        assert lines_of(out)[-1].startswith("step 45 of 60, ")

    def test_goes_to_the_standard_error_by_default(self, graph, capfd):
        run(progress.ProgressHook(), make_step(), steps=1)
        captured = capfd.readouterr()
        assert "step 1\n" in captured.err
        assert captured.out == ""

    def test_a_file_is_no_terminal_whatever_the_environment_says(self, graph, capfd, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        run(progress.ProgressHook(), make_step(), steps=1)
        assert "\x1b" not in capfd.readouterr().err

    def test_a_program_without_a_standard_error(self, graph, monkeypatch):
        closed = io.StringIO()
        closed.close()
        train_op = make_step()
        for file in (None, closed):
            monkeypatch.setattr("sys.stderr", file)
            run(progress.ProgressHook(), train_op, steps=1)


class TestTerminal:
    def test_one_line(self, graph):
        terminal = Terminal(120, 10)
        hook = progress.ProgressHook(5, console=terminal.as_console(), clock=Clock())
        run(hook, make_step(), steps=5)
        (line,) = terminal.lines
        assert line.startswith("step 5 of 5, ")
        assert terminal.scrolling_rows == 10

    @pytest.mark.parametrize(
        ("width", "expected"),
        [
            (200, "━━━━━━━━━━━━━━━━━━━━ step 300 of 1,000, 4,096 examples/s, loss 0.4086, AUC "
                  "0.8931, rows movie 200 user 1,000, 1:10 left"),
            (110, "step 300 of 1,000, 4,096 examples/s, loss 0.4086, AUC 0.8931, rows movie 200 "
                  "user 1,000, 1:10 left"),
            (96, "step 300 of 1,000, 4,096 examples/s, loss 0.4086, AUC 0.8931, rows 1,200 in 2 "
                 "tables, 1:10 left"),
            (40, "step 300 of 1,000, 4,096 examples/s, l…"),
        ],
    )  # fmt: skip
    def test_a_narrow_terminal_gets_less(self, width, expected):
        terminal = Terminal(width, 10)
        line = progress.ProgressLine(1000, console=terminal.as_console())
        line.start(99)
        line.report(FIGURES)
        assert terminal.rows[-1] == expected
        assert not any(terminal.rows[:-1])
        line.close()

    @pytest.mark.parametrize("width", [140, 40])
    def test_a_terminal_without_unicode(self, width):
        terminal = Terminal(width, 10, encoding="ascii")
        line = progress.ProgressLine(1000, console=terminal.as_console())
        line.start(99)
        line.report(FIGURES)
        assert terminal.rows[-1].isascii()
        assert "step 300 of 1,000, 4,096 examples/s" in terminal.rows[-1]
        line.close()

    def test_it_is_given_back_when_training_fails(self, graph):
        terminal, train_op = Terminal(120, 10), make_step()

        def fail_in_the_third_step():
            with (
                progress.ProgressHook(console=terminal.as_console(), clock=Clock()) as hook,
                v1.train.SingularMonitoredSession(hooks=[hook]) as session,
            ):
                session.run(train_op)
                session.run(train_op)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_in_the_third_step()
        assert terminal.scrolling_rows == 10
        terminal.write("Traceback\n")
        assert [line.split(",")[0] for line in terminal.lines] == ["step 2", "Traceback"]

    def test_a_terminal_that_somebody_else_has_gets_lines_now_and_then(self, graph):
        terminal = Terminal(120, 10)
        other = progress.ProgressLine(console=terminal.as_console())
        other.report(FIGURES)
        hook = progress.ProgressHook(console=terminal.as_console(), clock=Clock())
        run(hook, make_step(), steps=12)
        assert terminal.rows[-1].startswith("step 300")
        other.close()
        starts = [line.split(",")[0] for line in terminal.lines]
        assert starts == ["step 11", "step 12", "step 300"]

    def test_lines_by_steps_stay(self, graph):
        terminal = Terminal(120, 10)
        line = progress.ProgressLine(6, console=terminal.as_console(), every_steps=2)
        with watch.WatchHook([line], clock=Clock()) as hook:
            run(hook, make_step(), steps=6)
        starts = [line.split(",")[0] for line in terminal.lines]
        assert starts == ["step 2 of 6", "step 4 of 6", "step 6 of 6"]
        assert terminal.scrolling_rows == 10

    def test_a_dumb_one_gets_plain_lines(self, graph, monkeypatch):
        monkeypatch.setenv("TERM", "dumb")
        terminal = Terminal(120, 10)
        run(progress.ProgressHook(console=terminal.as_console()), make_step(), steps=2)
        assert len(terminal.lines) == 1
        assert terminal.scrolling_rows == 10


PROGRAM = textwrap.dedent(
    """
    import logging, os, sys, time
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    import tensorflow as tf
    from monolith.training.graph.estimator import GraphEstimator, GraphSpec
    from monolith.training.hooks import progress, watch

    v1 = tf.compat.v1

    def model_fn(features, mode):
        loss = tf.reduce_sum(features)
        with tf.control_dependencies([loss]):
            train_op = v1.assign_add(v1.train.get_global_step(), 1)
        return GraphSpec(mode, loss=loss, train_op=train_op)

    class Noise(v1.train.SessionRunHook):
        step = 0
        def after_run(self, run_context, run_values):
            self.step += 1
            time.sleep(0.02)
            if self.step % 20 == 0:
                logging.getLogger("monolith.something").warning("logged %d", self.step)
                tf.compat.v1.logging.warn("tensorflow %d", self.step)
                print("printed", self.step, flush=True)
                os.write(2, b"from C++ %d\\n" % self.step)

    def input_fn():
        return tf.data.Dataset.from_tensors(1.0).repeat(200)

    if "fail" in sys.argv:
        def input_fn():
            dataset = tf.data.Dataset.from_tensors(1.0).repeat(60)
            return dataset.concatenate(tf.data.Dataset.from_tensors(float("nan")))

    sys.stderr.write("\\x1bc")  # Whatever the import of TensorFlow says is not of interest here.
    sys.stderr.flush()
    hook = watch.WatchHook([progress.ProgressLine(200)])
    GraphEstimator(model_fn, sys.argv[1]).train(input_fn, hooks=[hook, Noise()])
    print("done")
    """
)


@pytest.mark.slow
class TestProgram:
    def test_nobody_tears_the_line(self, tmp_path):
        terminal, snapshots, status = run_on_terminal(PROGRAM, [str(tmp_path)])
        assert status == 0, terminal.lines
        expected = [
            f"{who} {step}"
            for step in range(20, 201, 20)
            for who in ("logged", "tensorflow", "printed", "from C++")
        ]
        begin = terminal.lines.index("logged 20")
        *noise, last, done = terminal.lines[begin:]
        assert noise == expected
        assert last.startswith("step 200 of 200, ")
        assert done == "done"
        assert terminal.scrolling_rows == 12
        shown = {sum("step " in row for row in rows) for rows in snapshots}
        assert shown == {0, 1}
        steps = {rows[-1] for rows in snapshots if "━ step" in rows[-1]}
        assert len(steps) >= 4  # In 4 seconds.

    def test_an_error_is_below_the_line(self, tmp_path):
        terminal, _, status = run_on_terminal(PROGRAM, [str(tmp_path), "fail"])
        assert status == 1
        assert terminal.scrolling_rows == 12
        assert terminal.lines[-1].endswith("learning rate or gradient clipping.")
        assert any("NanLossError: The loss is NaN at step 61" in line for line in terminal.lines)
        (line,) = [line for line in terminal.lines if " of 200, " in line]
        assert terminal.lines.index(line) < terminal.lines.index(
            "Traceback (most recent call last):"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, "total_steps must be positive, got 0"),
        ({"steps": -1}, "steps must be positive, got -1"),
        ({"every_steps": 0}, "every_steps must be positive, got 0"),
        ({"total_steps": 3, "steps": 3}, "total_steps or steps, not both"),
        ({"plain_every_sec": 0}, "plain_every_sec must be positive, got 0"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        progress.ProgressLine(**arguments)


def test_durations():
    assert progress.describe_duration(59.4) == "0:59"
    assert progress.describe_duration(59.6) == "1:00"
    assert progress.describe_duration(25 * 3600) == "25:00:00"
