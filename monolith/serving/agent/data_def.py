"""What the node of a replica in ZooKeeper says.

Example:
    >>> meta = ReplicaMeta(address="10.0.0.1:8500", model_name="ps_0", server_type="ps", task=0)
    >>> ReplicaMeta.deserialize(meta.serialize()) == meta
    True
    >>> meta.get_address()
    '10.0.0.1:8500'
"""

import dataclasses
import json

from monolith import errors

# States of a model, with the numbers of TensorFlow Serving's `ModelVersionStatus.State`.
UNKNOWN = 0
START = 10
LOADING = 20
AVAILABLE = 30
UNLOADING = 40
END = 50

# Addresses of servers that listen everywhere say nothing about where they are.
_NOWHERE = ("0.0.0.0", "[::]")
_FAMILIES = ("ipv4", "ipv6")


@dataclasses.dataclass
class ReplicaMeta:
    """A server of one part of a model.

    Attributes:
        address: Where gRPC listens.
        address_ipv6: The same, for IPv6.
        stat: State of the model, such as `AVAILABLE`.
        model_name: The model, such as `ps_0`.
        server_type: Such as `ps`.
        task: Number of the part.
        replica: Number of the server among those of the same part.
        archon_address: Where a mesh of services reaches it.
        archon_address_ipv6: The same, for IPv6.
    """

    address: str | None = None
    address_ipv6: str | None = None
    stat: int = UNKNOWN
    model_name: str | None = None
    server_type: str | None = None
    task: int = -1
    replica: int = -1
    archon_address: str | None = None
    archon_address_ipv6: str | None = None

    def serialize(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def deserialize(cls, serialized: bytes) -> "ReplicaMeta":
        """Reads what `serialize` has written; fields that are not known here are passed over.

        Raises:
            errors.DataError: It is something else.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            fields = json.loads(serialized)
            return cls(**{name: value for name, value in fields.items() if name in known})
        except (ValueError, AttributeError, TypeError) as e:
            raise errors.DataError(f"{serialized[:100]!r} says nothing of a replica: {e}.") from e

    def get_address(self, use_archon: bool = False, address_family: str = "ipv4") -> str | None:
        """Returns the address, of the other family if there is none of this one.

        Args:
            use_archon: Whether that of the mesh is wanted.
            address_family: `ipv4` or `ipv6`.

        Raises:
            errors.ConfigError: It is another family.
        """
        if address_family not in _FAMILIES:
            raise errors.ConfigError(
                f"`address_family` must be 'ipv4' or 'ipv6', got {address_family!r}."
            )
        if use_archon:
            both = [self.archon_address, self.archon_address_ipv6]
        else:
            both = [self.address, self.address_ipv6]
        if address_family == "ipv6":
            both.reverse()
        usable = (a for a in both if a and a.rpartition(":")[0] not in _NOWHERE)
        return next(usable, None)
