"""Members of a local cluster that do next to nothing; the launcher does not care."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time


def run(arguments, report, given):
    """Does what its role is told to, in a small language of lists."""
    print(f"{arguments['name']} is here", flush=True)
    code = 0
    for word, *rest in arguments["does"]:
        code = globals()[f"_{word}"](arguments, report, *rest) or 0
    return code


def _wait_for(arguments, report, name):
    path = pathlib.Path(arguments["directory"], name)
    while not path.exists():
        time.sleep(0.01)


def _touch(arguments, report, name):
    pathlib.Path(arguments["directory"], name).write_text(str(os.getpid()))


def _once(arguments, report, name, *what):
    """Does something only the first time."""
    path = pathlib.Path(arguments["directory"], name)
    if not path.exists():
        path.touch()
        globals()[f"_{what[0]}"](arguments, report, *what[1:])


def _die(arguments, report, number=signal.SIGKILL):
    os.kill(os.getpid(), number)


def _fail(arguments, report):
    raise ValueError("failed")


def _exit(arguments, report, code):
    return code


def _leave(arguments, report, what=None):
    sys.exit(what)


def _tell(arguments, report, kind, content):
    os.write(report, (json.dumps({kind: content}) + "\n").encode())


def _save_on_signal(arguments, report, name):
    """Waits for SIGTERM, then saves and dismisses the servers, as a chief does."""
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    _touch(arguments, report, f"{name}-ready")
    while not received:
        time.sleep(0.01)
    with open(pathlib.Path(arguments["directory"], name), "a") as file:
        file.write("saved\n")
    _touch(arguments, report, "over")
    sys.exit(143)


def _ignore_signals(arguments, report, name):
    """Has SIGTERM do nothing but make a file."""
    signal.signal(signal.SIGTERM, lambda number, frame: _touch(arguments, report, name))


def _sleep(arguments, report):
    while True:
        time.sleep(1)


def _fork_twice(arguments, report, name):
    """Leaves a grandchild that has made itself independent of everything."""
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time, pathlib\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
            "time.sleep(600)",
            os.path.join(arguments["directory"], name),
        ]
    )
    child.wait()
    _wait_for(arguments, report, name)


def launch(directory, does, max_restarts=3, grace_sec=30.0):
    """Runs a job of such members in this process; returns its outcome and its log."""
    import io

    from monolith.cluster.local import output, processes, supervisor

    tests = str(pathlib.Path(__file__).parents[1])
    file = io.StringIO()
    places = [supervisor.Place(role, index) for role, index in _list_places(does)]
    display = Display()
    with processes.Nursery([], {"PYTHONPATH": tests}) as nursery:
        outcome = supervisor.Supervisor(
            nursery,
            places,
            ("support.small_members", "run"),
            lambda place: {
                "name": place.name,
                "directory": str(directory),
                "does": does[place.name],
            },
            max_restarts=max_restarts,
            log=output.LabelledLog([place.name for place in places], file),
            display=display,
            grace_sec=grace_sec,
        ).run()
    return outcome, file.getvalue(), display


def _list_places(does):
    for name in does:
        role, _, index = name.partition(" ")
        yield ("worker", 0) if role == "chief" else (role, int(index))


class Display:
    """Remembers."""

    def __init__(self):
        self.reports = []
        self.is_closed = False

    def report(self, name, figures):
        self.reports.append((name, figures))

    def show(self, running, num_restarts):
        pass

    def close(self):
        self.is_closed = True


if __name__ == "__main__":
    found, log, _ = launch(sys.argv[1], json.loads(sys.argv[2]))
    print(log)
    print(found.message)
    sys.exit(found.code)
