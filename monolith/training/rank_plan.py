"""What all ranks of a synchronous job must agree on, compared before their first step.

Ranks with other settings, another environment or another model would wait for each other for ever,
or train on rows that belong to something else. So each describes what it would train, as a member
of a job with servers does, and all of them end with one sentence that names the rank and the
difference. Usually they exchange a number each; only if these differ do descriptions travel.

Example:
    >>> collectives.init()
    >>> agree(JobPlan(incarnation="", settings={"filter_type": "no_filter"}), 7)
    [7]
    >>> collectives.shutdown()
"""

import dataclasses
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import dense_allreduce
from monolith.embedding.sharding import ranks
from monolith.graph import collectives
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.distributed import plan, start
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
# In the model directory, while ranks begin.
_MARK_FILE = "ranks_begin_here"
_POLL_SEC = 0.1


def describe(config: CpuTrainingConfig, training: CpuTraining) -> JobPlan:
    """Returns what a rank would train, but for the variables, which come with the graph."""
    train = training.p.train
    settings = {
        **plan.describe_settings(config),
        **{name: getattr(config, name) for name in _SETTINGS},
        **{f"train.{name}": getattr(train, name, None) for name in _TRAIN_PARAMS},
        "dense_only_save_checkpoints": save.get_dense_only_interval(config, training.p)
        != (None, None),
    }
    environment = {
        **dense_allreduce.describe_environment(),
        # Of a few ranks, rank 0 has rows in any case.
        _EMPTY_RANK_0: str(ranks.get_first_owner(collectives.size())),
    }
    return JobPlan(
        incarnation="",
        code=plan.describe_code(),
        settings=settings,
        environment=environment,
        tables=plan.describe_tables(training),
    )


def agree(own: JobPlan, *numbers: int) -> list[int]:
    """Compares what all ranks would train; also a barrier.

    Args:
        own: What this rank would train.
        numbers: What else ranks would do; as many in each, and need not be equal.

    Returns:
        The numbers of rank 0, which count.

    Raises:
        ConfigError: The ranks differ.
        RankLostError: A rank is gone.
    """
    text = json.dumps(dataclasses.asdict(own), sort_keys=True, default=str)
    told = collectives.gather_numbers([_take_digest(text), *numbers])
    if len({digest for digest, *_ in told}) > 1:
        difference = find_difference([JobPlan(**json.loads(t)) for t in _gather_texts(text)])
        raise errors.ConfigError(
            f"The ranks do not fit together: {difference}; start all of them with the same code, "
            "settings and environment."
        )
    return told[0][1:]


def mark_directory(model_dir: str) -> int:
    """Has rank 0 write a mark into the model directory.

    Returns:
        The mark; rank 0 tells it the others, who call `check_directory` with it.
    """
    mark = random.getrandbits(62)
    with tf.io.gfile.GFile(os.path.join(model_dir, _MARK_FILE), "w") as file:
        file.write(str(mark))
    return mark


def check_directory(
    model_dir: str, mark: int, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Sees that all ranks have the model directory of rank 0, however each of them spells it.

    Rows that a rank writes elsewhere would be missing in every checkpoint.

    Args:
        model_dir: That of this rank.
        mark: What rank 0 has written there.
        sleep: Waits for some seconds.

    Raises:
        ConfigError: A rank does not see the mark.
        RankLostError: A rank is gone.
    """
    path = os.path.join(model_dir, _MARK_FILE)
    deadline_sec = time.monotonic() + start.SHARED_WAIT_SEC
    # A network file system may show a new file only after a while.
    while not (is_seen := _read(path) == str(mark)) and time.monotonic() < deadline_sec:
        sleep(_POLL_SEC)
    seen = collectives.gather_numbers([int(is_seen)])
    if collectives.rank() == 0:
        tf.io.gfile.remove(path)
    blind = [str(rank) for rank, (is_seen,) in enumerate(seen) if not is_seen]
    if blind:
        raise errors.ConfigError(
            f"Rank {', '.join(blind)} has another model directory than rank 0, which is to put "
            f"together what all of them save; it is {model_dir} in rank {collectives.rank()}, and "
            "must be one in all ranks, on a disk that they share."
        )


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
        agree(JobPlan(incarnation="", variables=variables))


def _read(path: str) -> str | None:
    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.OpError:
        return None


def _take_digest(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _gather_texts(text: str) -> list[str]:
    """Returns the text of each rank."""
    data = text.encode()
    sizes = [size for (size,) in collectives.gather_numbers([len(data)])]
    gathered = collectives.gather_numbers(list(data.ljust(max(sizes), b"\0")))
    return [bytes(row[:size]).decode() for row, size in zip(gathered, sizes, strict=True)]
