"""How many bytes the connections of this process have carried, as the kernel counts them.

Asking the kernel costs nothing to who sends and receives, and what it says is what went over the
wire, whatever the program believes to have sent.

Example:
    >>> server = socket.create_server(("127.0.0.1", 0))
    >>> port = server.getsockname()[1]
    >>> meter = TrafficMeter(lambda local, remote: remote.port == port)
    >>> with socket.create_connection(("127.0.0.1", port)) as client:
    ...     with server.accept()[0] as accepted:
    ...         client.sendall(b"12345")
    ...         _ = accepted.recv(5, socket.MSG_WAITALL)
    ...         _ = accepted.send(b"67")
    ...         _ = client.recv(2, socket.MSG_WAITALL)
    ...         found = meter.read()
    >>> server.close()
    >>> 5 <= found.sent_bytes <= 6, found.received_bytes
    (True, 2)
"""

import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from monolith.cluster import net

# `struct tcp_info` of Linux 4.1 and later: what the other side has acknowledged, and what came.
_COUNTS = struct.Struct("=QQ")
_COUNTS_OFFSET = 120
_INFO_BYTES = _COUNTS_OFFSET + _COUNTS.size
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Endpoint(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


class Traffic(NamedTuple):
    """Bytes since the meter's connections began.

    Attributes:
        sent_bytes: What this process has sent and the other side has received; the start of a
            connection counts as a byte.
        received_bytes: What this process has received.
    """

    sent_bytes: int
    received_bytes: int


class TrafficMeter:
    """Adds up connections of this process; those that have ended count as they were last seen.

    Args:
        is_counted: Whether a connection counts, by its own end and the other one.
    """

    def __init__(self, is_counted: Callable[[Endpoint, Endpoint], bool]) -> None:
        self._is_counted = is_counted
        self._open: dict[int, Traffic] = {}
        self._ended = Traffic(0, 0)

    def read(self) -> Traffic:
        """Returns the bytes so far."""
        found: dict[int, Traffic] = {}
        for skt in net.iterate_sockets():
            try:
                if skt.family not in _FAMILIES or skt.type != socket.SOCK_STREAM:
                    continue
                ends = _get_endpoint(skt.getsockname()), _get_endpoint(skt.getpeername())
                if self._is_counted(*ends):
                    # A socket may have several descriptors; its inode is its own.
                    found[os.fstat(skt.fileno()).st_ino] = _read_counts(skt)
            except (OSError, ValueError, struct.error):
                continue  # Not connected, or ended meanwhile.
        gone = [traffic for inode, traffic in self._open.items() if inode not in found]
        self._ended = _add([self._ended, *gone])
        self._open = found
        return _add([self._ended, *found.values()])


def counts_members(peers: Iterable[str], own: str) -> Callable[[Endpoint, Endpoint], bool]:
    """Returns what counts connections to some addresses, and all that others made to this process.

    Args:
        peers: The addresses, as `host:port`.
        own: Address at which this process listens.
    """
    wanted = set()
    for peer in peers:
        host, port = net.parse_address(peer)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            continue
        wanted |= {(net._unmap(str(info[4][0])), port) for info in found}
    own_port = net.parse_address(own)[1]

    def is_counted(local: Endpoint, remote: Endpoint) -> bool:
        return local.port == own_port or remote in wanted

    return is_counted


def _get_endpoint(name: tuple[str, int]) -> Endpoint:
    return Endpoint(net._unmap(str(name[0])), int(name[1]))


def _read_counts(skt: socket.socket) -> Traffic:
    info = skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return Traffic(*_COUNTS.unpack_from(info, _COUNTS_OFFSET))


def _add(parts: list[Traffic]) -> Traffic:
    return Traffic(*(sum(column) for column in zip(*parts, strict=True)))
