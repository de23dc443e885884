"""One log of many processes."""

import io

from monolith.cluster.local.output import LabelledLog


def make_log(names=("ps 0", "worker 10"), **settings):
    return LabelledLog(list(names), io.StringIO(), **settings)


def test_lines_are_labelled_and_never_torn():
    log = make_log()
    for piece in (b"a", b"b\nc", b"\r\nd\re\n"):
        log.feed("ps 0", piece)
        log.feed("worker 10", b"x\n")
    assert log.file.getvalue().splitlines() == [
        "worker 10 | x",
        "ps 0      | ab",
        "worker 10 | x",
        "ps 0      | c",
        "ps 0      | d",
        "ps 0      | e",
        "worker 10 | x",
    ]


def test_the_end_of_a_process_ends_its_line():
    log = make_log()
    log.feed("ps 0", b"killed in the mid")
    log.finish("ps 0")
    log.finish("ps 0")
    assert log.file.getvalue() == "ps 0      | killed in the mid\n"


def test_bytes_that_are_no_text_and_lines_without_end():
    log = make_log()
    log.feed("ps 0", b"\xff\n" + b"x" * 100_000)
    first, second = log.file.getvalue().splitlines()
    assert first == "ps 0      | \ufffd"
    assert len(second) == len("ps 0      | ") + 100_000


def test_colors_are_for_terminals():
    assert "\x1b" not in make_log().file.getvalue()
    log = make_log(is_colored=True)
    log.feed("ps 0", b"a\n")
    log.say("b")
    assert log.file.getvalue() == "\x1b[36mps 0     \x1b[0m | a\nmonolith  | b\n"


def test_a_reader_that_is_gone_does_not_matter():
    log = make_log()
    log.file.close()
    log.feed("ps 0", b"a\n")
