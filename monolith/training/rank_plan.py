"""What all ranks of a synchronous job must agree on, compared before their first step.

Ranks with other settings, another environment or another model would wait for each other for ever,
or train on rows that belong to something else. So each describes what it would train, as a member
of a job with servers does, and all of them end with one sentence that names the rank and the
difference. Usually they exchange a number each; only if these differ do descriptions travel.

Example:
    >>> collectives.init()
    >>> agree(JobPlan(incarnation="", settings={"filter_type": "no_filter"}), input_seed=7)
    7
    >>> collectives.shutdown()
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import dense_allreduce
from monolith.embedding.sharding import ranks
from monolith.graph import collectives
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.distributed import plan
from monolith.training.distributed.plan import JobPlan
from monolith.training.tables import save
from monolith.training.tables.training import CpuTraining

# Beside those that members of a job with servers share: what the steps of ranks, and their saves,
# are made of.
_SETTINGS = (
    "embedding_prefetch_capacity",
    "enable_async_optimize",
    "enable_pipelined_fwda2a",
    "enable_pipelined_bwda2a",
    "enable_embedding_postpush",
    "enable_variable_postpush",
    "enable_fused_layout",
    "feature_eviction_on_save",
    "operator_files_steps",
)
# Of the params of a task.
_TRAIN_PARAMS = ("max_steps", "steps", "divide_input")
_EMPTY_RANK_0 = "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD"


def describe(config: CpuTrainingConfig, training: CpuTraining) -> JobPlan:
    """Returns what a rank would train, but for the variables, which come with the graph."""
    train = training.p.train
    settings = {
        **plan.describe_settings(config),
        **{name: getattr(config, name) for name in _SETTINGS},
        **{f"train.{name}": getattr(train, name, None) for name in _TRAIN_PARAMS},
        "dense_only_save_checkpoints": save.get_dense_only_interval(config, training.p)
        != (None, None),
        **dense_allreduce.describe_settings(),
        # Of a few ranks, rank 0 has rows in any case.
        _EMPTY_RANK_0: ranks.get_first_owner(collectives.size()),
    }
    return JobPlan(
        incarnation="",
        code=plan.describe_code(),
        settings=settings,
        tables=plan.describe_tables(training),
    )


def agree(own: JobPlan, input_seed: int) -> int:
    """Compares what all ranks would train; also a barrier.

    Args:
        own: What this rank would train.
        input_seed: By which this rank would shuffle the input.

    Returns:
        The seed of rank 0, by which all do, so that each gets another part.

    Raises:
        ConfigError: The ranks differ.
        RankLostError: A rank is gone.
    """
    text = json.dumps(dataclasses.asdict(own), sort_keys=True, default=str)
    told = collectives.gather_numbers([_take_digest(text), input_seed])
    if len({digest for digest, _ in told}) > 1:
        difference = find_difference([JobPlan(**json.loads(t)) for t in _gather_texts(text)])
        raise errors.ConfigError(
            f"The ranks do not fit together: {difference}; start all of them with the same code, "
            "settings and environment."
        )
    return told[0][1]


def find_difference(plans: Sequence[JobPlan]) -> str:
    """Returns in which point the first rank that does so differs from rank 0.

    Example:
        >>> find_difference([JobPlan(incarnation="", settings={"steps": n}) for n in (5, 5, 6)])
        "setting 'steps' is `5` at rank 0 and `6` at rank 2"
    """
    for rank, of_rank in enumerate(plans):
        difference = plan.find_difference(plans[0], of_rank, ("at rank 0", f"at rank {rank}"))
        if difference is not None:
            return difference
    raise AssertionError("All plans are equal.")


class SameVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Refuses ranks whose models have other variables, when the graphs are built."""

    def begin(self) -> None:
        variables = plan.describe_variables(tf.compat.v1.get_default_graph())
        agree(JobPlan(incarnation="", variables=variables), input_seed=0)


def _take_digest(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _gather_texts(text: str) -> list[str]:
    """Returns the text of each rank."""
    data = text.encode()
    sizes = [size for (size,) in collectives.gather_numbers([len(data)])]
    gathered = collectives.gather_numbers(list(data.ljust(max(sizes), b"\0")))
    return [bytes(row[:size]).decode() for row, size in zip(gathered, sizes, strict=True)]
