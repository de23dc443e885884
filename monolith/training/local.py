"""Training in one process, with parameter servers in it if it has some.

No port is opened. `local_train` is the shortest way from a task to a trained model;
`local_train_internal` takes a whole config. People know both as names of `monolith.training.cpu`.

Example:
    >>> config = make_local_run_config(CpuTrainingConfig(num_ps=2), "/models/ads")
    >>> config.num_ps_replicas, config.master
    (2, '')
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.checkpoint.state import get_monolith_checkpoint_state
from monolith.core import directories
from monolith.graph.run_config import GraphRunConfig, outside_of_cluster
from monolith.model.task import NativeTask
from monolith.proto import monolith_checkpoint_state_pb2
from monolith.training.config import supported
from monolith.training.config.cluster import MemberSettings
from monolith.training.config.job import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks.feature_dump import FeatureEngineeringSaveHook
from monolith.training.tables import save
from monolith.training.tables.training import CpuTraining

logger = logging.getLogger(__name__)

_FEW_CORES = 4


def local_train(
    params: Any,
    num_ps: int = 0,
    model_dir: str | None = None,
    steps: int | None = 100,
    save_checkpoints_steps: int | None = 50,
    profiling: bool = False,
    enable_embedding_prefetch: bool = True,
    enable_embedding_postpush: bool = True,
    remove_model_dir_if_exists: bool = True,
    only_feature_engineering: bool = False,
) -> GraphEstimator | None:
    """Trains a task in this process.

    Args:
        params: Settings of the task; `params.instantiate()` makes it.
        num_ps: Parts, as on so many parameter servers, that tables and variables are divided
            into. All are in this process, and no port is opened for them.
        model_dir: Where checkpoints go; None: `<temporary directory>/<user>/<name of the task>`,
            a directory of this user alone.
        steps: How many steps to train; None: to the end of the input.
        save_checkpoints_steps: Steps between two checkpoints.
        profiling: Whether to record a profile for TensorBoard in the model directory.
        enable_embedding_prefetch: Whether the next batch is looked up during a step.
        enable_embedding_postpush: Whether gradients of embeddings are pushed during the next step.
        remove_model_dir_if_exists: Whether to start anew instead of from the last checkpoint.
        only_feature_engineering: Whether to write features to files instead of training.

    Returns:
        The estimator, to evaluate or predict with; None if nothing was trained.

    Raises:
        EnvironmentError: TensorFlow executes eagerly.
        errors.ConfigError: The model does not fit its input.
    """
    check_graph_mode()
    conf = CpuTrainingConfig(
        num_ps=num_ps,
        model_name=params.name,
        save_checkpoints_steps=save_checkpoints_steps,
        embedding_prefetch_capacity=1 if enable_embedding_prefetch else 0,
        enable_embedding_postpush=enable_embedding_postpush,
        only_feature_engineering=only_feature_engineering,
    )
    # Before anything is removed.
    supported.check_settings(conf)
    default_name = params.name if model_dir is None else None
    if default_name is not None:
        model_dir = directories.make_default_model_dir(default_name)
    assert model_dir is not None
    directories.check_path("model_dir", model_dir)
    if remove_model_dir_if_exists and tf.io.gfile.exists(model_dir):
        logger.info("removing %s to start anew", model_dir)
        tf.io.gfile.rmtree(model_dir)
        if default_name is not None:
            directories.make_default_model_dir(default_name)
    if conf.only_feature_engineering:
        local_feature_engineering_internal(params, conf, model_dir, profiling)
        return None
    return local_train_internal(params, conf, model_dir, steps, profiling)


def local_train_internal(
    params: Any,
    conf: CpuTrainingConfig,
    model_dir: str,
    steps: int | None = 100,
    profiling: bool = False,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
) -> GraphEstimator:
    """Trains a task in this process, as `conf` says.

    Args:
        params: Settings of the task; `params.instantiate()` makes it.
        conf: The job. Settings that were left open are filled in.
        model_dir: Where checkpoints are and go.
        steps: How many steps to train; None: to the end of the input.
        profiling: Whether to record a profile for TensorBoard in the model directory.
        user_hooks: Hooks of the caller.

    Returns:
        The estimator, to evaluate and predict with.

    Raises:
        EnvironmentError: TensorFlow executes eagerly.
        errors.ConfigError: The model does not fit its input.
    """
    check_graph_mode()
    supported.check_settings(conf)
    supported.check_local(conf)
    if conf.only_feature_engineering:
        raise errors.ConfigError(
            "`only_feature_engineering` is set, so that nothing is trained; call "
            "local_feature_engineering_internal, or local_train, which does."
        )
    conf.prepare_process()
    task = instantiate(params)
    make_config_backward_compatible(model_dir, conf)
    training = CpuTraining(conf, task)
    save_secs, save_steps = save.get_save_interval(conf, task.p)
    with _profile(model_dir, profiling):
        run_config = make_local_run_config(
            conf,
            model_dir,
            # Only for models without embeddings; the others bring a saver of their own.
            save_checkpoints_steps=save_steps,
            save_checkpoints_secs=save_secs,
            save_summary_steps=conf.save_summary_steps,
            log_step_count_steps=conf.log_step_count_steps,
            keep_checkpoint_max=conf.checkpoints_max_to_keep,
            device_fn=conf.device_fn,
        )
        estimator = GraphEstimator(training.create_model_fn(), config=run_config)
        return estimator.train(
            training.create_input_fn(conf.mode), hooks=list(user_hooks or ()), steps=steps
        )


def local_feature_engineering_internal(
    params: Any, conf: CpuTrainingConfig, model_dir: str, profiling: bool = False
) -> None:
    """Writes the features of the input to files below `<model_dir>/features`.

    Args:
        params: Settings of the task.
        conf: The job.
        model_dir: Where the files go.
        profiling: Whether to record a profile for TensorBoard in the model directory.
    """
    check_graph_mode()
    supported.check_settings(conf)
    supported.check_local(conf)
    task = instantiate(params)
    writer = DistributedCpuTrainingConfig(model_dir=model_dir, index=conf.index)
    with _profile(model_dir, profiling):
        write_features(writer, task.create_input_fn(conf.mode))


def write_features(
    config: DistributedCpuTrainingConfig, input_fn: Callable[[], tf.data.Dataset]
) -> None:
    """Writes the features of an input to files, see `local_feature_engineering_internal`."""
    with tf.Graph().as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(input_fn())
        batch = iterator.get_next()
        hook = FeatureEngineeringSaveHook(config, batch)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(iterator.initializer)
            while not session.should_stop():
                session.run(batch)


def make_local_run_config(
    conf: CpuTrainingConfig, model_dir: str, **settings: Any
) -> GraphRunConfig:
    """Returns how a job runs that is in this process only; it listens nowhere.

    TensorFlow's servers would accept any call on all interfaces, also those that write files, so
    CPU devices of the session stand for parameter servers. A cluster in TF_CONFIG is none of its
    business.

    Args:
        conf: The job: how many parameter servers there are to be, and, where it could be a member
            of a cluster, threads and limits of its sessions.
        model_dir: Where checkpoints are and go.
        settings: Further arguments of `GraphRunConfig`.
    """
    session_config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if conf.num_ps > 0:
        session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    elif len(os.sched_getaffinity(0)) <= _FEW_CORES:
        # To hand an op to another thread takes longer than most ops, and large ones share
        # their work anyway: all run in the thread that calls the session.
        session_config.inter_op_parallelism_threads = -1
    config = conf if isinstance(conf, MemberSettings) else MemberSettings()
    _set_threads_and_limits(session_config, config)
    with outside_of_cluster():
        return GraphRunConfig(
            model_dir=model_dir,
            summary_dir=config.tensorboard_log_path or None,
            session_config=session_config,
            session_creation_timeout_secs=config.session_creation_timeout_secs,
            num_local_servers=max(conf.num_ps, 0),
            **settings,
        )


def _set_threads_and_limits(
    session_config: tf.compat.v1.ConfigProto, config: MemberSettings
) -> None:
    # The defaults are made for a cluster's machines; here TensorFlow knows better.
    if config.intra_op_parallelism_threads != MemberSettings.intra_op_parallelism_threads:
        session_config.intra_op_parallelism_threads = config.intra_op_parallelism_threads
    if config.inter_op_parallelism_threads != MemberSettings.inter_op_parallelism_threads:
        session_config.inter_op_parallelism_threads = config.inter_op_parallelism_threads
        # Or the number of the first session in the process would count.
        session_config.use_per_session_threads = True
    if config.operation_timeout_in_ms > 0:
        session_config.operation_timeout_in_ms = config.operation_timeout_in_ms
        # A thread that computes the ops itself cannot give up on them.
        session_config.inter_op_parallelism_threads = max(
            0, session_config.inter_op_parallelism_threads
        )


def make_config_backward_compatible(model_dir: str, config: CpuTrainingConfig) -> None:
    """Keeps separate tables for a model directory whose checkpoints have them.

    Args:
        model_dir: Where the checkpoints are.
        config: Changed in place if it leaves the kind of table open.
    """
    if config.use_native_multi_hash_table is not None:
        return
    state = get_monolith_checkpoint_state(model_dir)
    if state is None:
        return
    proto = monolith_checkpoint_state_pb2.MonolithCheckpointState
    if state.builtin_hash_table_type in (proto.UNKNOWN, proto.CUCKOO_HASH_MAP):
        config.use_native_multi_hash_table = False


def check_graph_mode() -> None:
    """Refuses eager execution: training builds graphs."""
    if tf.executing_eagerly():
        raise OSError(
            "Local train is not supported in the eager mode. Please call "
            "`tf.compat.v1.disable_eager_execution()`"
        )


def instantiate(params: Any) -> NativeTask:
    """Makes the task of some params."""
    task = params.instantiate()
    if not isinstance(task, NativeTask):
        raise ValueError(f"local train only support NativeTask. Got {task}")
    return task


def _profile(model_dir: str, profiling: bool) -> contextlib.AbstractContextManager[Any]:
    return tf.profiler.experimental.Profile(model_dir) if profiling else contextlib.nullcontext()
