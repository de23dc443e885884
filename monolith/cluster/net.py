"""Addresses of processes: writing them, reading them, and asking who answers.

Members of a job know each other as `host:port`, or `[ip]:port` for IPv6. This module is the one
place that joins and splits such addresses, finds this machine's own, and checks many of them at
once.

Example:
    >>> concat_ip_and_port("127.0.0.1", 10)
    '127.0.0.1:10'
    >>> concat_ip_and_port("::1", 10)
    '[::1]:10'
    >>> parse_address("[::1]:10")
    ('::1', 10)
"""

import ipaddress
import logging
import os
import queue
import resource
import socket
import stat
import threading
from collections.abc import Iterator

from monolith import errors

logger = logging.getLogger(__name__)

_MAX_PORT = 65535
# One thread per address up to here, so that a check of a whole cluster takes about one timeout.
# Threads that wait in connect() cost next to nothing; a cluster of more machines takes turns.
_MAX_CHECK_THREADS = 1000


class AddressFamily:
    """Which kind of address a job uses."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


class NodeAliveChecker:
    """Tries to connect to every address and remembers who answered.

    All checks run in the constructor, which returns when the last one is done: after about one
    `timeout` for up to 1000 addresses, since there is a thread for each. Where the process may not
    open that many files, there are fewer. A host given by name is resolved first, and the resolver
    keeps its own time.

    An address that cannot be parsed counts as dead, and the printed line says why.

    Args:
        addrs: Addresses as `host:port` or `[ipv6]:port`.
        timeout: Seconds that one connect may take.
        num_thread: The least number of threads to use.

    Raises:
        errors.ConfigError: If `timeout` or `num_thread` is not positive.
    """

    def __init__(self, addrs: list[str], timeout: float = 1, num_thread: int = 10) -> None:
        if timeout is None or timeout <= 0:
            raise errors.ConfigError(f"timeout must be positive, in seconds, got {timeout}.")
        if num_thread <= 0:
            raise errors.ConfigError(f"num_thread must be positive, got {num_thread}.")
        self._addrs = addrs
        self._timeout = timeout
        self._num_thread = num_thread
        self._lock = threading.Lock()
        self._alive: set[str] = set()
        self._dead: set[str] = set()
        self._q: queue.Queue[str] = queue.Queue()
        for addr in self._addrs:
            self._q.put(addr)
        self._start()

    def all_nodes_alive(self) -> bool:
        """Returns whether every address accepted a connection."""
        with self._lock:
            return len(self._dead) == 0

    def get_dead_nodes(self) -> list[str]:
        """Returns the addresses that did not accept a connection, in no particular order."""
        with self._lock:
            return list(self._dead)

    def get_alive_nodes(self) -> list[str]:
        """Returns the addresses that accepted a connection, in no particular order."""
        with self._lock:
            return list(self._alive)

    def get_addrs(self) -> list[str]:
        """Returns the addresses as they were given."""
        return self._addrs

    def _ping(self, addr: str) -> None:
        skt = None
        try:
            ip, port = parse_address(addr)
            family = socket.AF_INET6 if is_ipv6_address(ip) else socket.AF_INET
            skt = socket.socket(family, socket.SOCK_STREAM)
            skt.settimeout(self._timeout)
            skt.connect((ip, port))
        except Exception as err:  # noqa: BLE001 - whatever went wrong, the node is not usable
            # One write per line, or lines of several threads would run into each other.
            print(f"cannot connect to {addr}, because {err}\n", end="", flush=True)
            with self._lock:
                self._dead.add(addr)
        else:
            with self._lock:
                self._alive.add(addr)
        finally:
            if skt is not None:
                skt.close()

    def _check_open(self) -> None:
        while True:
            try:
                addr = self._q.get_nowait()
            except queue.Empty:
                return
            self._ping(addr)

    def _start(self) -> None:
        wanted = min(len(self._addrs), max(self._num_thread, _most_checks_at_once()))
        threads: list[threading.Thread] = []
        for _ in range(wanted):
            thread = threading.Thread(target=self._check_open, daemon=True)
            try:
                thread.start()
            except RuntimeError as err:
                # The container allows no more threads; those that run finish the queue.
                logger.warning(
                    "checking %d addresses with %d threads instead of %d: %s",
                    len(self._addrs),
                    len(threads),
                    wanted,
                    err,
                )
                break
            threads.append(thread)
        if not threads:
            self._check_open()
        for thread in threads:
            thread.join()


def _most_checks_at_once() -> int:
    # Every check holds a socket. Taking the last ones would make living nodes look dead, and other
    # threads of the process fail.
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return _MAX_CHECK_THREADS
    free = soft_limit - len(os.listdir("/proc/self/fd"))
    return min(_MAX_CHECK_THREADS, free * 3 // 4)


def is_ipv6_address(ip: str) -> bool:
    """Returns whether `ip` is an IPv6 address, without brackets; False for a host name."""
    try:
        ip_obj = ipaddress.ip_address(ip)
    except ValueError:
        return False
    return ip_obj.version == 6


def concat_ip_and_port(ip: str, port: int | str) -> str:
    """Returns `ip:port`, with brackets around an IPv6 address."""
    if is_ipv6_address(ip):
        return f"[{ip}]:{port}"
    return f"{ip}:{port}"


def parse_address(addr: str) -> tuple[str, int]:
    """Splits `host:port` or `[ipv6]:port`; the host comes back without brackets.

    An IPv6 address without brackets is read as if its last group were the port, as it always was.

    Raises:
        errors.ConfigError: If `addr` has no host, no port, or a port outside 0 to 65535.
    """
    host, colon, port_text = str(addr).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host.strip("[]")
    if not colon or not host or (bracketed and not is_ipv6_address(host)):
        raise errors.ConfigError(
            f"Invalid addr: {addr}. Expected host:port, or [ip]:port for IPv6, such as "
            "10.0.0.1:2222 or [fd00::1]:2222."
        )
    # int() alone would take " 80", "+80" and "8_0".
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > _MAX_PORT:
        raise errors.ConfigError(
            f"Invalid addr: {addr}. The port must be a number from 0 to {_MAX_PORT}, "
            f"got {port_text!r}."
        )
    return host, int(port_text)


def cut_connections(addr: str) -> int:
    """Ends all connections of this process to an address; returns how many there were.

    Calls that wait for an answer over them fail at once. For members that have vanished without a
    word, for which the system would wait for a quarter of an hour.

    Args:
        addr: Address as `host:port` or `[ipv6]:port`.
    """
    host, port = parse_address(addr)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return 0
    peers = {(_unmap(str(info[4][0])), port) for info in found}
    num_cut = 0
    for skt in iterate_sockets():
        try:
            peer = skt.getpeername()
            if isinstance(peer, tuple) and (_unmap(str(peer[0])), peer[1]) in peers:
                skt.shutdown(socket.SHUT_RDWR)
                num_cut += 1
        except OSError:
            continue  # Not connected.
    return num_cut


def iterate_sockets() -> Iterator[socket.socket]:
    """Gives all sockets of this process, one by one, whoever opened them.

    Each is a copy of the descriptor, closed when the next one is asked for.
    """
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                continue
            # A copy: the descriptor itself belongs to whoever opened it.
            copied = os.dup(int(entry))
        except OSError:
            continue  # Closed meanwhile.
        try:
            skt = socket.socket(fileno=copied)
        except OSError:
            os.close(copied)  # Its number is of something else now.
            continue
        with skt:
            yield skt


def _unmap(ip: str) -> str:
    """Returns an IPv4 address that is written as an IPv6 one in its usual form."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def get_local_ip() -> str:
    """Returns this machine's address, as its own name resolves; IPv6 if there is no other.

    Raises:
        socket.gaierror: If the machine's name does not resolve at all.
    """
    hostname = socket.gethostname()
    try:
        return str(socket.getaddrinfo(hostname, None)[0][4][0])
    except socket.gaierror:
        try:
            return str(socket.getaddrinfo(hostname, None, family=socket.AF_INET6)[0][4][0])
        except socket.gaierror as err:
            raise socket.gaierror(
                err.errno,
                f"The name of this machine, {hostname!r}, resolves to no address; add it to "
                f"/etc/hosts or to the name server ({err.strerror}).",
            ) from err


def is_ipv4_supported() -> bool:
    """Returns whether this machine's own address is an IPv4 one."""
    return not is_ipv6_address(get_local_ip())


def get_local_server_addr(port: int) -> str:
    """Returns the address under which others reach `port` of this machine.

    On a host with IPv4 that is `gethostbyname(gethostname())` and the port.
    """
    return concat_ip_and_port(get_local_ip(), port)
