"""Synchronous training: ranks that share the tables and average their gradients in every step.

Every rank runs the same program. Each has a part of every table and all dense variables, reads its
part of the input, and in each step exchanges rows and gradients with the others, so that together
they train as one process does with all of their batches. There are no servers. How they find each
other is the business of `monolith.graph.collectives`; one process alone is rank 0 of 1.

Example:
    A program that `monolith run -n 4` starts as four ranks is, for a task with its params,

        config = RunnerConfig(enable_sync_training=True, model_dir="/shared/ranking")
        init_sync_train_and_update_conf(config)
        distributed_sync_train(config, MyTask.params())
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tensorflow as tf

from monolith import errors
from monolith.embedding.sharding import ranks
from monolith.graph import collectives, devices, mpi
from monolith.model.task import NativeTask
from monolith.serving.sync.targets import SyncBackend
from monolith.training import rank_plan
from monolith.training.config import supported
from monolith.training.config.job import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import interrupt, serving_sync
from monolith.training.hooks.sync_training import EofAwareTask, SyncTrainingInfoHook
from monolith.training.local import check_graph_mode, make_local_run_config
from monolith.training.tables import save
from monolith.training.tables.hooks import go_back
from monolith.training.tables.training import CpuTraining

logger = logging.getLogger(__name__)

# Of rank 0: steps between summaries, and between log lines.
_SUMMARY_INTERVAL = "MONOLITH_SAVE_SUMMARY_INTERVAL"
_LOG_INTERVAL = "MONOLITH_ROOT_LOG_INTERVAL"


def init_sync_train_and_update_conf(conf: CpuTrainingConfig) -> None:
    """Lets the ranks meet, and says in the config which of them this process is.

    Args:
        conf: Changed in place. It stays as it is where a library that the environment asks for is
            not there, which is logged.
    """
    try:
        collectives.init()
    except (ImportError, tf.errors.NotFoundError) as error:
        logger.warning("the ranks cannot meet, and the config stays as it is: %s", error)
        return
    conf.num_ps = 0
    conf.reorder_fids_in_data_pipeline = True
    conf.index = collectives.rank()
    conf.num_workers = collectives.size()
    conf.enable_variable_partition = False
    if not conf.merge_sync_training_ckpt and isinstance(conf, DistributedCpuTrainingConfig):
        conf.model_dir = os.path.join(conf.model_dir, conf.uuid, f"index-{conf.index:04d}")


def distributed_sync_train(
    config: DistributedCpuTrainingConfig,
    params: Any,
    sync_backend: Any = None,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
) -> GraphEstimator:
    """Trains as one rank of a synchronous job, and returns when all of them are done.

    Every rank calls it. All start from the newest checkpoint, or from the variables of rank 0.
    Ranks with less data than others keep them company until all have had their last batch. When a
    rank is gone, the others end; started again, on whatever number, they go on from the newest
    checkpoint.

    Args:
        config: The job, see `init_sync_train_and_update_conf`.
        params: Settings of the task; `params.instantiate()` makes it. `train.max_steps` ends the
            training, or the end of the input does.
        sync_backend: Tells which servers get what changes, as
            `monolith.serving.sync.targets.SyncBackend` says: rows of rank `i` go to the part
            `ps_<i>` of the exported model, variables to `entry`. The caller starts and stops it.
            None: as `sync_to` of the config says.
        user_hooks: Hooks of the caller.

    Returns:
        The estimator.

    Raises:
        EnvironmentError: TensorFlow executes eagerly.
        AssertionError: The config is that of another rank.
        ValueError: `params` are not those of a task.
        ConfigError: The config asks for what ranks do not do, the library that the environment asks
            for is not there, or another rank has other settings or another model.
        RankLostError: Another rank is gone.
        SystemExit: A signal has stopped the training, which is saved.
    """
    check_graph_mode()
    # First of all: without its library, a config lacks what the ranks would have said.
    collectives.init()
    supported.check_settings(config)
    supported.check_ranks(config)
    if sync_backend is not None or config.sync_to:
        _check_parts()
    assert mpi.get_mpi_rank() == config.index, (
        "Given RunConfig.index should be consistent with hvd.rank(). "
        f"It is {config.index}, and this is rank {mpi.get_mpi_rank()}."
    )
    config.prepare_process()
    params.mode = config.mode
    task = params.instantiate()
    if not isinstance(task, NativeTask):
        raise ValueError(f"distributed sync train only support NativeTask. Got {task}")
    with contextlib.ExitStack() as stack:
        backend = sync_backend
        if backend is None:
            backend = serving_sync.make_backend(config)
            if backend is not None:
                stack.callback(backend.stop)
        training = CpuTraining(config, task, backend)
        return _train(config, training, backend, user_hooks or ())


def _train(
    config: DistributedCpuTrainingConfig,
    training: CpuTraining,
    backend: SyncBackend | None,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook],
) -> GraphEstimator:
    mark = 0
    if config.index == 0 and config.model_dir:
        save.prepare_model_dir(config.model_dir, training.p)
        # Before steps are counted: they begin where the training does.
        go_back(config, config.model_dir, training.p)
        mark = rank_plan.mark_directory(config.model_dir)
    # The same seed after a restart, so that the input goes on where it was. From here on, all see
    # the same checkpoints.
    seed = zlib.crc32(config.model_dir.encode())
    training.input_seed, mark = rank_plan.agree(rank_plan.describe(config, training), seed, mark)
    if mark:
        rank_plan.check_directory(config.model_dir, mark)
    wrapped = EofAwareTask(cast(NativeTask, training), bool(config.use_dataservice))
    train = training.p.train
    hooks = [
        rank_plan.SameVariablesHook(),
        *_make_start_hooks(),
        *_make_sync_hooks(config, backend),
        SyncTrainingInfoHook(),
        *user_hooks,
    ]
    with _one_writer(config.index):
        estimator = GraphEstimator(
            wrapped.create_model_fn(), config=_make_run_config(config, training)
        )
        estimator.train(
            wrapped.create_input_fn(config.mode),
            hooks=hooks,
            steps=getattr(train, "steps", None),
            max_steps=train.max_steps,
        )
    if training.agreement is not None and training.agreement.received is not None:
        interrupt.end_as_told(training.agreement.received)
    return estimator


def _check_parts() -> None:
    """Refuses to send rows where the parts of an exported model are not those of the ranks.

    Raises:
        ConfigError: Rank 0 has no rows, so that rank 1 has those of the first part.
    """
    if ranks.get_first_owner(collectives.size()) > 0:
        raise errors.ConfigError(
            f"Of {collectives.size()} ranks, rank 0 has no rows, so the part of a rank is not that "
            "of its number, and `sync_to` and `sync_backend` do not know its servers; set "
            "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD=0 in all of them."
        )


def _make_start_hooks() -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns what makes all ranks start with the same variables."""
    return [collectives.BroadcastGlobalVariablesHook(0)] if collectives.size() > 1 else []


