"""Trains, evaluates, predicts with and exports a `MonolithModel`, as its settings say.

Example:
    >>> config = RunConfig(is_local=True, model_dir="/models/movies", num_ps=2)
    >>> RunConfig.from_json(config.to_json()) == config
    True

    With a model, see `monolith.model.ranking`, that is

        estimator = Estimator(MyModel(), config)
        estimator.train(steps=1000)
        print(estimator.evaluate(steps=10))
        for prediction in estimator.predict():
            ...
"""

import copy
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import manifest
from monolith.checkpoint.paths import SaveHelper
from monolith.cluster import zookeeper
from monolith.cluster.discovery_base import ServiceDiscovery, ServiceDiscoveryType
from monolith.core import directories, metrics
from monolith.core.export_marker import monolith_export
from monolith.embedding.tables import shards
from monolith.graph import devices
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.spec import Hook
from monolith.model import outputs
from monolith.model.heads import EstimatorSpec
from monolith.serving.loading import import_saved_model
from monolith.training import cpu, restore_override, runner
from monolith.training import estimator_arguments as arguments
from monolith.training.config import supported
from monolith.training.config.run import RunConfig
from monolith.training.graph.estimator import GraphEstimator, ServingInputReceiver
from monolith.training.launch import cluster, work
from monolith.training.tables import export, save

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
    "RunConfig",
    "RunnerConfig",
    "ServingInputReceiver",
    "import_saved_model",
]

logger = logging.getLogger(__name__)

RunnerConfig = runner.RunnerConfig


