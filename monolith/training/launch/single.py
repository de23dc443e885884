"""One member of a job on several machines, as a scheduler starts it.

Every machine runs the same command, with its own role and index:

    monolith train jobs:Ranking --data read --ps 2 --workers 3 --model-dir /shared/ranking \
        --role worker --index 1 --discovery zk://zookeeper:2181/ranking

The exit code tells the scheduler what to do: 0, the job has finished, or this worker has its part;
1, something is wrong; `RETRY_EXIT_CODE`, the job goes on when this member is started again. 143 and
130 are what SIGTERM and Ctrl-C leave.
"""

import logging
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from monolith import errors
from monolith.cluster import meeting
from monolith.cluster.discovery import ServiceDiscovery, TfConfigServiceDiscovery
from monolith.training.distributed.recovery import LOST_MEMBER_ERRORS, JobFailedError
from monolith.training.launch import member, targets

# Kubeflow keeps this one for programs that ask to be started again; others take it for a failure.
RETRY_EXIT_CODE = 138


def take_part(
    target: Mapping[str, Any],
    *,
    role: str | None,
    index: int | None,
    num_ps: int | None,
    num_workers: int | None,
    where: str,
) -> None:
    """Takes part in a job, and returns when it is over for this process.

    Args:
        target: Arguments of `targets.find_work`.
        role: "ps" or "worker"; None if TF_CONFIG says it.
        index: Its number in that role.
        num_ps: How many servers the job has; None: as the target says, or TF_CONFIG.
        num_workers: How many workers, with the chief; None: the same.
        where: Where the members meet, see `meeting`.

    Raises:
        ConfigError: The process cannot take part, and why.
        SystemExit: It has failed, its job has, or a signal has stopped it.
    """
    member.set_up_logging(logging.INFO)
    try:
        what = targets.find_work(**target)
        with meeting.open_discovery(where, what.config.model_dir) as discovery:
            sizes = what.config.num_ps or None, what.config.num_workers
            role, index = _find_place(discovery, role, index)
            part = member.Part(
                role=role,
                index=index,
                num_ps=_find_size(
                    discovery, "ps", num_ps, sizes[0], member.count_servers(what, *member.SPARES)
                ),
                num_workers=_find_size(discovery, "worker", num_workers, sizes[1]),
                model_dir=what.config.model_dir,
            )
            member.take_part(what, part, discovery)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:
        sentence = member.explain(error)
        if isinstance(error, JobFailedError):
            print(f"monolith: {sentence}", file=sys.stderr, flush=True)
            raise SystemExit(RETRY_EXIT_CODE) from error
        if sentence is not None:
            raise errors.ConfigError(sentence) from error
        traceback.print_exc()
        sys.stderr.flush()
        is_lost = isinstance(error, LOST_MEMBER_ERRORS)
        raise SystemExit(RETRY_EXIT_CODE if is_lost else 1) from error


def _find_place(
    discovery: ServiceDiscovery, role: str | None, index: int | None
) -> tuple[str, int]:
    """Returns what this process is; with TF_CONFIG, what that says."""
    if not isinstance(discovery, TfConfigServiceDiscovery):
        assert role is not None
        assert index is not None
        return role, index
    planned = discovery.server_type, discovery.index
    if planned[0] not in ("ps", "worker"):
        raise errors.ConfigError(
            f"TF_CONFIG says that this process is a {planned[0]!r}, which a job of Monolith does "
            "not have; it has chief, worker and ps."
        )
    if role is not None and (role, planned[1] if index is None else index) != planned:
        raise errors.ConfigError(
            f"TF_CONFIG says that this process is {planned[0]} {planned[1]} (workers count from "
            f"the chief), but --role and --index say {role} {index}; leave them out."
        )
    return planned


def _find_size(
    discovery: ServiceDiscovery,
    role: str,
    given: int | None,
    of_target: int | None,
    num_spare: int = 0,
) -> int:
    if given is not None:
        return given
    if isinstance(discovery, TfConfigServiceDiscovery):
        return len(discovery.query(role)) - num_spare
    if of_target is not None:
        return of_target
    raise errors.ConfigError("Say how many parameter servers the job has: --ps.")
