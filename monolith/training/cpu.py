"""Training over tables: where a job starts, and the names that people know as `cpu_training`.

A job is described by a `CpuTrainingConfig`. `local_train` is the shortest way from a task to a
trained model, in this process; `local_train_internal` takes a whole config; `distributed_train` is
what every process of a job on several machines calls, with its own role and index;
`distributed_sync_train` what each rank of a synchronous job calls; `CpuTraining` is the part that
turns a task into the functions of an estimator.

Example:
    >>> config = CpuTrainingConfig(num_ps=2)
    >>> is_chief(config), make_native_task_context(config).num_ps
    (True, 2)
"""

import copy
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.cluster import manager, primus
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.members import MemberConflictError, Membership, MemberState
from monolith.core import alerts, metrics
from monolith.graph import devices, task_context
from monolith.graph.run_config import GraphRunConfig
from monolith.serving.sync.config import SyncConfig
from monolith.training import ps_benchmark
from monolith.training.config import supported
from monolith.training.config.job import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.distributed import (
    choice,
    debugging,
    exporter,
    recovery,
    report,
    server,
    sizes,
    spares,
    start,
    worker,
)
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import serving_sync
from monolith.training.local import (
    check_graph_mode,
    local_feature_engineering_internal,
    local_train,
    local_train_internal,
    make_config_backward_compatible,
    make_local_run_config,
)
from monolith.training.synchronous import distributed_sync_train, init_sync_train_and_update_conf
from monolith.training.tables.collect import (
    _combine_slices_as_table,
    _make_serving_feature_configs_from_training_configs,
)
from monolith.training.tables.export import create_exporter
from monolith.training.tables.members import NodeAliveCheckerError, _get_blocked_addrs
from monolith.training.tables.push import (
    _CpuFeatureFactory,
    _FusedCpuFeatureFactory,
    _lookup_embedding_ids,
    get_req_time,
)
from monolith.training.tables.training import (
    CpuTraining,
    _make_serving_config_from_training_config,
    is_chief,
    make_native_task_context,
)

__all__ = [
    "CpuTraining",
    "CpuTrainingConfig",
    "DistributedCpuTrainingConfig",
    "NodeAliveCheckerError",
    "_CpuFeatureFactory",
    "_FusedCpuFeatureFactory",
    "_combine_slices_as_table",
    "_get_blocked_addrs",
    "_lookup_embedding_ids",
    "_make_serving_config_from_training_config",
    "_make_serving_feature_configs_from_training_configs",
    "create_exporter",
    "distributed_sync_train",
    "distributed_train",
    "get_req_time",
    "init_sync_train_and_update_conf",
    "is_chief",
    "local_feature_engineering_internal",
    "local_train",
    "local_train_internal",
    "make_config_backward_compatible",
    "make_local_run_config",
    "make_native_task_context",
]

logger = logging.getLogger(__name__)

# How long spare servers are measured. Read when it is used, so that tests can shorten it.
_EXTRA_PS_BENCHMARK_SECS = 120


def distributed_train(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    params: Any,
    sync_backend: Any = None,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
) -> GraphEstimator | None:
    """Takes part in a job on several processes, and returns when that job is over for this one.

    Every process calls it, with its own role and index: `num_ps` parameter servers, and
    `num_workers` workers, of which number 0 is the chief. A server stays until the chief dismisses
    it. A worker trains on its part of the input; when it loses a member it waits and tries again.
    The chief restores and saves, waits for its workers at the end, and then dismisses the servers.

    Args:
        config: The job, and what this process is in it. With a discovery that plans each process,
            TF_CONFIG or MLP, role and index are taken from there.
        discovery: How the members find each other. The caller closes it.
        params: Settings of the task; `params.instantiate()` makes it. `train.max_steps` ends the
            training, or the end of the input does.
        sync_backend: Tells which servers get what this process changes, as
            `monolith.serving.sync.targets.SyncBackend` says; None: as the config says.
        user_hooks: Hooks of the caller.

    Returns:
        The estimator of a worker; None in a server, and in a worker whose chief has finished first.

    Raises:
        EnvironmentError: TensorFlow executes eagerly.
        ValueError: The config makes no sense, or is not that of the other members.
        MemberConflictError: Another process has this role and index.
        JobFailedError: The chief has failed, or was stopped, and this process ends with it; or
            members were lost more often than `max_retry_times` allows.
        SystemExit: SIGTERM has stopped the training, which is saved.
    """
    check_graph_mode()
    if discovery is None:
        raise errors.ConfigError("distributed_train needs a discovery, got None.")
    start.take_role(config, discovery)
    start.check_config(config)
    supported.check_settings(config)
    supported.refuse_ranks(config)
    config.prepare_process()
    tf_server, addr = start.start_server(config, discovery)
    start.check_place(config, discovery, addr)
    with start.joined(config, addr) as member, exporter.serving(config, member) as metrics_port:
        _prepare_server(tf_server.target, config)
        start.register(config, discovery, addr)
        if config.server_type == devices.PS_JOB_NAME:
            if not config.model_name:
                config.model_name = params.metrics.deep_insight_name or ""
            sync_config = serving_sync.make_sync_config(config)
            backend = sync_backend or serving_sync.make_backend(config)
            with task_context.with_ctx(make_native_task_context(config, backend)):
                checks: list[Callable[[], None]] = [sizes.SizeCheck(member)]
                find_end = None
                if not config.enable_realtime_training or config.force_shutdown_ps:
                    find_end = server.ChiefEnd(config.model_dir)
                    checks.append(server.ChiefWait(member, config.session_creation_timeout_secs))
                with report.ServerReport(tf_server.target, member, config.model_dir, metrics_port):
                    _join_ps(
                        tf_server.target,
                        config.index,
                        backend,
                        member=member,
                        find_end=find_end,
                        checks=checks,
                        sync_config=sync_config,
                    )
            return None
        make_config_backward_compatible(config.model_dir, config)
        return _train_as_worker(config, discovery, params, user_hooks, tf_server, addr, member)


