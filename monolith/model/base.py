"""From what a user writes, an input and a model, to what a training loop runs.

`MonolithBaseModel` is a task whose subclass says three things: `input_fn`, the data; `model_fn`,
the network, which ends in an `EstimatorSpec` with label, prediction, loss and optimizer; and, to
export it, `serving_input_receiver_fn`. The base class makes of it the steps of training, metrics of
each head, files of predictions, and outputs of an exported model.
"""

import abc
import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.core.hyperparams import InstantiableParams
from monolith.embedding.features import gradients as feature_gradients
from monolith.embedding.features.clipping import GradClipType
from monolith.embedding.features.slots import FeatureColumn, FeatureSlice, FeatureSlot
from monolith.graph import devices, export_mode, metadata, mpi
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import DEFAULT_SIGNATURE, PredictOutput
from monolith.graph.spec import GraphSpec
from monolith.model import heads as model_heads
from monolith.model import outputs as model_outputs
from monolith.model.task import NativeContext, NativeTask

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")

FLAGS = flags.FLAGS


# Hooks that would write the same samples twice.
_ONLY_ONCE = ("KafkaMetricHook", "FileMetricHook")

# What `metrics` of the params may ask for, and needs a service that is not part of this package.
_UNSUPPORTED_METRICS = ("enable_deep_insight", "enable_kafka_metrics", "enable_file_metrics")


class DeviceCtxType:
    """Which part of a model is being built."""

    INPUT_FN = "input_fn"
    MODEL_FN = "model_fn"
    INPUT_RECEIVER_FN = "input_receiver_fn"
    OTHERS = "others"


_DEVICE_FUNCTIONS: dict[str, Callable[[Any], str]] = {
    DeviceCtxType.INPUT_FN: devices.input_device_fn,
    DeviceCtxType.MODEL_FN: devices.model_device_fn,
    DeviceCtxType.INPUT_RECEIVER_FN: devices.serving_input_device_fn,
    DeviceCtxType.OTHERS: devices.default_device_fn,
}


@contextlib.contextmanager
def MonolithDeviceCtx(ctx_type: str) -> Iterator[None]:
    """Places the ops of a part of a model, in synchronous training that is not exporting.

    Args:
        ctx_type: One of `DeviceCtxType`.

    Raises:
        ConfigError: It is none of them.
    """
    if ctx_type not in _DEVICE_FUNCTIONS:
        raise errors.ConfigError(
            f"A device context is one of {', '.join(_DEVICE_FUNCTIONS)}, got {ctx_type!r}."
        )
    if not mpi.enable_sync_training() or export_mode.is_exporting():
        yield
        return
    with tf.compat.v1.device(_DEVICE_FUNCTIONS[ctx_type]):
        yield


