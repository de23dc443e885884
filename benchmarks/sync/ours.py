"""Ours: an `Estimator` with `RunConfig(sync=True)`, as one rank of a job.

Its settings are those a user gets: no queues, so that ranks train as one process does.
"""

from typing import Any

import tensorflow as tf

from benchmarks.distributed import workload
from benchmarks.distributed.ours import RankingModel, Turns
from benchmarks.sync import parts
from monolith.training.estimator import Estimator, RunConfig

# Longer than any measurement: nobody is to save during one.
_NEVER_STEPS = 10**9

EXCHANGES, DENSE = "exchanges", "dense"
_EXCHANGE, _GATHER, _REDUCE = "CollectiveAllToAllV2", "CollectiveGatherV2", "CollectiveReduceV2"
_TRACE = tf.compat.v1.RunOptions.FULL_TRACE


class Traffic(tf.compat.v1.train.SessionRunHook):
    """Adds up the bytes that this rank gives to TensorFlow's collectives for others.

    An exchange sends all but the part that stays here, as it is padded; a gather sends a copy to
    each of the others; a sum, which goes round in a ring, sends almost two. A graph also has
    collectives that are not part of a step, so a trace tells which are.
    """

    def __init__(self, num_ranks: int) -> None:
        others = num_ranks - 1
        self._shares = {
            _EXCHANGE: others / num_ranks,
            _GATHER: others,
            _REDUCE: 2 * others / num_ranks,
        }
        self.is_on = False
        self.sent: dict[str, float] = {}
        self._executed: set[str] = set()

    def start(self) -> None:
        self.sent = {EXCHANGES: 0.0, DENSE: 0.0}
        self.is_on = True

    def begin(self) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations()
        self._collectives = [
            operation for operation in operations if operation.type in self._shares
        ]
        self._sizes = [tf.size(operation.inputs[0]) for operation in self._collectives]

    def before_run(self, run_context: Any) -> Any:
        if not self.is_on:
            return None
        level = tf.compat.v1.RunOptions.NO_TRACE if self._executed else _TRACE
        options = tf.compat.v1.RunOptions(trace_level=level)
        return tf.compat.v1.train.SessionRunArgs(self._sizes, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self.is_on:
            return
        if not self._executed:
            devices = run_values.run_metadata.step_stats.dev_stats
            names = {node.node_name for device in devices for node in device.node_stats}
            self._executed = names & {operation.name for operation in self._collectives}
            if not self._executed:
                raise RuntimeError("The trace of a step has no collective in it.")
        for operation, size in zip(self._collectives, run_values.results, strict=True):
            if operation.name in self._executed:
                what = DENSE if operation.type == _REDUCE else EXCHANGES
                width = operation.inputs[0].dtype.size
                self.sent[what] += self._shares[operation.type] * width * int(size)


class Member:
    """One rank.

    Args:
        batches: What all ranks train on.
        rank: Which of them this is.
        num_ranks: How many there are.
        model: What is trained.
        model_dir: Of all ranks.
    """

    def __init__(
        self,
        batches: workload.Batches,
        rank: int,
        num_ranks: int,
        model: workload.Model,
        model_dir: str,
    ) -> None:
        tf.compat.v1.disable_eager_execution()
        self._turns, self._traffic = Turns(), Traffic(num_ranks)
        ranking = RankingModel(parts.take(batches, rank, num_ranks), model)
        ranking.p.train.divide_input = False  # It is the part of this rank already.
        config = RunConfig(model_dir=model_dir, sync=True, save_checkpoints_steps=_NEVER_STEPS)
        # The traffic of a step is added up before its turn may end.
        self._turns.start(Estimator(ranking, config).train, self._traffic)

    def run(self, steps: int) -> tuple[int, float, float]:
        """Returns steps done, the seconds they took, and a loss; all ranks do as many."""
        return self._turns.take(0.0, least_steps=steps)

    def count_bytes(self, steps: int) -> dict[str, float]:
        """Returns the bytes that this rank sends in a step, by what they are."""
        self._traffic.start()
        self.run(steps)
        self._traffic.is_on = False
        return {what: sent / steps for what, sent in self._traffic.sent.items()}
