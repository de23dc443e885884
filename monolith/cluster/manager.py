"""Who takes part in a job: cluster specs, session configs, and the list of parameter servers.

Every worker builds its own `tf.train.ClusterSpec` from what service discovery knows. Worker 0 is
the chief. A worker only ever talks to parameter servers and to the chief, so the addresses of
the other workers are placeholders; device filters keep TensorFlow from connecting to them.

With redundant parameter servers more of them start than the job needs, and the first ones to
register are taken. All workers must take the same ones, so the chief writes its choice to a file
in the model directory and the workers read it there.

Example:
    >>> config = generate_session_config((
    ...     {"chief": ["h0:2222"], "worker": ["h1:2222"], "ps": ["h2:2222"]},
    ...     {"type": "worker", "index": 0},
    ... ))
    >>> list(config.device_filters)
    ['/job:ps', '/job:chief', '/job:worker/task:0']
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.cluster import net
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.progress import WaitProgress
from monolith.core import metrics

logger = logging.getLogger(__name__)

# Job name to addresses, and {"type": job name, "index": position in it}; as in TF_CONFIG.
Cluster = dict[str, list[str]]
Task = dict[str, Any]

_POLL_SEC = 5
_PS_FILE_TIMEOUT_SEC = 1800
_MAX_NAMES_IN_MESSAGE = 20

_MCLI = metrics.get_cli(prefix="monolith.containers")


def emit_store(name: str, value: float, tagkv: Mapping[str, str] | None = None) -> None:
    """Sets the gauge `name` of the metrics about a job's containers."""
    _MCLI.emit_store(name, value, tagkv)


def generate_session_config(
    cluster_and_task: tuple[Cluster, Task] | None = None,
) -> tf.compat.v1.ConfigProto:
    """Makes the config of a session, of this process alone or as a member of a cluster.

    Args:
        cluster_and_task: What `get_training_cluster` returned; None for a session that reaches
            only its own server.
    """
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if cluster_and_task is not None:
        cluster, task = cluster_and_task
        config.cluster_def.CopyFrom(tf.train.ClusterSpec(cluster).as_cluster_def())
        config.device_filters.extend(["/job:ps", "/job:chief"])
        if task["type"] != "chief":
            config.device_filters.append(f"/job:{task['type']}/task:{task['index']}")
    config.share_cluster_devices_in_session = True
    config.experimental.share_session_state_in_clusterspec_propagation = True
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def get_training_cluster(
    discovery: ServiceDiscovery,
    worker_addr: str,
    index: int,
    num_redundant_ps: int,
    num_required_ps: int,
    num_workers: int,
    model_dir: str,
    uuid: str,
    model_name: str | None = None,
    cluster_type: str = "stable",
    timeout_sec: float | None = None,
) -> tuple[Cluster, Task]:
    """Waits for the members that worker `index` needs and returns the cluster as it sees it.

    Args:
        discovery: Where members register.
        worker_addr: Address of this worker's server.
        index: This worker's index; 0 is the chief.
        num_redundant_ps: Parameter servers started beyond the required ones. If positive, the
            chief's choice is shared through a file in `model_dir`.
        num_required_ps: Parameter servers that take part.
        num_workers: Workers of the job, the chief included.
        model_dir: Where the choice of parameter servers is kept.
        uuid: Distinguishes the runs that share `model_dir`.
        model_name: Tag of the waiting metrics; without it the chief emits none.
        cluster_type: Tag of the waiting metrics.
        timeout_sec: How long to wait for the chief, and how long for servers; None for ever.

    Returns:
        The cluster and this worker's task in it, `chief` 0 or `worker` `index - 1`.

    Raises:
        ConfigError: If `index` is no index of a worker, an address is malformed, or nobody has
            come in time.
        AssertionError: If another number of parameter servers than `num_required_ps` was found,
            which can only happen after the chief's list did not appear in time.
    """
    if not 0 <= index < num_workers:
        raise errors.ConfigError(
            f"Worker index must be in 0..{num_workers - 1} for num_workers={num_workers}, "
            f"got {index}; check `index` and `num_workers` of this process."
        )
    ps_file = _get_ps_cluster_file_name(model_dir, uuid)
    is_list_shared = num_redundant_ps > 0 and num_required_ps > 0
    # TF_CONFIG has no way to leave a worker out, so the others get an address nobody listens on.
    fake_worker_list = [f"0.0.0.0:{i}" for i in range(1, num_workers)]
    cluster: Cluster
    task: Task
    if index == 0:
        ps_addrs: list[str] = []
        if is_list_shared:
            ps_addrs = _fetch_ps_cluster_from_file(ps_file, timeout=0, num_ps=num_required_ps)
        if len(ps_addrs) != num_required_ps:
            ps_addrs = _query_ps_cluster(
                discovery, num_required_ps, model_name, cluster_type, timeout_sec
            )
            _check_addresses("ps", ps_addrs)
            if is_list_shared:
                _save_ps_cluster_to_file(ps_file, ps_addrs)
        cluster = {"chief": [worker_addr], "worker": fake_worker_list, "ps": ps_addrs}
        task = {"type": "chief", "index": 0}
    else:
        chief_addr = _query_chief_addr(discovery, timeout_sec)
        fake_worker_list[index - 1] = worker_addr
        if is_list_shared:
            ps_addrs = _fetch_ps_cluster_from_file(ps_file, num_ps=num_required_ps)
        else:
            ps_addrs = _query_ps_cluster(discovery, num_required_ps, timeout_sec=timeout_sec)
        cluster = {"chief": [chief_addr], "worker": fake_worker_list, "ps": ps_addrs}
        task = {"type": "worker", "index": index - 1}

    for job, addrs in cluster.items():
        _check_addresses(job, addrs)
    if len(cluster["ps"]) != num_required_ps:
        raise AssertionError(
            f"Worker {index} needs {num_required_ps} parameter servers but found "
            f"{len(cluster['ps'])}; see whether the chief is up and wrote {ps_file}."
        )
    logger.info("Worker %d takes part as %s of %s.", index, task, cluster)
    return cluster, task


