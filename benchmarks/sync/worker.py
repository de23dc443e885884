"""One process of a contender: takes commands as JSON lines, answers in the same way."""

import pathlib
from typing import Any

from benchmarks.distributed import workload
from benchmarks.distributed.worker import KERAS, OURS, Process, run_process


class Worker(Process):
    """A rank."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._member: Any = None

    def create(
        self, *, path: str, rank: int, cluster: list[str], model: list[int], model_dir: str
    ) -> None:
        """Becomes a rank of a job, which begins."""
        batches = workload.load(pathlib.Path(path), workload.Model(*model))
        if self._name == OURS:
            from benchmarks.sync import ours

            self._member = ours.Member(
                batches, rank, len(cluster), workload.Model(*model), model_dir
            )
        else:
            from benchmarks.sync import keras_fit

            self._member = keras_fit.Member(batches, rank, cluster, workload.Model(*model))

    def run(self, *, steps: int) -> dict[str, float]:
        """Trains for at least so many steps, the same in all ranks."""
        done, elapsed, loss = self._member.run(steps)
        return {"steps": done, "seconds": elapsed, "loss": loss}

    def count_bytes(self, *, steps: int) -> dict[str, float]:
        """Returns what this rank sends in a step, on average over some."""
        return self._member.count_bytes(steps)


if __name__ == "__main__":
    run_process(Worker, (OURS, KERAS))
