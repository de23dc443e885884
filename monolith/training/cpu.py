"""Training on CPUs, asynchronously: the names that users of it need.

A job is described by a `CpuTrainingConfig`. `local_train` runs it in this process, with parameter
servers in the same process if asked for; `CpuTraining` is the part that turns a task into the
functions of an estimator.

Example:
    >>> config = CpuTrainingConfig(num_ps=2)
    >>> is_chief(config), make_native_task_context(config).num_ps
    (True, 2)
"""

from monolith.training.config import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.cpu_cluster import NodeAliveCheckerError, _get_blocked_addrs
from monolith.training.cpu_collection import (
    _combine_slices_as_table,
    _make_serving_feature_configs_from_training_configs,
)
from monolith.training.cpu_export import create_exporter
from monolith.training.cpu_features import (
    _CpuFeatureFactory,
    _FusedCpuFeatureFactory,
    _lookup_embedding_ids,
    get_req_time,
)
from monolith.training.cpu_local import (
    local_feature_engineering_internal,
    local_train,
    local_train_internal,
    make_config_backward_compatible,
)
from monolith.training.cpu_model import (
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
    "get_req_time",
    "is_chief",
    "local_feature_engineering_internal",
    "local_train",
    "local_train_internal",
    "make_config_backward_compatible",
    "make_native_task_context",
]