def _train_as_worker(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    params: Any,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None,
    tf_server: tf.distribute.Server,
    addr: str,
    member: Membership,
) -> GraphEstimator | None:
    deep_insight_name = params.metrics.deep_insight_name
    ask_for_cluster = functools.partial(
        manager.get_training_cluster,
        recovery.UntilJobIsOver(discovery, config, member),
        addr,
        config.index,
        config.num_redundant_ps,
        config.num_ps + config.num_extra_ps,
        config.num_workers,
        config.model_dir,
        config.uuid,
        deep_insight_name,
        config.cluster_type,
        config.session_creation_timeout_secs,
    )

    def find_cluster() -> tuple[manager.Cluster, manager.Task]:
        spares.settle(config, discovery, member)
        return ask_for_cluster()

    retries = recovery.Retries(config, find_cluster, member)
    cluster, task = retries.find_cluster()
    heartbeat = None
    if is_chief(config):
        alerts.take_over_as_chief()
        _report_ready(config, deep_insight_name)
        heartbeat = _MetricsHeartBeatThread()
        heartbeat.start()
    failure: BaseException | None = None
    try:
        while True:
            try:
                if len(cluster["ps"]) > config.num_ps:
                    _choose_servers(config, cluster, task, member)
                return _run_attempt(config, params, cluster, task, user_hooks, member)
            except recovery.LOST_MEMBER_ERRORS as error:
                cluster, task = retries.wait_for_cluster(error)
    except recovery.JobIsOver:
        return None
    except BaseException as error:
        failure = error
        raise
    finally:
        if is_chief(config):
            assert heartbeat is not None
            heartbeat.stop()
            _end_job(config, discovery, tf_server.target, cluster, task, member, failure)


def _choose_servers(
    config: DistributedCpuTrainingConfig,
    cluster: manager.Cluster,
    task: manager.Task,
    member: Membership,
) -> None:
    """Leaves the spare servers out that are slower than the others."""

    def measure(hooks: Sequence[tf.compat.v1.train.SessionRunHook]) -> list[str]:
        measured = copy.deepcopy(cluster)
        _run_ps_benchmark(config, config.num_ps, measured, task, hooks)
        return measured["ps"]

    cluster["ps"] = choice.choose_servers(config, cluster, member, measure)


def _run_attempt(
    config: DistributedCpuTrainingConfig,
    params: Any,
    cluster: manager.Cluster,
    task: manager.Task,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None,
    member: Membership,
) -> GraphEstimator | None:
    if config.only_feature_engineering:
        _do_worker_feature_engineering(config, params, cluster, member)
        return None
    return _do_worker_train(config, params, cluster, task, user_hooks, member=member)


def _end_job(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    target: str,
    cluster: manager.Cluster,
    task: manager.Task,
    member: Membership,
    failure: BaseException | None,
) -> None:
    """What the chief does last: lets the servers go, and tells the scheduler."""
    if isinstance(failure, MemberConflictError) or not member.has_place():
        logger.warning("the servers stay, since the job has another chief")
        return
    if not config.enable_realtime_training or config.force_shutdown_ps:
        everybody = recovery.list_all_servers(discovery, cluster)
        end, chief = start.get_end(failure), member.record.incarnation
        _shutdown_ps(target, everybody, task, len(everybody["ps"]), chief, end)
    if failure is None:
        primus.maybe_finish_application()
    else:
        primus.maybe_kill_application(str(failure))


def _do_worker_train(
    config: DistributedCpuTrainingConfig,
    params: Any,
    cluster: manager.Cluster,
    task: manager.Task,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
    member: Membership | None = None,
    container: str = "",
) -> GraphEstimator:
    """One attempt to train, see `monolith.training.distributed.worker.train`."""
    return worker.train(
        config,
        params,
        cluster,
        task,
        user_hooks,
        member,
        save_info=_save_debugging_info,
        place=_get_replica_device_setter,
        container=container,
    )


