"""What a job runs with: its settings from code and command line, and how its members meet.

Every documented field of `RunnerConfig` and of the configs it inherits from is also a
command-line flag with the same name and default. A value given in code wins over the flag; a
field that was left at its default takes the flag's value.

Example:
    >>> config = RunnerConfig(is_local=True, model_dir="/tmp/model")
    >>> with monolith_discovery(config) as discovery:
    ...     print(discovery)
    None
"""

import contextlib
import dataclasses
import enum
import json
import logging
import os
from collections.abc import Iterator

from absl import flags

from monolith import errors
from monolith.cluster import mlp, net
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    FileServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
)
from monolith.core import environment
from monolith.core import flags as dataclass_flags
from monolith.training import restore_override
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.restore_override import (
    gen_get_checkpoint_state,
    install_process_patches,
    isabs,
)

__all__ = [
    "ContainerType",
    "RunnerConfig",
    "gen_get_checkpoint_state",
    "get_discovery",
    "install_process_patches",
    "isabs",
    "monolith_discovery",
]

FLAGS = flags.FLAGS

logger = logging.getLogger(__name__)


class ContainerType(enum.Enum):
    """What a process runs in."""

    DOCKER = 1
    NATIVE = 2


@dataclass_flags.update_by_flags
@dataclass_flags.extract_flags_decorator(remove_flags={"device_fn"}, is_nested=True)
@dataclasses.dataclass
class RunnerConfig(DistributedCpuTrainingConfig):
    """The settings of one process of a job.

    Making one has effects on the process: inside MLP or MPI it sets up what those need, it
    mirrors the Kafka settings and `restore_ckpt` into the flags, and with `restore_dir` the chief
    prepares the model directory while the others wait for that.

    :param task: Name of the registered task to run.
    :param tf_config: TF_CONFIG of this process as JSON, for discovery_type 'primus'.
    :param deep_insight_name: Name of the model in metrics; with discovery_type 'zk' also the name
        of the job.
    :param discovery_type: How the members of the job find each other: 'primus' reads tf_config,
        'consul' asks Consul, 'zk' asks ZooKeeper, 'mlp' reads the environment, 'file' uses files
        in the model directory.
    :param zk_server: Addresses of ZooKeeper as host:port,host:port.
    :param zk_watch_address_family: Whether addresses in ZooKeeper are 'ipv4' or 'ipv6'.
    :param is_local: Whether the job is this one process.
    :param enable_fid_dedup: Whether ids are made unique before they are looked up.
    :param bzid: Business id of the model on the serving side.
    :param ps_replica_num: How many replicas each parameter server has on the serving side.
    :param tf_grpc_worker_cache_threads: Threads that complete gRPC calls of TensorFlow.
    :param monolith_grpc_worker_service_handler_multiplier: Factor for the number of handlers of
        TensorFlow's gRPC worker service.
    :param params_override: Params of the task to change, as a JSON object.
    :param base_name: Name of the service on the serving side.
    :param data_type: What records of the input are: 'instance', 'example', 'examplebatch' or
        'plaintext'.
    :param feature_list: File that lists the features.
    :param lagrangex_header: Whether records start with a Lagrange header.
    :param sort_id: Whether records have a sort id.
    :param kafka_dump: Whether input files are dumps of Kafka.
    :param kafka_dump_prefix: Whether records have the prefix of Kafka dumps.
    :param restore_dir: Model directory to start from when model_dir has no checkpoint yet.
    :param restore_ckpt: Name of the checkpoint to start from, or to go back to once, instead of
        the newest one.
    :param deep_insight_target: Heads that are sampled for deep insight, separated by commas.
    :param deep_insight_sample_ratio: Share of examples that are sampled for deep insight.
    :param unified_serving: Whether the serving side is the unified one.
    :param use_estimator: Whether the task is run by an estimator.
    :param kafka_topics: Kafka topics to read, separated by commas.
    :param kafka_group_id: Kafka consumer group.
    :param kafka_servers: Addresses of Kafka as host:port,host:port.
    :param input_path: Directory of the input, with one subdirectory for each day.
    :param is_hourly: Whether the input has a subdirectory for each hour.
    :param wildcard: Which files of a subdirectory are input.
    :param start_date: First day of the input as YYYYMMDD.
    :param end_date: Day after the last day of the input as YYYYMMDD.
    :param start_hour: First hour of the first day.
    :param end_hour: Hour after the last hour of the last day.
    :param enable_dynamic_sharding: Whether workers take input files from a shared queue.
    :param max_task_num_per_worker: How many input files a worker reads at a time.
    :param disable_native_metrics: Whether the metrics of heads are not computed within the step.
    """

    task: str | None = None
    tf_config: str | None = None
    deep_insight_name: str | None = None
    discovery_type: ServiceDiscoveryType = ServiceDiscoveryType.CONSUL
    zk_server: str | None = None
    zk_watch_address_family: str = net.AddressFamily.IPV4
    is_local: bool = False
    enable_fid_dedup: bool = False
    bzid: str | None = None
    ps_replica_num: int | None = None
    tf_grpc_worker_cache_threads: int = 16
    monolith_grpc_worker_service_handler_multiplier: float = 1.0
    params_override: str | None = None
    base_name: str | None = None
    data_type: str | None = None
    feature_list: str | None = None
    lagrangex_header: bool = False
    sort_id: bool = True
    kafka_dump: bool = False
    kafka_dump_prefix: bool = False
    restore_dir: str | None = None
    restore_ckpt: str | None = None
    deep_insight_target: str | None = None
    deep_insight_sample_ratio: float | None = None
    unified_serving: bool = False
    use_estimator: bool = False
    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    input_path: str | None = None
    is_hourly: bool = False
    wildcard: str | None = None
    start_date: int | None = None
    end_date: int | None = None
    start_hour: int | None = None
    end_hour: int | None = None
    enable_dynamic_sharding: bool = False
    max_task_num_per_worker: int = 1
    disable_native_metrics: bool = True

    def __post_init__(self) -> None:
        mlp.mlp_pass()
        mlp.add_mpi_exception_hook()
        try:
            dataclass_flags.update(self)
        except Exception:
            # A config made in code must work where no command line was parsed.
            logger.exception("The flags were not applied to the config.")
        self._take_index_from_mpi()
        self._mirror_kafka_into_flags()
        if self.zk_watch_address_family not in (net.AddressFamily.IPV4, net.AddressFamily.IPV6):
            raise AssertionError(
                "zk_watch_address_family must be 'ipv4' or 'ipv6', "
                f"got {self.zk_watch_address_family!r}."
            )
        # The flag's holder, not the flag: it may be read before a command line was parsed.
        if self.restore_ckpt and not FLAGS["restore_ckpt"].value:
            FLAGS.restore_ckpt = self.restore_ckpt
        if self.restore_ckpt or self.restore_dir:
            install_process_patches()
        if self.restore_dir:
            self._restore_from_other_model()

    def _take_index_from_mpi(self) -> None:
        rank = os.environ.get("OMPI_COMM_WORLD_RANK")
        if (
            rank is not None
            and self.enable_gpu_training
            and self.enable_partial_sync_training
            and self.server_type == "worker"
            and (self.index is None or self.index <= 0)
        ):
            self.index = int(rank)

    def _mirror_kafka_into_flags(self) -> None:
        """Hands the Kafka settings to the input pipeline, which only knows flags."""
        if self.kafka_topics:
            # A later config takes the mirrored flag over, and that is a list already.
            is_text = isinstance(self.kafka_topics, str)
            topics = self.kafka_topics.split(",") if is_text else self.kafka_topics
            FLAGS.kafka_topics = topics
        if self.kafka_group_id:
            FLAGS.kafka_group_id = self.kafka_group_id
        if self.kafka_servers:
            FLAGS.kafka_servers = self.kafka_servers

    def _restore_from_other_model(self) -> None:
        if not self.model_dir:
            raise errors.ConfigError(
                f"restore_dir {self.restore_dir!r} needs model_dir, the directory that is to start "
                "from it, but model_dir is empty; set it."
            )
        if self.is_local or (self.server_type == "worker" and self.index == 0):
            self._copy_ckpt_file()
        else:
            restore_override.wait_for_checkpoint_state(self.model_dir)

    def _copy_ckpt_file(self) -> None:
        assert self.restore_dir is not None
        restore_override.copy_checkpoint_state(self.restore_dir, self.restore_ckpt, self.model_dir)