def _cluster_query_failure_handler() -> None:
    """Waits before the next poll; tests replace it to wait less."""
    time.sleep(_POLL_SEC)


class _Wait:
    """One wait for members: says what is missing, and gives up after a while."""

    def __init__(self, discovery: ServiceDiscovery, timeout_sec: float | None) -> None:
        self._where = discovery.describe()
        self._timeout_sec = timeout_sec
        self._progress = WaitProgress(logger)
        self._start_sec = time.monotonic()

    def go_on(self, missing: str) -> None:
        """Waits for a moment."""
        text = f"{missing}; looking in {self._where}"
        self._progress.report(f"{text}.")
        passed_sec = time.monotonic() - self._start_sec
        if self._timeout_sec is not None and passed_sec > self._timeout_sec:
            raise errors.ConfigError(
                f"{text}; nobody has come in {self._timeout_sec:g} s "
                "(`session_creation_timeout_secs`)."
            )
        _cluster_query_failure_handler()


def _query_chief_addr(discovery: ServiceDiscovery, timeout_sec: float | None = None) -> str:
    """Waits for worker 0 and returns its address."""
    wait = _Wait(discovery, timeout_sec)
    while True:
        workers = discovery.query("worker") or {}
        if 0 in workers:
            return workers[0]
        wait.go_on(
            f"Waiting for the chief, worker 0; registered: {_name_members('worker', workers)}"
        )


def _query_ps_cluster(
    discovery: ServiceDiscovery,
    num_required_ps: int,
    model_name: str | None = None,
    cluster_type: str = "stable",
    timeout_sec: float | None = None,
) -> list[str]:
    """Waits for enough parameter servers and returns their addresses in the order of index."""
    wait = _Wait(discovery, timeout_sec)
    while True:
        found = discovery.query("ps") or {}
        if len(found) >= num_required_ps:
            return [found[index] for index in sorted(found)][:num_required_ps]
        num_left = num_required_ps - len(found)
        missing = [index for index in range(num_required_ps) if index not in found]
        if model_name:
            tags = {"model_name": model_name, "cluster_type": cluster_type}
            emit_store("num_left_ps", num_left, tags)
            emit_store("job_waiting", 1, tags)
        wait.go_on(
            f"Waiting for parameter servers, {len(found)} of {num_required_ps} registered, "
            f"{num_left} more needed; missing: {_name_members('ps', missing)}"
        )


