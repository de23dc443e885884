"""What an `Estimator` takes and refuses: settings in either form, a model or its params, hooks."""

import copy
import json
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph.spec import Hook
from monolith.model.task import NativeTask
from monolith.training.config.run import RunConfig
from monolith.training.runner import RunnerConfig


def to_local(conf: RunnerConfig) -> RunnerConfig:
    """Returns the settings with which one process uses what several have trained.

    A checkpoint can be read whatever the number of servers that wrote it, so there are none.
    """
    if conf.is_local and not conf.enable_sync_training:
        return conf
    # Not `replace`: a value that is a default would be taken from the command line again.
    local = copy.deepcopy(conf)
    local.is_local, local.server_type, local.index = True, "worker", 0
    local.num_ps = local.num_extra_ps = local.num_redundant_ps = 0
    local.num_workers = 1
    local.enable_sync_training = local.enable_partial_sync_training = False
    local.reorder_fids_in_data_pipeline = False
    local.enable_async_optimize = False
    local.enable_pipelined_fwda2a = local.enable_pipelined_bwda2a = False
    local.embedding_prefetch_capacity, local.enable_embedding_postpush = 0, False
    return local


def to_runner_config(conf: Any) -> RunnerConfig:
    """Returns a copy of the settings in the form that a job has."""
    if isinstance(conf, RunConfig):
        config = conf.to_runner_config()
        if config.is_local and config.num_ps == 0 and config.embedding_prefetch_capacity == 1:
            # A table in the process answers sooner than a queue and its thread.
            config.embedding_prefetch_capacity = 0
            config.enable_embedding_postpush = False
        return config
    if isinstance(conf, RunnerConfig):
        return copy.deepcopy(conf)
    raise errors.ConfigError(f"conf must be a RunConfig or a RunnerConfig, got {conf!r}.")


def check_serving(conf: RunnerConfig) -> None:
    """Refuses updates for serving of which nobody could say whose they are."""
    if conf.enable_realtime_training and conf.num_ps > 0:
        assert conf.bzid, "Business id cannot be none while realtime training."
        assert conf.base_name, "Base name cannot be none while realtime training."


def find_params(model: Any, group: str | None) -> Any:
    """Returns the params of a model, or a group of them; a model may be params itself."""
    params = model.p if isinstance(model, NativeTask) else model
    return params if group is None else params[group]


def instantiate(model: Any) -> NativeTask:
    """Returns the task that a model, or its params, stand for."""
    task = model.instantiate()
    if not isinstance(task, NativeTask):
        raise errors.ConfigError(f"An Estimator runs a NativeTask, a MonolithModel, got {task!r}.")
    return task


def parse_override(text: str) -> dict[str, Any]:
    """Returns the params that `params_override` sets."""
    try:
        override = json.loads(text)
    except ValueError as e:
        raise errors.ConfigError(
            f"params_override must be a JSON object, got {text!r}: {e}."
        ) from e
    if not isinstance(override, dict):
        raise errors.ConfigError(f"params_override must be a JSON object, got {text!r}.")
    return override


def check_hooks(hooks: Any) -> list[Hook]:
    """Returns the hooks as a list; None are none."""
    hooks = [] if hooks is None else hooks
    kind = tf.compat.v1.train.SessionRunHook
    if not isinstance(hooks, list | tuple) or not all(isinstance(hook, kind) for hook in hooks):
        raise AssertionError(
            "hooks must be a list of hooks, instances of tf.compat.v1.train.SessionRunHook, got "
            f"{hooks!r}."
        )
    return list(hooks)
