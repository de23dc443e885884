"""Calls every op of the library with odd input, in processes that may die.

An op may refuse its input with a sentence. It must not end the process, run for ever, ask for more
memory than there is, or say something that only its author understands. Calls are decided by a seed
and their number, so that a finding is repeated by itself:

    python tests/native/fuzz.py --calls 100000 --seed 1
    python tests/native/fuzz.py --first 4711 --calls 1 --seed 1

The process that plans has loaded TensorFlow but never used it, which is what makes forking it safe.
A child announces each call before it makes it: when it dies or falls silent, the call that it spoke
of last is the finding, and another child goes on behind it.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

CALLS_PER_CHILD = 300
# AddressSanitizer reserves terabytes of addresses; it has a limit of its own for what is used.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


@dataclasses.dataclass
class Finding:
    """A call that went wrong, and how."""

    number: int
    op: str
    call: str
    what: str

    def __str__(self) -> str:
        return f"call {self.number}: {self.call[:2000]}\n  {self.what}"


@dataclasses.dataclass
class Report:
    """How often each op was called, and how that ended."""

    outcomes: dict[str, collections.Counter[str]]
    findings: list[Finding]
    seconds: float = 0

    @property
    def calls(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())

    def write(self, path: pathlib.Path) -> None:
        content = {
            "calls": self.calls,
            "seconds": round(self.seconds, 1),
            "ops": {op: dict(counts) for op, counts in sorted(self.outcomes.items())},
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }
        path.write_text(json.dumps(content, indent=1))

    def __str__(self) -> str:
        lines = [f"{'op':<50}{'calls':>7}{'ok':>7}{'refused':>9}{'findings':>10}"]
        for op, counts in sorted(self.outcomes.items()):
            numbers = f"{counts['ok']:>7}{counts['refused']:>9}{counts['finding']:>10}"
            lines.append(f"{op:<50}{sum(counts.values()):>7}{numbers}")
        reached = sum(counts["ok"] > 0 for counts in self.outcomes.values())
        succeeded = sum(counts["ok"] for counts in self.outcomes.values())
        lines.append(
            f"{self.calls} calls of {len(self.outcomes)} ops in {self.seconds:.0f} s: {succeeded} "
            f"succeeded, at least one of {reached} ops; {len(self.findings)} findings."
        )
        return "\n".join(lines)


class Child:
    """A process that makes the calls from `first` to `end`."""

    def __init__(self, options: argparse.Namespace, first: int, end: int, scratch: pathlib.Path):
        self.next, self.end = first, end
        self.current: tuple[int, str, str] | None = None  # The call it is in: number, op, text.
        self.heard = time.monotonic()
        self.silent = False  # And killed for it.
        self._directory = pathlib.Path(tempfile.mkdtemp(dir=scratch))
        self._stderr = self._directory / "stderr"
        self._buffer = b""
        self.pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.pipe)
                _make_calls(options, first, end, self._directory, theirs)
                status = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)
        os.close(theirs)

    def read(self) -> list[Any] | None:
        """What the child has said since, or None if it has ended."""
        data = os.read(self.pipe, 1 << 16)
        self.heard = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data or lines else None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> str:
        """Waits for its end; says how that was, nothing if all was well."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        said = self._stderr.read_text(errors="replace") if self._stderr.exists() else ""
        shutil.rmtree(self._directory, ignore_errors=True)
        if status == 0:
            return ""
        how = os.waitstatus_to_exitcode(status)
        name = signal.Signals(-how).name if how < 0 else f"exit status {how}"
        return f"ended with {name}\n{_what_matters(said)}"


