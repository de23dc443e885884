"""Jobs of several processes, seen from the one that measures them."""

import pathlib
import shutil
import socket
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.distributed import workload
from benchmarks.distributed.worker import COORDINATOR, KERAS, OURS, STRATEGY
from benchmarks.table import crew

# Steps that fetch something for the first time make TensorFlow build a graph, on all processes.
_WARM_UP_SEC = 2.0


class Turn(NamedTuple):
    """What a job has done in one round: examples, and CPU seconds per million of them."""

    examples_per_sec: float
    cpu: float
    server_cpu: float
    loss: float


class Job:
    """The processes of one contender; a context that ends them.

    Args:
        contender: Ours, or one of those under TensorFlow's strategy.
        shape: How many processes.
        model: What they train.
        batches: The file of the batches.
        directory: For logs and what members share.
        environment: Of the processes.
        cores: How many all of them share.
        queues: Whether lookups run ahead, see `ours.Member`.
    """

    def __init__(
        self,
        contender: str,
        shape: workload.Shape,
        model: workload.Model,
        *,
        batches: pathlib.Path,
        directory: pathlib.Path,
        environment: dict[str, str],
        cores: int,
        queues: bool = True,
    ) -> None:
        name = "-".join([contender, *map(str, (*shape, model.features, model.history))])
        model_dir = directory / "distributed" / f"{name}-{'queues' if queues else 'step'}"
        shutil.rmtree(model_dir, ignore_errors=True)
        model_dir.mkdir(parents=True)
        arguments: dict[str, Any] = {
            "path": str(batches),
            "shape": shape,
            "model": model,
            "threads": shape.choose_threads(cores),
            "model_dir": str(model_dir),
            "queues": queues,
        }
        if contender != OURS:
            addresses = choose_addresses(sum(shape))
            arguments["cluster"] = {
                "ps": addresses[: shape.servers],
                "worker": addresses[shape.servers :],
            }
        self._members: dict[str, list[crew.Member]] = {}
        try:
            for role, index in _list_roles(contender, shape):
                member = crew.Member(
                    contender,
                    cores,
                    sys.executable,
                    directory / "logs",
                    environment,
                    module="benchmarks.distributed.worker",
                    log_name=f"distributed-{name.replace(' ', '_')}-{role}-{index}",
                )
                self._members.setdefault(role, []).append(member)
                member.send("create", role=role, index=index, **arguments)
            for member in self._get_all():
                member.receive()
            self.run(_WARM_UP_SEC)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def run(self, seconds: float) -> Turn:
        """Trains for at least that long, all workers at once."""
        before = self._count_cpu()
        drivers = self._members.get(COORDINATOR) or self._get_workers()
        for driver in drivers:
            driver.send("run", seconds=seconds)
        answers = [driver.receive() for driver in drivers]
        used = {role: now - before[role] for role, now in self._count_cpu().items()}
        millions = sum(answer["steps"] for answer in answers) * workload.BATCH / 1e6
        return Turn(
            sum(answer["steps"] / answer["seconds"] for answer in answers) * workload.BATCH,
            sum(used.values()) / millions,
            used.get("ps", 0.0) / millions,
            answers[0]["loss"],
        )

    def record(self, steps: int) -> list[dict[str, Any]]:
        """Returns what is known of some steps of the first worker, while all train."""
        first, *others = self._get_workers()
        for other in others:
            other.send("run", seconds=1.0)
        answer = first.ask("record", steps=steps)
        for other in others:
            other.receive()
        return answer

    def close(self) -> None:
        for member in self._get_all():
            member.close()

    def _get_workers(self) -> list[crew.Member]:
        return self._members.get("worker") or self._members["local"]

    def _get_all(self) -> list[crew.Member]:
        return [member for members in self._members.values() for member in members]

    def _count_cpu(self) -> dict[str, float]:
        return {
            role: sum(member.ask("get_cpu_sec") for member in members)
            for role, members in self._members.items()
        }


def _list_roles(contender: str, shape: workload.Shape) -> Iterable[tuple[str, int]]:
    if not shape.servers:
        return [("local", 0)]
    roles = [("ps", index) for index in range(shape.servers)]
    roles += [("worker", index) for index in range(shape.workers)]
    return [*roles, (COORDINATOR, 0)] if contender != OURS else roles


def choose_addresses(count: int) -> list[str]:
    """Returns addresses that were free a moment ago; TensorFlow wants to know all of them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    for opened in sockets:
        opened.close()
    return addresses


__all__ = ["KERAS", "OURS", "STRATEGY", "Job", "Turn", "choose_addresses"]
