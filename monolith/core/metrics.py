"""Counters, timers and gauges of a training job, for whatever monitoring its owner has.

Library code emits through a `Client`. Nothing leaves the process until a sink is plugged in with
`set_sink`; clients look the sink up when they emit, so one set at any time serves them all.

Example:
    >>> class Printer:
    ...     def emit(self, kind, name, value, tags):
    ...         print(kind, name, value, dict(tags))
    ...     def flush(self):
    ...         pass
    >>> set_sink(Printer())
    >>> get_cli("monolith.training").emit_counter("worker_failover_cnt", 1, {"index": "3"})
    counter monolith.training.worker_failover_cnt 1 {'index': '3'}
    >>> set_sink(None)
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from absl import logging as absl_logging

MetricKind = Literal["counter", "timer", "store"]

_PREFIX_VARIABLE = "MONOLITH_METRIC_PREFIX"


class MetricSink(Protocol):
    """Where metrics go; called from any thread, so it must be quick and thread-safe."""

    def emit(self, kind: MetricKind, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Takes one value. A counter adds, a timer is a duration, a store is the latest value."""

    def flush(self) -> None:
        """Sends what is buffered, if anything."""


_sink: MetricSink | None = None
_watchers: list[Callable[[bool], None]] = []


def set_sink(sink: MetricSink | None) -> None:
    """Sends the metrics of all clients to `sink` from now on; None drops them, the default."""
    global _sink
    _sink = sink
    for watcher in _watchers:
        watcher(sink is not None)


def watch_sink(watcher: Callable[[bool], None]) -> None:
    """Tells `watcher` whether there is a sink, now and at every change.

    For those whose way to a client is long, and for nothing while there is no sink.
    """
    _watchers.append(watcher)
    watcher(_sink is not None)


class Client:
    """Emits metrics under a prefix.

    A sink that fails is logged, at most once a minute: monitoring must not end a training job.
    Any other method a caller may know from its own metrics client exists and does nothing.
    """

    def __init__(self, prefix: str = "", *args: Any, **kwargs: Any) -> None:
        self._prefix = prefix

    def emit_counter(self, name: str, value: float, tagkv: Mapping[str, str] | None = None) -> None:
        """Adds `value` to a counter."""
        self._emit("counter", name, value, tagkv)

    def emit_timer(self, name: str, value: float, tagkv: Mapping[str, str] | None = None) -> None:
        """Records a duration."""
        self._emit("timer", name, value, tagkv)

    def emit_store(self, name: str, value: float, tagkv: Mapping[str, str] | None = None) -> None:
        """Sets a gauge to `value`."""
        self._emit("store", name, value, tagkv)

    def flush(self) -> None:
        """Asks the sink to send what it holds back."""
        sink = _sink
        if sink is not None:
            _guard(sink.flush)

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Protocols of Python itself (copy, pickle) must see that they are not implemented.
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing

    def _emit(
        self, kind: MetricKind, name: str, value: float, tagkv: Mapping[str, str] | None
    ) -> None:
        sink = _sink
        if sink is not None:
            full_name = f"{self._prefix}.{name}" if self._prefix else name
            _guard(sink.emit, kind, full_name, value, tagkv or {})


def get_cli(*args: Any, **kwargs: Any) -> Client:
    """Returns a client; the first argument, or `prefix`, starts the names of its metrics."""
    return Client(*args, **kwargs)


def set_metric_prefix(prefix: str) -> None:
    """Makes the names of metrics start with `prefix`, in child processes too."""
    os.environ[_PREFIX_VARIABLE] = prefix


def get_metric_prefix() -> str:
    """Returns what the names of metrics start with."""
    return os.environ.get(_PREFIX_VARIABLE, "monolith.training")


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a method that this client does not have."""


def _guard(call: Callable[..., None], *args: Any) -> None:
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - whatever the user's sink raises, training goes on
        absl_logging.log_every_n_seconds(
            logging.ERROR, "the metric sink failed, values are lost: %r", 60, error
        )
