"""Which rank of a synchronous job this process is, and where the ranks meet.

Whoever starts the ranks says so in the environment of each:

- `monolith run`, or anybody else: `MONOLITH_RANK`, `MONOLITH_SIZE` and `MONOLITH_RANKS_ADDRESS`,
  with `MONOLITH_LOCAL_RANK` and `MONOLITH_LOCAL_SIZE` where a machine has several ranks.
- `mpirun` of Open MPI: `OMPI_COMM_WORLD_RANK` and its like. On one machine the ranks find each
  other by a file named after the job; on several, `MONOLITH_RANKS_ADDRESS` says where to meet.
- TF_CONFIG: the chief is rank 0, the workers follow, and they meet at the address of the first.

A program that finds its ranks by another way makes a `Place` itself, as
`monolith.cluster.rank_discovery` does. A process that was started alone is rank 0 of 1.

Example:
    >>> find_place({})
    Place(rank=0, size=1, local_rank=0, local_size=1, address=None, job=None, find_address=None)
    >>> find_place({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    ...             "MONOLITH_RANKS_ADDRESS": "10.0.0.7:4000"}).address
    '10.0.0.7:4000'
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from monolith import errors

RANK = "MONOLITH_RANK"
ADDRESS = "MONOLITH_RANKS_ADDRESS"

# Names of rank, size, rank on the machine and size on the machine, by who starts the process.
_STARTERS = {
    "monolith run": (
        RANK,
        "MONOLITH_SIZE",
        "MONOLITH_LOCAL_RANK",
        "MONOLITH_LOCAL_SIZE",
    ),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}
# What tells the jobs of Open MPI apart, in its versions 5, 4 and 3.
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a process among the ranks of a job.

    Attributes:
        rank: Its number among all.
        size: How many there are.
        local_rank: Its number among those on its machine.
        local_size: How many there are on its machine.
        address: Where rank 0 waits for the others, as `host:port`.
        job: Names the job where there is no address: ranks of one machine meet by a file.
        find_address: Asked for the address again and again by a rank that has none yet.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str | None = None
    job: str | None = None
    find_address: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        for number, total, what in (
            (self.rank, self.size, "rank"),
            (self.local_rank, self.local_size, "rank on its machine"),
        ):
            if not 0 <= number < total:
                raise errors.ConfigError(
                    f"This process is {what} {number} of {total}; ranks are counted from 0 and "
                    "are below their number, so correct what starts the process."
                )


def find_place(environ: Mapping[str, str] | None = None) -> Place:
    """Returns the place that the environment gives this process.

    Raises:
        ConfigError: The environment contradicts itself, or does not say where to meet.
    """
    environ = os.environ if environ is None else environ
    for starter, names in _STARTERS.items():
        if names[0] in environ:
            return _read_numbers(environ, starter, names)
    if "TF_CONFIG" in environ:
        return _read_tf_config(environ["TF_CONFIG"])
    return Place()


def _read_numbers(
    environ: Mapping[str, str], starter: str, names: tuple[str, str, str, str]
) -> Place:
    rank, size, local_rank, local_size = names
    if size not in environ:
        raise errors.ConfigError(
            f"{rank} is set and {size} is not; start the process with {starter}, or set both."
        )
    number_on_machine = _read_number(environ, local_rank, default=0)
    place = Place(
        rank=_read_number(environ, rank),
        size=_read_number(environ, size),
        local_rank=number_on_machine,
        local_size=_read_number(environ, local_size, default=number_on_machine + 1),
        address=environ.get(ADDRESS),
        job=next((environ[name] for name in _MPI_JOBS if name in environ), None),
    )
    if place.size > 1 and place.address is None:
        is_one_machine = place.local_size == place.size
        if not (is_one_machine and place.job is not None):
            raise errors.ConfigError(
                f"{size} is {place.size}, but nothing says where the ranks meet; set {ADDRESS} to "
                "HOST:PORT, an address of rank 0's machine, in the environment of all of them."
            )
    return place


def _read_number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise errors.ConfigError(f"{name} must be an integer, got {text!r}.") from None


def _read_tf_config(text: str) -> Place:
    try:
        config = json.loads(text)
        cluster: dict[str, Any] = config.get("cluster") or {}
        task: dict[str, Any] = config.get("task") or {}
        ranks = [*cluster.get("chief", ()), *cluster.get("worker", ())]
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError) as error:
        raise errors.ConfigError(
            f"TF_CONFIG must be JSON with 'cluster' and 'task', got {text!r} ({error})."
        ) from error
    if kind not in ("chief", "worker") or len(ranks) < 2:
        return Place()  # A parameter server or an evaluator is no rank, a worker alone is all.
    rank = index if kind == "chief" else index + len(cluster.get("chief", ()))
    hosts = [address.rpartition(":")[0] for address in ranks]
    if rank >= len(ranks):
        raise errors.ConfigError(
            f"TF_CONFIG says this process is {kind} {index}, but lists {len(ranks)} ranks."
        )
    return Place(
        rank=rank,
        size=len(ranks),
        local_rank=hosts[:rank].count(hosts[rank]),
        local_size=hosts.count(hosts[rank]),
        address=ranks[0],
    )
