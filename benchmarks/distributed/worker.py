"""One process of a contender: takes commands as JSON lines, answers in the same way."""

import argparse
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.distributed import workload
from benchmarks.table.worker import serve

OURS = "ours"
STRATEGY = "ParameterServerStrategy"
KERAS = "Keras fit"
COORDINATOR = "coordinator"


class Process:
    """Answers the commands; each public method is one."""

    def get_cpu_sec(self) -> float:
        """Returns the CPU time that this process has used."""
        used = os.times()
        return used.user + used.system


class Worker(Process):
    """A server, a worker, a coordinator, or one process that does everything."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._member: Any = None

    def create(
        self,
        *,
        path: str,
        role: str,
        index: int,
        shape: list[int],
        model: list[int],
        threads: int,
        model_dir: str = "",
        queues: bool = True,
        cluster: dict[str, list[str]] | None = None,
    ) -> None:
        """Becomes a process of a job, which begins."""
        batches = workload.load(pathlib.Path(path), workload.Model(*model))
        if self._name == OURS:
            from benchmarks.distributed import ours

            self._member = ours.Member(
                batches,
                role,
                index,
                workload.Shape(*shape),
                workload.Model(*model),
                model_dir,
                threads,
                queues,
            )
            return
        from benchmarks.distributed import parameter_server_strategy as strategy

        assert cluster is not None
        if role != COORDINATOR:
            self._member = strategy.start_server(cluster, role, index, threads)
        elif self._name == KERAS:
            from benchmarks.distributed import keras_fit

            self._member = keras_fit.Coordinator(batches, workload.Model(*model), cluster)
        else:
            self._member = strategy.Coordinator(batches, workload.Model(*model), cluster)

    def run(self, *, seconds: float) -> dict[str, float]:
        """Trains for at least that long."""
        steps, elapsed, loss = self._member.run(seconds)
        return {"steps": steps, "seconds": elapsed, "loss": loss}

    def record(self, *, steps: int) -> list[dict[str, Any]]:
        """Returns what crossed in each of some steps, and where its time went."""
        return self._member.record(steps).describe()


def run_process(make: Callable[[str], Process], contenders: Sequence[str]) -> None:
    """Serves as the process of the contender that the command line names, and ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=contenders, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(make(args.contender), answers)
    os._exit(0)  # A job in a thread, or TensorFlow's server, would never end.


if __name__ == "__main__":
    run_process(Worker, (OURS, KERAS, STRATEGY))
