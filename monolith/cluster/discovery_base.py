"""What every service discovery offers, whatever keeps the records.

A job's processes register themselves under a name ("ps", "worker"), an index and an address, and
look each other up by name. `monolith.cluster.discovery` holds the implementations to choose from.
"""

import abc
import enum
import numbers

from monolith import errors
from monolith.cluster import net


class ServiceDiscoveryType(enum.Enum):
    """Which discovery a job uses."""

    PRIMUS = 1
    CONSUL = 2
    ZK = 3
    MLP = 4
    # Not one of the historical four: records in files, for one machine or a shared disk.
    FILE = 5


class ServiceDiscovery(abc.ABC):
    """Keeps who serves what under which address."""

    @abc.abstractmethod
    def register(self, name: str, index: int, addr: str) -> None:
        """Makes `addr` known as number `index` of the service `name`.

        A later registration of the same name and index replaces the earlier one.
        """

    @abc.abstractmethod
    def deregister(self, name: str, index: int, addr: str) -> None:
        """Takes back a registration."""

    @abc.abstractmethod
    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses known for `name`, by index."""

    def find(self, name: str, index: int) -> str | None:
        """Returns the address known for one index of `name` now, None if there is none."""
        return self.query(name).get(index)

    def describe(self) -> str:
        """Returns where the registrations are, for messages."""
        return type(self).__name__

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what the discovery holds; it is not usable afterwards."""


def check_registration(name: str, index: int, addr: str) -> None:
    """Raises ConfigError unless the three make a registration others can use."""
    if not name or not isinstance(name, str) or "/" in name:
        raise errors.ConfigError(
            f"A service name must be a non-empty string without '/', such as 'ps', got {name!r}."
        )
    if isinstance(index, bool) or not isinstance(index, numbers.Integral) or index < 0:
        raise errors.ConfigError(
            f"The index of {name!r} must be a whole number of at least 0, got {index!r}."
        )
    net.parse_address(addr)