def get_discovery(runner_conf: RunnerConfig, psm: str | None = None) -> ServiceDiscovery | None:
    """Makes the service discovery that a config asks for.

    Args:
        runner_conf: The config; with discovery_type PRIMUS its `server_type` and `index` are set
            to what `tf_config` says.
        psm: Id of the job's service in Consul.

    Returns:
        The discovery, which the caller closes; None for a local job.

    Raises:
        ConfigError: If a setting is missing that the discovery needs.
    """
    if runner_conf.is_local:
        return None
    if runner_conf.discovery_type == ServiceDiscoveryType.PRIMUS:
        discovery = TfConfigServiceDiscovery(_parse_tf_config(runner_conf.tf_config))
        runner_conf.server_type = discovery.server_type
        runner_conf.index = discovery.index
        return discovery
    if runner_conf.discovery_type == ServiceDiscoveryType.CONSUL:
        if not psm:
            raise errors.ConfigError(
                "Consul discovery needs the id of the job's service, but there is none; set uuid."
            )
        return ConsulServiceDiscovery(psm)
    if runner_conf.discovery_type == ServiceDiscoveryType.MLP:
        return MLPServiceDiscovery()
    if runner_conf.discovery_type == ServiceDiscoveryType.FILE:
        return FileServiceDiscovery(_get_discovery_dir(runner_conf))
    return ZKServiceDiscovery(runner_conf.deep_insight_name or "", runner_conf.zk_server)


@contextlib.contextmanager
def monolith_discovery(runner_conf: RunnerConfig) -> Iterator[ServiceDiscovery | None]:
    """Yields the discovery of a config, None for a local job, and closes it at the end."""
    discovery = None
    if not runner_conf.is_local:
        psm = environment.generate_psm_from_uuid(runner_conf.uuid)
        discovery = get_discovery(runner_conf, psm)
    logger.info("Entering discovery %s.", type(discovery).__name__)
    try:
        yield discovery
    finally:
        if discovery is not None:
            discovery.close()
        logger.info("Left discovery %s.", type(discovery).__name__)


def _get_discovery_dir(runner_conf: RunnerConfig) -> str:
    model_dir = runner_conf.model_dir
    if not model_dir or "://" in model_dir:
        raise errors.ConfigError(
            "File discovery keeps its files in model_dir, which must be a directory on a disk that "
            f"all members of the job share, got {model_dir!r}."
        )
    return os.path.join(model_dir, "discovery_dir", runner_conf.uuid or "job")


def _parse_tf_config(tf_config: str | None) -> dict[str, object]:
    try:
        parsed = json.loads(tf_config or "")
    except ValueError as error:
        raise errors.ConfigError(
            f"PRIMUS discovery needs tf_config as JSON, got {tf_config!r}: {error}."
        ) from error
    if not isinstance(parsed, dict):
        raise errors.ConfigError(f"tf_config must be a JSON object, got {tf_config!r}.")
    return parsed