@monolith_export
class Estimator:
    """A model and the settings to run it with.

    Every call works on a copy of the model, and continues from, or uses, the last checkpoint of the
    model directory.

    Args:
        model: The model, or its params.
        conf: The settings. Without a `model_dir` the model goes to
            `<temporary directory>/<user>/<name of the model>`, a directory of this user alone.
        warm_start_from: Not supported, see `RunConfig.restore_dir`.

    Raises:
        ConfigError: The settings ask for what is not there, or `params_override` is not a JSON
            object.
        AssertionError: A job that sends updates to a serving side does not name it.
    """

    def __init__(
        self, model: Any, conf: RunConfig | RunnerConfig, warm_start_from: str | None = None
    ) -> None:
        if isinstance(model, type) or not hasattr(model, "instantiate"):
            raise errors.ConfigError(
                f"An Estimator needs a model, an instance, or its params; got {model!r}."
            )
        if warm_start_from is not None:
            raise errors.ConfigError(
                "warm_start_from is not supported; set restore_dir of the RunConfig to start from "
                "the checkpoint of another model directory."
            )
        self._profiling = isinstance(conf, RunConfig) and conf.enable_local_profiling
        self._given_conf = conf
        self._conf = arguments.to_runner_config(conf)
        arguments.check_serving(self._conf)
        supported.check_settings(self._conf)
        if self._conf.is_local and not self._conf.enable_full_sync_training:
            supported.check_local(self._conf)
        runner.prepare_process(self._conf)
        self._model = copy.deepcopy(model)
        self._apply_settings()
        os.environ["TF_GRPC_WORKER_CACHE_THREADS"] = str(self._conf.tf_grpc_worker_cache_threads)
        os.environ["MONOLITH_GRPC_WORKER_SERVICE_HANDLER_MULTIPLIER"] = str(
            self._conf.monolith_grpc_worker_service_handler_multiplier
        )

    @property
    def config(self) -> RunnerConfig:
        """The settings."""
        return self._conf

    @property
    def given_config(self) -> RunConfig | RunnerConfig:
        """The settings as they were given."""
        return self._given_conf

    @property
    def model(self) -> Any:
        """The model, or its params, with what the settings say about it."""
        return self._model

    @property
    def model_dir(self) -> str:
        """Directory of checkpoints and summaries; the default one is made if it is not there."""
        return self._conf.model_dir or directories.make_default_model_dir(self._model.name)

    def train(
        self,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> "Estimator":
        """Trains until the input ends, for some steps, or until a hook asks to stop.

        With `only_feature_engineering` it writes the features of the whole input to files instead.
        An input that an earlier call has not read to its end goes on where the last checkpoint was
        saved; any other one starts at its beginning.

        Unless the settings say `is_local`, this process takes part as one member of a job on
        several, as `server_type` and `index` say, and returns when the job is over for it. The
        members meet where `discovery_type` says. A `RunConfig` with servers, where nothing says
        where members would meet, has all of them started on this machine instead. With
        `enable_sync_training` it is a rank of a synchronous job, see
        `monolith.training.synchronous`.

        Args:
            steps: How many steps to train; in a job of several processes, in sum.
            max_steps: Global step to train to; nothing happens if the last checkpoint is there.
            hooks: Hooks of the session.

        Returns:
            The estimator.

        Raises:
            ConfigError: Both limits are given, the model does not fit its input, or the members of
                the job do not fit together.
            DataError: The input is not what it was said to be.
            JobError: The processes that were started have failed.
            KeyboardInterrupt: Ctrl-C has stopped the training, which is saved.
            OSError: TensorFlow executes eagerly.
            SystemExit: SIGTERM has stopped the training, which is saved.
        """
        hooks = arguments.check_hooks(hooks)
        if steps is not None and max_steps is not None:
            raise errors.ConfigError("Can not provide both steps and max_steps.")
        model, conf = self._copy(ModeKeys.TRAIN)
        arguments.find_params(model, "train").steps = steps
        arguments.find_params(model, "train").max_steps = max_steps
        if conf.enable_full_sync_training:
            cpu.init_sync_train_and_update_conf(conf)
            conf.model_dir = self.model_dir
            cpu.distributed_sync_train(conf, model, user_hooks=hooks)
            # Rank 0 has gone back to it; from now on the last checkpoint counts.
            self._conf.restore_ckpt = None
            return self
        if self._starts_members(conf):
            self._train_on_cluster(steps, max_steps, hooks)
            return self
        if not conf.is_local:
            with runner.monolith_discovery(conf) as discovery:
                self._train_in_cluster(model, conf, discovery, hooks)
            return self
        if conf.only_feature_engineering:
            cpu.local_feature_engineering_internal(model, conf, self.model_dir, self._profiling)
            return self
        save.prepare_model_dir(self.model_dir, arguments.find_params(model, None))
        self.go_back()
        if self._is_reached(max_steps):
            return self
        if max_steps is not None:
            hooks = [*hooks, tf.compat.v1.train.StopAtStepHook(last_step=max_steps)]
        cpu.local_train_internal(
            model,
            conf,
            self.model_dir,
            steps=steps,
            profiling=self._profiling,
            user_hooks=hooks,
        )
        return self

    def take_part(
        self,
        discovery: ServiceDiscovery,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> "Estimator":
        """Does what `train` does in a job of several processes that meet in `discovery`.

        Args:
            discovery: Where the members meet; the caller closes it.
            steps: How many steps all workers train together.
            max_steps: Global step to train to.
            hooks: Hooks of the session of a worker.

        Returns:
            The estimator.
        """
        hooks = arguments.check_hooks(hooks)
        model, conf = self._copy(ModeKeys.TRAIN)
        arguments.find_params(model, "train").steps = steps
        arguments.find_params(model, "train").max_steps = max_steps
        self._train_in_cluster(model, conf, discovery, hooks)
        return self

    def go_back(self) -> None:
        """Has training start from `restore_ckpt` of the settings, once.

        `train` calls it. From then on the last checkpoint counts, also for who evaluates.

        Raises:
            ConfigError: There is no such checkpoint.
        """
        name = self._get_restore_ckpt()
        if name is not None:
            restore_override.go_back(self.model_dir, name)
            self._conf.restore_ckpt = None

    def evaluate(
        self, steps: int | None = None, hooks: Sequence[Hook] | None = None
    ) -> dict[str, float]:
        """Computes the metrics of each head over the input of mode EVAL.

        They are also written to the standard error, and as a summary below the model directory.

        Args:
            steps: How many batches; None takes all.
            hooks: Hooks of the session.

        Returns:
            "<head>_auc" of heads that classify, "<head>_mse" of others; "loss", the mean over the
            batches; and "global_step".

        Raises:
            ConfigError: There is no checkpoint, the input is empty, or the model does not fit it.
            DataError: The input is not what it was said to be.
            OSError: TensorFlow executes eagerly.
        """
        metrics = self.compute_metrics(steps, hooks)
        outputs.print_metrics("evaluation", metrics)
        return metrics

    def compute_metrics(
        self, steps: int | None = None, hooks: Sequence[Hook] | None = None
    ) -> dict[str, float]:
        """Does what `evaluate` does, and prints nothing."""
        hooks = arguments.check_hooks(hooks)
        training = self._create_training(ModeKeys.EVAL)
        inner = self._create_inner_estimator(training.create_model_fn())
        values = inner.evaluate(
            training.create_input_fn(ModeKeys.EVAL), steps, hooks, self._find_restore_ckpt()
        )
        return {name: value.item() for name, value in values.items()}

    def predict(
        self,
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Returns a generator of predictions for the input of mode PREDICT.

        What can be refused is refused at once; the rest happens when the first value is asked for.

        Args:
            predict_keys: Which heads, of a model with several; None takes all.
            hooks: Hooks of the session.
            checkpoint_path: What to predict with, variables and tables; None takes the last
                checkpoint, or `restore_ckpt` of the settings.
            yield_single_examples: Whether batches are taken apart into their examples.

        Raises:
            ConfigError: There is no such head or checkpoint, or the model does not fit its input.
            DataError: The input is not what it was said to be.
            OSError: TensorFlow executes eagerly.
        """
        hooks = arguments.check_hooks(hooks)
        checkpoint_path = checkpoint_path or self._find_restore_ckpt()
        training = self._create_training(ModeKeys.PREDICT, checkpoint_path)
        inner = self._create_inner_estimator(training.create_model_fn())
        return inner.predict(
            training.create_input_fn(ModeKeys.PREDICT),
            predict_keys,
            hooks,
            checkpoint_path,
            yield_single_examples,
        )

    def export_saved_model(
        self,
        batch_size: int = 64,
        name: str | None = None,
        dense_only: bool = False,
        enable_fused_layout: bool = False,
    ) -> bytes:
        """Exports the last checkpoint as one model with all its tables.

        Unless `serving.shared_embedding` of the model's params is False, the exported model reads
        the rows of its tables from the checkpoint, which must stay where it is.

        Args:
            batch_size: Batch size of the model while it is built.
            name: Name of the exported model, by default "demo_export".
            dense_only: Whether to leave the tables out; must be False.
            enable_fused_layout: Whether one op makes the layouts of all embeddings; the answers
                are the same.

        Returns:
            The directory of the model, a new one below `serving.export_dir_base`.

        Raises:
            ConfigError: The model has no `serving_input_receiver_fn`, what that gives does not fit
                the model, there is no checkpoint, or the directory cannot be written.
        """
        export_dir = self._export(
            ExportMode.STANDALONE, batch_size, name, dense_only, enable_fused_layout
        )
        assert isinstance(export_dir, bytes)  # One model has one directory.
        return export_dir

    def export_parts(
        self, batch_size: int = 64, name: str | None = None, dense_only: bool = False
    ) -> dict[str, bytes]:
        """Exports the last checkpoint in parts: `entry`, and `ps_0` and so on with the rows.

        Another process may do so while this one trains. `serving.shared_embedding` of the model's
        params counts as in `export_saved_model`.

        Args:
            batch_size: Batch size of the model while it is built.
            name: Name of the exported model, by default "demo_export".
            dense_only: Whether only the entry is exported; servers keep the rows that they have.

        Returns:
            The directory of each part, a new one below `<serving.export_dir_base>/<part>`.

        Raises:
            ConfigError: As of `export_saved_model`.
        """
        export_dirs = self._export(ExportMode.DISTRIBUTED, batch_size, name, dense_only, False)
        assert isinstance(export_dirs, dict)
        return export_dirs

    def _export(
        self,
        export_mode: ExportMode,
        batch_size: int,
        name: str | None,
        dense_only: bool,
        enable_fused_layout: bool,
    ) -> bytes | dict[str, bytes]:
        # In mode TRAIN the model has the tables that the checkpoint has.
        model, conf = self._copy(ModeKeys.TRAIN)
        conf = arguments.to_local(conf)
        cpu.make_config_backward_compatible(self.model_dir, conf)
        checkpoint = self._find_restore_ckpt() or self.latest_checkpoint()
        num_servers = checkpoint and shards.count_servers(SaveHelper.get_ckpt_asset_dir(checkpoint))
        if num_servers:
            # An exported model reads files as they are: one part of a table from each.
            conf.num_ps = num_servers if num_servers > 1 else 0
        task = model.instantiate()
        task.p.name = name or "demo_export"
        task.p.train.per_replica_batch_size = batch_size
        task.p.serving.export_mode = export_mode
        receiver_fn = task.create_serving_input_receiver_fn()
        if receiver_fn is None:
            raise errors.ConfigError(export.describe_missing_receiver(task))
        conf.enable_fused_layout = enable_fused_layout
        exporter = cpu.create_exporter(
            cpu.CpuTraining(conf, task),
            self.model_dir,
            conf.warmup_file,
            os.path.join(self.model_dir, task.p.serving.export_dir_base),
            dense_only,
        )
        return exporter.export_saved_model(receiver_fn, self._find_restore_ckpt())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of a dense variable in the last checkpoint."""
        return self._create_checkpoint_reader().get_variable_value(name)

    def get_variable_names(self) -> list[str]:
        """Returns the names of all dense variables in the last checkpoint."""
        return self._create_checkpoint_reader().get_variable_names()

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the last checkpoint, None if there is none."""
        return tf.train.latest_checkpoint(self.model_dir)

    def close(self) -> None:
        """Ends what runs beside training; a local job has nothing of the kind."""

    def _apply_settings(self) -> None:
        """Hands the model what the settings say about it."""
        conf = self._conf
        metrics = arguments.find_params(self._model, "metrics")
        if conf.deep_insight_name is not None:
            metrics.deep_insight_name = conf.deep_insight_name
        if conf.deep_insight_target is not None:
            metrics.deep_insight_target = conf.deep_insight_target
        train = arguments.find_params(self._model, "train")
        if conf.controller_host is not None:
            train.controller_host = conf.controller_host
        if conf.incremental_save_steps is not None or conf.incremental_save_secs is not None:
            train.incremental_save_steps = conf.incremental_save_steps
            train.incremental_save_secs = conf.incremental_save_secs
        if conf.fall_back_to_older_checkpoint:
            train.fall_back_to_older_checkpoint = True
        if conf.rebuild_checkpoint_list:
            train.rebuild_checkpoint_list = True
        if conf.transfer_float16:
            train.transfer_float16 = True
        # Whether metrics are computed is a setting of models only, not of any task.
        params = arguments.find_params(self._model, None)
        if "disable_native_metrics" in params and params.disable_native_metrics is None:
            params.disable_native_metrics = conf.disable_native_metrics
        if conf.params_override:
            params.set(**arguments.parse_override(conf.params_override))

    def _copy(self, mode: str) -> tuple[Any, RunnerConfig]:
        """Returns a copy of the model for `mode`, and one of the settings."""
        model, conf = copy.deepcopy(self._model), copy.deepcopy(self._conf)
        if mode != ModeKeys.TRAIN:
            conf = arguments.to_local(conf)
        arguments.find_params(model, None).mode = mode
        conf.mode = mode
        name = arguments.find_params(model, "metrics").deep_insight_name
        if name:
            metrics.set_metric_prefix(f"monolith.training.{name}")
        if conf.is_local:
            cpu.make_config_backward_compatible(self.model_dir, conf)
        return model, conf

    def _create_training(self, mode: str, checkpoint_path: str | None = None) -> cpu.CpuTraining:
        """Returns the model for a `mode` that uses what was trained."""
        if tf.executing_eagerly():
            raise OSError(
                "An Estimator builds graphs, which the eager mode does not allow. Please call "
                "`tf.compat.v1.disable_eager_execution()`"
            )
        model, conf = self._copy(mode)
        self._check_checkpoint(checkpoint_path)
        return cpu.CpuTraining(conf, arguments.instantiate(model))

    def _create_inner_estimator(self, model_fn: Callable[..., Any]) -> GraphEstimator:
        """Returns an estimator in this process, with its servers in it if training had them so."""
        conf = arguments.to_local(self._conf)
        config = cpu.make_local_run_config(conf, self.model_dir, device_fn=conf.device_fn)
        return GraphEstimator(model_fn, config=config)

    def _create_checkpoint_reader(self) -> GraphEstimator:
        model, _ = self._copy(ModeKeys.PREDICT)
        return self._create_inner_estimator(arguments.instantiate(model).create_model_fn())

    def _get_restore_ckpt(self) -> str | None:
        """Returns the checkpoint of this model that the settings ask for, if they do."""
        # Together with a directory it chooses there, and that was done when the process was made
        # ready.
        return None if self._conf.restore_dir else self._conf.restore_ckpt or None

    def _find_restore_ckpt(self) -> str | None:
        """Returns the path of that checkpoint; None: the last one is to be used."""
        name = self._get_restore_ckpt()
        return None if name is None else restore_override.find_checkpoint(self.model_dir, name)

    def get_step(self) -> int:
        """Returns the step of the last checkpoint, 0 if there is none."""
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            return 0
        with manifest.named_damage(checkpoint):
            return int(tf.train.load_variable(checkpoint, tf.compat.v1.GraphKeys.GLOBAL_STEP))

    def _check_checkpoint(self, checkpoint_path: str | None) -> None:
        latest = self.latest_checkpoint()
        if checkpoint_path is None and latest is None:
            raise errors.ConfigError(
                f"There is no checkpoint in {self.model_dir}; train first, or set model_dir to "
                "where the model was trained."
            )
        if checkpoint_path is None or tf.compat.v1.train.checkpoint_exists(checkpoint_path):
            return
        raise errors.ConfigError(
            f"checkpoint_path {checkpoint_path!r} is no checkpoint; the last one of "
            f"{self.model_dir} is {latest!r}."
        )

    def _is_reached(self, max_steps: int | None) -> bool:
        if max_steps is None or self.get_step() < max_steps:
            return False
        logger.info("nothing to train: step %d is reached already", max_steps)
        return True

    def _starts_members(self, conf: RunnerConfig) -> bool:
        """Returns whether this process is to start a job, since it cannot be a member of one."""
        return (
            isinstance(self._given_conf, RunConfig)
            and not conf.is_local
            and conf.num_ps > 0
            and conf.discovery_type == ServiceDiscoveryType.ZK
            and not (conf.zk_server or zookeeper.default_zk_servers())
        )

    def _train_on_cluster(
        self, steps: int | None, max_steps: int | None, hooks: Sequence[Hook]
    ) -> None:
        """Trains on processes of this machine that are started for it."""
        assert isinstance(self._given_conf, RunConfig)
        save.prepare_model_dir(self.model_dir, arguments.find_params(self._model, None))
        self.go_back()
        if self._is_reached(max_steps):
            return
        model_dir = os.path.abspath(self.model_dir)
        # Where to start from was settled here, once.
        config = dataclasses.replace(
            self._given_conf, model_dir=model_dir, restore_dir=None, restore_ckpt=None
        )
        made = work.TaskWork(
            model=self._model, config=config, steps=steps, max_steps=max_steps, hooks=hooks
        )
        cluster.train_on_cluster(
            made, num_ps=config.num_ps, num_workers=config.num_workers, model_dir=model_dir
        )

    def _train_in_cluster(
        self,
        model: Any,
        conf: RunnerConfig,
        discovery: ServiceDiscovery | None,
        hooks: Sequence[Hook],
    ) -> None:
        if conf.enable_gpu_training:
            devices.enable_gpu_training()
        assert discovery is not None
        cpu.distributed_train(conf, discovery, model, user_hooks=hooks)
