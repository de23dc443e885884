"""Trains, evaluates, predicts with and exports a model that a function builds as a graph.

TensorFlow has no estimators any more; this is the part of them that tasks need, under the names
that people know, on top of TensorFlow's monitored sessions.

Example:
    >>> def input_fn():
    ...     return tf.data.Dataset.from_tensors({"x": [1.0, 2.0]}).repeat(3)
    >>> def model_fn(features, mode):
    ...     w = tf.compat.v1.get_variable("w", initializer=1.0)
    ...     loss = tf.reduce_sum(w * features["x"])
    ...     step = tf.compat.v1.train.get_global_step()
    ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    ...     return GraphSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))
    >>> estimator = GraphEstimator(model_fn, "model").train(input_fn)
    >>> round(float(estimator.get_variable_value("w")), 4)  # 1 - 3 steps * 0.1 * (1 + 2)
    0.1
"""

import copy
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.training import training_util

from monolith import errors
from monolith.checkpoint import manifest
from monolith.data import seekable
from monolith.data.errors import describe_empty_input
from monolith.graph import devices, run_config
from monolith.graph import signatures as export
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig
from monolith.graph.signatures import PredictOutput, ServingInputReceiver
from monolith.graph.spec import GraphSpec, Hook, check_hooks
from monolith.serving import saved_model
from monolith.training.graph import build, loop, results
from monolith.training.hooks.nan_loss import NanLossError

__all__ = [
    "GraphEstimator",
    "GraphRunConfig",
    "GraphSpec",
    "ModeKeys",
    "NanLossError",
    "PredictOutput",
    "ServingInputReceiver",
    "export",
]

logger = logging.getLogger(__name__)

_EstimatorT = TypeVar("_EstimatorT", bound="GraphEstimator")