def _do_worker_feature_engineering(
    config: DistributedCpuTrainingConfig,
    params: Any,
    cluster: manager.Cluster,
    member: Membership,
) -> None:
    """Writes features to files, see `monolith.training.distributed.worker.write_features`."""
    worker.write_features(config, params, cluster, member)


def _run_ps_benchmark(
    config: DistributedCpuTrainingConfig,
    num_ps_required: int,
    cluster: manager.Cluster,
    task: manager.Task,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
) -> None:
    """Leaves the fastest servers in `cluster`; all workers measure together.

    Args:
        config: The job.
        num_ps_required: How many servers stay.
        cluster: Has all of them; changed in place.
        task: Which part of the cluster this process is.
        user_hooks: Hooks of the caller.
    """
    params = ps_benchmark.PsBenchMarkTask.params()
    params.bm_config = ps_benchmark.BenchmarkConfig(
        ps_list=list(cluster["ps"]),
        num_ps_required=num_ps_required,
        num_workers=config.num_workers,
        index=config.index,
        benchmark_secs=_EXTRA_PS_BENCHMARK_SECS,
    )
    benchmark = copy.deepcopy(config)
    benchmark.num_ps += benchmark.num_extra_ps
    benchmark.enable_sync_training = benchmark.enable_partial_sync_training = False
    benchmark.model_dir = os.path.join(config.model_dir, "benchmark_dir")
    benchmark.operation_timeout_in_ms = int(_EXTRA_PS_BENCHMARK_SECS * 1000 + 30000)
    # Servers that keep what they have would take its step for that of the training.
    container = ps_benchmark.CONTAINER
    _do_worker_train(
        benchmark, params, copy.deepcopy(cluster), task, user_hooks, container=container
    )
    cluster["ps"] = params.bm_config.ps_list


def _prepare_server(target: str, config: DistributedCpuTrainingConfig) -> None:
    server.prepare_server(target, config)


def _join_ps(
    target: str,
    ps_index: int,
    sync_backend: Any = None,
    *,
    member: Membership | None = None,
    find_end: Callable[[], MemberState | None] | None = None,
    checks: Sequence[Callable[[], None]] = (),
    sync_config: SyncConfig | None = None,
) -> None:
    """Blocks until this server is dismissed, see `wait_for_dismissal`; sends its rows meanwhile."""
    with serving_sync.ServerSync(target, ps_index, sync_backend, sync_config):
        server.wait_for_dismissal(target, ps_index, member, find_end, checks)


def _shutdown_ps(
    target: str,
    cluster: manager.Cluster,
    task: manager.Task,
    num_ps: int,
    chief: str = "",
    end: MemberState = MemberState.FINISHED,
) -> None:
    """Dismisses the servers, see `dismiss_servers`."""
    server.dismiss_servers(target, cluster, task, num_ps, chief, end)


def _save_debugging_info(
    config: DistributedCpuTrainingConfig, cluster: manager.Cluster, training: CpuTraining
) -> None:
    debugging.save_debugging_info(config, cluster, training)


def _get_replica_device_setter(run_config: GraphRunConfig) -> devices.DeviceFunction | None:
    """Returns what deals the variables of a cluster's graph out to its servers."""
    return devices.make_replica_device_setter(
        run_config.cluster_spec, run_config.task_type, run_config.task_id
    )


def _convert_parquets_to_instance(parquets_path: str, instance_path: str) -> None:
    """Writes items of Parquet files as instances, see `monolith.data.parquet_instances`."""
    # Not at the top: pyarrow starts a thread, and members are forked from who imports this.
    from monolith.data import parquet_instances

    parquet_instances.convert_parquets_to_instance(parquets_path, instance_path)


class _MetricsHeartBeatThread:
    """Emits, again and again, that a training runs.

    Args:
        interval: Seconds between two signs of life.
    """

    def __init__(self, interval: float = 30) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training_heart_beat", daemon=True)

    def start(self) -> None:
        """Starts to emit."""
        self._thread.start()

    def stop(self) -> None:
        """Emits that the training has ended."""
        self._stop.set()
        self._thread.join(timeout=10 * self._interval)

    def _run(self) -> None:
        client = metrics.get_cli(metrics.get_metric_prefix())
        while True:
            client.emit_store("training_heart_beat", int(time.time()), {"type": "running"})
            if self._stop.wait(self._interval):
                break
        client.emit_store("training_heart_beat", int(time.time()), {"type": "stopped"})
        client.flush()


def _report_ready(config: DistributedCpuTrainingConfig, model_name: str | None) -> None:
    """Emits how long it took from the submission of the job until all members were there."""
    if config.submit_time_secs and model_name:
        client = metrics.get_cli(metrics.get_metric_prefix())
        client.emit_timer(
            "container_ready_elapsed_time.all",
            time.time() - config.submit_time_secs,
            {"model_name": model_name, "cluster_type": config.cluster_type},
        )
