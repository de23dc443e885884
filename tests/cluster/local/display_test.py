"""How a job is getting on, in one line."""

import io

from monolith.cluster.local.display import JobDisplay, NoDisplay
from monolith.cluster.local.supervisor import Place, list_places


class Clock:
    def __init__(self):
        self.now_sec = 0.0

    def __call__(self):
        return self.now_sec


class FakeLine:
    def __init__(self, has_room=True):
        self.shown, self.is_closed, self._has_room = [], False, has_room

    def show(self, text):
        self.shown.append(text)
        return self._has_room

    def close(self):
        self.is_closed = True


def show(figures, line=None, **settings):
    clock = Clock()
    display = JobDisplay(io.StringIO(), clock=clock, line=line, **settings)
    for name, values in figures.items():
        display.report(name, values)
    clock.now_sec = 11.0
    display.show(list_places(2, 3), 0)
    return display


def test_nothing_is_shown_before_the_first_step():
    assert show({}).file.getvalue() == ""


def test_steps_are_shown_where_there_are_no_examples():
    display = show({"chief": {"step": 5, "steps_per_sec": 2.0}, "worker 1": {"step": 4}})
    assert display.file.getvalue() == "step 5, 2.0 steps/s, 2 ps, 3 workers\n"


def test_metrics_are_averaged_and_named_if_there_are_several():
    figures = {
        "chief": {"step": 1, "metrics": {"a_auc": 0.5, "b\x1b_mse": 2.0}},
        "worker 1": {"step": 1, "metrics": {"a_auc": 0.7}},
    }
    text = show(figures).file.getvalue()
    assert text == "step 1, a AUC 0.6000, b? MSE 2.0000, 2 ps, 3 workers\n"


def test_a_line_is_not_repeated_and_workers_that_are_silent_do_not_count():
    clock = Clock()
    display = JobDisplay(io.StringIO(), clock=clock, plain_every_sec=10)
    display.report("chief", {"step": 1, "examples_per_sec": 10.0})
    for now_sec in (5.0, 10.0, 20.0, 50.0):
        clock.now_sec = now_sec
        display.show([Place("worker", 0)], 0)
    assert display.file.getvalue().splitlines() == [
        "step 1, 10 examples/s, 0 ps, 1 worker",
        "step 1, 0 ps, 1 worker",
    ]


def test_a_terminal_has_it_at_the_bottom():
    line = FakeLine()
    display = show({"chief": {"step": 1}}, line, total_steps=9)
    display.close()
    assert (line.shown, line.is_closed) == (["step 1 of 9, 2 ps, 3 workers"], True)
    assert display.file.getvalue() == ""
    assert show({"chief": {"step": 1}}, FakeLine(has_room=False)).file.getvalue() != ""


def test_nothing_can_be_shown():
    display = NoDisplay()
    display.report("chief", {})
    display.show([], 0)
    display.close()