class GraphEstimator:
    """A model function with a directory for what it learns.

    Every call builds a new graph: `train` continues from the last checkpoint in the directory,
    `evaluate` and `predict` use it.

    Args:
        model_fn: Builds the model; may take `features`, `labels`, `mode`, `config` and `params`,
            and returns an `GraphSpec`.
        model_dir: Directory of checkpoints and summaries. None takes the config's, or a new
            temporary directory if that is None, too.
        config: How to run.
        params: Handed to functions that take `params`.
        warm_start_from: Checkpoint, or directory with checkpoints, of another model; its values
            are where a new model starts, for variables of the same names.

    Raises:
        errors.ConfigError: The two directories differ, or `model_fn` does not fit.
    """

    def __init__(
        self,
        model_fn: Callable[..., GraphSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: GraphRunConfig | None = None,
        params: Any = None,
        warm_start_from: str | None = None,
    ) -> None:
        build.check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._params = copy.copy(params) if params is not None else {}
        self._warm_start_from = warm_start_from
        self._config = _with_model_dir(config or GraphRunConfig(), model_dir)
        self._session_config = run_config.make_session_config(self._config)
        self._device_fn = run_config.make_device_fn(self._config)

    @property
    def model_dir(self) -> str:
        """Directory of checkpoints and summaries."""
        assert self._config.model_dir is not None
        return self._config.model_dir

    @property
    def config(self) -> GraphRunConfig:
        """How this estimator runs."""
        return self._config

    @property
    def params(self) -> Any:
        """What functions that take `params` get."""
        return self._params

    @property
    def model_fn(self) -> Callable[..., GraphSpec]:
        """The function that builds the model."""
        return self._model_fn

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the last checkpoint, None if there is none."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of all variables in the last checkpoint.

        Raises:
            errors.ConfigError: There is no checkpoint.
        """
        return [name for name, _ in tf.train.list_variables(self._find_checkpoint())]

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of a variable in the last checkpoint.

        Raises:
            errors.ConfigError: There is no checkpoint, or no such variable in it.
        """
        checkpoint = self._find_checkpoint()
        reader = tf.train.load_checkpoint(checkpoint)
        if not reader.has_tensor(name):
            raise errors.ConfigError(
                f"The checkpoint {checkpoint} has no variable {name!r}; it has "
                f"{', '.join(sorted(reader.get_variable_to_shape_map()))}."
            )
        return reader.get_tensor(name)

    def train(
        self: _EstimatorT,
        input_fn: Callable[..., Any],
        hooks: Sequence[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> _EstimatorT:
        """Trains until the input ends, or for some steps, or until a hook asks to stop.

        Args:
            input_fn: Builds the input; may take `mode`, `config` and `params`.
            hooks: Run before those of the model.
            steps: How many steps to train.
            max_steps: Global step to train to; nothing happens if the last checkpoint is there.

        Returns:
            The estimator.

        Raises:
            errors.ConfigError: Both limits are given, one is not positive, or the input is empty.
            errors.DataError: The input is not what it was said to be.
            NanLossError: The loss became NaN; what was saved before stays as it is.
        """
        hooks = [*check_hooks("hooks", hooks)]
        hooks += loop.make_stop_hooks(steps, max_steps)
        if max_steps is not None and self._checkpoint_step() >= max_steps:
            logger.info(
                "nothing to train: the last checkpoint has step %d, max_steps is %d",
                self._checkpoint_step(),
                max_steps,
            )
            return self
        with (
            tf.Graph().as_default() as graph,
            graph.device(self._device_fn),
            graph.container(self._config.container),
        ):
            self._start_graph()
            # A read, made before anything changes the step, that TensorFlow's hooks share. Theirs
            # also works before the step is initialized, which takes ten ops in every step.
            global_step_read = tf.compat.v1.train.get_global_step() + 0
            tf.compat.v1.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, global_step_read)
            data, spec = self._build(input_fn, ModeKeys.TRAIN)
            if self._warm_start_from is not None:
                tf.compat.v1.train.warm_start(self._warm_start_from)
            with seekable.closing_streams(graph):
                loop.run_training(spec, self._config, self._session_config, data.hooks, hooks)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Computes the metrics of the model over the input.

        They are also written as a summary below `model_dir`, in `eval` or `eval_<name>`.

        Args:
            input_fn: Builds the input; may take `mode`, `config` and `params`.
            steps: How many batches; None takes all.
            hooks: Run before those of the model.
            checkpoint_path: What to evaluate; None takes the last checkpoint, or a model that was
                just initialized if there is none.
            name: Tells evaluations on different data apart.

        Returns:
            Metrics by name; "loss", the mean over the batches, and "global_step" are always there.

        Raises:
            errors.ConfigError: The input is empty, or a metric is called like one of those two.
            errors.DataError: The input is not what it was said to be.
        """
        if steps is not None and steps <= 0:
            raise errors.ConfigError(f"Must specify steps > 0, given: {steps}")
        hooks = check_hooks("hooks", hooks)
        with tf.Graph().as_default() as graph, graph.device(self._device_fn):
            self._start_graph()
            data, spec = self._build(input_fn, ModeKeys.EVAL)
            values, update_op = results.make_eval_ops(spec)
            final_ops = tf.compat.v1.train.FinalOpsHook(values)
            all_hooks = [*data.hooks, *hooks, *spec.evaluation_hooks, final_ops]
            num_steps = 0
            with (
                loop.named_data_errors(),
                loop.released(all_hooks),
                seekable.closing_streams(graph),
                self._restored_session(spec, checkpoint_path, all_hooks) as session,
            ):
                while not session.should_stop() and num_steps != steps:
                    session.run(update_op)
                    num_steps += 1
            if num_steps == 0:
                raise errors.ConfigError(describe_empty_input("evaluated"))
            metrics = dict(final_ops.final_ops_values)
            assert self._config.summary_dir is not None
            results.write_eval_summary(self._config.summary_dir, name, metrics)
        return metrics

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields the model's predictions until the input ends.

        It is a generator: nothing happens before the first value is asked for.

        Args:
            input_fn: Builds the input; may take `mode`, `config` and `params`.
            predict_keys: Which predictions; None takes all.
            hooks: Run before those of the model.
            checkpoint_path: What to predict with; None takes the last checkpoint, or a model that
                was just initialized if there is none.
            yield_single_examples: Whether batches are taken apart into their examples.

        Raises:
            errors.ConfigError: There is no such prediction, or a batch cannot be taken apart.
            errors.DataError: The input is not what it was said to be.
        """
        hooks = check_hooks("hooks", hooks)
        # The graph is entered anew for each batch: a generator must not leave its graph as the
        # default one of whoever is using the values.
        with tf.Graph().as_default() as graph:
            with graph.device(self._device_fn):
                self._start_graph()
                data, spec = self._build(input_fn, ModeKeys.PREDICT)
                predictions = results.select_predictions(spec.predictions, predict_keys)
            all_hooks = [*data.hooks, *hooks, *spec.prediction_hooks]
            session = self._restored_session(spec, checkpoint_path, all_hooks)
        with loop.named_data_errors(), seekable.closing_streams(graph), session:
            while not session.should_stop():
                with graph.as_default():
                    batch = session.run(predictions)
                if yield_single_examples:
                    yield from results.split_batch(batch)
                else:
                    yield batch

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        *,
        checkpoint_path: str | None = None,
        assets_extra: Mapping[str, str] | None = None,
        main_op_fn: Callable[[str], tf.Operation | None] | None = None,
    ) -> bytes:
        """Writes the model for serving, to a new directory named after the time.

        Args:
            export_dir_base: Directory of all versions of the model.
            serving_input_receiver_fn: Builds the input of the exported model.
            checkpoint_path: What to export; None takes the last checkpoint.
            assets_extra: Files to copy along, from their path below `assets.extra`.
            main_op_fn: Called with the checkpoint when the model is built; returns the op that
                restores what is no variable, such as tables, whenever the model is loaded.

        Returns:
            The directory.

        Raises:
            errors.ConfigError: There is no checkpoint, or it lacks variables of the model.
        """
        checkpoint = checkpoint_path or self._find_checkpoint()
        # Without the device function: whoever serves the model knows nothing of this cluster.
        with tf.Graph().as_default():
            self._start_graph()
            receiver = serving_input_receiver_fn()
            spec = build.call_model_fn(
                self._model_fn,
                receiver.features,
                None,
                ModeKeys.PREDICT,
                self._config,
                self._params,
            )
            signatures = {
                name: output.as_signature_def(receiver.receiver_tensors)
                for name, output in (spec.export_outputs or {}).items()
            }
            init_op = spec.scaffold.local_init_op or spec.scaffold.default_local_init_op()
            main_ops = [init_op, main_op_fn(checkpoint) if main_op_fn is not None else None]
            main_op = tf.group(*[op for op in main_ops if op is not None], name="main_op")
            saver = spec.scaffold.saver or tf.compat.v1.train.Saver(sharded=True)
            export_dir = saved_model.make_timestamped_dir(os.fspath(export_dir_base))
            session_config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
            with tf.compat.v1.Session(config=session_config) as session:
                try:
                    saver.restore(session, checkpoint)
                except (tf.errors.NotFoundError, ValueError) as e:
                    raise errors.ConfigError(
                        "Could not load all requested variables from checkpoint. "
                        f"The model function makes variables for prediction that {checkpoint} does "
                        f"not hold: {e}"
                    ) from e
                saved_model.write_saved_model(
                    session,
                    export_dir,
                    signatures,
                    main_op=main_op,
                    saver=saver,
                    assets_extra=assets_extra,
                )
        return export_dir.encode()

    def _start_graph(self) -> None:
        """Does what comes first in every graph."""
        tf.compat.v1.set_random_seed(self._config.tf_random_seed)
        tf.compat.v1.train.create_global_step()

    def _build(self, input_fn: Callable[..., Any], mode: str) -> tuple[build.Input, GraphSpec]:
        if self._config.num_local_servers:
            devices.place_servers_in_session()
        data = build.call_input_fn(input_fn, mode, self._config, self._params)
        spec = build.call_model_fn(
            self._model_fn, data.features, data.labels, mode, self._config, self._params
        )
        return data, spec

    def _restored_session(
        self, spec: GraphSpec, checkpoint_path: str | None, hooks: Sequence[Hook]
    ) -> tf.compat.v1.train.MonitoredSession:
        checkpoint = checkpoint_path or self.latest_checkpoint()
        if checkpoint is None:
            logger.warning(
                "%s holds no checkpoint, the model starts with its initial values", self.model_dir
            )
        else:
            manifest.verify(checkpoint)
        return tf.compat.v1.train.MonitoredSession(
            tf.compat.v1.train.ChiefSessionCreator(
                scaffold=spec.scaffold,
                master=self._config.master,
                config=self._session_config,
                checkpoint_filename_with_path=checkpoint,
            ),
            hooks=hooks,
        )

    def _find_checkpoint(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise errors.ConfigError(
                f"Couldn't find trained model at {self.model_dir}: it holds no checkpoint; train "
                "first, or name another model_dir."
            )
        return checkpoint

    def _checkpoint_step(self) -> int:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            return 0
        with manifest.named_damage(checkpoint):
            reader = tf.train.load_checkpoint(checkpoint)
            name = tf.compat.v1.GraphKeys.GLOBAL_STEP
            return int(reader.get_tensor(name)) if reader.has_tensor(name) else 0


def _with_model_dir(
    config: GraphRunConfig, model_dir: str | os.PathLike[str] | None
) -> GraphRunConfig:
    if model_dir is None:
        if config.model_dir is not None:
            return config
        model_dir = tempfile.mkdtemp()
        logger.warning("no model_dir was given, the model goes to %s", model_dir)
    model_dir = os.fspath(model_dir)
    if config.model_dir not in (None, model_dir):
        raise errors.ConfigError(
            "`model_dir` is set both in the constructor and in `GraphRunConfig`, but with "
            f"different values: {model_dir!r} and {config.model_dir!r}."
        )
    return config.replace(model_dir=model_dir)
