"""Membership of a job in ZooKeeper: one ephemeral node per process, watched by all.

`monolith.cluster.discovery.ZKServiceDiscovery` is the class to use; it adds where the client and
the repair period come from.
"""

import abc
import collections
import functools
import logging
import threading
import time
from typing import Any, NamedTuple

from monolith import errors
from monolith.cluster.discovery_base import ServiceDiscovery, check_registration
from monolith.cluster.zookeeper import KazooRetry, KazooState, NodeExistsError, NoNodeError

logger = logging.getLogger(__name__)

_JOIN_SECS = 10
_IDLE_JOIN_SECS = 1
_MIN_RETRY_SECS = 0.1


class ThreadSet(NamedTuple):
    """A thread that repeats its work when it is woken, until it is stopped."""

    stop: threading.Event
    wakeup: threading.Event
    thread: threading.Thread

    def stop_and_join(self) -> None:
        """Ends the thread and waits for it."""
        self.stop.set()
        self.wakeup.set()
        self.thread.join(_JOIN_SECS)
        if self.thread.is_alive():
            # It hangs in a call to a ZooKeeper that is away; being a daemon, it stops nobody.
            logger.warning("%s has not ended after %d s", self.thread.name, _JOIN_SECS)


class ZKListener:
    """Registers everything again once a lost ZooKeeper session is replaced by a new one."""

    def __init__(self, zksd: "ZooKeeperMembership") -> None:
        self._zksd = zksd
        self._has_lost = False

    def __call__(self, state: str) -> None:
        if state == KazooState.LOST:
            self._has_lost = True
            if getattr(self._zksd, "_closed", False) is not True:  # else it was lost on purpose
                logger.warning("ZooKeeper session lost; its nodes come back with the next session.")
        elif state == KazooState.SUSPENDED:
            logger.warning("ZooKeeper does not answer; changes wait until it is back.")
        elif self._has_lost:
            self._zksd.do_all_registrations()
            self._has_lost = False


class _Registration:
    """What this process wants one node to say, and the thread that sees to it."""

    def __init__(self, node: str, addr: str, previous_addr: str | None) -> None:
        self.node = node
        self.addr = addr
        self.previous_addr = previous_addr
        # What the node says while it belongs to the live session of another process.
        self.rival_addr: str | None = None
        self.stop = threading.Event()
        self.wakeup = threading.Event()
        self.threads: ThreadSet | None = None


