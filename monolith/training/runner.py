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
from monolith.training.config.checkpoint import StartSettings
from monolith.training.config.cluster import DiscoverySettings
from monolith.training.config.export import ServingSettings
from monolith.training.config.input import InputSettings, RecordSettings
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.config.metrics import InsightSettings
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
    "prepare_process",
    "prepare_when_made",
]

FLAGS = flags.FLAGS

logger = logging.getLogger(__name__)

# Whether making a config prepares the process; see `prepare_when_made`.
_prepares_when_made = False


class ContainerType(enum.Enum):
    """What a process runs in."""

    DOCKER = 1
    NATIVE = 2


@dataclass_flags.update_by_flags
@dataclass_flags.extract_flags_decorator(remove_flags={"device_fn"}, is_nested=True)
@dataclasses.dataclass
class RunnerConfig(
    InputSettings,
    RecordSettings,
    ServingSettings,
    InsightSettings,
    StartSettings,
    DiscoverySettings,
    DistributedCpuTrainingConfig,
):
    """The settings of one process of a job.

    Making one reads the flags and the environment, and changes nothing; `prepare_process` does to
    the process what the settings ask for.
    """

    def __post_init__(self) -> None:
        try:
            dataclass_flags.update(self)
        except Exception:
            # A config made in code must work where no command line was parsed.
            logger.exception("The flags were not applied to the config.")
        self._take_index_from_mpi()
        if self.zk_watch_address_family not in (net.AddressFamily.IPV4, net.AddressFamily.IPV6):
            raise AssertionError(
                "zk_watch_address_family must be 'ipv4' or 'ipv6', "
                f"got {self.zk_watch_address_family!r}."
            )
        if _prepares_when_made:
            prepare_process(self)

    def prepare_process(self) -> None:
        """Does what the module's function of this name does."""
        prepare_process(self)

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


def prepare_process(config: RunnerConfig) -> None:
    """Does to this process, and to the model directory, what a job needs before it starts.

    Inside MLP or MPI that is what those need; the Kafka settings are handed to those who only know
    flags; and with `restore_dir` the chief prepares the model directory while the others wait for
    that. `restore_ckpt` concerns the job, and is left to who trains or evaluates; only where the
    historical path was imported is the flag set as well. Entry points call this; a second call
    finds everything done.

    Args:
        config: The job.

    Raises:
        ConfigError: `restore_dir` is given without `model_dir`.
    """
    mlp.mlp_pass()
    mlp.add_mpi_exception_hook()
    _mirror_input_into_flags(config)
    # The flag's holder, not the flag: it may be read before a command line was parsed.
    if _prepares_when_made and config.restore_ckpt and not FLAGS["restore_ckpt"].value:
        FLAGS.restore_ckpt = config.restore_ckpt
    if config.restore_dir:
        install_process_patches()
        _start_from_other_model(config, config.restore_dir)


def prepare_when_made() -> None:
    """From now on, making a `RunnerConfig` also prepares the process.

    Importing the historical path `monolith.native_training.runner_utils` calls this: code that
    names it relies on the patches of the process, and on a config that has copied its checkpoint.
    """
    global _prepares_when_made
    install_process_patches()
    _prepares_when_made = True


def _mirror_input_into_flags(config: RunnerConfig) -> None:
    """Hands what `PBDataset` is to read to the input pipeline, which only knows flags."""
    if config.data_type:
        FLAGS.data_type = config.data_type
    if not config.sort_id:
        FLAGS.sort_id = False
    if config.kafka_topics:
        # A later config takes the mirrored flag over, and that is a list already.
        is_text = isinstance(config.kafka_topics, str)
        topics = config.kafka_topics.split(",") if is_text else config.kafka_topics
        FLAGS.kafka_topics = topics
    if config.kafka_group_id:
        FLAGS.kafka_group_id = config.kafka_group_id
    if config.kafka_servers:
        FLAGS.kafka_servers = config.kafka_servers


def _start_from_other_model(config: RunnerConfig, restore_dir: str) -> None:
    if not config.model_dir:
        raise errors.ConfigError(
            f"restore_dir {restore_dir!r} needs model_dir, the directory that is to start "
            "from it, but model_dir is empty; set it."
        )
    if config.is_local or (config.server_type == "worker" and config.index == 0):
        restore_override.copy_checkpoint_state(restore_dir, config.restore_ckpt, config.model_dir)
    else:
        restore_override.wait_for_checkpoint_state(config.model_dir)


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
