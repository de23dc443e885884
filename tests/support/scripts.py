"""Runs code of pages and of examples as a reader would, each in a process of its own.

The processes are forked from one that has imported TensorFlow (`jobs`), since its import is most
of what a short program does. What a program must import itself, its namespace shows.
"""

import contextlib
import io
import json
import os
import pathlib
import runpy
import sys

from support import jobs

from monolith.cli import app


def run(directory, function, *args):
    """Calls a function of this module in a new process; returns what it has printed.

    Its temporary files, and relative paths, are below `directory`.
    """
    environment = {"TMPDIR": str(directory), "TEST_TMPDIR": str(directory)}
    with jobs.Job(pathlib.Path(directory) / "logs") as job:
        member = job.start("script", "support.scripts", function, *args, environment=environment)
        assert member.wait() == 0, member.log
        return member.log


def run_blocks(directory, page, blocks):
    """Runs the blocks of one page in one namespace; returns what each has printed.

    Args:
        directory: Where they run.
        page: What tracebacks call the page.
        blocks: The line and the code of each.
    """
    path = pathlib.Path(directory) / "printed.json"
    run(directory, "_run_blocks", str(directory), page, blocks, str(path))
    return json.loads(path.read_text())


def run_program(directory, path):
    """Runs a program as `python PATH` does; returns what it has printed."""
    return run(directory, "_run_program", str(directory), str(path))


def _run_blocks(directory, page, blocks, path):
    os.chdir(directory)
    namespace, printed = {"__name__": "__main__"}, []
    for line, code in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            # Empty lines in front make a traceback name the line of the page.
            exec(compile("\n" * line + code, page, "exec"), namespace)
        printed.append(output.getvalue())
    pathlib.Path(path).write_text(json.dumps(printed))


def _run_program(directory, path):
    os.chdir(directory)
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def run_command(directory, arguments):
    """Does what `monolith ARGUMENTS` does, in this process."""
    os.chdir(directory)
    sys.argv = ["monolith", *arguments]
    app.main()
