"""What a worker does when it has lost a member: waits, looks who is there now, and tries again.

A job whose members are the same as before goes on as often as it takes: a connection was cut, or
somebody was started again at the same address. When other members have taken their places, a try
counts, so that a job whose servers die again and again ends at some time; unless it has saved
meanwhile, and so gets on. And a job whose chief has finished or failed is over: then a worker ends,
too.
"""

import logging
import time
from collections.abc import Callable

import tensorflow as tf

from monolith import errors
from monolith.checkpoint import delta_chain
from monolith.cluster import manager, members
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.members import MemberRecord, Membership, MemberState
from monolith.cluster.progress import WaitProgress
from monolith.core import metrics
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan
from monolith.training.distributed.asking import PatientQuery
from monolith.training.distributed.sizes import SizeCheck
from monolith.training.tables.members import NodeAliveCheckerError

logger = logging.getLogger(__name__)

LOST_MEMBER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
    NodeAliveCheckerError,
)

_DEFAULT_RETRIES = 6
_NOBODY = "0.0.0.0:1"
# A member that is not there yet is not asked for in a loop.
_MIN_WAIT_SEC = 0.2


class JobIsOver(Exception):
    """The chief has finished, so that there is nothing left to do."""


class JobFailedError(errors.MonolithError, RuntimeError):
    """A member ends: the chief has failed, or was stopped, or members were lost too often."""


