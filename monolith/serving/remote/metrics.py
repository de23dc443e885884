"""What is counted of the calls to other servers, for Prometheus.

Example:
    >>> import prometheus_client
    >>> registry = prometheus_client.CollectorRegistry()
    >>> metrics = RemoteMetrics(registry)
    >>> metrics.count_call("ps_0", "OK", seconds=0.002)
    >>> registry.get_sample_value(
    ...     "monolith_serving_remote_calls_total", {"model": "ps_0", "code": "OK"})
    1.0
"""

import prometheus_client

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class RemoteMetrics:
    """The metrics of one client.

    Args:
        registry: Where they go.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        prefix = "monolith_serving_remote"
        self._calls = prometheus_client.Counter(
            f"{prefix}_calls_total",
            "Calls of models on other servers, by how they ended.",
            ["model", "code"],
            registry=registry,
        )
        self._call_seconds = prometheus_client.Histogram(
            f"{prefix}_call_seconds",
            "How long calls took, with all their attempts.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._retries = prometheus_client.Counter(
            f"{prefix}_retries_total",
            "Attempts that came after one that failed.",
            ["model"],
            registry=registry,
        )
        self._hedges = prometheus_client.Counter(
            f"{prefix}_hedges_total",
            "Attempts that were made because another one was slow.",
            ["model"],
            registry=registry,
        )
        self._defaults = prometheus_client.Counter(
            f"{prefix}_default_rows_total",
            "Calls without an answer whose rows were replaced by default ones.",
            ["model"],
            registry=registry,
        )

    def count_call(self, model: str, code: str, *, seconds: float) -> None:
        self._calls.labels(model, code).inc()
        self._call_seconds.labels(model).observe(seconds)

    def count_retry(self, model: str) -> None:
        self._retries.labels(model).inc()

    def count_hedge(self, model: str) -> None:
        self._hedges.labels(model).inc()

    def count_default(self, model: str) -> None:
        self._defaults.labels(model).inc()
