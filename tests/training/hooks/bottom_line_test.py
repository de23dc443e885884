"""The line at the bottom of a terminal: what a person sees, whoever else writes."""

import io

import pytest
import rich.console
from rich.text import Text
from support.terminal import Terminal

from monolith.training.hooks.bottom_line import BottomLine


@pytest.fixture
def terminal():
    return Terminal(width=40, height=8)


@pytest.mark.parametrize("printed_before", [0, 3, 7, 30])
def test_others_scroll_past_it(terminal, printed_before):
    before = [f"before {i}" for i in range(printed_before)]
    during = [f"during {i}" for i in range(12)]
    for line in before:
        terminal.write(f"{line}\n")
    with BottomLine(terminal.as_console()) as bottom:
        for number, line in enumerate(during):
            assert bottom.show(Text(f"step {number}"))
            assert terminal.rows[-1] == f"step {number}"
            terminal.write(f"{line}\n")
            assert terminal.rows[-1] == f"step {number}"
            assert sum(row.startswith("step") for row in terminal.rows) == 1
    terminal.write("after\n")
    # All of it, in order, nothing torn; the line where it was at the end.
    assert terminal.lines == [*before, *during, "step 11", "after"]
    assert terminal.scrolling_rows == 8


def test_a_line_that_was_begun_goes_on(terminal):
    terminal.write("working ... ")
    with BottomLine(terminal.as_console()) as bottom:
        bottom.show(Text("step 1"))
        terminal.write("done\n")
    assert terminal.lines == ["working ... done", "step 1"]


@pytest.mark.parametrize("last_row", [False, True])
def test_a_line_is_cut_where_the_terminal_ends(terminal, last_row):
    if last_row:
        terminal.write("\n" * 20)
    with BottomLine(terminal.as_console()) as bottom:
        for length in (10, 38, 39, 40, 41, 200):
            bottom.show(Text("x" * length))
            expected = "x" * length if length <= 39 else "x" * 38 + "…"
            assert terminal.rows[-1] == expected
            assert "x" not in "".join(terminal.rows[:-1])
    assert [row for row in terminal.rows if row] == ["x" * 38 + "…"]


def test_wide_characters_are_cut_as_well(terminal):
    with BottomLine(terminal.as_console()) as bottom:
        bottom.show(Text("電影" * 30))
        assert "電" not in "".join(terminal.rows[:-1])
    assert len([row for row in terminal.rows if row]) == 1


def test_it_follows_a_terminal_that_changes_its_size(terminal):
    console = terminal.as_console()
    with BottomLine(console) as bottom:
        bottom.show(Text("step 1"))
        terminal.resize(30, 12)
        console.size = (30, 12)
        bottom.show(Text("step 2" + "x" * 50))
        assert terminal.rows[-1].startswith("step 2xxx")
        assert terminal.scrolling_rows == 11
        for i in range(20):
            terminal.write(f"line {i}\n")
        assert terminal.rows[-1].startswith("step 2")
    assert terminal.scrolling_rows == 12


def test_a_terminal_without_room(terminal):
    terminal.resize(40, 3)
    with BottomLine(terminal.as_console()) as bottom:
        assert not bottom.show(Text("step 1"))
    assert terminal.lines == []


def test_of_two_lines_the_second_does_without(terminal):
    first, second = BottomLine(terminal.as_console()), BottomLine(terminal.as_console())
    assert first.show(Text("first"))
    assert not second.show(Text("second"))
    second.close()
    assert terminal.rows[-1] == "first"
    first.close()
    assert second.show(Text("second"))
    second.close()
    assert terminal.lines == ["first", "second"]


def test_closing_twice_prints_once(terminal):
    bottom = BottomLine(terminal.as_console())
    bottom.show(Text("step 1"))
    bottom.close()
    bottom.close()
    assert terminal.lines == ["step 1"]


class Gone(io.StringIO):
    """A terminal whose window was closed."""

    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_is_no_error():
    closed = io.StringIO()
    closed.close()
    for file in (Gone(), closed):
        console = rich.console.Console(file=file, width=40, height=8, force_terminal=True)
        with BottomLine(console) as bottom:
            bottom.show(Text("step 1"))
