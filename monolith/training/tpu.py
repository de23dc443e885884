"""Runs a registered task on TPUs, or, to try it, on this machine's CPU.

    python -m monolith.training.tpu --task=my.models.Ranking --model_dir=gs://bucket/ranking \
        --mode=train --tpu=my-tpu

TensorFlow has dropped the estimator for TPUs, so that the way to one ends with a sentence that says
so. What does not need one works, with `--cpu_test`: training on a few examples with tables in
variables, and evaluation of the checkpoints of a directory as they appear. Who only wants to see
whether the model trains leaves `--model_dir` out.
"""

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import app, flags

from monolith import errors
from monolith.core.hyperparams import InstantiableParams
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig
from monolith.model import registry
from monolith.model.base_embedding_task import BaseEmbeddingTask
from monolith.model.base_task import BaseTask
from monolith.training.base_runner import BaseRunner
from monolith.training.graph.estimator import GraphEstimator

logger = logging.getLogger(__name__)

FLAGS = flags.FLAGS

_MODES = ("train_and_eval", "train", "eval")
_CPU_BATCH_SIZE = 128
_CHECKPOINT_TIMEOUT_SEC = 5 * 60 * 60


def _define_flags() -> None:
    """Defines those flags that no other module has; a model directory is one everywhere."""
    for define, name, default, text in (
        (flags.DEFINE_string, "tf_version", "nightly", "TensorFlow version of the TPU."),
        (flags.DEFINE_string, "tpu", None, "Name or address of the TPU."),
        (flags.DEFINE_string, "gcp_project", None, "Project of the TPU."),
        (flags.DEFINE_string, "tpu_zone", None, "Zone of the TPU."),
        (flags.DEFINE_string, "task", None, "Name of the registered task."),
        (flags.DEFINE_string, "model_dir", None, "Where checkpoints and summaries go."),
        (flags.DEFINE_integer, "save_checkpoints_steps", None, "Steps between two checkpoints."),
        (flags.DEFINE_integer, "iterations_per_loop", 10000, "Steps of a TPU between two calls."),
        (flags.DEFINE_bool, "pipeline_execution", False, "Whether lookups are a step ahead."),
        (flags.DEFINE_bool, "enable_tpu_version_config", True, "Whether the version is set."),
        (flags.DEFINE_integer, "host_call_every_n_steps", 500, "Steps between two host calls."),
        (flags.DEFINE_bool, "enable_stopping_signals", False, "Whether inputs tell their end."),
        (flags.DEFINE_bool, "cpu_test", False, "Whether to train on this machine's CPU, to try."),
        (flags.DEFINE_string, "partition_strategy", "mod", "How tables are divided: mod or div."),
        (flags.DEFINE_string, "overwrite_end_date", "", "The last day to train on."),
    ):
        if name not in FLAGS:
            define(name, default, text)
    if "mode" not in FLAGS:
        flags.DEFINE_enum("mode", "train", _MODES, "What to do.")


_define_flags()


class UnsupportedModeError(errors.ConfigError, TypeError):
    """The mode is none that this runner has; a TypeError for historical callers."""


class UnknownTaskError(errors.ConfigError, LookupError):
    """There is no task of that name; a LookupError for historical callers."""


