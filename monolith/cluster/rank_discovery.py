"""The ranks of a synchronous job find each other by the discovery of a cluster.

Rank 0 chooses where the ranks meet and registers that address; the others look for it.

Example:
    >>> import tempfile
    >>> from monolith.cluster.discovery import FileServiceDiscovery
    >>> discovery = FileServiceDiscovery(tempfile.mkdtemp())
    >>> first = find_place(discovery, rank=0, size=2)
    >>> second = find_place(discovery, rank=1, size=2)
    >>> second.find_address() == first.address
    True
    >>> discovery.close()
"""

import socket

from monolith.cluster import net
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.graph.rank_place import Place

SERVICE = "rank"


def find_place(
    discovery: ServiceDiscovery,
    rank: int,
    size: int,
    *,
    local_rank: int = 0,
    local_size: int | None = None,
) -> Place:
    """Returns the place of a rank, for `monolith.graph.collectives.init`.

    Args:
        discovery: What all ranks ask; must stay open until they have met.
        rank: Number of this process among all ranks.
        size: How many there are.
        local_rank: Number of this process among those on its machine.
        local_size: How many there are; None for as many as `local_rank` tells of.
    """
    local_size = local_rank + 1 if local_size is None else local_size

    def find_address() -> str | None:
        # Asked again at every attempt: what is registered may be left from an earlier job.
        return discovery.query(SERVICE).get(0)

    address = None
    if rank == 0:
        with socket.socket() as skt:
            skt.bind(("", 0))
            address = net.get_local_server_addr(skt.getsockname()[1])
        discovery.register(SERVICE, 0, address)
    return Place(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=address,
        find_address=find_address,
    )