def _make_sync_hooks(
    config: DistributedCpuTrainingConfig, backend: SyncBackend | None
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns what sends this rank's changes to servers, if somebody is to get them."""
    if backend is None:
        return []
    sync_config = serving_sync.make_sync_config(config)
    return [serving_sync.ServingSyncHook(backend, sync_config, rank=config.index)]


def _make_run_config(config: DistributedCpuTrainingConfig, training: CpuTraining) -> Any:
    save_secs, save_steps = save.get_save_interval(config, training.p)
    is_root = config.index == 0
    run_config = make_local_run_config(
        config,
        config.model_dir,
        # Only for models in whose steps ranks do nothing together; others bring their own saver.
        save_checkpoints_steps=save_steps if is_root else None,
        save_checkpoints_secs=save_secs if is_root else None,
        save_summary_steps=_read_interval(_SUMMARY_INTERVAL, config.save_summary_steps)
        if is_root
        else None,
        log_step_count_steps=_read_interval(_LOG_INTERVAL, config.log_step_count_steps)
        if is_root
        else None,
        keep_checkpoint_max=config.checkpoints_max_to_keep,
        device_fn=config.device_fn or devices.default_device_fn,
    )
    mpi.update_session_config_for_gpu(run_config.session_config)
    return run_config


def _read_interval(variable: str, default: int | None) -> int | None:
    text = os.environ.get(variable)
    if not text:
        return default
    if not text.isdigit() or int(text) == 0:
        raise errors.ConfigError(f"{variable} must be a number of steps above 0, got {text!r}.")
    return int(text)


@contextlib.contextmanager
def _one_writer(rank: int) -> Iterator[None]:
    """Has summaries written by rank 0 only; the others would write the same files."""
    cache = tf.compat.v1.summary.FileWriterCache
    get = cache.get
    if rank != 0:
        cache.get = lambda logdir: _NoWriter()
    try:
        yield
    finally:
        cache.get = get


class _NoWriter:
    """Stands for a summary writer that writes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None
