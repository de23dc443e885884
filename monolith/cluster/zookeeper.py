"""ZooKeeper: which servers, with which credentials, and cleaning up after old jobs.

Jobs keep their members under `/monolith/JOB` in ZooKeeper, see `monolith.cluster.discovery`.
The client library is kazoo, an optional part: this module imports without it, and the first use
says how to install it.

Example:
    >>> from unittest import mock
    >>> with mock.patch(f"{__name__}._HOSTS", ["10.0.0.1", "10.0.0.2"]):
    ...     with mock.patch.dict("os.environ", {"MY_HOST_IP": "10.0.0.7"}):
    ...         default_zk_servers()
    '10.0.0.1:2181,10.0.0.2:2181'
"""

import datetime
import logging
import os
import socket
from typing import Any

from monolith import errors
from monolith.cluster import net
from monolith.core import environment

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
except ImportError:
    from monolith.cluster.kazoo_missing import (
        KazooClient,
        KazooException,
        KazooRetry,
        KazooState,
        KazooTimeoutError,
        NodeExistsError,
        NoNodeError,
    )

logger = logging.getLogger(__name__)

_PORT = 2181
# Nobody has a ZooKeeper that fits all; an installation may fill these in.
_HOSTS: list[str] = []
_HOSTS_IPV6: list[str] = []

_BASE_PATH = "/monolith"
_MAX_AGE = datetime.timedelta(weeks=9)


class NoZooKeeperServersError(errors.ConfigError, KazooTimeoutError):
    """No server was named, so there is nobody to connect to.

    It is a KazooTimeoutError too: that is what callers got, 15 seconds later, when the client
    tried to connect to an empty list.
    """


class MonolithKazooClient(KazooClient):
    """A KazooClient that authenticates with what the environment variable `ZK_AUTH` holds.

    Raises:
        NoZooKeeperServersError: If `hosts` names no server.
        ImportError: If kazoo is not installed.
    """

    def __init__(self, hosts: str = f"127.0.0.1:{_PORT}", **kwargs: Any) -> None:
        if isinstance(hosts, str) and not hosts.strip():
            raise NoZooKeeperServersError(
                "No ZooKeeper server is configured; set `zk_server` to a list such as "
                f"'10.0.0.1:{_PORT},10.0.0.2:{_PORT}'."
            )
        if "auth_data" not in kwargs:
            kwargs["auth_data"] = environment.get_zk_auth_data()
        super().__init__(hosts, **kwargs)


def is_ipv6_only() -> bool:
    """Returns whether this machine has no IPv4 address.

    Where `MY_HOST_IP`, `MY_POD_IP` or `MY_HOST_IPV6` is set, the first two decide; elsewhere the
    machine's own name does.
    """
    if any(os.environ.get(name) for name in ("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6")):
        ipv4_addr = os.environ.get("MY_HOST_IP") or os.environ.get("MY_POD_IP")
    else:
        try:
            ipv4_addr = socket.gethostbyname(socket.gethostname())
        except OSError:
            ipv4_addr = None
    ipv6_only = not ipv4_addr
    logger.info("IPv4 address is %s, so IPv6 only is %s", ipv4_addr, ipv6_only)
    return ipv6_only


def default_zk_servers(use_ipv6: bool = False) -> str:
    """Returns this installation's servers as kazoo takes them, or "" if there are none."""
    hosts = _HOSTS_IPV6 if use_ipv6 or is_ipv6_only() else _HOSTS
    return ",".join(net.concat_ip_and_port(host, _PORT) for host in hosts)


def clear_zk_path(zk_server: str | None, job_name: str, force_clear_zk_path: bool) -> None:
    """Makes room for a new job: drops what is older than nine weeks, and what the job left behind.

    Args:
        zk_server: Servers to connect to; None or "" for the default ones.
        job_name: Name of the job that is about to start.
        force_clear_zk_path: Whether members registered under that name may be dropped.

    Raises:
        ValueError: If somebody is registered under `job_name` and must not be dropped.
    """
    client = MonolithKazooClient(zk_server or default_zk_servers())
    try:
        client.start()
        client.ensure_path(_BASE_PATH)
        now = datetime.datetime.now()
        for child in client.get_children(_BASE_PATH):
            _delete_if_old(client, f"{_BASE_PATH}/{child}", now)
        job_path = f"{_BASE_PATH}/{job_name}"
        if client.exists(job_path):
            if not force_clear_zk_path:
                children = ",".join(client.get_children(job_path))
                raise ValueError(f"there are [{children}] in monolith zk path")
            client.delete(job_path, recursive=True)
    finally:
        client.stop()
        client.close()


def _delete_if_old(client: Any, path: str, now: datetime.datetime) -> None:
    try:
        _, stat = client.get_children(path, include_data=True)
        changed = datetime.datetime.fromtimestamp(stat.mtime // 1000)
        if changed + _MAX_AGE < now:
            client.delete(path, recursive=True)
            logger.info("deleted %s, unchanged since %s", path, changed)
    except KazooException as error:
        # Another job may be cleaning up at the same time; what is left is old, not in the way.
        logger.warning("could not clean up %s: %r", path, error)


__all__ = [
    "KazooRetry",
    "KazooState",
    "KazooTimeoutError",
    "MonolithKazooClient",
    "NoNodeError",
    "NoZooKeeperServersError",
    "NodeExistsError",
    "clear_zk_path",
    "default_zk_servers",
    "is_ipv6_only",
]