class UntilJobIsOver(ServiceDiscovery):
    """A discovery that does not let a worker wait for members of a job that is over.

    Args:
        discovery: Who is asked.
        config: What this process is.
        member: This process; knows the run once it has met the chief.
    """

    def __init__(
        self, discovery: ServiceDiscovery, config: DistributedCpuTrainingConfig, member: Membership
    ) -> None:
        self._discovery = discovery
        self._query = PatientQuery(discovery)
        self._config = config
        self._member = member
        self._check_sizes = SizeCheck(member)

    def register(self, name: str, index: int, addr: str) -> None:
        """As the discovery does."""
        self._discovery.register(name, index, addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """As the discovery does."""
        self._discovery.deregister(name, index, addr)

    def query(self, name: str) -> dict[int, str]:
        """As the discovery does; while that does not answer, nobody is registered.

        Raises:
            JobIsOver: The chief has finished.
            JobFailedError: The chief has failed.
            MemberConflictError: Another process has taken this one's place.
            errors.ConfigError: The chief was told of other members.
        """
        raise_if_replaced(self._member)
        if self._config.index > 0:
            raise_if_over(self._config.model_dir, self._member)
            self._check_sizes()
        return self._query(name)

    def describe(self) -> str:
        """As the discovery does."""
        return self._discovery.describe()


def raise_if_replaced(member: Membership) -> None:
    """Ends a process whose place another one has taken.

    Raises:
        MemberConflictError: One has.
    """
    if member.superseded_by is not None:
        raise members.MemberConflictError(
            members.describe_conflict(member.record, member.superseded_by, is_older=True)
        )


def raise_if_over(model_dir: str, member: Membership) -> None:
    """Ends a worker whose chief is done.

    Args:
        model_dir: Where the records are.
        member: The worker.

    Raises:
        JobIsOver: The chief has finished.
        JobFailedError: The chief has failed, or a signal has stopped it.
        MemberConflictError: Another process has taken this worker's place.
    """
    raise_if_replaced(member)
    run = member.record.details.get(plan.RUN)
    chief = members.read_member(model_dir, "worker", 0)
    # Without a run this worker has not met a chief; the record may be of an earlier job.
    if chief is None or chief.is_active or run is None or chief.details.get(plan.RUN) != run:
        return
    if chief.state is MemberState.FINISHED:
        logger.info("the chief has finished, and so has %s", member.record.name)
        raise JobIsOver
    raise JobFailedError(
        f"{member.record.name.capitalize()} ends, since the chief at {chief.address} "
        f"{_describe_end(chief)}; start the job again, it goes on from its last checkpoint."
    )


class Retries:
    """Decides whether a worker that has lost a member tries again.

    Args:
        config: The job.
        find_cluster: Waits for the members and returns them.
        member: This process.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        config: DistributedCpuTrainingConfig,
        find_cluster: Callable[[], tuple[manager.Cluster, manager.Task]],
        member: Membership,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._find_cluster = find_cluster
        self._member = member
        self._sleep = sleep
        self._progress = WaitProgress(logger)
        self._num_retries = 0
        self._saved: str | None = None
        self._max_retries = config.max_retry_times or (
            _DEFAULT_RETRIES if config.partial_recovery and not config.enable_sync_training else 0
        )
        self._found: tuple[manager.Cluster, manager.Task] | None = None

    def find_cluster(self) -> tuple[manager.Cluster, manager.Task]:
        """Waits for the members and returns them, for the first try; spare servers, too."""
        self._found = self._find_cluster()
        self._saved = _find_saved(self._config.model_dir)
        return _copy(self._found)

    def wait_for_cluster(self, error: Exception) -> tuple[manager.Cluster, manager.Task]:
        """Returns the members for the next try; spare servers, too.

        Args:
            error: What has ended the last one.

        Raises:
            JobIsOver: The chief has finished.
            JobFailedError: The chief has failed, or there were too many tries.
        """
        text = str(error).partition("\n")[0]
        wait_sec = max(self._config.retry_wait_in_secs, _MIN_WAIT_SEC)
        name = self._member.record.name.removesuffix(",")
        self._progress.report(
            f"{name} has lost a member and tries again every {wait_sec:g} s: "
            f"{type(error).__name__}: {text}"
        )
        self._member.update(MemberState.WAITING, text, {"ready": None})
        client = metrics.get_cli(metrics.get_metric_prefix())
        client.emit_counter("worker_failover_cnt", 1)
        self._sleep(wait_sec)
        before, self._found = self._found, self._find_cluster()
        if self._found == before:
            return _copy(self._found)
        saved = _find_saved(self._config.model_dir)
        if saved not in (None, self._saved):
            self._num_retries, self._saved = 0, saved
        self._num_retries += 1
        if self._num_retries > self._max_retries:
            again = f" {self._num_retries} times without a save" if self._num_retries > 1 else ""
            raise JobFailedError(
                f"{self._member.record.name.capitalize()} ends, since the members have changed"
                f"{again}, and `max_retry_times` allows {self._max_retries} changes "
                f"({type(error).__name__}: {text.rstrip('.')}); start the job again, it goes on "
                "from its last checkpoint."
            ) from error
        logger.info("the members have changed, try %d of %d", self._num_retries, self._max_retries)
        return _copy(self._found)


def list_all_servers(discovery: ServiceDiscovery, cluster: manager.Cluster) -> manager.Cluster:
    """Returns a cluster with all servers that have registered, each at its own index.

    For a job that is over: a discovery that is gone by then does not make it a failure.
    """
    found = PatientQuery(discovery, lists_dead=True)("ps")
    if not found:
        return cluster
    # A server waits to be dismissed under its index, so that gaps must stay gaps.
    addrs = [found.get(index, _NOBODY) for index in range(max(found) + 1)]
    return {**cluster, "ps": addrs}


def _copy(found: tuple[manager.Cluster, manager.Task]) -> tuple[manager.Cluster, manager.Task]:
    cluster, task = found
    return {job: list(addrs) for job, addrs in cluster.items()}, dict(task)


def _find_saved(model_dir: str) -> str | None:
    """Returns what a restore would go back to, deltas included; None if nothing can be seen."""
    try:
        checkpoint = tf.train.latest_checkpoint(model_dir)
        return checkpoint and delta_chain.get_newest_prefix(checkpoint)
    except (tf.errors.OpError, OSError):
        return None


def _describe_end(chief: MemberRecord) -> str:
    if chief.state is MemberState.STOPPED:
        return "was stopped"
    return f"has failed ({chief.message.rstrip('.')})"
