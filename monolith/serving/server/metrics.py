"""What the server counts, for Prometheus.

Example:
    >>> metrics = ServerMetrics()
    >>> metrics.count_request("grpc", "Predict", "ads", "OK", seconds=0.002)
    >>> b'monolith_serving_requests_total{api="grpc",code="OK",method="Predict",model="ads"} 1.0' \\
    ...     in metrics.render()
    True
"""

from collections.abc import Callable
from typing import Any

import prometheus_client

from monolith.native import lookup_counts

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServerMetrics:
    """The metrics of one server.

    Names of models come from the server's configuration, never from a request: a client cannot
    make the list of metrics longer.
    """

    def __init__(self) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        prefix = "monolith_serving"
        self._requests = prometheus_client.Counter(
            f"{prefix}_requests_total",
            "Requests that were answered, by how.",
            ["api", "method", "model", "code"],
            registry=self._registry,
        )
        # Looking them up by their labels takes longer than counting.
        self._of_requests: dict[tuple[str, str, str, str], Any] = {}
        self._of_calls: dict[str, Any] = {}
        self._request_seconds = prometheus_client.Histogram(
            f"{prefix}_request_seconds",
            "How long requests took, without the network.",
            ["api", "method", "model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_rows = prometheus_client.Histogram(
            f"{prefix}_batch_rows",
            "Rows of one call of a model.",
            ["model"],
            buckets=_ROWS,
            registry=self._registry,
        )
        self._batch_requests = prometheus_client.Histogram(
            f"{prefix}_batch_requests",
            "Requests that were merged into one call of a model.",
            ["model"],
            buckets=_ROWS,
            registry=self._registry,
        )
        self._wait_seconds = prometheus_client.Histogram(
            f"{prefix}_batch_wait_seconds",
            "How long the first request of a call waited for the model, or for others to join.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._in_flight = prometheus_client.Gauge(
            f"{prefix}_requests_in_flight",
            "Requests that are being answered.",
            registry=self._registry,
        )
        self._versions = prometheus_client.Gauge(
            f"{prefix}_version_available",
            "Versions that answer requests.",
            ["model", "version"],
            registry=self._registry,
        )
        self._loads = prometheus_client.Counter(
            f"{prefix}_loads_total",
            "Versions that were loaded, or could not be.",
            ["model", "result"],
            registry=self._registry,
        )
        self._load_seconds = prometheus_client.Gauge(
            f"{prefix}_last_load_seconds",
            "How long loading the newest version took, with its warm-up.",
            ["model"],
            registry=self._registry,
        )

        hit_rate = lookup_counts.HitRate()
        prometheus_client.Gauge(
            f"{prefix}_lookup_fid_hit_rate",
            "Share of the ids looked up since this was last read that had a row; NaN if none was.",
            registry=self._registry,
        ).set_function(lambda: _or_nan(hit_rate.take()))

    @property
    def registry(self) -> prometheus_client.CollectorRegistry:
        """Where others may add what they count."""
        return self._registry

    def count_request(
        self, api: str, method: str, model: str, code: str, *, seconds: float
    ) -> None:
        """Counts an answer; `model` is empty where the request did not name a known one."""
        key = (api, method, model, code)
        known = self._of_requests.get(key)
        if known is None:
            known = self._requests.labels(*key), self._request_seconds.labels(*key[:3])
            self._of_requests[key] = known
        known[0].inc()
        known[1].observe(seconds)

    def count_call(self, model: str, requests: int, rows: int, waited_sec: float) -> None:
        """Counts a call of a model for merged requests."""
        known = self._of_calls.get(model)
        if known is None:
            all_models = self._batch_requests, self._batch_rows, self._wait_seconds
            known = self._of_calls[model] = [metric.labels(model) for metric in all_models]
        for metric, value in zip(known, (requests, rows, waited_sec), strict=True):
            metric.observe(value)

    def count_load(self, model: str, *, seconds: float | None) -> None:
        """Counts a version that was loaded, in so many seconds; None if it could not be."""
        self._loads.labels(model, "failed" if seconds is None else "loaded").inc()
        if seconds is not None:
            self._load_seconds.labels(model).set(seconds)

    def set_available(self, model: str, version: int, is_available: bool) -> None:
        """Notes whether a version answers requests; one that does not is not listed."""
        if is_available:
            self._versions.labels(model, str(version)).set(1)
        else:
            try:
                self._versions.remove(model, str(version))
            except KeyError:
                return

    def watch_in_flight(self, count: Callable[[], int]) -> None:
        """Asks a function, whenever the metrics are read, how many requests are being answered."""
        self._in_flight.set_function(count)

    def render(self) -> bytes:
        """Returns all metrics as text."""
        return prometheus_client.generate_latest(self._registry)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
