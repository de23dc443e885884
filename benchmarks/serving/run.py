"""Measures the prediction server beside a call of the same model in the process, in turns.

What it shows: requests per second, and milliseconds of the median and the 99th of 100 requests,
over loopback, of the demo's model with 1, 32 and 256 examples in a request; and what the time of a
request goes into. The server is the command `monolith serve`; a client is a process of its own
with the stubs of the package tensorflow-serving-api. All share the machine's cores.

Bars: with 256 examples, clients get at least 0.6 of the requests per second of calls in the
process, as `tf.saved_model.load` offers them, and of calls of the prepared function that the server
itself uses; 64 clients with 1 example get at least twice those of one.

Run: `make bench-serving`, or `python -m benchmarks.serving.run --quick` for a look.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks import results_file
from benchmarks.serving import report, workload
from benchmarks.table import crew, machine

DIRECTORY = crew.REPOSITORY / "build" / "bench"
LOGS = DIRECTORY / "logs"


@contextlib.contextmanager
def member(name: str) -> Iterator[crew.Member]:
    """Runs a process of the measurement."""
    worker = crew.Member(
        name,
        len(os.sched_getaffinity(0)),
        sys.executable,
        LOGS,
        dict(os.environ),
        module="benchmarks.serving.worker",
        log_name=f"serving-{name}",
    )
    with contextlib.closing(worker):
        yield worker


@contextlib.contextmanager
def server(directory: pathlib.Path, *options: str) -> Iterator["Server"]:
    """Serves the model."""
    command = [sys.executable, "-m", "monolith.cli.app", "serve", str(directory)]
    command += ["--name", workload.MODEL, "--port", "0", "--rest-port", "0", *options]
    with (LOGS / "serving-server.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ports = re.findall(r":(\d+)", process.stdout.readline())
        yield Server(process.pid, int(ports[0]), int(ports[1]))
    finally:
        process.terminate()
        process.wait()


class Server:
    """A server that runs.

    Args:
        pid: Its process.
        port: Of gRPC.
        rest_port: Of REST.
    """

    def __init__(self, pid: int, port: int, rest_port: int) -> None:
        self.pid, self.port, self.rest_port = pid, port, rest_port

    def wait_until_loaded(self) -> None:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            request = health_pb2.HealthCheckRequest()
            while stub.Check(request, wait_for_ready=True, timeout=60).status != serving:
                time.sleep(0.1)

    def get_cpu_sec(self) -> float:
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    """A measurement.

    Args:
        rounds: How often all are measured.
        seconds: How long each time.
    """

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds = rounds
        self._seconds = seconds
        self.figures = report.Figures()
        self.split: dict[int, dict[str, float]] = {}

    def measure(self) -> None:
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            subprocess.run(
                [sys.executable, "-m", "benchmarks.serving.workload", str(directory)],
                check=True,
                cwd=crew.REPOSITORY,
                stderr=subprocess.DEVNULL,
            )
            exported = directory / "exported"
            (version,) = exported.iterdir()
            merging = stack.enter_context(server(exported, "--batch-rows", str(report.MERGED_ROWS)))
            alone = stack.enter_context(server(exported))
            here = stack.enter_context(member("in process"))
            here.ask("create", path=str(version))
            clients = {}
            for running in (merging, alone):
                running.wait_until_loaded()
                client = stack.enter_context(member("client"))
                client.ask("create", port=running.port, rest_port=running.rest_port)
                clients[running] = client
            for number in range(-1, self._rounds):
                print(f"round {number + 1} of {self._rounds} ...", flush=True)
                self._measure_round(here, clients, merging, alone, is_counted=number >= 0)
            for batch in workload.BATCHES:
                self.split[batch] = here.ask("split", batch=batch, seconds=self._seconds / 4)

    def _measure_round(
        self,
        here: crew.Member,
        clients: dict[Server, crew.Member],
        merging: Server,
        alone: Server,
        is_counted: bool,
    ) -> None:
        def take(case: report.Case, command: str, running: Server | None, **settings: int) -> None:
            asked = here if running is None else clients[running]
            cpu_sec = 0.0 if running is None else running.get_cpu_sec()
            seconds = self._seconds if is_counted else self._seconds / 2
            found = asked.ask(command, batch=case.batch, seconds=seconds, **settings)
            if running is not None:
                # Of the server, for each request of the client.
                cpu_sec = running.get_cpu_sec() - cpu_sec
                found["server_cpu"] = 1e3 * cpu_sec / found["made"]
            if is_counted:
                self.figures.add(case, found)

        for batch in workload.BATCHES:
            take(report.Case(report.HERE, batch), "run", None)
            take(report.Case(report.PREPARED, batch), "run_prepared", None)
            take(report.Case(report.GRPC, batch), "run", merging)
            take(
                report.Case(report.GRPC, batch, report.SEVERAL),
                "run_many",
                merging,
                clients=report.SEVERAL,
            )
            take(report.Case(report.REST, batch), "run_rest", merging)
        for where, running in ((report.GRPC, merging), (report.NOT_MERGED, alone)):
            many = report.Case(where, 1, report.MANY)
            take(many, "run_many", running, clients=report.MANY)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 rounds, half a second each time")
    parser.add_argument("--rounds", type=int, default=9, help="how often all are measured")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each time")
    results_file.add_argument(parser)
    args = parser.parse_args(argv)
    LOGS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    run = Run(2, 0.5) if args.quick else Run(args.rounds, args.seconds)
    run.measure()
    described = results_file.describe_run("benchmarks.serving.run", start, argv)
    header = (
        "## The prediction server\n\n"
        f"{datetime.date.today()}, {machine.cpu_model()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}, {described}. The demo's model "
        f"(user, movie, genres; dim 32; layers of 256 and 64), {workload.USERS:,} users, "
        f"{workload.MOVIES:,} movies."
    )
    text = "\n\n".join([header, *report.sections(run.figures, run.split)])
    results_file.publish(text, "bench-serving", write=args.write)


if __name__ == "__main__":
    main()
