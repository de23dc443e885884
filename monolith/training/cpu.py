"""Training over tables: where a job starts, and the names that people know as `cpu_training`.

A job is described by a `CpuTrainingConfig`. `local_train` is the shortest way from a task to a
trained model, in this process; `local_train_internal` takes a whole config; `CpuTraining` is the
part that turns a task into the functions of an estimator.

Example:
    >>> config = CpuTrainingConfig(num_ps=2)
    >>> is_chief(config), make_native_task_context(config).num_ps
    (True, 2)
"""

import contextlib
import getpass
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from monolith.checkpoint.state import get_monolith_checkpoint_state
from monolith.graph import devices
from monolith.graph.run_config import GraphRunConfig
from monolith.model.task import NativeTask
from monolith.proto import monolith_checkpoint_state_pb2
from monolith.training.config.job import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks.feature_dump import FeatureEngineeringSaveHook
from monolith.training.tables import save
from monolith.training.tables.collect import (
    _combine_slices_as_table,
    _make_serving_feature_configs_from_training_configs,
)
from monolith.training.tables.export import create_exporter
from monolith.training.tables.members import NodeAliveCheckerError, _get_blocked_addrs
from monolith.training.tables.push import (
    _CpuFeatureFactory,
    _FusedCpuFeatureFactory,
    _lookup_embedding_ids,
    get_req_time,
)
from monolith.training.tables.training import (
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

logger = logging.getLogger(__name__)

_FEW_CORES = 4
_TF_CONFIG = "TF_CONFIG"


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
        num_ps: Parameter servers to start in this process; 0 keeps tables and variables local.
        model_dir: Where checkpoints go; None: `<temporary directory>/<user>/<name of the task>`.
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
    _check_graph_mode()
    conf = CpuTrainingConfig(
        num_ps=num_ps,
        model_name=params.name,
        save_checkpoints_steps=save_checkpoints_steps,
        embedding_prefetch_capacity=1 if enable_embedding_prefetch else 0,
        enable_embedding_postpush=enable_embedding_postpush,
        only_feature_engineering=only_feature_engineering,
    )
    if model_dir is None:
        model_dir = os.path.join(tempfile.gettempdir(), getpass.getuser(), params.name)
    if remove_model_dir_if_exists and tf.io.gfile.exists(model_dir):
        logger.info("removing %s to start anew", model_dir)
        tf.io.gfile.rmtree(model_dir)
    if only_feature_engineering:
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
        The estimator. Its servers live as long as the process, so it can evaluate and predict.

    Raises:
        EnvironmentError: TensorFlow executes eagerly.
        errors.ConfigError: The model does not fit its input.
    """
    _check_graph_mode()
    task = _instantiate(params)
    make_config_backward_compatible(model_dir, conf)
    training = CpuTraining(conf, task)
    save_secs, save_steps = save.get_save_interval(conf, task.p)
    with local_cluster(conf.num_ps) as session_config, _profile(model_dir, profiling):
        run_config = GraphRunConfig(
            model_dir=model_dir,
            session_config=session_config,
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
    _check_graph_mode()
    task = _instantiate(params)
    writer = DistributedCpuTrainingConfig(model_dir=model_dir, index=conf.index)
    with _profile(model_dir, profiling), tf.Graph().as_default():
        dataset = task.create_input_fn(conf.mode)()
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        hook = FeatureEngineeringSaveHook(writer, batch)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(iterator.initializer)
            while not session.should_stop():
                session.run(batch)


@contextlib.contextmanager
def local_cluster(num_ps: int) -> Iterator[tf.compat.v1.ConfigProto]:
    """Describes a cluster of this process in TF_CONFIG, with servers that it starts.

    Args:
        num_ps: Parameter servers to start; with none there is no cluster, and no TF_CONFIG.

    Yields:
        The config of sessions. TensorFlow cannot stop a server, so sessions that begin later, for
        predictions, find the servers there.
    """
    session_config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    os.environ.pop(_TF_CONFIG, None)
    if num_ps <= 0:
        if len(os.sched_getaffinity(0)) <= _FEW_CORES:
            # To hand an op to another thread takes longer than most ops, and large ones share
            # their work anyway: all run in the thread that calls the session.
            session_config.inter_op_parallelism_threads = -1
        yield session_config
        return
    session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    servers = [tf.distribute.Server.create_local_server() for _ in range(num_ps + 1)]
    addresses = [server.target.removeprefix("grpc://") for server in servers]
    cluster = {"chief": addresses[:1], devices.PS_JOB_NAME: addresses[1:]}
    session_config.cluster_def.CopyFrom(tf.train.ClusterSpec(cluster).as_cluster_def())
    session_config.share_cluster_devices_in_session = True
    session_config.experimental.share_session_state_in_clusterspec_propagation = True
    os.environ[_TF_CONFIG] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    try:
        yield session_config
    finally:
        os.environ.pop(_TF_CONFIG, None)


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


def _check_graph_mode() -> None:
    if tf.executing_eagerly():
        raise OSError(
            "Local train is not supported in the eager mode. Please call "
            "`tf.compat.v1.disable_eager_execution()`"
        )


def _instantiate(params: Any) -> NativeTask:
    task = params.instantiate()
    if not isinstance(task, NativeTask):
        raise ValueError(f"local train only support NativeTask. Got {task}")
    return task


def _profile(model_dir: str, profiling: bool) -> contextlib.AbstractContextManager[Any]:
    return tf.profiler.experimental.Profile(model_dir) if profiling else contextlib.nullcontext()
