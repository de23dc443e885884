"""Predicts examples per second and memory of N servers and M workers, from what was measured.

The model has a CPU time of a worker and one of a server for a step, each with a part that every
further server adds; the share of the cores that a job keeps busy; what crosses; and the bytes of a
row. `make bench-distributed` measures all but the last, which is `make bench-table`'s. The jobs of
1 + 1 and 2 + 1 give the constants, so only 2 + 2 is a prediction.

Run: `python -m benchmarks.scaling`, or with sizes of your own:
`python -m benchmarks.scaling --servers 100 --workers 400 --rows 1e10`.
"""

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

from benchmarks import speed_plot
from benchmarks.table.report import table

MEASURED = pathlib.Path(__file__).parent / "distributed" / "measured.json"

# On paper: a machine of a cluster. Memory that rows may fill, and the network.
CORES = 32
MEMORY_BYTES = 256e9
FILL = 0.8
NETWORK_BYTES_PER_SEC = 25e9 / 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """What was measured, of one model.

    Attributes:
        batch: Examples of a step.
        cores: Of the machine on which it was measured.
        busy: The share of them that a job keeps busy.
        worker_cores: How many of them the only worker of a job kept busy: it does one step after
            the other, so that more cores would not make it faster.
        worker_sec: CPU time of a worker for a step.
        worker_sec_per_server: What every server adds to it.
        server_sec: CPU time of all servers together for a step.
        server_sec_per_server: What every server adds to it.
        step_bytes: What crosses in a step, both ways, whatever the number of servers.
        row_bytes: Memory of a row with its optimizer.
    """

    batch: int
    cores: int
    busy: float
    worker_cores: float
    worker_sec: float
    worker_sec_per_server: float
    server_sec: float
    server_sec_per_server: float
    step_bytes: float
    row_bytes: float

    def get_worker_sec(self, servers: int) -> float:
        """Returns the CPU time of one worker for a step."""
        return self.worker_sec + servers * self.worker_sec_per_server

    def get_server_sec(self, servers: int) -> float:
        """Returns the CPU time of one server for a step of one worker."""
        return self.server_sec / servers + self.server_sec_per_server

    def get_worker_speed(self, servers: int) -> float:
        """Returns the examples per second of one worker on a machine of its own."""
        return self.batch * self.worker_cores / self.get_worker_sec(servers)

    def predict_on_one_machine(self, servers: int) -> float:
        """Returns examples per second of a job whose processes share the cores, all busy.

        How many workers there are does not matter: each step costs the same.
        """
        step_sec = self.get_worker_sec(servers) + servers * self.get_server_sec(servers)
        return self.batch * self.busy * self.cores / step_sec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """A job on machines of its own: what each part allows, in examples per second."""

    workers: float
    server_cpu: float
    server_network: float
    worker_network: float
    row_bytes_per_server: float

    @property
    def examples_per_sec(self) -> float:
        return min(self.workers, self.server_cpu, self.server_network, self.worker_network)

    @property
    def limit(self) -> str:
        """What ends it first."""
        limits = {
            "CPU of the workers": self.workers,
            "CPU of the servers": self.server_cpu,
            "network of the servers": self.server_network,
            "network of the workers": self.worker_network,
        }
        return min(limits, key=limits.__getitem__)


def predict(constants: Constants, servers: int, workers: int, rows: float) -> Cluster:
    """Returns what a job with a machine for each process does.

    >>> constants = Constants(
    ...     batch=1000, cores=2, busy=1.0, worker_cores=1.5, worker_sec=0.01,
    ...     worker_sec_per_server=0.0, server_sec=0.002, server_sec_per_server=0.0,
    ...     step_bytes=1e6, row_bytes=100.0)
    >>> cluster = predict(constants, servers=1, workers=100, rows=1e6)
    >>> cluster.examples_per_sec, cluster.limit, cluster.row_bytes_per_server
    (3125000.0, 'network of the servers', 100000000.0)
    """
    busy_cores = constants.busy * CORES
    of_server = constants.batch * busy_cores / constants.get_server_sec(servers)
    by_network = constants.batch * NETWORK_BYTES_PER_SEC / constants.step_bytes
    return Cluster(
        workers=workers * constants.get_worker_speed(servers),
        server_cpu=of_server,
        server_network=servers * by_network,
        worker_network=workers * by_network,
        row_bytes_per_server=rows * constants.row_bytes / servers,
    )


def read_constants(measured: dict[str, Any]) -> Constants:
    """Returns the constants of the demo's model, from the points 1 + 1 and 2 + 1."""
    batch, cores = measured["batch"], measured["cores"]
    one, two, _ = _get_points(measured)
    per_step = batch / 1e6  # From seconds per million examples to seconds per step.
    servers_of_one, servers_of_two = (p["server_cpu"] * per_step for p in (one, two))
    worker_of_one, worker_of_two = ((p["cpu"] - p["server_cpu"]) * per_step for p in (one, two))
    # A part that measures below zero is noise: a server more makes nobody else's work less.
    worker_more = max(0.0, worker_of_two - worker_of_one)
    server_more = max(0.0, servers_of_two - servers_of_one)
    worker_cores = one["examples_per_sec"] * (one["cpu"] - one["server_cpu"]) / 1e6
    busy = sum(p["examples_per_sec"] * p["cpu"] / 1e6 / cores for p in (one, two)) / 2
    return Constants(
        batch=batch,
        cores=cores,
        busy=busy,
        worker_cores=worker_cores,
        worker_sec=worker_of_one - worker_more,
        worker_sec_per_server=worker_more,
        server_sec=servers_of_one - server_more,
        server_sec_per_server=server_more,
        step_bytes=measured["bytes_per_step"],
        row_bytes=read_row_bytes(dim=int(one["model"][1])),
    )


