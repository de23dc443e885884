"""What a worker knows of the other members of its cluster."""

from collections.abc import Collection, Mapping, Sequence

from monolith import errors


class NodeAliveCheckerError(errors.MonolithError):
    """Members of the cluster do not answer; the job may find others and go on."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg

    def __str__(self) -> str:
        return self.msg


def _get_blocked_addrs(
    cluster: Mapping[str, Sequence[str]], ignored_jobs: Collection[str] = ()
) -> list[str]:
    """Returns the addresses that must answer before training can start.

    Args:
        cluster: Addresses by job.
        ignored_jobs: Jobs that nobody waits for.

    Example:
        >>> cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "a:1"]}
        >>> _get_blocked_addrs(cluster, ignored_jobs={"worker"})
        ['a:1', 'c:1']
    """
    return sorted({addr for job in cluster if job not in ignored_jobs for addr in cluster[job]})
