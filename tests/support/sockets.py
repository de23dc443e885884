"""Which ports a process listens on, as the kernel tells it."""

import contextlib
import ipaddress
import os
import pathlib
import sys

_LISTEN = "0A"


def get_listening(pid: int | str = "self") -> set[tuple[str, int]]:
    """Returns address and port of each TCP socket on which a process, if it is there, listens."""
    inodes = _get_socket_inodes(pid)
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and fields[9] in inodes:
                    found.add(_parse(fields[1]))
    return found


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def _get_socket_inodes(pid: int | str) -> set[str]:
    inodes = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if target.startswith("socket:["):
                    inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def _parse(field: str) -> tuple[str, int]:
    """Returns address and port of `0100007F:1F90`; words of the address are in host order."""
    address, port = field.split(":")
    words = [bytes.fromhex(address[i : i + 8]) for i in range(0, len(address), 8)]
    in_order = b"".join(w[::-1] if sys.byteorder == "little" else w for w in words)
    return str(ipaddress.ip_address(in_order)), int(port, 16)
