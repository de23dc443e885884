"""Metrics of a member, as Prometheus reads them, on a port that is closed unless it is asked for.

Whatever a member says in its record is what is told, so that being asked costs a member nothing but
the answer. The names begin with `monolith_training_`; what the process itself uses (`process_*`) is
beside them.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     member = Membership(model_dir, "ps", 0, "127.0.0.1:2222", details={"rows": 12})
    ...     text = prometheus_client.generate_latest(make_registry(member)).decode()
    >>> [line for line in text.splitlines() if line.startswith("monolith_training_rows")]
    ['monolith_training_rows 12.0']
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator

import prometheus_client
from prometheus_client import metrics_core, registry

from monolith import errors
from monolith.cluster import net
from monolith.cluster.members import Membership, MemberState
from monolith.training.config.job import DistributedCpuTrainingConfig

logger = logging.getLogger(__name__)

# The fact in a member's record that says where it can be asked.
METRICS = "metrics"

_PREFIX = "monolith_training_"
_MAX_PORT = 65535
# Facts of `monolith.training.distributed.report` that only grow, and others.
_COUNTERS = {
    "steps": "Steps that this worker has trained.",
    "examples": "Examples that this worker has trained on.",
    "sent_bytes": "Bytes that connections with other members have sent.",
    "received_bytes": "Bytes that connections with other members have received.",
}
_GAUGES = {
    "global_step": "Steps of all workers.",
    "steps_per_sec": "Steps per second of this worker, in the last ten seconds.",
    "examples_per_sec": "Examples per second of this worker, in the last ten seconds.",
    "steps_behind": "Updates that come between the lookup of a batch and its push.",
    "requests_per_step": "Tensors that cross between this worker and the servers in a step.",
    "sent_bytes_per_step": "Bytes that this worker sends in a step.",
    "received_bytes_per_step": "Bytes that this worker receives in a step.",
    "rows": "Rows of all tables of this server.",
    "table_bytes": "Memory of all tables of this server.",
}


@contextlib.contextmanager
def serving(config: DistributedCpuTrainingConfig, member: Membership) -> Iterator[int | None]:
    """Has a member answer on `metrics_port` during a block, if that is set.

    Yields:
        The port.

    Raises:
        errors.ConfigError: The port is none, or cannot be had.
    """
    port, host = config.metrics_port, config.metrics_host
    if port is None:
        yield None
        return
    if not 0 <= port <= _MAX_PORT:
        raise errors.ConfigError(
            f"`metrics_port` must be in 0..{_MAX_PORT}, 0 for any that is free, got {port}."
        )
    try:
        server, thread = prometheus_client.start_http_server(port, host, make_registry(member))
    except OSError as error:
        raise errors.ConfigError(
            f"{config.server_type.capitalize()} {config.index} cannot tell its metrics at "
            f"{net.concat_ip_and_port(host, port)} ({error.strerror or error}); set `metrics_port` "
            "to another port, or to 0 for any that is free, and `metrics_host` to an address of "
            "this machine."
        ) from error
    address = net.concat_ip_and_port(host, server.server_port)
    logger.info("metrics are told at http://%s/metrics", address)
    member.update(details={METRICS: address})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        member.update(details={METRICS: None})


def make_registry(member: Membership) -> prometheus_client.CollectorRegistry:
    """Returns what tells the metrics of a member."""
    found = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=found)
    found.register(_RecordCollector(member))
    return found


class _RecordCollector(registry.Collector):
    def __init__(self, member: Membership) -> None:
        self._member = member

    def describe(self) -> Iterable[metrics_core.Metric]:
        return []

    def collect(self) -> Iterator[metrics_core.Metric]:
        record = self._member.record
        info = metrics_core.InfoMetricFamily(f"{_PREFIX}member", "Which member this is.")
        names = {"role": record.role, "index": str(record.index), "address": record.address}
        info.add_metric([], names)
        yield info
        state = metrics_core.GaugeMetricFamily(
            f"{_PREFIX}state", "What the member does: 1 for the present one.", labels=["state"]
        )
        for known in MemberState:
            state.add_metric([known.value], float(known is record.state))
        yield state
        yield metrics_core.GaugeMetricFamily(
            f"{_PREFIX}start_time_seconds", "When the member started.", record.started_sec
        )
        for kind, facts in (
            (metrics_core.CounterMetricFamily, _COUNTERS),
            (metrics_core.GaugeMetricFamily, _GAUGES),
        ):
            for name, text in facts.items():
                value = record.details.get(name)
                if value is not None:
                    yield kind(f"{_PREFIX}{name}", text, value=float(value))
