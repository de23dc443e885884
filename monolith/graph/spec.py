"""What a model function hands back: the ops to run, and the hooks that go with them.

Example:
    >>> with tf.Graph().as_default():
    ...     spec = GraphSpec(ModeKeys.PREDICT, predictions=tf.constant([1.0]))
    >>> list(spec.export_outputs), spec.training_hooks
    (['serving_default'], ())
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from monolith import errors
from monolith.graph import signatures
from monolith.graph.mode_keys import ModeKeys

_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)

Hook: TypeAlias = tf.compat.v1.train.SessionRunHook


class _Fields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: dict[str, Any]
    export_outputs: dict[str, Any] | None
    training_chief_hooks: tuple[Hook, ...]
    training_hooks: tuple[Hook, ...]
    scaffold: tf.compat.v1.train.Scaffold
    evaluation_hooks: tuple[Hook, ...]
    prediction_hooks: tuple[Hook, ...]


class GraphSpec(_Fields):
    """The ops of a model, checked for what its mode needs.

    Args:
        mode: One of `ModeKeys`.
        predictions: A tensor, or tensors by name; required for PREDICT.
        loss: A tensor with one element; required for TRAIN and EVAL.
        train_op: Does one step and increments the global step; required for TRAIN.
        eval_metric_ops: Pairs of value and update op, by name.
        export_outputs: `PredictOutput`s by name. In mode PREDICT they default to all predictions,
            as "serving_default".
        training_chief_hooks: Hooks of training in the chief; they run before all others.
        training_hooks: Hooks of training in every worker.
        scaffold: How the session is initialized and saved.
        evaluation_hooks: Hooks of evaluation.
        prediction_hooks: Hooks of prediction.

    Raises:
        errors.ConfigError: Something that the mode needs is missing, or not of its type.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Iterable[Hook] | None = None,
        training_hooks: Iterable[Hook] | None = None,
        scaffold: tf.compat.v1.train.Scaffold | None = None,
        evaluation_hooks: Iterable[Hook] | None = None,
        prediction_hooks: Iterable[Hook] | None = None,
    ) -> "GraphSpec":
        if mode not in _MODES:
            raise errors.ConfigError(f"mode must be one of {_MODES}, got {mode!r}.")
        for name, value, modes in (
            ("train_op", train_op, (ModeKeys.TRAIN,)),
            ("loss", loss, (ModeKeys.TRAIN, ModeKeys.EVAL)),
            ("predictions", predictions, (ModeKeys.PREDICT,)),
        ):
            if value is None and mode in modes:
                raise errors.ConfigError(
                    f"Missing {name}: a model function must give it in mode {mode!r}."
                )
        if mode == ModeKeys.PREDICT or export_outputs is not None:
            export_outputs = signatures.get_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode,
            {} if predictions is None else predictions,
            None if loss is None else _as_scalar(loss),
            train_op,
            _check_metrics(eval_metric_ops),
            export_outputs,
            check_hooks("training_chief_hooks", training_chief_hooks),
            check_hooks("training_hooks", training_hooks),
            scaffold or tf.compat.v1.train.Scaffold(),
            check_hooks("evaluation_hooks", evaluation_hooks),
            check_hooks("prediction_hooks", prediction_hooks),
        )

    def _replace(self, **fields: Any) -> "GraphSpec":
        """Returns a copy with other fields, checked again; the mode cannot change."""
        if fields.get("mode", self.mode) != self.mode:
            raise errors.ConfigError(
                f"The mode of an GraphSpec cannot be changed, it is {self.mode!r}; "
                f"got {fields['mode']!r}."
            )
        unknown = fields.keys() - set(self._fields)
        if unknown:
            raise errors.ConfigError(
                f"GraphSpec has no {sorted(unknown)}; its fields are {list(self._fields)}."
            )
        return GraphSpec(**{**self._asdict(), **fields})


def _as_scalar(loss: Any) -> Any:
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank == 0:
        return loss
    if not loss.shape.is_compatible_with([]) and loss.shape.num_elements() != 1:
        raise errors.ConfigError(
            f"The loss must be one number, got a tensor of shape {loss.shape}; reduce it, for "
            "example with tf.reduce_sum."
        )
    return tf.reshape(loss, [])


def check_hooks(name: str, hooks: Iterable[Hook] | None) -> tuple[Hook, ...]:
    """Returns hooks as a tuple; refuses what is not one, and names the argument."""
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise errors.ConfigError(
                f"{name} must be hooks, instances of tf.compat.v1.train.SessionRunHook, got "
                f"{hook!r}."
            )
    return hooks


def _check_metrics(metric_ops: Mapping[str, Any] | None) -> dict[str, Any]:
    for name, pair in (metric_ops or {}).items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise errors.ConfigError(
                f"eval_metric_ops[{name!r}] must be a pair of value and update op, as the "
                f"functions of tf.compat.v1.metrics return it; got {pair!r}."
            )
    return dict(metric_ops or {})
