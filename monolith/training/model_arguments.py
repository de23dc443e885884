"""What `ml.Estimator` takes, and refuses, before anything is built.

Example:
    >>> make_config(None, "model", "clicks").model_dir
    'model'
    >>> check_count("steps", 0)
    Traceback (most recent call last):
    monolith.errors.ConfigError: `steps` must be a positive int, got 0.
"""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core import directories
from monolith.data.record_datasets import DistributedFilePBDataset, FilePBDataset, KafkaDataset
from monolith.graph.spec import Hook
from monolith.model.model import MADE_EAGERLY, Data, make_dataset
from monolith.training.config.run import RunConfig
from monolith.training.runner import RunnerConfig

# Why there are no log lines by steps.
ONE_LINE = "a job of several processes shows one line for all of them, by time"
NO_LINE = "`progress` is False, so that no line is shown"

_STEPS = ("save_summary_steps", "log_step_count_steps", "incremental_save_steps")
_KAFKA = ("kafka_topics", "kafka_group_id", "kafka_servers")


def check_count(name: str, value: Any) -> None:
    """Refuses what is not a positive int.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.ConfigError(f"`{name}` must be a positive int, got {value!r}.")


def check_data(data: Any) -> Data:
    """Refuses what no data can be read from.

    Raises:
        ConfigError: It is no function and no reader.
    """
    if isinstance(data, tf.data.Dataset):
        raise errors.ConfigError(MADE_EAGERLY)
    if not callable(data):
        raise errors.ConfigError(
            "Data is a function that returns a tf.data.Dataset of dicts, or a reader such as "
            f"ml.data.csv('day1/*.csv', schema); got {data!r}."
        )
    return data


def check_topics(config: RunConfig | RunnerConfig, data: Data) -> None:
    """Refuses Kafka settings beside data that would not follow them.

    Raises:
        ConfigError: There are some, and the data does not read with a `PBDataset`.
    """
    given = [name for name in _KAFKA if getattr(config, name)]
    if not given:
        return
    with tf.Graph().as_default():
        pending = [make_dataset(data)]
        while pending:
            dataset = pending.pop()
            if isinstance(dataset, FilePBDataset | DistributedFilePBDataset | KafkaDataset):
                return
            pending += dataset._inputs()
    raise errors.ConfigError(
        f"`{given[0]}` is {getattr(config, given[0])!r}, but this data does not read what it says, "
        "since only a PBDataset does; leave it out, and read topics with ml.data.kafka(topics, "
        "schema, servers=...)."
    )


def check_hooks(hooks: Any) -> list[Hook]:
    """Returns hooks as a list; refuses what is no hook before a process is started for it.

    Raises:
        ConfigError: One is none.
    """
    hooks = [] if hooks is None else hooks
    if isinstance(hooks, list | tuple) and all(
        isinstance(hook, tf.compat.v1.train.SessionRunHook) for hook in hooks
    ):
        return list(hooks)
    raise errors.ConfigError(
        f"`hooks` must be a list of tf.compat.v1.train.SessionRunHook, got {hooks!r}."
    )


def make_config(config: RunConfig | None, model_dir: Any, name: str) -> RunConfig:
    """Returns the settings of a job in one process, whose model directory is known.

    Args:
        config: What the user gave.
        model_dir: Where to save, if the user gave it beside the config.
        name: Names the directory, if there is none.

    Raises:
        ConfigError: It is no config, a number of steps in it is not positive, or there are two
            directories.
    """
    config = RunConfig() if config is None else config
    if not isinstance(config, RunConfig):
        raise errors.ConfigError(f"`config` must be an ml.RunConfig, got {config!r}.")
    for count in _STEPS:
        if getattr(config, count) is not None:
            check_count(count, getattr(config, count))
    directory = "" if model_dir is None else os.fspath(model_dir)
    if directory and config.model_dir and directory != config.model_dir:
        raise errors.ConfigError(
            f"There are two model directories, {directory!r} and, in the config, "
            f"{config.model_dir!r}; give one."
        )
    directory = directory or config.model_dir or directories.make_default_model_dir(name)
    changes: dict[str, Any] = {"is_local": True, "model_dir": directory}
    if config.enable_alias_map_auto_gen is None:
        # `restore_what_fits` says what becomes of variables with other names.
        changes["enable_alias_map_auto_gen"] = False
    return dataclasses.replace(config, **changes)


def check_sync(config: RunConfig) -> None:
    """Refuses servers and workers of a synchronous job.

    Raises:
        ConfigError: There are some.
    """
    for name, alone in (("num_ps", 0), ("num_workers", 1)):
        if getattr(config, name) != alone:
            raise errors.ConfigError(
                f"`sync` is True and `{name}` is {getattr(config, name)}, but in a synchronous job "
                "the ranks that `monolith run -n` starts are all there is; leave it at "
                f"{alone}."
            )


def check_cluster(config: RunConfig) -> None:
    """Refuses a cluster without servers or workers, or with what its workers do not do.

    Raises:
        ConfigError: There are none, or it has some.
    """
    for name in ("num_ps", "num_workers"):
        check_count(name, getattr(config, name))
    refuse_log_lines(config, ONE_LINE)


def refuse_log_lines(config: RunConfig, reason: str) -> None:
    """Refuses log lines by steps where nothing would print them.

    Raises:
        ConfigError: There are to be some.
    """
    if config.log_step_count_steps is not None:
        raise errors.ConfigError(
            f"`log_step_count_steps` is {config.log_step_count_steps}, but {reason}; leave it out."
        )