class ZooKeeperMembership(ServiceDiscovery):
    """Keeps registrations as ephemeral nodes `/monolith/JOB/NAME.INDEX`.

    `query` answers from a copy that ZooKeeper's watches keep up to date, so it costs nothing and
    works while ZooKeeper is away. A node vanishes when its process dies, after the session
    timeout. When it vanishes for another reason (a new session, somebody deleted or changed it), a
    background thread brings it back: at once where the watches tell, and in any case after the
    repair period.

    An index belongs to the session that created its node. A process that registers an index whose
    owner has just died shows its address at once, and becomes the owner when the old session ends.
    If the owner turns out to be alive, it restores its own address, and the newcomer logs an error.
    """

    def __init__(
        self,
        job_name: str,
        zk_server: str | None,
        max_tries: int,
        delay: float,
        session_timeout_secs: float | None,
    ) -> None:
        self._client: Any = None
        self._closed = False
        self._max_tries = max_tries
        self._delay = delay
        # Watches call back from kazoo's threads. Not reentrant: a watch must not be installed
        # while it is held, since that calls back at once.
        self._lock = threading.Lock()
        self._cluster: dict[str, dict[int, str]] = collections.defaultdict(dict)
        self._registrations: dict[str, _Registration] = {}
        self._children: set[str] = set()
        self._owners: dict[str, int | None] = {}
        # The watch of a node that went and came again is replaced; its token tells the old one
        # to end itself.
        self._watch_tokens: dict[str, object] = {}
        options = {} if session_timeout_secs is None else {"timeout": session_timeout_secs}
        try:
            self._client = self._make_client(zk_server, **options)
            self._client.add_listener(ZKListener(self))
            self._client.start()
            self._path_prefix = f"/monolith/{_checked_job_name(job_name)}"
            self._client.ensure_path(self._path_prefix)
            self._watch_children()
        except Exception as error:
            logger.error(
                "could not start discovery of job %r at %r: %s", job_name, zk_server, error
            )
            self.close()
            raise

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # missing if a subclass failed before our __init__
            self.close()

    @abc.abstractmethod
    def _make_client(self, zk_server: str | None, **options: Any) -> Any:
        """Returns a client that is not started yet."""

    @abc.abstractmethod
    def _registration_period_secs(self) -> float:
        """Returns the seconds between two repairs of a node."""

    def register(self, name: str, index: int, addr: str) -> None:
        """Creates the node, or changes its address, and keeps it from now on.

        Raises:
            errors.ConfigError: If the three do not make a registration.
            kazoo.retry.RetryFailedError: If the connection was lost in every try.
        """
        check_registration(name, index, addr)
        self._check_open()
        node = f"{name}.{index}"
        previous = self._end_registration(node)
        registration = _Registration(node, addr, previous.addr if previous else None)
        with self._lock:
            self._registrations[node] = registration
        try:
            self._create_with_retry(registration)
        except Exception:
            with self._lock:
                self._registrations.pop(node, None)
            raise
        thread = threading.Thread(
            target=self._keep_registered,
            args=(registration,),
            name=f"ZKRegistration-{node}",
            daemon=True,
        )
        registration.threads = ThreadSet(registration.stop, registration.wakeup, thread)
        thread.start()

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Deletes the node, unless it belongs to another process with another address.

        The repairing thread ends first: it could create the node again.
        """
        self._check_open()
        node = f"{name}.{index}"
        self._end_registration(node)
        with self._lock:
            current = self._cluster[name].get(index)
            owner = self._owners.get(node)
        if current not in (None, addr) and self._is_foreign(owner):
            logger.warning(
                "%s is not deregistered: it is at %s now, not at %s.", node, current, addr
            )
            return
        self._try_delete(node)

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses known for `name`, by index."""
        with self._lock:
            return dict(self._cluster.get(name, {}))

    def describe(self) -> str:
        """Returns where the nodes are."""
        return f"ZooKeeper, below {self._path_prefix}"

    def do_all_registrations(self) -> None:
        """Has every node of this process created again, in the background."""
        with self._lock:
            registrations = list(self._registrations.values())
        for registration in registrations:
            registration.wakeup.set()

    def close(self) -> None:
        """Ends the session, which removes the nodes of this process; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            registrations = list(self._registrations.values())
            self._registrations.clear()
        threads = [r.threads for r in registrations if r.threads is not None]
        for registration in registrations:
            registration.stop.set()
            registration.wakeup.set()
        # Idle threads end before the client does: a request that meets the client's end may never
        # be answered. A thread that waits for a ZooKeeper that is away ends with the client.
        deadline = time.monotonic() + _IDLE_JOIN_SECS
        for thread_set in threads:
            thread_set.thread.join(max(0.0, deadline - time.monotonic()))
        if self._client is not None:
            self._client.stop()
            self._client.close()
        for thread_set in threads:
            thread_set.stop_and_join()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("This discovery is closed; make a new one to register.")

    def _end_registration(self, node: str) -> _Registration | None:
        with self._lock:
            registration = self._registrations.pop(node, None)
        if registration is not None and registration.threads is not None:
            registration.threads.stop_and_join()
        return registration

    def _path(self, node: str) -> str:
        return f"{self._path_prefix}/{node}"

    def _try_create(self, node: str, addr: str) -> None:
        path, value = self._path(node), addr.encode("utf-8")
        try:
            self._client.create(path, value=value, makepath=True, ephemeral=True)
        except NodeExistsError:
            self._client.set(path, value)

    def _try_delete(self, node: str) -> None:
        try:
            self._client.delete(path=self._path(node), recursive=True)
        except NoNodeError:
            logger.info("%s is already gone", self._path(node))

    def _create_with_retry(self, registration: _Registration) -> None:
        retry = KazooRetry(
            max_tries=self._max_tries, delay=self._delay, interrupt=registration.stop.is_set
        )
        try:
            retry(self._try_create, registration.node, registration.addr)
        except NoNodeError:
            # The node ended between `create` and `set`, as that of a dead predecessor does.
            retry(self._try_create, registration.node, registration.addr)

    def _keep_registered(self, registration: _Registration) -> None:
        """Repairs the node whenever woken, and after each period, until stopped."""
        failed = False
        while True:
            wait_secs = self._registration_period_secs()
            if failed:
                wait_secs = min(wait_secs, max(self._delay, _MIN_RETRY_SECS))
            registration.wakeup.wait(wait_secs)
            if registration.stop.is_set():
                return
            registration.wakeup.clear()
            try:
                self._repair(registration)
                failed = False
            except Exception:
                if registration.stop.is_set():
                    return
                failed = True
                logger.warning("could not repair %s", registration.node, exc_info=True)

    def _repair(self, registration: _Registration) -> None:
        rival_addr = registration.rival_addr
        if rival_addr is None:
            self._create_with_retry(registration)
        else:
            logger.error(
                "%s at %s gives way to %s: two living processes claim the same index.",
                registration.node,
                registration.addr,
                rival_addr,
            )
        # kazoo's watch ends for good when the watched node is deleted, and says so only here.
        if getattr(self._children_watch, "_stopped", False):
            self._watch_children()

    def _watch_children(self) -> None:
        self._children_watch = self._client.ChildrenWatch(self._path_prefix, self._on_children)

    def _on_children(self, children: list[str]) -> None:
        current = set(children)
        with self._lock:
            added = current - self._children
            removed = self._children - current
            self._children = current
            tokens = {node: object() for node in added if _split_node(node) is not None}
            self._watch_tokens.update(tokens)
        for node in removed:
            self._update(node, None, None)
        for node, token in tokens.items():
            self._client.DataWatch(
                self._path(node), func=functools.partial(self._on_data, node, token)
            )
        for node in added - tokens.keys():
            logger.warning("ignoring %s, which is not NAME.INDEX", self._path(node))

    def _on_data(
        self, node: str, token: object, data: bytes | None, stat: Any = None, event: Any = None
    ) -> bool | None:
        with self._lock:
            if self._watch_tokens.get(node) is not token:
                return False  # ends this watch
        addr = data.decode("utf-8", "replace") if data else None
        self._update(node, addr, getattr(stat, "ephemeralOwner", None))
        return None

    def _update(self, node: str, addr: str | None, owner: int | None) -> None:
        """Notes what a node says now, None if it is gone, and whether that is as we want it."""
        name_and_index = _split_node(node)
        if name_and_index is None:
            return
        name, index = name_and_index
        with self._lock:
            if addr is None:
                self._cluster[name].pop(index, None)
                self._owners.pop(node, None)
            else:
                self._cluster[name][index] = addr
                self._owners[node] = owner
            registration = self._registrations.get(node)
        if registration is None:
            return
        if addr is None:
            registration.rival_addr = None
            registration.wakeup.set()
        elif addr == registration.addr:
            registration.rival_addr = None
        elif addr == registration.previous_addr:
            pass  # an old value of ours, seen late
        elif self._is_foreign(owner):
            registration.rival_addr = addr
            registration.wakeup.set()
        elif owner and owner == self._session_id():
            logger.warning("%s was changed to %s; restoring %s.", node, addr, registration.addr)
            registration.wakeup.set()

    def _session_id(self) -> int | None:
        client_id = getattr(self._client, "client_id", None)
        return client_id[0] if isinstance(client_id, tuple) else None

    def _is_foreign(self, owner: int | None) -> bool:
        """Returns whether a node of `owner` surely belongs to another session than ours."""
        session_id = self._session_id()
        return bool(owner) and session_id is not None and owner != session_id


def _checked_job_name(job_name: str) -> str:
    if not isinstance(job_name, str) or not job_name or "/" in job_name:
        raise errors.ConfigError(
            "The job needs a non-empty name without '/', which becomes its path in ZooKeeper; "
            f"got {job_name!r}."
        )
    return job_name


def _split_node(node: str) -> tuple[str, int] | None:
    name, _, index = node.rpartition(".")
    return (name, int(index)) if name and index.isascii() and index.isdigit() else None
