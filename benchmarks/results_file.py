"""RESULTS.md, where each benchmark has a section that its next run replaces.

Example:
    >>> parser = argparse.ArgumentParser()
    >>> add_argument(parser)
    >>> args = parser.parse_args([])
    >>> publish("## Training steps", "bench-train", write=args.write)
    ## Training steps
"""

import argparse
import datetime
import pathlib
import sys
import time
from collections.abc import Sequence

FILE = pathlib.Path(__file__).with_name("RESULTS.md")


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--write`, which `publish` is to be told."""
    parser.add_argument("--write", action="store_true", help=f"put the report into {FILE.name}")


def describe_run(module: str, began_sec: float, argv: Sequence[str] | None = None) -> str:
    """Returns the command of a run, and how long it took.

    Args:
        module: What was run.
        began_sec: When it began, by `time.monotonic`.
        argv: Its arguments; None if they are those of the process.
    """
    command = " ".join(["python -m", module, *(sys.argv[1:] if argv is None else argv)])
    return f"`{command}`, {(time.monotonic() - began_sec) / 60:.0f} minutes"


def begin_section(title: str, module: str, began_sec: float) -> list[str]:
    """Returns the first lines of a section: its title, when it was measured, and by what."""
    return [f"## {title}", "", f"{datetime.date.today()}, {describe_run(module, began_sec)}.", ""]


def publish(text: str, benchmark: str, *, write: bool) -> None:
    """Prints a report, and puts it into the file in place of the last one of the benchmark."""
    print(text)
    if not write:
        return
    begin, end = f"<!-- {benchmark} -->", f"<!-- end of {benchmark} -->"
    old = FILE.read_text() if FILE.exists() else "# Results\n"
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    parts = [before.strip(), f"{begin}\n{text}\n{end}", after.strip()]
    FILE.write_text("\n\n".join(part for part in parts if part) + "\n")
