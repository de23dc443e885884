"""Python programs that start without the import of TensorFlow: `subprocess` for the patient.

A program is forked from a process that has imported TensorFlow (`jobs`) and then runs as
`python -m MODULE`, `python FILE` or `python -c CODE` would: as `__main__`, with arguments, an
environment, a directory, descriptors and signals of its own, and with the exit code that the
interpreter would give. Not for a test of what is imported, of when it is, or of what an environment
variable does to an import.
"""

import atexit
import contextlib
import fcntl
import io
import multiprocessing.reduction
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time

from support import jobs

_NAMES = ("stdin", "stdout", "stderr")


class Program:
    """A running program; has what tests use of `subprocess.Popen`.

    Args:
        arguments: What would stand behind `python`: `["-m", module, ...]`, `["-c", code, ...]` or
            `[file, ...]`.
        env: Its environment; that of this process if None.
        cwd: Where it runs.
        stdin: `subprocess.PIPE`, `DEVNULL`, a descriptor, or None, which is `DEVNULL`.
        stdout: `PIPE`, `DEVNULL`, a descriptor, or None for that of this process.
        stderr: The same, or `STDOUT`.
        text: Whether pipes take text.
        start_new_session: Whether it gets a session of its own.
        on_terminal: Whether its input is a terminal that becomes its own, with a new session.
        ignored: Signals that it ignores, as those that `nohup` starts do.
    """

    def __init__(
        self,
        arguments,
        *,
        env=None,
        cwd=None,
        stdin=None,
        stdout=None,
        stderr=None,
        text=False,
        start_new_session=False,
        on_terminal=False,
        ignored=(),
    ):
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        theirs, opened = [], []
        for name, kind in zip(_NAMES, (stdin, stdout, stderr), strict=True):
            if kind == subprocess.PIPE:
                reader, writer = os.pipe()
                number, own = (reader, writer) if name == "stdin" else (writer, reader)
                mode = ("w" if name == "stdin" else "r") + ("" if text else "b")
                setattr(self, name, os.fdopen(own, mode))
                opened.append(number)
            elif kind == subprocess.DEVNULL or (kind is None and name == "stdin"):
                number = os.open(os.devnull, os.O_RDWR)
                opened.append(number)
            elif kind == subprocess.STDOUT:
                number = theirs[1]
            else:
                number = _NAMES.index(name) if kind is None else kind
                number = number if isinstance(number, int) else number.fileno()
            theirs.append(number)
        self._process = jobs.make_process(
            _enter,
            [os.fspath(argument) for argument in arguments],
            {name: os.fspath(value) for name, value in (env or os.environ).items()},
            os.fspath(cwd or os.getcwd()),
            [_Descriptor(number) for number in theirs],
            start_new_session,
            on_terminal,
            tuple(ignored),
        )
        self._process.start()
        self.pid = self._process.pid
        for number in opened:
            os.close(number)

    def poll(self):
        """Returns its exit code, or None while it runs."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a forked program", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, input=None, timeout=None):
        """Returns what is still to be read of its output, and of its errors, when it has ended."""
        read = {}

        def take(name):
            file = getattr(self, name)
            with contextlib.suppress(ValueError), file:  # Closed if this was called before.
                read[name] = file.read()

        readers = [
            threading.Thread(target=take, args=(name,), daemon=True)
            for name in _NAMES[1:]
            if getattr(self, name) is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        deadline_sec = None if timeout is None else time.monotonic() + timeout
        self.wait(timeout)
        for reader in readers:
            reader.join(None if deadline_sec is None else max(0, deadline_sec - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("who has the output of a program", timeout)
        return read.get("stdout"), read.get("stderr")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for name in _NAMES:
            if getattr(self, name) is not None:
                getattr(self, name).close()
        self.wait()


def run(arguments, *, timeout=jobs.PATIENCE_SEC, input=None, check=False, **options):
    """Runs a program to its end, as `subprocess.run(..., capture_output=True, text=True)` does."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if input is not None:
        pipes["stdin"] = subprocess.PIPE
    program = Program(arguments, **{**pipes, **options})
    try:
        output, errors = program.communicate(input, timeout)
    finally:
        program.kill()
        program.wait(jobs.PATIENCE_SEC)
    result = subprocess.CompletedProcess(arguments, program.returncode, output, errors)
    if check:
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result


class _Descriptor:
    """A descriptor that goes with a process that is started."""

    def __init__(self, number):
        self._number = number

    def __reduce__(self):
        return _take, (multiprocessing.reduction.DupFd(self._number),)


def _take(duplicate):
    return duplicate.detach()


def _enter(arguments, environment, directory, descriptors, start_new_session, on_terminal, ignored):
    """Runs in the program's process, and never returns."""
    if start_new_session or on_terminal:
        os.setsid()
    if on_terminal:
        fcntl.ioctl(descriptors[0], termios.TIOCSCTTY, 0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in set(descriptors) - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    # As the interpreter has them: full lines to a terminal, blocks to anything else.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", buffering=0, closefd=False),
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(directory)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _run(*arguments)
    with contextlib.suppress(Exception):
        threading._shutdown()  # Waits for threads, as the interpreter does.
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _run(what, *rest):
    """Runs the program; returns its exit code, negative for a signal."""
    places = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*places, *(path for path in sys.path if path not in places)]
    main = sys.modules["__main__"] = type(sys)("__main__")
    try:
        if what == "-m":
            module, *arguments = rest
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.getcwd())
            # Loaded already, perhaps; as `__main__` it is loaded once more.
            sys.modules.pop(module, None)
            runpy._run_module_as_main(module)
        elif what == "-c":
            code, *arguments = rest
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            main.__dict__["__builtins__"] = __builtins__
            exec(compile(code, "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [what, *rest]
            sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
            main.__dict__.update({"__file__": what, "__builtins__": __builtins__})
            with open(what, encoding="utf-8") as file:
                exec(compile(file.read(), what, "exec"), main.__dict__)
    except SystemExit as error:
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - What the interpreter does with it.
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
