"""Jobs of several ranks, seen from the one process that measures them."""

import pathlib
import shutil
import sys
from typing import Any, NamedTuple

from benchmarks.distributed import workload
from benchmarks.distributed.jobs import choose_addresses
from benchmarks.sync import parts
from benchmarks.table import crew

# The first call traces, or makes TensorFlow prepare the graph; the second tells how fast it is.
_WARM_UP_STEPS = (1, 20)


class Turn(NamedTuple):
    """What a job has done in one round: examples, and CPU seconds per million of them."""

    examples_per_sec: float
    cpu: float
    loss: float


class Job:
    """The ranks of one contender; a context that ends them.

    All ranks of a job must do the same number of steps, so what they are asked for is steps, as
    many as they have done lately in the time.

    Args:
        contender: Ours, or Keras's fit.
        num_ranks: How many processes.
        model: What they train.
        batches: The file of the batches.
        directory: For logs and what ranks share.
        environment: Of the processes.
        cores: How many all of them share.
    """

    def __init__(
        self,
        contender: str,
        num_ranks: int,
        model: workload.Model,
        *,
        batches: pathlib.Path,
        directory: pathlib.Path,
        environment: dict[str, str],
        cores: int,
    ) -> None:
        name = f"{contender.replace(' ', '_')}-{num_ranks}-{model.features}-{model.history}"
        model_dir = directory / "sync" / name
        shutil.rmtree(model_dir, ignore_errors=True)
        model_dir.mkdir(parents=True)
        cluster = choose_addresses(num_ranks)
        self._members: list[crew.Member] = []
        self._steps_per_sec = 0.0
        try:
            for rank in range(num_ranks):
                place = {
                    "MONOLITH_RANK": str(rank),
                    "MONOLITH_SIZE": str(num_ranks),
                    "MONOLITH_LOCAL_RANK": str(rank),
                    "MONOLITH_LOCAL_SIZE": str(num_ranks),
                    "MONOLITH_RANKS_ADDRESS": cluster[0],
                    # Ranks share the cores, in every contender.
                    "TF_NUM_INTRAOP_THREADS": str(max(1, cores // num_ranks)),
                }
                member = crew.Member(
                    contender,
                    cores,
                    sys.executable,
                    directory / "logs",
                    {**environment, **place},
                    module="benchmarks.sync.worker",
                    log_name=f"sync-{name}-{rank}",
                )
                self._members.append(member)
                member.send(
                    "create",
                    path=str(batches),
                    rank=rank,
                    cluster=cluster,
                    model=model,
                    model_dir=str(model_dir),
                )
            for member in self._members:
                member.receive()
            for steps in _WARM_UP_STEPS:
                self._run(steps)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def run(self, seconds: float) -> Turn:
        """Trains for about that long."""
        return self._run(max(1, round(self._steps_per_sec * seconds)))

    def count_bytes(self, steps: int) -> dict[str, float]:
        """Returns what all ranks together send in a step, on average over some."""
        answers = self._ask_all("count_bytes", steps=steps)
        return {what: sum(answer[what] for answer in answers) for what in answers[0]}

    def close(self) -> None:
        for member in self._members:
            member.close()

    def _run(self, steps: int) -> Turn:
        before = sum(self._ask_all("get_cpu_sec"))
        answers = self._ask_all("run", steps=steps)
        used = sum(self._ask_all("get_cpu_sec")) - before
        # All have done the same steps; the job is done when the last of them is.
        done, elapsed = answers[0]["steps"], max(answer["seconds"] for answer in answers)
        self._steps_per_sec = done / elapsed
        examples = done * parts.count_examples(len(self._members)) * len(self._members)
        return Turn(examples / elapsed, used / examples * 1e6, answers[0]["loss"])

    def _ask_all(self, command: str, **arguments: Any) -> list[Any]:
        for member in self._members:
            member.send(command, **arguments)
        return [member.receive() for member in self._members]
