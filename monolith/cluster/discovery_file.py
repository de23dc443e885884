"""Discovery through files, for jobs on one machine or on machines that share a disk.

No server is needed. Number `index` of service `name` is the file `BASE/NAME/INDEX`, and the file
holds nothing but the address. Files appear whole, by renaming; a process touches its own file
again and again, and a file that nobody has touched for a while belongs to a process that is gone.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as base:
    ...     discovery = FileServiceDiscovery(base)
    ...     discovery.register("ps", 0, "127.0.0.1:2222")
    ...     print(discovery.query("ps"))
    ...     discovery.close()
    {0: '127.0.0.1:2222'}
"""

import contextlib
import functools
import logging
import os
import threading
import time
import uuid

from monolith import errors
from monolith.cluster import heartbeat, net
from monolith.cluster.discovery_base import ServiceDiscovery, check_registration

logger = logging.getLogger(__name__)

_DEFAULT_STALE_AFTER_SECS = 60.0
_BEATS_PER_LIFETIME = 4
_BEAT_RETRY_SECS = 2.0


class FileServiceDiscovery(ServiceDiscovery):
    """Keeps registrations as files below a directory; safe to use from several threads.

    The registration of a process lasts until `deregister`, until `close`, or until the process has
    been gone for `stale_after_secs`. A file that vanishes while its process lives is written again.
    When two processes claim one index, the newer registration holds; the older process logs an
    error and leaves it alone, until the newer one is gone.

    Args:
        base_path: Directory of the job; created when needed. All processes must see the same one,
            and their clocks must agree to within a fraction of `stale_after_secs`.
        stale_after_secs: A file untouched for so long does not count. None: files count forever.

    Raises:
        errors.ConfigError: If an argument makes no sense.
    """

    def __init__(
        self, base_path: str, *, stale_after_secs: float | None = _DEFAULT_STALE_AFTER_SECS
    ) -> None:
        if not base_path:
            raise errors.ConfigError(
                f"base_path must be a directory all processes share, got {base_path!r}."
            )
        if stale_after_secs is not None and stale_after_secs <= 0:
            raise errors.ConfigError(
                f"stale_after_secs must be positive, or None for never, got {stale_after_secs}."
            )
        self._base_path = os.fspath(base_path)
        self._stale_after_secs = stale_after_secs
        self._lock = threading.Lock()
        self._registered: dict[tuple[str, int], str] = {}
        self._reported: dict[str, str] = {}
        # Addresses of processes that have taken a registration of this object, by path.
        self._rivals: dict[str, str] = {}
        # Makes the keys of this object's heartbeats its own.
        self._token = object()

    def register(self, name: str, index: int, addr: str) -> None:
        """Writes the file of `name` and `index`, and keeps it fresh from now on.

        Raises:
            errors.ConfigError: If the three do not make a registration.
            OSError: If the file cannot be written.
        """
        check_registration(name, index, addr)
        previous = self._read(name, index)
        if previous is not None and previous != addr and self._own_addr(name, index) != previous:
            logger.warning(
                "%s %d was registered at %s and is now at %s; if the process there is still "
                "alive, two processes claim the same index.",
                name,
                index,
                previous,
                addr,
            )
        self._write(name, index, addr)
        with self._lock:
            self._registered[name, index] = addr
        if self._stale_after_secs is not None:
            heartbeat.start(
                (self._token, name, index),
                functools.partial(self._keep, name, index, addr),
                thread_name=f"FileDiscovery-{name}-{index}",
                period_sec=self._stale_after_secs / _BEATS_PER_LIFETIME,
                retry_sec=min(_BEAT_RETRY_SECS, self._stale_after_secs / _BEATS_PER_LIFETIME),
            )

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Removes the file, unless it meanwhile holds another address than `addr`."""
        heartbeat.stop((self._token, name, index))
        with self._lock:
            self._registered.pop((name, index), None)
        current = self._read(name, index)
        if current is not None and current != addr:
            logger.warning(
                "%s %d is not deregistered: it is at %s now, not at %s.", name, index, current, addr
            )
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name, index))

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of `name` whose files are fresh, by index.

        Raises:
            OSError: If the directory is there but cannot be read.
        """
        directory = os.path.join(self._base_path, name)
        try:
            entries = os.listdir(directory)
        except FileNotFoundError:
            return {}
        indices = sorted(int(entry) for entry in entries if entry.isascii() and entry.isdigit())
        result = {}
        for index in indices:
            addr = self._fresh_addr(name, index)
            if addr is not None:
                result[index] = addr
        return result

    def describe(self) -> str:
        """Returns where the files are."""
        return f"{self._base_path}, a directory that all members must share"

    def close(self) -> None:
        """Takes back what this object has registered."""
        with self._lock:
            registered = dict(self._registered)
        for (name, index), addr in registered.items():
            try:
                self.deregister(name, index, addr)
            except OSError as error:
                logger.warning("could not deregister %s %d: %s", name, index, error)

    def _path(self, name: str, index: int) -> str:
        return os.path.join(self._base_path, name, str(index))

    def _own_addr(self, name: str, index: int) -> str | None:
        with self._lock:
            return self._registered.get((name, index))

    def _read(self, name: str, index: int) -> str | None:
        try:
            with open(self._path(name, index), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return None

    def _write(self, name: str, index: int, addr: str) -> None:
        path = self._path(name, index)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # The name starts with a dot, so that no reader takes it for an index.
        temporary = os.path.join(os.path.dirname(path), f".{index}-{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(addr)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _keep(self, name: str, index: int, addr: str) -> None:
        """One heartbeat: touches the file, or writes it again if nobody has it any more."""
        current = self._read(name, index)
        path = self._path(name, index)
        if current == addr:
            os.utime(path)
            with self._lock:
                self._rivals.pop(path, None)
        elif not current or self._is_stale(path):
            logger.warning("%s %d at %s had lost its file; writing it again.", name, index, addr)
            self._write(name, index, addr)
        else:
            with self._lock:
                is_known = self._rivals.get(path) == current
                self._rivals[path] = current
            if not is_known:
                logger.error(
                    "%s %d at %s is replaced by a newer registration at %s; two processes claim "
                    "the same index, and this one gives way until that one is gone.",
                    name,
                    index,
                    addr,
                    current,
                )

    def _is_stale(self, path: str) -> bool:
        try:
            age_secs = time.time() - os.stat(path).st_mtime
        except FileNotFoundError:
            return True
        return self._stale_after_secs is not None and age_secs > self._stale_after_secs

    def _fresh_addr(self, name: str, index: int) -> str | None:
        path = self._path(name, index)
        try:
            age_secs = time.time() - os.stat(path).st_mtime
        except FileNotFoundError:
            return None
        addr = self._read(name, index)
        if addr is None:
            return None
        if self._stale_after_secs is not None and age_secs > self._stale_after_secs:
            self._report(path, f"stale: {addr} has been silent for more than its time")
            return None
        try:
            net.parse_address(addr)
        except errors.ConfigError as error:
            self._report(path, str(error))
            return None
        with self._lock:
            self._reported.pop(path, None)
        return addr

    def _report(self, path: str, reason: str) -> None:
        """Says once why a file does not count, however often it is seen."""
        with self._lock:
            if self._reported.get(path) == reason:
                return
            self._reported[path] = reason
        logger.warning("ignoring %s: %s", path, reason)


# The name under which older integration tests know it.
HostServiceDiscovery = FileServiceDiscovery
