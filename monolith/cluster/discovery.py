"""Service discovery: how the processes of a job find each other.

| class | records are kept in |
| --- | --- |
| `ConsulServiceDiscovery` | Consul |
| `ZKServiceDiscovery` | ZooKeeper, as ephemeral nodes |
| `TfConfigServiceDiscovery` | the TF_CONFIG that Primus or another scheduler writes |
| `MLPServiceDiscovery` | the environment of the MLP platform |
| `FileServiceDiscovery` | files on one machine or on a shared disk |

Example:
    >>> discovery = TfConfigServiceDiscovery(
    ...     {"cluster": {"ps": ["a:1", "b:1"]}, "task": {"type": "ps", "index": 1}})
    >>> discovery.query("ps")
    {0: 'a:1', 1: 'b:1'}
"""

import collections
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from monolith.cluster import consul, net
from monolith.cluster.discovery_base import (
    ServiceDiscovery,
    ServiceDiscoveryType,
    check_registration,
)
from monolith.cluster.discovery_file import FileServiceDiscovery, HostServiceDiscovery
from monolith.cluster.discovery_tf_config import TfConfigServiceDiscovery
from monolith.cluster.discovery_zookeeper import ThreadSet, ZKListener, ZooKeeperMembership
from monolith.cluster.mlp import MLPEnv, check_port
from monolith.cluster.progress import WaitProgress
from monolith.cluster.zookeeper import MonolithKazooClient, default_zk_servers

