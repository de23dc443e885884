"""The training configs: fields, defaults, documentation.

Covers monolith/training/config/checkpoint.py, monolith/training/config/cluster.py,
monolith/training/config/export.py, monolith/training/config/input.py,
monolith/training/config/metrics.py, monolith/training/config/sync.py and
monolith/training/config/tables.py.
"""

import dataclasses
import inspect

import pytest
from absl import flags
from absl.testing import flagsaver

from monolith.core.flags import extract_help_info
from monolith.training.config import job as config_lib
from monolith.training.runner import RunnerConfig

# From the specification of the original, field by field.
CPU_TRAINING_DEFAULTS = {
    "server_type": "worker",
    "index": 0,
    "num_ps": 0,
    "num_workers": 1,
    "model_name": "",
    "filter_capacity": 300000000,
    "filter_split_num": 7,
    "filter_type": "sliding_hash_filter",
    "filter_equal_probability": True,
    "hashtable_init_capacity": 0,
    "use_native_multi_hash_table": None,
    "embedding_prefetch_capacity": 0,
    "enable_embedding_postpush": False,
    "enable_variable_prefetch": False,
    "enable_variable_postpush": False,
    "enable_sync_training": False,
    "enable_partial_sync_training": False,
    "enable_gpu_training": False,
    "processes_per_gpu": 1,
    "merge_sync_training_ckpt": True,
    "mode": "train",
    "partial_recovery": None,
    "tide_start_hour": None,
    "tide_start_minute": None,
    "tide_end_hour": None,
    "tide_end_minute": None,
    "tide_save_secs": None,
    "enable_realtime_training": False,
    "enable_async_optimize": False,
    "enable_pipelined_fwda2a": False,
    "enable_pipelined_bwda2a": False,
    "profile_some_steps_from": None,
    "profile_save_steps_interval": 5000,
    "profile_with_nvprof_from_to": None,
    "reorder_fids_in_data_pipeline": False,
    "operator_files_steps": None,
    "chief_timeout_secs": 1800,
    "save_checkpoints_secs": None,
    "save_checkpoints_steps": None,
    "dense_only_save_checkpoints_secs": None,
    "dense_only_save_checkpoints_steps": None,
    "dense_only_stop_training_when_save": False,
    "warmup_file": "./warmup_file",
    "skip_zero_embedding_when_serving": False,
    "max_rpc_deadline_millis": 30000,
    "checkpoints_max_to_keep": 10,
    "submit_time_secs": None,
    "containers_ready_time_secs": None,
    "cluster_type": "stable",
    "max_slow_start_wait_minute": 10,
    "enable_model_ckpt_info": False,
    "feature_eviction_on_save": False,
    "only_feature_engineering": False,
    "enable_variable_partition": True,
    "enable_fused_layout": False,
    "force_shutdown_ps": False,
    "clear_nn": False,
    "continue_training": False,
    "reload_alias_map": None,
    "enable_alias_map_auto_gen": None,
    "enable_model_dump": False,
    "sync_to": None,
    "sync_model": "default",
    "sync_interval_secs": 10.0,
    "sync_dense_interval_secs": 60.0,
    "sync_timeout_secs": 3.0,
    "sync_token_file": None,
    "sync_ca_file": None,
    "enable_resource_constrained_roughsort": False,
    "roughsort_candidate_items_path": None,
    "roughsort_items_use_parquet": False,
    "items_input_lagrangex_header": False,
    "items_input_has_sort_id": False,
    "items_input_kafka_dump": False,
    "items_input_kafka_dump_prefix": False,
    "device_fn": None,
    "use_dataservice": None,
    "num_extra_dsworker_on_gpu_worker": 0,
    "save_summary_steps": 100,
    "log_step_count_steps": 100,
}
DISTRIBUTED_DEFAULTS = {
    "model_dir": "",
    "tensorboard_log_path": "",
    "intra_op_parallelism_threads": 8,
    "inter_op_parallelism_threads": 16,
    "num_extra_ps": 0,
    "num_redundant_ps": 0,
    "uuid": "",
    "operation_timeout_in_ms": -1,
    "session_creation_timeout_secs": 7200,
    "max_retry_times": 0,
    "retry_wait_in_secs": 30,
    "fountain_zk_host": "",
    "fountain_model_name": "",
    "dc_aware": False,
    # Ours.
    "metrics_port": None,
    "metrics_host": "127.0.0.1",
    "controller_host": None,
    "transfer_float16": False,
    "incremental_save_steps": None,
    "incremental_save_secs": None,
    "fall_back_to_older_checkpoint": False,
    "rebuild_checkpoint_list": False,
}
NOT_DOCUMENTED_AS_FLAGS = {"profile_save_steps_interval", "device_fn", "use_dataservice"}


def test_fields_and_defaults():
    config = config_lib.CpuTrainingConfig()
    assert len(dataclasses.fields(config)) == 80
    assert dataclasses.asdict(config) == CPU_TRAINING_DEFAULTS
    config = config_lib.DistributedCpuTrainingConfig()
    assert dataclasses.asdict(config) == {**CPU_TRAINING_DEFAULTS, **DISTRIBUTED_DEFAULTS}


def test_fields_live_in_groups_of_a_size_that_can_be_read():
    owners = [cls for cls in RunnerConfig.__mro__ if inspect.get_annotations(cls)]
    assert not {RunnerConfig, *config_lib.CpuTrainingConfig.__subclasses__()} & set(owners)
    assert config_lib.CpuTrainingConfig not in owners
    for group in owners:
        assert len(dataclasses.fields(group)) <= 15, group
    # No field is in two groups.
    assert sum(len(dataclasses.fields(group)) for group in owners) == 80 + 14 + 4 + 4 + 39


def test_every_field_that_is_a_flag_says_what_it_means():
    help_info = extract_help_info(config_lib.DistributedCpuTrainingConfig)
    fields = {field.name for field in dataclasses.fields(config_lib.DistributedCpuTrainingConfig)}
    assert fields - set(help_info) == NOT_DOCUMENTED_AS_FLAGS
    assert set(help_info) <= fields
    assert all(text.endswith(".") for text in help_info.values())


@pytest.mark.parametrize(
    ("sync", "partial", "full"),
    [(False, False, False), (True, False, True), (True, True, False), (False, True, False)],
)
def test_full_sync_training(sync, partial, full):
    config = config_lib.CpuTrainingConfig(
        enable_sync_training=sync, enable_partial_sync_training=partial
    )
    assert config.enable_full_sync_training is full


@pytest.mark.parametrize(
    "config_class", [config_lib.CpuTrainingConfig, config_lib.DistributedCpuTrainingConfig]
)
def test_use_dataservice_is_linked_to_its_flag(config_class):
    assert config_class().use_dataservice is None
    with flagsaver.flagsaver(dataset_use_dataservice=True):
        assert config_class().use_dataservice is True
        assert config_class(use_dataservice=False).use_dataservice is False
    assert flags.FLAGS["dataset_use_dataservice"].value is False
