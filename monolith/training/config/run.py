"""The settings of an `Estimator`: the few that most jobs need.

A `RunConfig` leaves at its default what it does not say, so that a value from the command line,
which a `RunnerConfig` takes, still counts.

Example:
    >>> config = RunConfig(is_local=True, num_ps=2)
    >>> config.to_runner_config().num_ps
    2
"""

import dataclasses
import json
from typing import Any

from monolith import errors
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.core.export_marker import monolith_export
from monolith.training import runner

# These have another default in a `RunnerConfig`.
_OWN_DEFAULTS = ("max_retry_times", "retry_wait_in_secs")


@monolith_export
@dataclasses.dataclass
class RunConfig:
    """How an `Estimator` runs; see `RunnerConfig` for all settings.

    An `Estimator` refuses what this version does not do, see `monolith.training.config.supported`.

    Attributes:
        is_local: Whether the job is this one process.
        num_ps: How many parameter servers there are; in a local job, in this process.
        num_workers: How many workers there are.
        chief_timeout_secs: How long the chief waits for the other workers at the end.
        operation_timeout_in_ms: Longest time of one session run; -1 means no limit.
        session_creation_timeout_secs: How long a worker waits for the session to be ready.
        enable_fused_layout: Whether embeddings are looked up by layout in one fused op.
        enable_model_dump: Whether the model is written as a protobuf.
        partial_recovery: Whether a restore leaves servers alone that did not restart. None: in a
            cluster that `monolith train` or an `Estimator` starts, yes.
        max_retry_times: How often, from one save to the next, a worker starts again after the
            cluster changed.
        retry_wait_in_secs: How long a worker waits before it starts again.
        bzid: Business id of the model on the serving side.
        base_name: Name of the service on the serving side.
        ps_replica_num: How many replicas each server has on the serving side.
        enable_parameter_sync: Whether what changes is sent to a serving side that is found by
            `bzid` and `base_name` in ZooKeeper.
        sync_to: Where servers announce themselves that get what changes: 'file:DIR' or
            'zk:HOSTS/BZID/NAME', as for `monolith serve --discovery`.
        sync_model: What they call a model that was exported as a whole.
        sync_interval_secs: Seconds between two times that changed rows are sent.
        sync_dense_interval_secs: Seconds between two times that all variables are sent.
        sync_timeout_secs: How long a server may take to answer a message.
        sync_token_file: A file with the token that the servers ask for.
        sync_ca_file: A PEM file with the authorities that vouch for the servers, which are called
            over TLS then.
        model_dir: Directory of checkpoints and summaries.
        restore_dir: Model directory to start from when `model_dir` has no checkpoint yet.
        restore_ckpt: Name of the checkpoint to start from instead of the newest one.
        save_checkpoints_secs: Seconds between checkpoints.
        save_checkpoints_steps: Steps between checkpoints.
        max_rpc_deadline_millis: Longest time that the serving side waits for a server.
        dense_only_save_checkpoints_secs: Seconds between checkpoints of dense variables alone.
        dense_only_save_checkpoints_steps: Steps between them.
        incremental_save_steps: Steps between saves of what has changed since the last one, between
            full checkpoints; None: as the task says, an `ml.Model` has none.
        incremental_save_secs: Seconds between them; one of the two.
        checkpoints_max_to_keep: How many checkpoints stay on disk.
        fall_back_to_older_checkpoint: Whether training goes on from an older checkpoint if the
            newest is damaged.
        rebuild_checkpoint_list: Whether training goes on from the newest checkpoint if the file
            `checkpoint`, which lists them, is missing.
        warmup_file: File of requests that warm up an exported model.
        enable_local_profiling: Whether a local job records a profile for TensorBoard.
        use_native_multi_hash_table: Whether all tables of a server live in one resource; None: as
            the checkpoint has it, else yes.
        clear_nn: Whether a reload starts with fresh dense variables.
        continue_training: Whether it keeps the global step then.
        reload_alias_map: New name to old name of variables in a reload.
        enable_alias_map_auto_gen: Whether a reload finds renamed variables by itself.
        kafka_topics: Kafka topics that PBDataset reads in place of what it is given, separated by
            commas; an `ml.Estimator` refuses them beside other data, see `ml.data.kafka`.
        kafka_group_id: Their consumer group.
        kafka_servers: Addresses of Kafka; all three are set, or none.
        disable_native_metrics: Whether training steps leave out metrics of heads.
        save_summary_steps: Steps between summaries. None: 100; of an `ml.Estimator`, more and more,
            so that there is a curve from the first steps on.
        log_step_count_steps: Steps between log lines. None: 100; an `ml.Estimator` shows a line by
            time then.
        enable_dynamic_sharding: Whether workers take input files as they go, instead of each its
            part of them.
        embedding_prefetch_capacity: Batches that may wait between the lookup of their rows and the
            model; 0: none, each is looked up in its own step. None: 1.
        enable_variable_prefetch: Whether dense variables are read from a local copy, which is
            fetched from the servers beside each step.
        transfer_float16: Whether rows and gradients travel as float16 between workers and servers.
        metrics_port: Port on which each member of a job tells its metrics as Prometheus reads
            them; 0 takes a free one, which `monolith status` shows. None: none is opened.
        metrics_host: Address that it is opened on; 0.0.0.0 is all addresses.
        controller_host: Address that the controller listens on, for calls with its token; None:
            127.0.0.1, unless the task says otherwise.
        sync: Whether this process is a rank of a synchronous job, as `monolith run` starts them:
            ranks share the tables and average their gradients in every step. One process alone is
            the only rank.
    """

    is_local: bool = False
    num_ps: int = 0
    num_workers: int = 1
    chief_timeout_secs: int = 1800
    operation_timeout_in_ms: int = -1
    session_creation_timeout_secs: int = 7200
    enable_fused_layout: bool = False
    enable_model_dump: bool = False
    partial_recovery: bool | None = None
    max_retry_times: int = 6
    retry_wait_in_secs: int = 5
    bzid: str | None = None
    base_name: str | None = None
    ps_replica_num: int | None = None
    enable_parameter_sync: bool = False
    sync_to: str | None = None
    sync_model: str = "default"
    sync_interval_secs: float = 10.0
    sync_dense_interval_secs: float = 60.0
    sync_timeout_secs: float = 3.0
    sync_token_file: str | None = None
    sync_ca_file: str | None = None
    model_dir: str = ""
    restore_dir: str | None = None
    restore_ckpt: str | None = None
    save_checkpoints_secs: int | None = None
    save_checkpoints_steps: int | None = None
    max_rpc_deadline_millis: int = 30000
    dense_only_save_checkpoints_secs: int | None = None
    dense_only_save_checkpoints_steps: int | None = None
    incremental_save_steps: int | None = None
    incremental_save_secs: int | None = None
    checkpoints_max_to_keep: int = 10
    fall_back_to_older_checkpoint: bool = False
    rebuild_checkpoint_list: bool = False
    warmup_file: str = "./warmup_file"
    enable_local_profiling: bool = False
    use_native_multi_hash_table: bool | None = None
    clear_nn: bool = False
    continue_training: bool = False
    reload_alias_map: dict[str, Any] | None = None
    enable_alias_map_auto_gen: bool | None = None
    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    disable_native_metrics: bool = True
    save_summary_steps: int | None = None
    log_step_count_steps: int | None = None
    enable_dynamic_sharding: bool = False
    embedding_prefetch_capacity: int | None = None
    enable_variable_prefetch: bool = False
    transfer_float16: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    controller_host: str | None = None
    sync: bool = False

    def to_json(self) -> str:
        """Returns all settings as a JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunConfig":
        """Returns the settings that `to_json` wrote.

        Raises:
            ConfigError: It is not a JSON object, or has a setting that does not exist.
        """
        try:
            settings = json.loads(text)
        except ValueError as e:
            raise errors.ConfigError(f"A RunConfig is read from JSON, got {text!r}: {e}.") from e
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(settings, dict) or not settings.keys() <= known:
            unknown = sorted(settings.keys() - known) if isinstance(settings, dict) else settings
            raise errors.ConfigError(f"A RunConfig does not have {unknown!r}.")
        return cls(**settings)

    def to_runner_config(self) -> runner.RunnerConfig:
        """Returns the settings with all others, which may come from the command line.

        Lookups run ahead of the steps and gradients behind them, and jobs that would meet in
        Consul meet in ZooKeeper.

        Raises:
            ConfigError: Two settings exclude each other.
        """
        if self.sync and self.transfer_float16:
            raise errors.ConfigError(
                "`sync` and `transfer_float16` are both True, but ranks exchange rows as they are; "
                "leave one of them at False."
            )
        if self.incremental_save_steps is not None and self.incremental_save_secs is not None:
            raise errors.ConfigError(
                f"`incremental_save_steps` is {self.incremental_save_steps} and "
                f"`incremental_save_secs` is {self.incremental_save_secs}, but changes are saved "
                "at one pace; leave one of them unset."
            )
        changed = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not None
            and getattr(self, field.name) != field.default
            and hasattr(runner.RunnerConfig, field.name)
        }
        config = runner.RunnerConfig(**changed)
        for name in _OWN_DEFAULTS:
            if getattr(config, name) == getattr(runner.RunnerConfig, name):
                setattr(config, name, getattr(self, name))
        if config.discovery_type == ServiceDiscoveryType.CONSUL:
            config.discovery_type = ServiceDiscoveryType.ZK
        if self.sync:
            config.enable_sync_training = True
            config.reorder_fids_in_data_pipeline = True
        elif not config.enable_gpu_training:
            if self.embedding_prefetch_capacity is None:
                config.embedding_prefetch_capacity = max(1, config.embedding_prefetch_capacity)
            config.enable_embedding_postpush = True
        if self.enable_parameter_sync:
            config.enable_realtime_training = True
        return config