def read_row_bytes(dim: int) -> float:
    """Returns the memory of a row with Adagrad, as RESULTS.md has it of 10,000,000 rows."""
    text = speed_plot.RESULTS.read_text()
    rows = speed_plot.read_table(text, "Filling a table, and its memory")
    for name, contender, _, row_bytes, *_ in rows[1:]:
        if contender == speed_plot.OURS and name == f"10,000,000 ids, dim {dim}, one thread":
            return float(row_bytes)
    raise ValueError(f"{speed_plot.RESULTS.name} has no row of dim {dim}; run `make bench-table`.")


def check_points(constants: Constants, measured: dict[str, Any]) -> Iterator[list[str]]:
    """Yields a line for each measured job: predicted, measured, and the error."""
    for point in _get_points(measured):
        servers, workers = point["servers"], point["workers"]
        predicted = constants.predict_on_one_machine(servers)
        found = point["examples_per_sec"]
        yield [
            f"{servers} + {workers}",
            f"{predicted:,.0f}",
            f"{found:,.0f}",
            f"{100 * (predicted / found - 1):+.0f} %",
            "predicted" if workers > 1 else "gave the constants",
        ]


def size_up(constants: Constants, rows: float, examples_per_sec: float) -> Iterator[str]:
    """Yields what a job of that size needs, with the arithmetic."""
    total = rows * constants.row_bytes
    per_machine = FILL * MEMORY_BYTES
    servers = math.ceil(total / per_machine)
    yield (
        f"Memory: {rows:.0e} rows x {constants.row_bytes:.0f} bytes = {total / 1e12:.1f} TB; at "
        f"{per_machine / 1e9:.0f} GB of each machine's {MEMORY_BYTES / 1e9:.0f} GB, "
        f"{servers} servers."
    )
    of_worker = constants.get_worker_speed(servers)
    workers = math.ceil(examples_per_sec / of_worker)
    yield (
        f"Workers: a step has {1000 * constants.worker_sec:.1f} ms of its own and "
        f"{1000 * constants.worker_sec_per_server:.2f} ms for each of {servers} servers, "
        f"{1000 * constants.get_worker_sec(servers):.0f} ms; with {constants.worker_cores:.1f} "
        f"cores busy that is {of_worker:,.0f} examples/s, so {workers:,} workers and "
        f"{workers * constants.worker_cores:,.0f} cores."
    )
    steps = examples_per_sec / constants.batch
    yield (
        f"Requests: {steps:,.0f} steps/s, each a lookup and an update at every one of {servers} "
        f"servers: {2 * steps:,.0f} per second at each server, {2 * steps * servers:,.0f} in all."
    )
    server_cores = steps * constants.get_server_sec(servers)
    yield (
        f"Servers: {1000 * constants.server_sec_per_server:.2f} ms and a {servers}th of "
        f"{1000 * constants.server_sec:.1f} ms for a step, so {server_cores:,.1f} cores of "
        f"{constants.busy * CORES:.0f} that can be busy."
    )
    of_network = steps * constants.step_bytes
    yield (
        f"Network: {constants.step_bytes / 1e6:.2f} MB for a step, {of_network / 1e9:.1f} GB/s in "
        f"all, {of_network / servers / 1e6:.0f} MB/s at each server, whose 25 Gbit/s are "
        f"{NETWORK_BYTES_PER_SEC / 1e6:,.0f} MB/s."
    )


def describe(measured: dict[str, Any], rows: float, examples_per_sec: float) -> list[str]:
    """Returns the constants, the checked points, and what a job of that size needs."""
    constants = read_constants(measured)
    values = [[name, f"{value:.4g}"] for name, value in dataclasses.asdict(constants).items()]
    header = ["servers + workers", "predicted, examples/s", "measured", "error", ""]
    return [
        table(["constant", "measured"], values),
        "",
        table(header, check_points(constants, measured)),
        "",
        *(f"- {line}" for line in size_up(constants, rows, examples_per_sec)),
    ]


def _get_points(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the jobs of the demo's model: 1 + 1, 2 + 1, 2 + 2."""
    first = measured["points"][0]["model"]
    return [point for point in measured["points"] if point["model"] == first]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--rows", type=float, default=1e11)
    parser.add_argument("--examples-per-sec", type=float, default=1e7)
    args = parser.parse_args()
    measured = json.loads(MEASURED.read_text())
    if not (args.servers and args.workers):
        print("\n".join(describe(measured, args.rows, args.examples_per_sec)))
        return
    cluster = predict(read_constants(measured), args.servers, args.workers, args.rows)
    print(
        f"{args.servers} servers of {CORES} cores and {args.workers} workers: "
        f"{cluster.examples_per_sec:,.0f} examples/s, which the {cluster.limit} allows, and "
        f"{cluster.row_bytes_per_server / 1e9:,.0f} GB of rows in each server."
    )


if __name__ == "__main__":
    main()
