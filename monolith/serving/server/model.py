"""All versions of one model: finds them on disk, loads them, and says which one answers.

One thread per model looks at the directory from time to time. A new version is loaded and warmed up
beside the old one, takes over in one step, and the old one goes when its last request is answered.
A version that cannot be loaded is left out, with its reason, and the last good one goes on.
"""

import contextlib
import dataclasses
import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from monolith.serving.server import status, versions, warmup
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching, Loading, ModelConfig
from monolith.serving.server.incarnation import make_incarnation
from monolith.serving.server.loaded import LoadedModel, LoadError
from monolith.serving.server.metrics import ServerMetrics
from monolith.serving.server.served import ServedVersion

logger = logging.getLogger(__name__)

# Half of the cores work on one op. The others take requests and run other calls; threads that wait
# for their part of an op would only take time from these.
_THREADS = max(1, (os.cpu_count() or 1) // 2)
# So many versions that are gone are remembered, for whoever asks what became of them.
_MAX_ENDED = 20


class State(enum.Enum):
    """The life of a version, numbered as in `ModelVersionStatus`."""

    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclasses.dataclass
class VersionStatus:
    """What is known of a version.

    Attributes:
        state: Where in its life it is.
        error: Why it is not served; empty if nothing is wrong.
        code: In which way it is wrong.
    """

    state: State
    error: str = ""
    code: status.Code = status.Code.OK


@dataclasses.dataclass
class _Failure:
    """A version that could not be loaded, and when it is tried again."""

    fingerprint: str
    attempts: int
    retry_at_sec: float | None


class Model:
    """A model with all its versions. Thread-safe.

    Args:
        config: The model.
        loading: How versions are found and loaded.
        pool: Runs the model.
        batching: How requests are merged; None: each is run alone.
        metrics: Takes what is counted.
        max_request_bytes: How large a request to warm up with may be.
        on_change: Called, from any thread, after other versions have become available.
        clock: Returns seconds.
        allow_writes: Whether functions that change tables may be called.
    """

    def __init__(
        self,
        config: ModelConfig,
        loading: Loading,
        pool: CallPool,
        batching: Batching | None = None,
        metrics: ServerMetrics | None = None,
        max_request_bytes: int = 1 << 31,
        on_change: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        allow_writes: bool = False,
    ) -> None:
        self._config = config
        self._loading = loading
        self._pool = pool
        self._batching = batching
        self._metrics = metrics or ServerMetrics()
        self._max_request_bytes = max_request_bytes
        self._on_change = on_change or _do_nothing
        self._clock = clock
        self._allow_writes = allow_writes
        self._lock = threading.Lock()
        self._available: dict[int, ServedVersion] = {}
        self._incarnation = make_incarnation()
        self._draining: list[ServedVersion] = []
        self._status: dict[int, VersionStatus] = {}
        self._failures: dict[int, _Failure] = {}
        self._problem = ""  # With the directory itself.
        self._was_looked_at = threading.Event()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def is_available(self) -> bool:
        """Whether some version answers requests."""
        return bool(self._available)

    @property
    def incarnation(self) -> str:
        """Another one each time that a version was loaded, whose rows are those of its export."""
        return self._incarnation

    def start(self) -> None:
        """Begins to look for versions, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._watch, name=f"versions of {self._config.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends that, and gives all versions back; requests must have ended."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._take_all_out()
        self._close_drained(force=True)

    def stop_when_unused(self) -> None:
        """Like `stop`, but waits for requests that are being answered; new ones are refused."""
        self._is_stopping = True
        self._take_all_out()
        self._wake.set()
        while True:
            with self._lock:
                if not any(version.is_used for version in self._draining):
                    break
            time.sleep(0.05)
        self.stop()

    def reconfigure(self, config: ModelConfig) -> None:
        """Changes which versions are served, and what they are called."""
        if config.base_path != self._config.base_path:
            raise ValueError("A model in another directory is another model.")
        self._config = config
        self._wake.set()

    def wait_until_looked_at(self, timeout_sec: float | None = None) -> bool:
        """Waits until all versions that were there at the beginning are loaded, or are not."""
        return self._was_looked_at.wait(timeout_sec)

    def get_status(self) -> dict[int, VersionStatus]:
        """Returns what is known of each version."""
        with self._lock:
            return {number: dataclasses.replace(s) for number, s in self._status.items()}

    @contextlib.contextmanager
    def use(self, number: int | None = None, label: str | None = None) -> Iterator[ServedVersion]:
        """Lends a version; it stays in memory while the block runs.

        Args:
            number: Which one; None takes the newest that is available.
            label: The name of one, in place of its number.

        Raises:
            RequestError: It is not available.
        """
        version = self._enter(number, label)
        try:
            yield version
        finally:
            version.leave()
            if version.number not in self._available and not version.is_used:
                self._wake.set()

    def update(self) -> None:
        """Loads what is new, and unloads what is old; called by the thread of this model."""
        self._close_drained()
        try:
            on_disk = versions.list_versions(self._config.base_path)
        except tf.errors.OpError as e:
            self._report(f"{self._config.base_path} cannot be read: {status.shorten(e.message)}")
            return
        if not on_disk and not self._available:
            self._report(f"{self._config.base_path} holds no version of the model.")
        elif on_disk:
            self._report("")
        self._forgive(on_disk)
        while not self._is_stopping:
            # One that fails makes room for an older one, so the choice is made anew each time.
            wanted = versions.choose_versions(
                self._config.policy, on_disk.keys(), self._failures.keys()
            )
            missing = wanted - self._available.keys()
            if not missing:
                self._retire(wanted)
                break
            self._load(max(missing), on_disk[max(missing)])
        self._forget(on_disk)

    def _watch(self) -> None:
        while not self._is_stopping:
            try:
                self.update()
            except Exception:
                # Whatever is wrong, the versions that are loaded go on.
                logger.exception("looking for versions of %s failed", self._config.name)
            self._was_looked_at.set()
            self._wake.wait(self._loading.poll_sec)
            self._wake.clear()
        self._was_looked_at.set()

    def _enter(self, number: int | None, label: str | None) -> ServedVersion:
        if label is not None:
            labels = self._config.labels
            if label not in labels:
                raise status.not_found(
                    f"Model {self._config.name!r} has no version labelled {label!r}."
                )
            number = labels[label]
        with self._lock:
            if number is None and self._available:
                number = max(self._available)
            version = None if number is None else self._available.get(number)
            if version is not None:
                version.enter()
                return version
        raise self._explain_missing(number)

    def _explain_missing(self, number: int | None) -> status.RequestError:
        name = self._config.name
        if number is not None:
            known = self._status.get(number)
            if known is not None and known.state is State.LOADING:
                return status.RequestError(
                    status.Code.UNAVAILABLE, f"Version {number} of {name!r} is being loaded."
                )
            reason = f": {known.error}" if known is not None and known.error else "."
            return status.not_found(f"Version {number} of model {name!r} is not served{reason}")
        failed = [(n, s.error) for n, s in self._status.items() if s.error]
        reason = self._problem
        if failed and not reason:
            newest, error = max(failed)
            reason = f"version {newest} cannot be loaded: {error}"
        return status.RequestError(
            status.Code.UNAVAILABLE,
            f"No version of model {name!r} is available{f': {reason}' if reason else ' yet.'}",
        )

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            logger.warning("%s; versions that are loaded stay", problem)
        self._problem = problem

    def _forgive(self, on_disk: dict[int, str]) -> None:
        """Lets versions that failed be tried again, if they were changed or their time has come."""
        now = self._clock()
        for number, failure in list(self._failures.items()):
            path = on_disk.get(number)
            if path is None:
                continue
            if versions.take_fingerprint(path) != failure.fingerprint:
                del self._failures[number]
            elif failure.retry_at_sec is not None and now >= failure.retry_at_sec:
                others = self._failures.keys() - {number}
                if number in versions.choose_versions(self._config.policy, on_disk.keys(), others):
                    # It counts as broken while it is tried, so that older ones keep their places.
                    self._load(number, path)

    def _load(self, number: int, path: str) -> None:
        name = self._config.name
        started_sec = self._clock()
        self._set_status(number, VersionStatus(State.LOADING))
        fingerprint = versions.take_fingerprint(path)
        model = None
        try:
            model = LoadedModel.load(path, threads=_THREADS)
            warmed = warmup.warm_up(
                model,
                max_records=self._loading.max_warmup_records,
                max_bytes=self._max_request_bytes,
            )
        except LoadError as e:
            if model is not None:
                model.close()
            self._note_failure(number, fingerprint, str(e))
            return
        self._failures.pop(number, None)
        version = ServedVersion(
            number, model, self._pool, self._batching, self._observe, self._allow_writes
        )
        with self._lock:
            self._available = {**self._available, number: version}
            self._incarnation = make_incarnation()
        self._set_status(number, VersionStatus(State.AVAILABLE))
        seconds = self._clock() - started_sec
        self._metrics.count_load(name, seconds=seconds)
        self._metrics.set_available(name, number, True)
        logger.info(
            "version %d of %s is available after %.1f seconds and %d requests to warm up",
            number,
            name,
            seconds,
            warmed,
        )
        self._on_change()

    def _note_failure(self, number: int, fingerprint: str, reason: str) -> None:
        before = self._failures.get(number)
        attempts = 1 if before is None else before.attempts + 1
        retry_at_sec = None
        if attempts <= self._loading.max_retries:
            retry_at_sec = self._clock() + self._loading.retry_sec
        self._failures[number] = _Failure(fingerprint, attempts, retry_at_sec)
        self._set_status(number, VersionStatus(State.END, reason, status.Code.UNKNOWN))
        self._metrics.count_load(self._config.name, seconds=None)
        logger.error(
            "version %d of %s cannot be loaded and is left out: %s",
            number,
            self._config.name,
            reason,
        )

    def _retire(self, wanted: set[int]) -> None:
        """Takes versions that are not wanted any more out of service, if another one answers."""
        with self._lock:
            if not wanted & self._available.keys():
                return
            retired = [v for n, v in self._available.items() if n not in wanted]
            if not retired:
                return
            self._available = {n: v for n, v in self._available.items() if n in wanted}
            self._draining += retired
        for version in retired:
            self._set_status(version.number, VersionStatus(State.UNLOADING))
            self._metrics.set_available(self._config.name, version.number, False)
        self._on_change()
        self._close_drained()

    def _take_all_out(self) -> None:
        with self._lock:
            retired = list(self._available.values())
            self._available = {}
            self._draining += retired
        for version in retired:
            self._metrics.set_available(self._config.name, version.number, False)

    def _close_drained(self, force: bool = False) -> None:
        """Gives back versions that nobody uses any more; those that are used come later."""
        with self._lock:
            drained = [v for v in self._draining if force or not v.is_used]
            self._draining = [v for v in self._draining if v not in drained]
        for version in drained:
            version.close()
            self._set_status(version.number, VersionStatus(State.END))
            logger.info("version %d of %s is unloaded", version.number, self._config.name)

    def _forget(self, on_disk: dict[int, str]) -> None:
        """Forgets versions that were deleted, all but a few."""
        for number in self._failures.keys() - on_disk.keys():
            del self._failures[number]
        with self._lock:
            gone = [
                number
                for number, version in sorted(self._status.items())
                if version.state is State.END and number not in on_disk
            ]
            for number in gone[:-_MAX_ENDED]:
                del self._status[number]

    def _set_status(self, number: int, new: VersionStatus) -> None:
        with self._lock:
            self._status[number] = new

    def _observe(self, requests: int, rows: int, waited_sec: float) -> None:
        self._metrics.count_call(self._config.name, requests, rows, waited_sec)


def _do_nothing() -> None:
    """Stands for a callback that nobody has given."""
