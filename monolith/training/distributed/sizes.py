"""How many members each member was told of; those that differ must not wait for each other.

A worker that was told of one server more than there are would wait for it for ever, and so would a
server that is one too many. So each writes into its record what it was told, and who waits compares
that with the chief's.

Example:
    >>> from monolith.training.config.job import DistributedCpuTrainingConfig
    >>> describe(DistributedCpuTrainingConfig(num_ps=2, num_workers=3))
    {'num_ps': 2, 'num_extra_ps': 0, 'num_redundant_ps': 0, 'num_workers': 3}
"""

from collections.abc import Mapping

from monolith import errors
from monolith.cluster import members
from monolith.cluster.members import Membership
from monolith.training.config.job import DistributedCpuTrainingConfig

# The fact in a member's record.
SIZES = "sizes"

_OF_SERVERS = ("num_ps", "num_extra_ps", "num_redundant_ps")
_OF_WORKERS = (*_OF_SERVERS, "num_workers")


def describe(config: DistributedCpuTrainingConfig) -> dict[str, int]:
    """Returns how many members of each kind a member was told of."""
    return {name: getattr(config, name) for name in _OF_WORKERS}


def count(told: Mapping[str, int], role: str) -> int:
    """Returns how many members of a role a job has, spare servers included.

    Args:
        told: What a member was told.
        role: "ps" or "worker".

    Example:
        >>> count({"num_ps": 2, "num_extra_ps": 1, "num_redundant_ps": 1, "num_workers": 3}, "ps")
        4
    """
    return sum(told.get(name, 0) for name in (_OF_SERVERS if role == "ps" else ("num_workers",)))


class SizeCheck:
    """Compares what this member was told with the chief, once that is seen alive.

    A record that an earlier chief has left says nothing of this job.

    Args:
        member: This process; no chief.
    """

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._first_sign: tuple[str, int] | None = None
        self._fits = False

    def __call__(self) -> None:
        """Compares, unless that was done; costs one small file.

        Raises:
            errors.ConfigError: They were told different numbers.
        """
        if self._fits:
            return
        chief = members.read_member(self._member.model_dir, "worker", 0)
        if chief is None or not chief.is_active:
            return
        sign = (chief.incarnation, chief.beat)
        self._first_sign = self._first_sign or sign
        if sign == self._first_sign:
            return
        own = self._member.record
        at_chief, here = chief.details.get(SIZES, {}), own.details[SIZES]
        # What a server does is the same for any number of workers.
        for name in _OF_SERVERS if own.role == "ps" else _OF_WORKERS:
            if at_chief.get(name, here[name]) != here[name]:
                raise errors.ConfigError(
                    f"{own.name.capitalize()} does not fit the job in {self._member.model_dir}: "
                    f"setting {name!r} is `{at_chief[name]}` at the chief and `{here[name]}` here; "
                    "start all members with the same code and settings."
                )
        self._fits = True
