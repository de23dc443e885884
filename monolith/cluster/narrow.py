"""Has a process listen on one address of the machine rather than on all interfaces.

TensorFlow's gRPC server listens on all interfaces, whatever address the cluster names. A small
library that is loaded into a process before all others (`LD_PRELOAD`, source in csrc/narrow) gives
every TCP socket that would do that one address instead. This module makes the environment to start
such a process with; a process that already runs cannot be narrowed any more.

Example:
    >>> environment = get_environment("127.0.0.1:2222")
    >>> environment["MONOLITH_LISTEN_ADDRESS"]
    '127.0.0.1'
    >>> environment["LD_PRELOAD"].endswith("libmonolith_narrow.so")
    True
    >>> code = "import socket; print(socket.create_server(('0.0.0.0', 0)).getsockname()[0])"
    >>> subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    '127.0.0.1\\n'

From a shell, for what is not started by this package:

    env $(python -m monolith.cluster.narrow 10.0.0.5) monolith train ...
"""

import ctypes
import functools
import ipaddress
import logging
import os
import pathlib
import re
import socket
import subprocess  # noqa: F401 - for the example
import sys
from collections.abc import Sequence
from typing import Any

from monolith import errors, native
from monolith.cluster import net

logger = logging.getLogger(__name__)

# Which address, for the library.
LISTEN_ADDRESS = "MONOLITH_LISTEN_ADDRESS"

_PRELOAD = "LD_PRELOAD"
_LIBRARY = "libmonolith_narrow.so"


def get_environment(address: str) -> dict[str, str]:
    """Returns the variables with which a process listens on one address alone.

    They hold for all its sockets that would listen on all interfaces, also those of its children,
    and change nothing about sockets that connect. What this process preloads already is kept.

    Args:
        address: The address that others know the process by: `host` or `host:port`, with brackets
            around IPv6 where a port follows. A host name stands for the address of this machine
            that it resolves to.

    Returns:
        Variables to add to those of the process; none, and one warning in the log, where the
        library is not there.

    Raises:
        errors.ConfigError: It is no address of this machine.
    """
    own = _find_own_address(address)
    library = _find_library()
    if library is None:
        return {}
    before = os.environ.get(_PRELOAD, "")
    # Names are separated by colons or spaces, and there is no way to quote either.
    names = re.split("[: ]+", before.strip(": ")) if before.strip(": ") else []
    if str(library) not in names:
        names.append(str(library))
    return {_PRELOAD: ":".join(names), LISTEN_ADDRESS: own}


def get_listen_address() -> str | None:
    """Returns the address that this process listens on, None for all interfaces.

    Example:
        >>> get_listen_address() is None
        True
    """
    try:
        ask = ctypes.CDLL(None).monolith_get_listen_address
    except AttributeError:
        return None  # The variable alone does nothing.
    ask.restype = ctypes.c_char_p
    answer = ask()
    return None if answer is None else str(answer.decode())


@functools.cache
def _find_library() -> pathlib.Path | None:
    """Returns the library; says once if there is none that can be preloaded."""
    # An editable install keeps compiled files apart from the sources, so both places count.
    paths = [pathlib.Path(directory) / _LIBRARY for directory in native.__path__]
    found = [path for path in paths if path.exists()]
    usable = [path for path in found if not re.search("[: ]", str(path))]
    if usable:
        return usable[0]
    if found:
        why = f"{found[0]} has a space or a colon in its path and cannot be preloaded"
    else:
        why = f"{_LIBRARY} is missing from {', '.join(native.__path__)}"
    logger.warning(
        "%s, so members that are started listen on all interfaces: keep their ports behind a "
        "firewall, or install the package again",
        why,
    )
    return None


def _find_own_address(address: str) -> str:
    """Returns the IP address of this machine that an address of a member stands for."""
    host = _get_host(address)
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise errors.ConfigError(
            f"Cannot listen on {address!r} alone: {host!r} is neither an IP address nor a name "
            f"that resolves ({error}); name an address of this machine."
        ) from error
    # IPv4 first: `localhost` is both, and everybody reaches it by this one.
    found = sorted({(info[0] == socket.AF_INET6, str(info[4][0])): info for info in infos}.items())
    for (_, ip), info in found:
        if _is_own(info[0], info[4]):
            return _unmap(ip)
    raise errors.ConfigError(
        f"Cannot listen on {address!r} alone: {', '.join(ip for (_, ip), _ in found)} is no "
        "address of this machine; name one that `ip address` lists."
    )


def _get_host(address: str) -> str:
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if ":" not in address or net.is_ipv6_address(address):
        host = address
    else:
        host, _ = net.parse_address(address)
    # The resolver takes the empty name, and some spellings of it, for loopback or for everything.
    if not host.strip() or "\0" in host:
        raise errors.ConfigError(
            f"Cannot listen on {address!r} alone: it names no host; name an address of this "
            "machine, such as 10.0.0.1 or 10.0.0.1:2222."
        )
    return host


def _is_own(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> bool:
    if ipaddress.ip_address(sockaddr[0]).is_unspecified:
        return False
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(sockaddr)
    except OSError:
        return False
    return True


def _unmap(ip: str) -> str:
    """Returns an IPv4 address in the form of an IPv6 one in its usual form."""
    address = ipaddress.ip_address(ip)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def main(arguments: Sequence[str]) -> None:
    """Prints the variables for an address, one per line, as `env` and systemd read them.

    Args:
        arguments: The address.

    Raises:
        SystemExit: There is not one address, it is none of this machine, or there is no library.
    """
    if len(arguments) != 1:
        raise SystemExit("usage: python -m monolith.cluster.narrow ADDRESS")
    try:
        environment = get_environment(arguments[0])
    except errors.ConfigError as error:
        raise SystemExit(f"monolith: {error}") from None
    if not environment:
        raise SystemExit(1)  # The warning has said why.
    for name, value in environment.items():
        print(f"{name}={value}")


if __name__ == "__main__":
    main(sys.argv[1:])