def _what_matters(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if "AddressSanitizer" in line or "Check failed" in line or "terminate called" in line:
            return "\n".join(lines[i : i + 30])
    return "\n".join(lines[-5:])


def _make_calls(
    options: argparse.Namespace, first: int, end: int, directory: pathlib.Path, pipe: int
) -> None:
    """The life of a child."""
    from support import fuzz_plan, fuzz_run

    os.dup2(os.open(directory / "stderr", os.O_CREAT | os.O_WRONLY, 0o600), 2)
    os.chdir(directory)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not SANITIZED:
        limit = _address_space() + options.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    names = _ops_to_call(options)
    runner = fuzz_run.Runner(directory / "files")
    for number in range(first, end):
        call = fuzz_plan.plan(options.seed, number, names)
        _say(pipe, ["begin", number, call.op, str(call)])
        if f"{number}:crash" in options.pretend:
            os.kill(os.getpid(), signal.SIGSEGV)
        if f"{number}:hang" in options.pretend:
            time.sleep(3600)
        outcome, message = runner.run(call)
        _say(pipe, ["end", number, outcome, message[:1000]])


def _say(pipe: int, line: list[Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _address_space() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _ops_to_call(options: argparse.Namespace) -> list[str]:
    from support import fuzz_plan

    names = fuzz_plan.all_ops()
    return [name for name in names if not options.ops or name in options.ops.split(",")]


def fuzz(options: argparse.Namespace) -> Report:
    """Makes all calls and returns how they ended."""
    report = Report({name: collections.Counter() for name in _ops_to_call(options)}, [])
    started = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="fuzz-"))
    end = options.first + options.calls
    ranges = [
        (first, min(first + CALLS_PER_CHILD, end))
        for first in reversed(range(options.first, end, CALLS_PER_CHILD))
    ]
    children: dict[int, Child] = {}
    selector = selectors.DefaultSelector()
    try:
        while ranges or children:
            while ranges and len(children) < options.jobs:
                child = Child(options, *ranges.pop(), scratch)
                children[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            for key, _ in selector.select(timeout=0.2):
                child = children[key.fd]
                lines = child.read()
                for line in lines or []:
                    _note(options, report, child, line)
                if lines is None:
                    selector.unregister(key.fd)
                    del children[key.fd]
                    _bury(options, report, child, ranges)
            for child in children.values():
                if time.monotonic() - child.heard > options.seconds:
                    child.silent = True
                    child.kill()
    finally:
        for child in children.values():
            child.kill()
        shutil.rmtree(scratch, ignore_errors=True)
    report.seconds = time.monotonic() - started
    return report


def _note(options: argparse.Namespace, report: Report, child: Child, line: list[Any]) -> None:
    if line[0] == "begin":
        child.current = (line[1], line[2], line[3])
        return
    assert child.current is not None
    number, op, text = child.current
    child.current, child.next = None, number + 1
    _, _, outcome, message = line
    report.outcomes[op][outcome] += 1
    if options.show:
        print(f"call {number}: {text}\n  {outcome} {message}", flush=True)
    if outcome == "finding":
        _add(options, report, Finding(number, op, text, message))


def _bury(
    options: argparse.Namespace, report: Report, child: Child, ranges: list[tuple[int, int]]
) -> None:
    how = child.finish()
    if child.current is None:
        if how:
            raise SystemExit(f"A child could not begin with call {child.next}: it {how}")
        return
    number, op, text = child.current
    what = f"no answer for {options.seconds} s" if child.silent else how or "ended in silence"
    report.outcomes[op]["finding"] += 1
    _add(options, report, Finding(number, op, text, what))
    if number + 1 < child.end:
        ranges.append((number + 1, child.end))


def _add(options: argparse.Namespace, report: Report, finding: Finding) -> None:
    report.findings.append(finding)
    again = f"--seed {options.seed} --first {finding.number} --calls 1"
    again += f" --ops {options.ops}" if options.ops else ""
    print(f"{finding}\n  repeat it with: {sys.argv[0]} {again}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls every op with odd input.")
    parser.add_argument("--calls", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--ops", default="", help="only these, with commas; changes all numbers")
    parser.add_argument("--seconds", type=float, default=20, help="for one call")
    parser.add_argument(
        "--memory-mb", type=int, default=3000, help="for one process, above its own"
    )
    parser.add_argument("--library", default="", help="another op library")
    parser.add_argument("--report", type=pathlib.Path, help="a file for the result as JSON")
    parser.add_argument("--show", action="store_true", help="print all calls")
    parser.add_argument("--pretend", default="", help="NUMBER:crash or NUMBER:hang, for the test")
    options = parser.parse_args()
    if options.library:
        from monolith import native

        native.__path__.insert(0, str(pathlib.Path(options.library).resolve().parent))
    from support import fuzz_run  # noqa: F401 Loaded once, not by each child.

    report = fuzz(options)
    print(report)
    if options.report:
        report.write(options.report)
    sys.exit(bool(report.findings))


if __name__ == "__main__":
    main()