__all__ = [
    "ConsulServiceDiscovery",
    "FileServiceDiscovery",
    "HostServiceDiscovery",
    "MLPServiceDiscovery",
    "ServiceDiscovery",
    "ServiceDiscoveryType",
    "TfConfigServiceDiscovery",
    "ThreadSet",
    "ZKListener",
    "ZKServiceDiscovery",
    "deregister_all",
    "retry_with_socket_error",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_HostAndPort = collections.namedtuple("_HostAndPort", ["host", "port"])

# Both are read when they are used, so that tests can shorten them.
_RETRY_MAX_BACKOFF_SECS = 5
_ZK_REGISTRATION_PERIOD = 30 * 60

_MAX_SOCKET_TRIES = 5
_CONSUL_VISIBLE_SECS = 180
_CONSUL_LOOKUP_TIMEOUT_SECS = 15
_PORT_WAIT_SECS = 3600


def retry_with_socket_error(http_call: Callable[[], _T]) -> _T:
    """Calls `http_call` up to five times while it fails with a socket error.

    Between two tries it sleeps a random part of `_RETRY_MAX_BACKOFF_SECS`; the last error is
    raised.
    """
    for attempt in range(1, _MAX_SOCKET_TRIES):
        try:
            return http_call()
        except OSError as error:  # `socket.error` is an old name of it
            logger.warning("try %d of %d failed: %r", attempt, _MAX_SOCKET_TRIES, error)
            time.sleep(np.random.rand() * _RETRY_MAX_BACKOFF_SECS)
    return http_call()


class ConsulServiceDiscovery(ServiceDiscovery):
    """Keeps registrations in Consul, as instances of one service with tags index, name and ip.

    Args:
        consul_id: Name of the service in Consul; one per job.
        retry_time_secs: Seconds to give Consul after an old registration was taken back.
    """

    def __init__(self, consul_id: str, retry_time_secs: float = 3.0) -> None:
        self._client = consul.Client()
        self._consul_id = consul_id
        self._retry_time_secs = retry_time_secs

    def register(self, name: str, index: int, addr: str) -> None:
        """Registers `addr` and waits until Consul shows it.

        A registration of the same index is taken back first; Consul lets a machine take back its
        own ones only, so for one of another machine this waits until its health check has failed.

        Raises:
            ValueError: If `addr` is not an address.
            OSError: If Consul cannot be reached, keeps showing another registration of the
                index, or does not show the new one, each for three minutes.
        """
        host_and_port = self._parse(addr)
        check_registration(name, index, addr)
        self._clear_index(name, index)
        # Others read these tags, and some rely on the order.
        tags = {"index": index, "name": name, "ip": host_and_port.host}
        retry_with_socket_error(
            lambda: self._client.register(self._consul_id, host_and_port.port, tags=tags)
        )
        self._wait_until_visible(name, index, addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Takes back the registration at the port of `addr`; only the port matters."""
        port = self._parse(addr).port
        retry_with_socket_error(lambda: self._client.deregister(self._consul_id, port))

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns all registrations, by name and index."""
        elements = retry_with_socket_error(
            lambda: self._client.lookup(self._consul_id, timeout=_CONSUL_LOOKUP_TIMEOUT_SECS)
        )
        addrs: dict[str, dict[int, str]] = collections.defaultdict(dict)
        for element in elements:
            try:
                tags = element["Tags"]
                name, index, ip = tags["name"], int(tags["index"]), tags["ip"]
                addrs[name][index] = net.concat_ip_and_port(ip, element["Port"])
            except (KeyError, TypeError, ValueError) as error:
                # Somebody else's service under our name must not stop the job.
                logger.warning("ignoring %s of %s: %r", element, self._consul_id, error)
        return addrs

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses known for `name`, by index."""
        return self.query_all()[name]

    def describe(self) -> str:
        """Returns which service of Consul it is, and where that is asked."""
        return f"Consul at {self._client.address}, service {self._consul_id!r}"

    def _parse(self, addr: str) -> _HostAndPort:
        return _HostAndPort(*net.parse_address(addr))

    def _clear_index(self, name: str, index: int) -> None:
        progress = WaitProgress(logger)
        deadline = time.monotonic() + _CONSUL_VISIBLE_SECS
        while True:
            addr = self.query(name).get(index)
            if addr is None:
                return
            if time.monotonic() > deadline:
                raise OSError(
                    f"{name} {index} is still registered in Consul at {addr} after "
                    f"{_CONSUL_VISIBLE_SECS} s of taking it back; stop the process there, or give "
                    "this one another index."
                )
            progress.report(f"Taking back the registration of {name} {index} at {addr}.")
            try:
                self.deregister(name, index, addr)
            except consul.ConsulException as error:
                logger.warning("Consul keeps %s %d at %s: %s", name, index, addr, error)
            time.sleep(self._retry_time_secs)

    def _wait_until_visible(self, name: str, index: int, addr: str) -> None:
        progress = WaitProgress(logger)
        max_misses = max(2, _CONSUL_VISIBLE_SECS / max(1, _RETRY_MAX_BACKOFF_SECS))
        misses = 0
        while True:
            visible = self.query(name).get(index)
            if visible is not None:
                break
            misses += 1
            if misses > max_misses:
                raise OSError("This machine is blacklisted by consul.")
            progress.report(f"Waiting for Consul to show {name} {index} at {addr}.")
            time.sleep(_RETRY_MAX_BACKOFF_SECS)
        if visible != addr:
            logger.error(
                "Consul shows %s %d at %s, not at %s; two processes claim the same index.",
                name,
                index,
                visible,
                addr,
            )


def deregister_all(consul_id: str) -> None:
    """Takes back every registration of `consul_id` that Consul shows."""
    discovery = ConsulServiceDiscovery(consul_id)
    for name, addrs in discovery.query_all().items():
        for index, addr in addrs.items():
            discovery.deregister(name, index, addr)


class ZKServiceDiscovery(ZooKeeperMembership):
    """Keeps registrations in ZooKeeper; see `ZooKeeperMembership` for what happens when.

    Args:
        job_name: Name of the job; part of the path.
        zk_server: Servers as `host:port,...`; None for this installation's.
        max_tries: How often to try a registration while ZooKeeper loses the connection.
        delay: Seconds before the second try; it doubles with every further one.
        session_timeout_secs: How long after its death a process still counts; None for kazoo's 10.

    Raises:
        errors.ConfigError: If no server or no job is named.
        KazooTimeoutError: If no server answers within 15 seconds.
        ImportError: If kazoo is not installed.
    """

    def __init__(
        self,
        job_name: str,
        zk_server: str | None = None,
        max_tries: int = 3,
        delay: float = 5,
        *,
        session_timeout_secs: float | None = None,
    ) -> None:
        super().__init__(job_name, zk_server, max_tries, delay, session_timeout_secs)

    def _make_client(self, zk_server: str | None, **options: Any) -> Any:
        return MonolithKazooClient(zk_server or default_zk_servers(), **options)

    def _registration_period_secs(self) -> float:
        return _ZK_REGISTRATION_PERIOD


class MLPServiceDiscovery(ServiceDiscovery):
    """Reads who is who from the environment of the MLP platform.

    The platform decides beforehand which process listens where, so registering only checks that
    this process is what the platform says; deregistering hides an entry from this process.
    """

    def __init__(self) -> None:
        self._mlp_env: MLPEnv | None = MLPEnv()
        self._filters: set[str] = set()
        #: The address of this process.
        self.addr = net.concat_ip_and_port(self._mlp_env.host, self._mlp_env.port)

    def register(self, name: str, index: int, addr: str) -> None:
        """Checks that the platform planned `addr` for `name` and `index`, and shows the entry.

        Raises:
            AssertionError: If the platform planned something else.
        """
        self._check(name, index, addr)
        self._filters.discard(_filter_key(name, index))

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Hides the entry from the queries of this process.

        Raises:
            AssertionError: If the platform planned something else.
        """
        self._check(name, index, addr)
        self._filters.add(_filter_key(name, index))

    def deregister_all(self) -> None:
        """Hides every entry from the queries of this process."""
        if self._mlp_env is not None:
            for role, count in self._mlp_env.all_roles.items():
                self._filters.update(_filter_key(role, index) for index in range(count))

    def query(self, name: str, skip_port_check: bool = False) -> dict[int, str]:
        """Returns the planned addresses of `name`, by index.

        Args:
            name: A role, in any case.
            skip_port_check: Without it, a query for "ps" waits until each of them listens.

        Raises:
            AssertionError: If a parameter server does not listen within an hour.
        """
        env = self._mlp_env
        if env is None:
            return {}
        addrs = {}
        for index in range(env.num_replicas(name)):
            addr = env.get_addr(name, index)
            if addr is None or _filter_key(name, index) in self._filters:
                continue
            if name.lower() == "ps" and not skip_port_check:
                host, port = net.parse_address(addr)
                _require(check_port(host, port, timeout=_PORT_WAIT_SECS), f"{addr} connect error!")
            addrs[index] = addr
        return addrs

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the planned addresses of "ps", "worker" and "chief", listening or not."""
        return {name: self.query(name, skip_port_check=True) for name in ("ps", "worker", "chief")}

    @property
    def server_type(self) -> str:
        """The role of this process, in lower case."""
        return self._open_env().role.lower()

    @property
    def index(self) -> int:
        """The number of this process in its role."""
        return self._open_env().index

    def close(self) -> None:
        """Forgets everything; queries then find nobody."""
        self._mlp_env = None
        self._filters.clear()

    def _open_env(self) -> MLPEnv:
        if self._mlp_env is None:
            raise RuntimeError("This discovery is closed.")
        return self._mlp_env

    def _check(self, name: str, index: int, addr: str) -> None:
        env = self._open_env()
        role = name.upper()
        _require(
            role in env.all_roles, f"role {name!r} is not one of {sorted(env.all_roles)} of MLP"
        )
        replicas = env.num_replicas(role)
        _require(0 <= index < replicas, f"index of {name!r} must be below {replicas}, got {index}")
        host, port = net.parse_address(addr)
        planned_port = env.get_port(role, index)
        _require(
            port == planned_port,
            f"MLP planned port {planned_port} for {name} {index}, but its address is {addr}",
        )
        hosts = {
            "localhost",
            "127.0.0.1",
            "0.0.0.0",
            env.get_host(role, index),
            env.host,
            env.get_host(is_primary=False),
        }
        _require(
            # The resolver last: not every container knows its own name.
            host in hosts or host == net.get_local_ip(),
            f"MLP planned one of the hosts {sorted(h for h in hosts if h)} for {name} {index}, "
            f"but its address is {addr}",
        )


def _filter_key(name: str, index: int) -> str:
    return f"{name.lower()}:{index}"


def _require(condition: bool, message: str) -> None:
    # Callers catch AssertionError; an `assert` would vanish under `python -O`.
    if not condition:
        raise AssertionError(message)