class TPURunner(BaseRunner):
    """Trains or evaluates a task, as the flags say.

    Args:
        task_param: The params of the task. `train.save_checkpoints_steps` counts more than the
            flag; `accelerator` is set, and `train.end_date` if a flag says so.
    """

    def __init__(self, task_param: InstantiableParams) -> None:
        super().__init__()
        self._task_param = task_param
        # Another module may have defined the flag first, with an empty default.
        self._model_dir: str | None = FLAGS.model_dir or None
        self._mode: str = FLAGS.mode
        self._cpu_test: bool = FLAGS.cpu_test
        self._tpu: str | None = FLAGS.tpu
        self._host_call_every_n_steps: int = FLAGS.host_call_every_n_steps
        self._enable_stopping_signals: bool = FLAGS.enable_stopping_signals
        self._save_checkpoints_steps: int | None = FLAGS.save_checkpoints_steps
        if task_param.train.save_checkpoints_steps is not None:
            self._save_checkpoints_steps = task_param.train.save_checkpoints_steps
        task_param.accelerator = "tpu"
        if FLAGS.overwrite_end_date and task_param.train.contain("end_date"):
            task_param.train.end_date = FLAGS.overwrite_end_date

    def create_tpu_estimator(
        self,
        model_fn: Callable[..., Any],
        feature_config: Mapping[str, Any] | None,
        table_config: Mapping[str, Any] | None,
    ) -> tuple[GraphEstimator, int]:
        """Returns an estimator for a TPU, and the number of its replicas.

        Raises:
            ConfigError: Always, since TensorFlow has no such estimator.
        """
        name = "a TPU" if self._tpu is None else f"TPU {self._tpu!r}"
        raise errors.ConfigError(
            f"TensorFlow {tf.__version__} has no estimator for TPUs any more, so {name} cannot be "
            f"used to {self._mode}; try the task on this machine with --cpu_test, or train it on "
            "CPUs with monolith.training.estimator."
        )

    def create_tpu_estimator_on_cpu(
        self,
        model_fn: Callable[..., Any],
        feature_config: Mapping[str, Any] | None,
        table_config: Mapping[str, Any] | None,
    ) -> tuple[GraphEstimator, int]:
        """Returns an estimator for this machine, in the model directory, or one of its own.

        Raises:
            ConfigError: There are tables left, which only an accelerator looks up.
        """
        if feature_config or table_config:
            raise errors.ConfigError(
                f"Tables {sorted(table_config or {})} are for an accelerator to look up; process "
                "the features with `process_features_for_cpu_test` first."
            )
        params = {**self._create_params(1), "batch_size": _CPU_BATCH_SIZE}
        run_config = GraphRunConfig()
        if self._save_checkpoints_steps is not None:
            run_config = GraphRunConfig(save_checkpoints_steps=self._save_checkpoints_steps)
        return GraphEstimator(model_fn, self._model_dir, run_config, params), 1

    def run(self) -> None:
        """Trains or evaluates, by the flag `mode`.

        Raises:
            UnsupportedModeError: It asks for both at once, or for something else.
            ConfigError: It needs a TPU, or lacks a setting.
        """
        # Another module may have defined the flag first, as any text.
        if self._mode not in _MODES:
            raise UnsupportedModeError(
                f"--mode is {self._mode!r}, which this runner does not know; it has 'train' and "
                "'eval'."
            )
        if self._mode == "train_and_eval":
            raise UnsupportedModeError(f"{self._mode} has not been supported.")
        step = self._load_global_step()
        logger.info("%s starts at step %d", self._mode, step)
        task = self._task_param.instantiate()
        model_fn = task.create_model_fn()
        feature_config: Mapping[str, Any] | None = None
        table_config: Mapping[str, Any] | None = None
        if isinstance(task, BaseEmbeddingTask):
            task.init_slot_to_env()
            feature_config, table_config = task.create_feature_and_table_config_dict()
        if self._cpu_test:
            model_fn = _look_up_first(task, model_fn)
            estimator, num_replicas = self.create_tpu_estimator_on_cpu(model_fn, None, None)
        else:
            estimator, num_replicas = self.create_tpu_estimator(
                model_fn, feature_config, table_config
            )
        if self._mode == "train":
            train = self._task_param.train
            estimator.train(task.create_input_fn(ModeKeys.TRAIN), max_steps=train.max_steps)
        else:
            self._evaluate(estimator, task, num_replicas)

    def _evaluate(self, estimator: GraphEstimator, task: BaseTask, num_replicas: int) -> None:
        """Evaluates each checkpoint as it appears, until the last one that training writes."""
        p = self._task_param
        if self._model_dir is None:
            raise errors.ConfigError("--mode=eval needs --model_dir, which has the checkpoints.")
        steps = self._count_eval_steps(num_replicas)
        with tf.Graph().as_default():  # Which TensorFlow's writer insists on.
            writer = tf.compat.v1.summary.FileWriter(os.path.join(self._model_dir, "eval"))
        for checkpoint in tf.train.checkpoints_iterator(
            self._model_dir, timeout=_CHECKPOINT_TIMEOUT_SEC
        ):
            try:
                metrics = estimator.evaluate(
                    self._create_eval_input_fn(task), steps=steps, checkpoint_path=checkpoint
                )
            except tf.errors.NotFoundError:
                # Training deletes old checkpoints, and this one took too long to get to.
                logger.warning("checkpoint %s is gone, the next one is evaluated", checkpoint)
                continue
            step = int(metrics["global_step"])
            with tf.Graph().as_default():
                self.write_summary(metrics, writer, step)
            writer.flush()
            logger.info("step %d: %s", step, metrics)
            if p.train.max_steps is not None and step >= p.train.max_steps:
                break
        writer.close()

    def _count_eval_steps(self, num_replicas: int) -> int:
        p = self._task_param
        batch_size = _CPU_BATCH_SIZE if self._cpu_test else p.eval.per_replica_batch_size
        if p.input.eval_examples is None or batch_size is None:
            raise errors.ConfigError(
                "To evaluate, the task needs `input.eval_examples` and "
                "`eval.per_replica_batch_size`, which say how many batches there are."
            )
        steps = int(p.input.eval_examples // (batch_size * num_replicas))
        if steps < 1:
            raise errors.ConfigError(
                f"`input.eval_examples` is {p.input.eval_examples}, which is less than a batch of "
                f"{batch_size * num_replicas}; raise it."
            )
        return steps

    def _create_eval_input_fn(self, task: BaseTask) -> Callable[..., tf.data.Dataset]:
        has_own = type(task).create_input_fn is not BaseEmbeddingTask.create_input_fn
        # That input is for training only; for a trial its examples are good enough.
        mode = ModeKeys.EVAL if has_own or not self._cpu_test else ModeKeys.TRAIN
        return task.create_input_fn(mode)

    def _create_params(self, total_replicas: int) -> dict[str, Any]:
        p = self._task_param
        names = ("enable_host_call_scalar_metrics", "enable_host_call_norm_metrics")
        return {
            "model_dir": self._model_dir,
            "enable_host_call": any(p.contain(name) and p.get(name) for name in names),
            "num_replicas": total_replicas,
            "accelerator": p.accelerator,
            "host_call_every_n_steps": self._host_call_every_n_steps,
            "enable_stopping_signals": self._enable_stopping_signals,
            "cpu_test": self._cpu_test,
        }

    def _load_global_step(self) -> int:
        checkpoint = (
            None if self._model_dir is None else tf.train.latest_checkpoint(self._model_dir)
        )
        if checkpoint is None:
            return 0
        return int(tf.train.load_variable(checkpoint, tf.compat.v1.GraphKeys.GLOBAL_STEP))


def _look_up_first(task: BaseTask, model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a model function that gets rows where an accelerator would look them up."""
    configs: list[dict[str, Any]] = []
    if isinstance(task, BaseEmbeddingTask):
        configs = [dict(found) for found in task.create_feature_and_table_config_dict()]

    def wrapped(features: Any, mode: str, config: Any, params: Any) -> Any:
        if isinstance(task, BaseEmbeddingTask):
            # Each checkpoint is evaluated in a graph of its own, and the last one has emptied them.
            task.env.feature_to_config.update(configs[0])
            task.env.table_to_config.update(configs[1])
            features = task.process_features_for_cpu_test(features)
        given = {"features": features, "mode": mode, "config": config, "params": params}
        wanted = inspect.signature(model_fn).parameters
        return model_fn(**{name: value for name, value in given.items() if name in wanted})

    return wrapped


def main(argv: list[str]) -> None:
    """Runs the task of the flag `task`."""
    del argv
    if not FLAGS.task:
        raise errors.ConfigError("--task must name a registered task, such as my.models.Ranking.")
    logger.info("flags: %s", FLAGS.flag_values_dict())
    task_param = _find_task(FLAGS.task)().task()
    logger.info("params of the task: %s", task_param)
    TPURunner(task_param).run()


def _find_task(name: str) -> type[registry.SingleTaskModelParams]:
    """Imports the module of a task, and returns what it has registered under a name.

    Raises:
        UnknownTaskError: There is no such module, or it does not register the task.
    """
    module = name.rpartition(".")[0]
    try:
        if module:
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # What is missing is something that the module imports.
        raise UnknownTaskError(
            f"--task is {name!r}, and there is no module {error.name!r} to import it from; start "
            "in the directory that has it, or add that to PYTHONPATH."
        ) from error
    try:
        return registry.GetClass(name)
    except LookupError as error:
        raise UnknownTaskError(
            f"--task is {name!r}, but no task is registered under that name; put "
            "`@registry.RegisterSingleTaskModel` before its class of params, and say "
            "MODULE.CLASS."
        ) from error


def run_program(argv: list[str]) -> int:
    """Does what `main` does; what a user can put right ends with a sentence, not a traceback."""
    try:
        main(argv)
    except errors.ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    app.run(run_program)