class MonolithBaseModel(NativeTask):
    """A task made of an input and a model.

    Params are also attributes: `model.clip_norm` is `model.p.clip_norm`. `batch_size` stands for
    `per_replica_batch_size` of `train`, or of `eval` while evaluating; setting it sets both.

    Args:
        params: The settings, see `params`.
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the settings with their defaults; subclasses define more."""
        p = super().params()
        p.define("output_path", None, "Directory for files of predictions; None writes none.")
        p.define("output_fields", None, "Features to write there, separated by commas.")
        p.define("delimiter", "\t", "What separates two values of a line there.")
        p.define("file_name", "", "What the names of those files start with; empty for `part`.")
        p.define(
            "enable_grads_and_vars_summary", False, "Whether histograms of gradients are written."
        )
        p.define("dense_weight_decay", 0.0, "This times a variable is added to its gradient.")
        p.define("clip_norm", 1000.0, "Limit of the norm of all gradients; None: no limit.")
        p.define(
            "sparse_norm_warmup_steps", None, "Steps over which that of embeddings grows from 0."
        )
        p.define("default_occurrence_threshold", 0, "How often an id is seen before it gets a row.")
        p.define(
            "disable_native_metrics",
            None,
            "Whether training steps leave out metrics of heads; None: as the flag says.",
        )
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        self._default_dense_optimizer: Any = None
        self._use_dense_allreduce = _read_flag("enable_sync_training", default=False)
        self._share_slot_mapping: dict[str, int] = {}
        self.clean()

    def clean(self) -> None:
        """Forgets the features of the graph that was built last."""
        self.fs_dict: dict[str, FeatureSlot] = {}
        self.fc_dict: dict[str, FeatureColumn] = {}
        self.slice_dict: dict[str, dict[str, FeatureSlice]] = {}
        self._layout_dict: dict[str, Any] = {}
        self._occurrence_threshold: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        # Only for what is not an attribute; before `__init__` ran, as in a copy, nothing is.
        params = self.__dict__.get("p")
        if params is not None:
            if name == "batch_size":
                group = params.eval if params.mode == ModeKeys.EVAL else params.train
                return group.per_replica_batch_size
            if name in params:
                return params[name]
        raise AttributeError(f"{type(self).__name__} has no attribute and no param {name!r}.")

    def __setattr__(self, name: str, value: Any) -> None:
        params = self.__dict__.get("p")
        if params is not None and name == "batch_size":
            params.train.per_replica_batch_size = value
            params.eval.per_replica_batch_size = value
        elif params is not None and name in params:
            params[name] = value
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> "MonolithBaseModel":
        # What belongs to a graph stays behind: tensors cannot be copied out of it.
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        graph_state = ("_ctx", "fs_dict", "fc_dict", "slice_dict", "_layout_dict")
        for name, value in self.__dict__.items():
            if name not in graph_state:
                copied.__dict__[name] = copy.deepcopy(value, memo)
        copied.__dict__["_ctx"] = NativeContext()
        copied.clean()
        return copied

    def instantiate(self) -> "MonolithBaseModel":
        """Returns the model itself, so that it can stand where params are expected."""
        return self

    @abc.abstractmethod
    def input_fn(self, mode: str) -> tf.data.Dataset:
        """Returns the data: batches as dicts, with ragged int64 ids for features with embeddings.

        Args:
            mode: One of `ModeKeys`.
        """

    @abc.abstractmethod
    def model_fn(self, features: Mapping[str, Any], mode: str) -> Any:
        """Builds the network.

        Args:
            features: A batch. A feature with embeddings is looked up by its name; what stands for
                it here is for fetching only.
            mode: One of `ModeKeys`.

        Returns:
            An `EstimatorSpec` of `monolith.training.estimator`, or a tuple (label, loss, pred).
        """

    def serving_input_receiver_fn(self) -> Any:
        """Returns the `ServingInputReceiver` of an exported model; override it to export."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be exported without serving_input_receiver_fn; override "
            "it to return a ServingInputReceiver(features, receiver_tensors)."
        )

    @property
    def losses(self) -> list[tf.Tensor]:
        """Losses of the default graph beside that of `model_fn`."""
        return _graph_attribute("__losses", list)

    def add_loss(self, losses: Any) -> None:
        """Adds a loss, or several, to what training minimizes."""
        self.losses.extend(losses if isinstance(losses, list | tuple) else [losses])

    def add_training_hook(self, hook: tf.compat.v1.train.SessionRunHook) -> None:
        """Adds a hook of training to the default graph."""
        hooks = self._training_hooks
        kind = type(hook).__name__
        if kind in _ONLY_ONCE and any(type(known).__name__ == kind for known in hooks):
            logger.info("there is a %s already, the second one is left out", kind)
            return
        hooks.append(hook)

    @property
    def _training_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return _graph_attribute("__training_hooks", list)

    def add_extra_output(
        self,
        name: str,
        outputs: Any,
        head_name: str | None = None,
        head_type: str | None = None,
    ) -> None:
        """Adds a signature to the exported model, beside the default one with all predictions.

        Args:
            name: Of the signature.
            outputs: A tensor, or tensors by name.
            head_name: Head that the outputs belong to; goes into the graph's collections, with
                the name of the signature, for tools that look for it.
            head_type: What kind of head that is; as `head_name`.

        Raises:
            KeyError: There is a signature of this name already.
        """
        metadata.add_to_collections("signature_name", name)
        metadata.add_to_collections("head_name", head_name)
        metadata.add_to_collections("head_type", head_type)
        if not export_mode.is_exporting():
            return
        known = self._export_outputs
        if name in known or name == DEFAULT_SIGNATURE:
            raise KeyError(f"key {name} exists!")
        known[name] = PredictOutput(outputs)

    @property
    def _export_outputs(self) -> dict[str, PredictOutput]:
        return _graph_attribute("__export_outputs", dict)

    def is_fused_layout(self) -> bool:
        """Whether embeddings arrive in fused layouts."""
        return self.ctx.layout_factory is not None

    def create_input_fn(self, mode: str) -> Callable[[], Any]:
        """Returns `input_fn` as a training loop calls it."""

        def input_fn() -> Any:
            with MonolithDeviceCtx(DeviceCtxType.INPUT_FN):
                data = self.input_fn(self._get_real_mode(mode))
            if data is None:
                raise errors.ConfigError(
                    f"input_fn of {type(self).__name__} returned nothing in mode {mode!r}; return "
                    "a tf.data.Dataset of dicts."
                )
            return data

        return input_fn

    def create_serving_input_receiver_fn(self) -> Callable[[], Any] | None:
        """Returns `serving_input_receiver_fn`, None where the model does not override it."""
        inherited = MonolithBaseModel.serving_input_receiver_fn
        if type(self).serving_input_receiver_fn is inherited:
            return None

        def receiver_fn() -> Any:
            with MonolithDeviceCtx(DeviceCtxType.INPUT_RECEIVER_FN):
                return self.serving_input_receiver_fn()

        return receiver_fn

    def create_model_fn(self) -> Callable[..., GraphSpec]:
        """Returns `model_fn` as a training loop calls it."""
        self._check_metrics_params()
        self.clean()

        def model_fn(features: Any, mode: str, config: Any) -> GraphSpec:
            real_mode = self._get_real_mode(mode)
            with MonolithDeviceCtx(DeviceCtxType.MODEL_FN):
                result = self.model_fn(features, real_mode)
                spec = model_heads.as_spec(result, type(self).__name__)
                default_names = self.p.metrics.deep_insight_target.split(",")
                heads = model_heads.make_heads(spec, default_names)
                if real_mode == ModeKeys.PREDICT:
                    return self._predict(features, spec, heads)
                loss = self._get_loss(spec)
                if real_mode == ModeKeys.EVAL:
                    return self._evaluate(features, mode, heads, loss)
                return self._train(spec, heads, loss, config)

        return model_fn

    def _get_real_mode(self, mode: str) -> str:
        """Returns what a graph is built for.

        A loop that trains runs evaluations as well, so in mode TRAIN the params decide.
        """
        if mode in (ModeKeys.PREDICT, ModeKeys.EVAL):
            return mode
        if mode == ModeKeys.TRAIN:
            return str(self.p.mode)
        raise ValueError(f"model error! mode must be 'train', 'eval' or 'infer', got {mode!r}.")

    def _check_metrics_params(self) -> None:
        for name in _UNSUPPORTED_METRICS:
            if self.p.metrics[name]:
                raise errors.ConfigError(
                    f"`metrics.{name}` sends samples to a service that this package does not "
                    "have; set it to False. Metrics of heads are in the summaries, see "
                    "`disable_native_metrics`."
                )

    def _get_loss(self, spec: model_heads.EstimatorSpec) -> tf.Tensor:
        if spec.loss is None and not self.losses:
            raise errors.ConfigError(
                f"model_fn of {type(self).__name__} gave no loss; set EstimatorSpec(loss=...), a "
                "scalar, for training and evaluation."
            )
        losses = [] if spec.loss is None else [spec.loss]
        for loss in losses + self.losses:
            shape = tf.convert_to_tensor(loss).shape
            if shape.rank not in (None, 0) and shape.num_elements() != 1:
                raise errors.ConfigError(
                    f"The loss of {type(self).__name__} must be one number, got a tensor of shape "
                    f"{shape}; reduce it, with tf.reduce_sum or tf.reduce_mean."
                )
        return tf.add_n([tf.reshape(loss, []) for loss in losses + self.losses])

    def _predict(
        self,
        features: Any,
        spec: model_heads.EstimatorSpec,
        heads: Sequence[model_heads.Head],
    ) -> GraphSpec:
        hooks: list[tf.compat.v1.train.SessionRunHook] = []
        preds = {head.name: head.pred for head in heads}
        if self.p.output_path and not export_mode.is_dry_run_or_exporting():
            file = model_outputs.PredictionFile(self.p)
            with tf.control_dependencies([file.write(features, heads)]):
                preds = {name: tf.identity(pred) for name, pred in preds.items()}
            hooks.append(file.close_hook())
        predictions: Any = next(iter(preds.values())) if model_heads.is_single(spec) else preds
        outputs = {DEFAULT_SIGNATURE: PredictOutput(predictions), **self._export_outputs}
        return GraphSpec(
            ModeKeys.PREDICT,
            predictions=predictions,
            export_outputs=outputs,
            prediction_hooks=[*hooks, *self._training_hooks],
        )

    def _evaluate(
        self,
        features: Any,
        mode: str,
        heads: Sequence[model_heads.Head],
        loss: tf.Tensor,
    ) -> GraphSpec:
        metrics = model_outputs.make_metrics(heads, is_training=False)
        hooks = list(self._training_hooks)
        # A training loop runs this op, an evaluation the updates of the metrics.
        ops = [update for _, update in metrics.values()] + [head.pred for head in heads]
        if self.p.output_path and not export_mode.is_dry_run_or_exporting():
            file = model_outputs.PredictionFile(self.p)
            write = file.write(features, heads)
            with tf.control_dependencies([write]):
                loss = tf.identity(loss)
            ops.append(write)
            hooks.append(file.close_hook())
        return GraphSpec(
            mode,
            predictions={head.name: head.pred for head in heads},
            loss=loss,
            train_op=tf.group(*ops),
            eval_metric_ops=metrics,
            training_hooks=hooks,
            evaluation_hooks=hooks,
        )

    def _train(
        self,
        spec: model_heads.EstimatorSpec,
        heads: Sequence[model_heads.Head],
        loss: tf.Tensor,
        config: Any,
    ) -> GraphSpec:
        optimizer = spec.optimizer or self._default_dense_optimizer
        if optimizer is None:
            raise errors.ConfigError(
                f"dense_optimizer not found! model_fn of {type(self).__name__} gave none; set "
                "EstimatorSpec(optimizer=...), such as tf.compat.v1.train.AdagradOptimizer(0.05)."
            )
        trained: list[model_heads.Head] = metadata.get_meta(model_heads.TRAINED_HEADS, list)
        trained.extend(heads)
        hooks = list(self._training_hooks)
        ops = []
        if self._has_native_metrics():
            metrics = model_outputs.make_metrics(heads, is_training=True)
            ops += [update for _, update in metrics.values()]
            every_n_steps = getattr(config, "log_step_count_steps", None) or 100
            if metrics and not export_mode.is_dry_run_or_exporting():
                hooks.append(model_outputs.MetricsHook(metrics, every_n_steps))
        metadata.add_batch_norm_into_update_ops()
        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            ops.append(self._apply_gradients(optimizer, loss))
        return GraphSpec(
            ModeKeys.TRAIN,
            predictions={head.name: head.pred for head in heads},
            loss=loss,
            train_op=tf.group(*ops),
            training_hooks=hooks,
        )

    def _apply_gradients(self, optimizer: Any, loss: tf.Tensor) -> tf.Operation:
        return feature_gradients.apply_gradients_with_var_optimizer(
            self.ctx,
            self.fc_dict.values(),
            optimizer,
            loss,
            clip_type=GradClipType.ClipByGlobalNorm,
            clip_norm=self.p.clip_norm,
            dense_weight_decay=self.p.dense_weight_decay,
            global_step=tf.compat.v1.train.get_or_create_global_step(),
            grads_and_vars_summary=self.p.enable_grads_and_vars_summary,
            sparse_norm_warmup_steps=self.p.sparse_norm_warmup_steps,
            is_fused_layout=self.is_fused_layout(),
            use_allreduce=self._use_dense_allreduce,
        )

    def _has_native_metrics(self) -> bool:
        disabled = self.p.disable_native_metrics
        return not (
            _read_flag("disable_native_metrics", default=True) if disabled is None else disabled
        )


def _graph_attribute(name: str, make: Callable[[], _Value]) -> _Value:
    """Returns an attribute of the default graph; its first use creates it."""
    default_graph = tf.compat.v1.get_default_graph()
    if not hasattr(default_graph, name):
        setattr(default_graph, name, make())
    value: _Value = getattr(default_graph, name)
    return value


def _read_flag(name: str, default: bool) -> bool:
    """Returns the value of a flag of the job, which a model without a job does not have."""
    # The flag's holder: a model may be made before a command line was parsed.
    return FLAGS[name].value if name in FLAGS else default
