"""Which settings this version of Monolith refuses, and why; the one place that does.

A config may carry any setting, since one config describes many kinds of job. When a job starts
with it, what nobody would act on is refused by name: a setting that is read nowhere looks like one
that works. Whoever makes one of them work takes its line out of `REFUSED`; a test walks over all
fields and fails for one that is neither read nor listed.

Example:
    >>> check_settings(CpuTrainingConfig(num_ps=2))
    >>> check_settings(CpuTrainingConfig(enable_gpu_training=True))
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: `enable_gpu_training` is True, which asks for training on GPUs; \
this version of Monolith does not do that, leave it at False.
"""

import dataclasses
from typing import Any

from monolith import errors
from monolith.core import directories
from monolith.training.config.job import CpuTrainingConfig

_SECOND_PASS = "a second pass over candidate items"
_DATED_INPUT = "a directory of input for each day or hour"
_FRAMING = "a framing of records that is not an argument of PBDataset"
_GPU = "training on GPUs"
_FOUNTAIN = "input from the Fountain service"
_DATA_SERVICE = "input from the tf.data service"

# Field to what it asks for, by the files of the groups.
REFUSED = {
    # cluster
    "fountain_zk_host": _FOUNTAIN,
    "fountain_model_name": _FOUNTAIN,
    "task": "running a registered task by its name",
    "use_estimator": "choosing how a registered task is run",
    "monolith_grpc_worker_service_handler_multiplier": "a TensorFlow with more gRPC handlers",
    # sync
    "enable_gpu_training": _GPU,
    "processes_per_gpu": _GPU,
    "merge_sync_training_ckpt": "a model directory for each rank",
    # metrics
    "profile_with_nvprof_from_to": "a profile of GPU kernels",
    "deep_insight_sample_ratio": "sending samples of predictions for analysis",
    # export
    "enable_model_dump": "a dump of the model as a protobuf",
    "ps_replica_num": "a fixed number of replicas on the serving side",
    # input
    "use_dataservice": _DATA_SERVICE,
    "num_extra_dsworker_on_gpu_worker": _DATA_SERVICE,
    "enable_resource_constrained_roughsort": _SECOND_PASS,
    "roughsort_candidate_items_path": _SECOND_PASS,
    "roughsort_items_use_parquet": _SECOND_PASS,
    "items_input_lagrangex_header": _SECOND_PASS,
    "items_input_has_sort_id": _SECOND_PASS,
    "items_input_kafka_dump": _SECOND_PASS,
    "items_input_kafka_dump_prefix": _SECOND_PASS,
    "feature_list": "features that are listed in a file",
    "lagrangex_header": _FRAMING,
    "kafka_dump": _FRAMING,
    "kafka_dump_prefix": _FRAMING,
    "enable_fid_dedup": "making ids unique in the input pipeline",
    "input_path": _DATED_INPUT,
    "is_hourly": _DATED_INPUT,
    "wildcard": _DATED_INPUT,
    "start_date": _DATED_INPUT,
    "end_date": _DATED_INPUT,
    "start_hour": _DATED_INPUT,
    "end_hour": _DATED_INPUT,
    "max_task_num_per_worker": "workers that read several files at a time",
}

# PBDataset reads Kafka in place of files if all of them are set.
_KAFKA = ("kafka_topics", "kafka_group_id", "kafka_servers")

# What only ranks do that share the tables.
_ONLY_IN_SYNC = (
    "enable_async_optimize",
    "enable_pipelined_fwda2a",
    "enable_pipelined_bwda2a",
    "reorder_fids_in_data_pipeline",
)

# A `RunConfig` has defaults of its own for these, and hands them on to the config of the job.
_OTHER_DEFAULTS = {"max_retry_times": 6, "retry_wait_in_secs": 5}


