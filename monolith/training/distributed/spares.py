"""Redundant servers: one that is gone leaves the chief's list, and a free one takes its place.

With `num_redundant_ps` more servers are started than a job needs, and all workers use those on a
list that the chief writes (`monolith.cluster.manager`). A server that has died, or the list of an
earlier run, would keep the job waiting for addresses at which nobody will ever be again. So before
the list is used, the chief replaces who is gone, at the same position: servers that stay keep their
shards. Other workers wait until it has.
"""

import logging
import time
from collections.abc import Mapping

from monolith import errors
from monolith.cluster import liveness, manager, members
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.liveness import Life
from monolith.cluster.members import MemberRecord, Membership
from monolith.cluster.progress import WaitProgress
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import recovery
from monolith.training.distributed.asking import PatientQuery

logger = logging.getLogger(__name__)


def settle(
    config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery, member: Membership
) -> None:
    """Returns when nobody on the list of servers is gone, or when there is no list.

    Args:
        config: The job, and what this worker is in it.
        discovery: Where servers register.
        member: This worker.

    Raises:
        JobIsOver: The chief has finished.
        JobFailedError: The chief has failed.
        MemberConflictError: Another process has taken this one's place.
        errors.ConfigError: Nobody has come in time.
    """
    num_required = config.num_ps + config.num_extra_ps
    if config.num_redundant_ps <= 0 or num_required == 0:
        return
    path = manager._get_ps_cluster_file_name(config.model_dir, config.uuid)
    # It tells of those that are gone, too, and does not wait for them.
    query = PatientQuery(discovery, lists_dead=True)
    progress = WaitProgress(logger)
    deadline_sec = time.monotonic() + config.session_creation_timeout_secs
    while True:
        if config.index == 0:
            recovery.raise_if_replaced(member)
        else:
            recovery.raise_if_over(config.model_dir, member)
        listed, _ = manager._read_ps_cluster_file(path, num_required)
        if not listed:
            return
        registered = query("ps")
        gone = _find_gone(listed, registered, config.model_dir)
        if not gone:
            return
        if config.index == 0 and _replace(path, listed, gone, registered):
            return
        text = (
            f"Waiting for parameter servers in the place of {', '.join(gone)}; looking in "
            f"{discovery.describe()}"
        )
        if time.monotonic() > deadline_sec:
            raise errors.ConfigError(
                f"{text}; nobody has come in {config.session_creation_timeout_secs:g} s "
                "(`session_creation_timeout_secs`)."
            )
        progress.report(f"{text}.")
        manager._cluster_query_failure_handler()


def _find_gone(listed: list[str], registered: Mapping[int, str], model_dir: str) -> list[str]:
    records = {r.address: r for r in members.read_members(model_dir) if r.role == "ps"}
    known = set(registered.values())
    return [addr for addr in listed if _is_gone(addr, addr in known, records.get(addr))]


def _is_gone(addr: str, is_registered: bool, record: MemberRecord | None) -> bool:
    if members.is_refused(addr):
        return True
    if not is_registered and (record is None or not record.is_active):
        return True  # Somebody has the port by now who is no server of this job.
    if record is not None and liveness.look(record, time.time()) is Life.ALIVE:
        return False  # Its connections are cut for a while.
    return not members.is_reachable(addr)


def _replace(path: str, listed: list[str], gone: list[str], registered: Mapping[int, str]) -> bool:
    """Writes the list anew; returns whether there are enough servers that are free."""
    free = [
        addr
        for _, addr in sorted(registered.items())
        if addr not in listed and members.is_reachable(addr)
    ]
    if len(free) < len(gone):
        return False
    instead = dict(zip(gone, free, strict=False))
    for before, now in instead.items():
        logger.warning("the parameter server at %s takes the place of %s", now, before)
    manager._save_ps_cluster_to_file(path, [instead.get(addr, addr) for addr in listed])
    return True
