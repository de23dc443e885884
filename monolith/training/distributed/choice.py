"""Which servers take part, if more were started than the job needs.

With `num_extra_ps`, chief and workers measure all servers together, and the slowest are left out
(`monolith.training.ps_benchmark`). What was chosen is the chief's to say, and stands in its record;
the others take it from there, at each attempt to train anew.

A server that takes the place of one that was chosen is chosen with it, so that all others keep
their part; and the choice goes on to a chief that takes the place of another one. Only if none of
those that were chosen is left, the chief measures again. Meanwhile its record has no choice.

Example:
    >>> before = _describe(["a:1"], among=["a:1", "b:1"])
    >>> _keep(before, ["a:1", "x:1"], 1), _keep(before, ["x:1", "b:1"], 1)
    (['a:1'], None)
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.cluster import manager, members
from monolith.cluster.members import Membership, MemberState
from monolith.cluster.progress import WaitProgress
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import recovery
from monolith.training.tables.members import NodeAliveCheckerError

logger = logging.getLogger(__name__)

# Facts in the record of the chief: what it has chosen; and which measurement it is ready for, with
# another text for each.
CHOICE = "choice"
_MEASURING = "measuring"

_POLL_SEC = 0.2

# Measures all servers, with more hooks, and returns those that are chosen.
Measure = Callable[[Sequence[tf.compat.v1.train.SessionRunHook]], list[str]]


def choose_servers(
    config: DistributedCpuTrainingConfig,
    cluster: manager.Cluster,
    member: Membership,
    measure: Measure,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Returns the servers that take part, as the chief has chosen them, or chooses as the chief.

    Args:
        config: The job, and what this worker is in it.
        cluster: Has all servers.
        member: This worker.
        measure: How it takes part in a measurement.
        sleep: Waits for some seconds.

    Raises:
        JobIsOver: The chief has finished.
        JobFailedError: The chief has failed.
        MemberConflictError: Another process has taken this one's place.
        NodeAliveCheckerError: The chief is gone, or knows other servers than this worker.
    """
    if config.index > 0:
        return _take_over(config, cluster, member, measure, sleep)
    chosen = _keep(member.record.details.get(CHOICE), cluster["ps"], config.num_ps)
    if chosen is None:
        member.update(details={CHOICE: None, _MEASURING: None})
        chosen = measure([_SayMeasuringHook(member)])
    member.update(details={CHOICE: _describe(chosen, cluster["ps"]), _MEASURING: None})
    return chosen


def inherit(model_dir: str) -> dict[str, Any]:
    """Returns what a chief knows of the choice that the one before it has made in the same job.

    Must come before this chief writes its record.
    """
    chief = members.read_member(model_dir, "worker", 0)
    if chief is None or chief.state is MemberState.FINISHED or CHOICE not in chief.details:
        return {}
    return {CHOICE: chief.details[CHOICE]}


def _describe(chosen: Sequence[str], among: Sequence[str]) -> dict[str, list[str]]:
    return {"servers": list(chosen), "among": list(among)}


def _keep(
    choice: Mapping[str, list[str]] | None, servers: Sequence[str], num_ps: int
) -> list[str] | None:
    """Returns who has the places of those that were chosen, if any of these is still there."""
    if choice is None or len(choice["servers"]) != num_ps or len(choice["among"]) != len(servers):
        return None
    successors = dict(zip(choice["among"], servers, strict=True))
    kept = [successors[addr] for addr in choice["servers"]]
    return None if set(kept).isdisjoint(choice["servers"]) else kept


def _take_over(
    config: DistributedCpuTrainingConfig,
    cluster: manager.Cluster,
    member: Membership,
    measure: Measure,
    sleep: Callable[[float], None],
) -> list[str]:
    """Returns what the chief has chosen; helps it to measure, if it has not."""
    progress = WaitProgress(logger)
    chief_addr = cluster["chief"][0]
    measured = None
    while True:
        chief = members.read_member(config.model_dir, "worker", 0)
        details = chief.details if chief is not None and chief.is_active else {}
        if CHOICE in details:
            chosen: list[str] = details[CHOICE]["servers"]
            unknown = sorted(set(chosen) - set(cluster["ps"]))
            if unknown:
                # One of the two has not noticed yet that a server has moved.
                raise NodeAliveCheckerError(
                    f"the chief at {chief_addr} trains with {','.join(unknown)}, which this worker "
                    "does not find"
                )
            return list(chosen)
        if details.get(_MEASURING) not in (None, measured):
            measure([])
            # Once: the chief is about to choose, or begins another measurement.
            measured = details[_MEASURING]
        recovery.raise_if_over(config.model_dir, member)
        if members.is_refused(chief_addr):
            raise NodeAliveCheckerError(f"the chief at {chief_addr} is unreachable")
        progress.report("Waiting for the chief to measure the parameter servers.")
        sleep(_POLL_SEC)


class _SayMeasuringHook(tf.compat.v1.train.SessionRunHook):
    """Lets the workers know that the chief is ready to measure with them."""

    def __init__(self, member: Membership) -> None:
        self._member = member

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._member.update(details={_MEASURING: uuid.uuid4().hex})