def _save_ps_cluster_to_file(file_name: str, ps_addrs: Sequence[str]) -> None:
    """Writes the list so that a reader sees the old one or the new one, never a part."""
    for addr in ps_addrs:
        if not addr or "," in addr:
            raise errors.ConfigError(
                f"The PS list in {file_name} is separated by commas, so an address must be "
                f"non-empty and free of commas, got {addr!r}."
            )
    tf.io.gfile.makedirs(os.path.dirname(file_name))
    tmp_name = f"{file_name}-tmp"
    with tf.io.gfile.GFile(tmp_name, "w") as f:
        f.write(",".join(ps_addrs))
    tf.io.gfile.rename(tmp_name, file_name, overwrite=True)


def _fetch_ps_cluster_from_file(
    file_name: str,
    timeout: float = _PS_FILE_TIMEOUT_SEC,
    num_ps: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Waits for the chief's list of parameter servers.

    A file that is not such a list counts as not there yet: on a file system without atomic
    rename, or after a crash, it may be cut off, and the chief will write it again.

    Args:
        file_name: Where the chief writes the list.
        timeout: Seconds after which to give up; 0 reads once.
        num_ps: How many addresses the list must have; each must then be `host:port`. None
            accepts any list of non-empty names.
        clock: Seconds on a clock that never goes back.

    Returns:
        The addresses, or [] if there was no complete list in time.
    """
    deadline_sec = clock() + timeout
    progress = WaitProgress(logger, clock)
    while True:
        ps_addrs, problem = _read_ps_cluster_file(file_name, num_ps)
        if not problem:
            return ps_addrs
        if clock() >= deadline_sec:
            # Without a timeout the caller only looks, and has another way to the list.
            level = logging.WARNING if timeout > 0 else logging.INFO
            logger.log(level, "No PS list after %s s: %s.", timeout, problem)
            return []
        progress.report(f"Waiting for the chief's PS list: {problem}.")
        _cluster_query_failure_handler()


def _get_ps_cluster_file_name(model_dir: str, uuid: str | None) -> str:
    return os.path.join(model_dir, "ps_cluster_dir", uuid or "ps_info")


def _read_ps_cluster_file(file_name: str, num_ps: int | None) -> tuple[list[str], str]:
    """Returns the list and "", or [] and what is wrong with the file."""
    try:
        with tf.io.gfile.GFile(file_name, "rb") as f:
            text = f.read().decode("utf-8", errors="replace")
    except tf.errors.NotFoundError:
        return [], f"{file_name} does not exist"
    if not text:
        return [], f"{file_name} is empty"
    ps_addrs = text.split(",")
    if not all(ps_addrs):
        return [], f"{file_name} is half-written, it has an empty address: {text!r}"
    if num_ps is not None:
        for addr in ps_addrs:
            if not _is_connectable(addr):
                return [], f"{file_name} is half-written, {addr!r} is not host:port"
        if len(ps_addrs) != num_ps:
            return [], f"{file_name} has {len(ps_addrs)} of {num_ps} addresses"
    return ps_addrs, ""


def _check_addresses(job: str, addrs: Sequence[str]) -> None:
    for position, addr in enumerate(addrs):
        if not _is_connectable(addr):
            raise errors.ConfigError(
                f"Address {position} of job {job!r} must be host:port with a port in 1..65535, "
                f"got {addr!r}; see what that process registered."
            )


def _is_connectable(addr: str) -> bool:
    try:
        _, port = net.parse_address(addr)
    except errors.ConfigError:
        return False
    return port > 0  # 0 asks the system for a free port; nobody can connect to it.


def _name_members(job: str, indices: Sequence[int] | Mapping[int, str]) -> str:
    """Names members for a message, the first ones if there are many; "none" without any."""
    ordered = sorted(indices)
    names = ", ".join(f"{job} {index}" for index in ordered[:_MAX_NAMES_IN_MESSAGE])
    num_more = len(ordered) - _MAX_NAMES_IN_MESSAGE
    return (names or "none") + (f" and {num_more} more" if num_more > 0 else "")