def check_settings(config: CpuTrainingConfig) -> None:
    """Refuses a config that asks for what this version does not do; entry points call this.

    Raises:
        ConfigError: A setting of `REFUSED` is not at its default, some of those that belong
            together are not set, or a text, any of which may be part of a path, has a NUL
            character.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in REFUSED and not _is_default(field, value):
            raise errors.ConfigError(
                f"`{field.name}` is {value!r}, which asks for {REFUSED[field.name]}; this version "
                f"of Monolith does not do that, leave it at {field.default!r}."
            )
        if isinstance(value, str):
            directories.check_path(field.name, value)
    unset = [name for name in _KAFKA if not getattr(config, name, None)]
    if 0 < len(unset) < len(_KAFKA):
        raise errors.ConfigError(
            f"`{unset[0]}` is not set, but input from Kafka needs all of {', '.join(_KAFKA)}; set "
            "them all, or none."
        )
    if config.enable_full_sync_training:
        if not config.reorder_fids_in_data_pipeline:
            raise errors.ConfigError(
                "`enable_sync_training` is True and `reorder_fids_in_data_pipeline` is False, but "
                "ranks need ids in the order of the ranks that have their rows; set it to True, as "
                "`init_sync_train_and_update_conf` does."
            )
        if config.enable_realtime_training:
            raise errors.ConfigError(
                "`enable_sync_training` and `enable_realtime_training` are both True, but ranks of "
                "a synchronous job find servers by `sync_to`, or by a `sync_backend`; leave one of "
                "them at False, and set the first, or hand the second to `distributed_sync_train`."
            )
        if config.operator_files_steps is not None and config.operator_files_steps < 1:
            raise errors.ConfigError(
                f"`operator_files_steps` is {config.operator_files_steps}, but it must be a number "
                "of steps above 0; leave it unset if no operator leaves files."
            )
        return
    if config.enable_partial_sync_training:
        _check_partial_sync(config)
    if config.operator_files_steps is not None:
        raise errors.ConfigError(
            f"`operator_files_steps` is {config.operator_files_steps}, but it is for ranks that "
            "share the tables; set `enable_sync_training` as well, or leave it unset."
        )
    for name in _ONLY_IN_SYNC:
        if getattr(config, name):
            raise errors.ConfigError(
                f"`{name}` is True, which is for ranks that share the tables; set "
                "`enable_sync_training` as well, or leave it at False."
            )


def _check_partial_sync(config: CpuTrainingConfig) -> None:
    """Refuses what workers do not do that train the dense part together, beside servers."""
    if not config.enable_sync_training:
        raise errors.ConfigError(
            "`enable_partial_sync_training` is True and `enable_sync_training` is False, but it "
            "says which part of a synchronous job stays on servers; set both, or none."
        )
    if config.num_ps < 1:
        raise errors.ConfigError(
            f"`enable_partial_sync_training` is True and `num_ps` is {config.num_ps}, but it is "
            "for tables on parameter servers; start some, or set `enable_sync_training` alone."
        )
    # A job that goes back does so as a whole, so that all workers stand at one step.
    for name in ("partial_recovery", "enable_dynamic_sharding", "enable_realtime_training"):
        if getattr(config, name, False):
            raise errors.ConfigError(
                f"`enable_partial_sync_training` and `{name}` are both True, which workers that "
                "do every step together do not do; leave one of them at False."
            )
    if getattr(config, "sync_to", None):
        raise errors.ConfigError(
            f"`enable_partial_sync_training` is True and `sync_to` is {config.sync_to!r}, but such "
            "a job does not send what it changes to prediction servers; leave it unset."
        )
    _refuse_other_modes(config, "enable_partial_sync_training", "workers")


def check_ranks(config: CpuTrainingConfig) -> None:
    """Refuses a config that ranks of a synchronous job cannot follow.

    Raises:
        ConfigError: It is not that of a synchronous job, or not of a training, or has servers or a
            port for metrics, or asks for input files that workers take as they go.
    """
    if not config.enable_full_sync_training:
        raise errors.ConfigError(
            "`enable_sync_training` is False, but this is how ranks of a synchronous job train; "
            "set it, or call `distributed_train`."
        )
    if config.num_ps > 0:
        raise errors.ConfigError(
            f"`num_ps` is {config.num_ps}, but in a synchronous job the ranks have the tables; "
            "leave it at 0."
        )
    if getattr(config, "enable_dynamic_sharding", False):
        raise errors.ConfigError(
            "`enable_dynamic_sharding` is True, but ranks of a synchronous job read as many "
            "batches as the others, each its part of the files; leave it at False."
        )
    _refuse_other_modes(config, "enable_sync_training", "ranks")
    if getattr(config, "only_feature_engineering", False):
        raise errors.ConfigError(
            "`enable_sync_training` and `only_feature_engineering` are both True, but ranks do "
            "steps together only to train, and write no features; leave one of them at False."
        )
    _refuse_spare_servers(config, "in a synchronous job the ranks have the tables")
    _refuse_metrics_port(config, "a synchronous job")


def refuse_ranks(config: CpuTrainingConfig) -> None:
    """Refuses a config of a synchronous job where there are no ranks.

    Raises:
        ConfigError: It is one.
    """
    if config.enable_full_sync_training:
        raise errors.ConfigError(
            "`enable_sync_training` is True, but this is not how ranks of a synchronous job train; "
            "call `distributed_sync_train` in each, or leave it at False."
        )


def refuse_partial_sync(config: CpuTrainingConfig) -> None:
    """Refuses a config of workers that train the dense part together where there are none.

    Raises:
        ConfigError: It is one.
    """
    if config.enable_partial_sync_training:
        raise errors.ConfigError(
            "`enable_partial_sync_training` is True, but this is one process, which has nobody to "
            "do steps with; leave it at False."
        )


def check_local(config: CpuTrainingConfig) -> None:
    """Refuses a config of several processes for a job in one.

    Raises:
        ConfigError: It has more workers than one, or spare servers, or a port for metrics.
    """
    refuse_ranks(config)
    refuse_partial_sync(config)
    if config.num_workers > 1:
        raise errors.ConfigError(
            f"`num_workers` is {config.num_workers}, but a local job is one process, its only "
            "worker; leave it at 1."
        )
    if getattr(config, "enable_dynamic_sharding", False):
        raise errors.ConfigError(
            "`enable_dynamic_sharding` is True, but a local job has one worker, which reads all "
            "files; leave it at False."
        )
    _refuse_spare_servers(
        config,
        "a local job has its servers in its own process, where none is slower or later than others",
    )
    _refuse_metrics_port(config, "a local job")


def _refuse_other_modes(config: CpuTrainingConfig, setting: str, who: str) -> None:
    if config.mode != "train":
        raise errors.ConfigError(
            f"`{setting}` is True and `mode` is {config.mode!r}, but {who} do steps together only "
            "to train; leave it at False."
        )


def _refuse_spare_servers(config: CpuTrainingConfig, reason: str) -> None:
    for name in ("num_extra_ps", "num_redundant_ps"):
        number = getattr(config, name, 0)
        if number:
            raise errors.ConfigError(f"`{name}` is {number}, but {reason}; leave it at 0.")


def _refuse_metrics_port(config: CpuTrainingConfig, job: str) -> None:
    port = getattr(config, "metrics_port", None)
    if port is not None:
        raise errors.ConfigError(
            f"`metrics_port` is {port}, but {job} has no member that would be asked for metrics; "
            "leave it unset, and look at TensorBoard or the progress line."
        )


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if value == field.default or value == _OTHER_DEFAULTS.get(field.name, field.default):
        return True
    # Unset and off are the same: whoever says no to what is not there gets it.
    return not value and not field.default
