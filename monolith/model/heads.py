"""What the `model_fn` of a ranking model returns, and the heads that it describes.

Example:
    >>> with tf.Graph().as_default():
    ...     spec = EstimatorSpec(
    ...         label={"click": tf.ones([8]), "like": tf.ones([8])},
    ...         pred={"click": tf.zeros([8]), "like": tf.zeros([8])},
    ...         classification={"click": True, "like": False},
    ...     )
    ...     print([(head.name, head.classification) for head in make_heads(spec, [])])
    [('click', True), ('like', False)]
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from monolith import errors
from monolith.core.export_marker import monolith_export

# Under this key `graph_meta` holds the heads of a graph that trains, for hooks that watch them.
TRAINED_HEADS = "trained_heads"

# What TensorFlow allows in the name of an op, and a summary in its tag.
_HEAD_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


class _Fields(NamedTuple):
    label: Any
    pred: Any
    head_name: Any = None
    loss: Any = None
    optimizer: Any = None
    classification: Any = True


@monolith_export
class EstimatorSpec(_Fields):
    """What a model computes.

    With several heads, `label`, `pred` and `classification` are lists in the order of `head_name`,
    or dicts by head.

    Args:
        label: What is to be predicted, one number for each example; None where it is not known.
        pred: What is predicted, `[batch]` or `[batch, 1]`.
        head_name: Name of the head or heads, as in metrics and in an exported model; by default
            the keys of `pred`, or `metrics.deep_insight_target` of the model's params.
        loss: What training minimizes, a scalar; not needed to predict.
        optimizer: A `tf.compat.v1.train.Optimizer` for the dense variables; not needed to predict.
            Embeddings have their own, see `MonolithModel.lookup_embedding_slice`.
        classification: Whether the predictions are probabilities, measured by AUC. Others are
            measured by their mean squared error.
    """

    __slots__ = ()

    def _replace(self, **fields: Any) -> "EstimatorSpec":
        """Returns a copy with other fields."""
        unknown = sorted(fields.keys() - set(self._fields))
        if unknown:
            raise errors.ConfigError(
                f"EstimatorSpec has no {', '.join(map(repr, unknown))}; its fields are "
                f"{', '.join(self._fields)}."
            )
        return type(self)(**{**self._asdict(), **fields})


@dataclasses.dataclass(frozen=True)
class Head:
    """One thing that a model predicts.

    Attributes:
        name: Its name.
        pred: The predictions, as the model gave them.
        label: What was to be predicted; None where it is not known.
        classification: Whether the predictions are probabilities.
    """

    name: str
    pred: tf.Tensor
    label: tf.Tensor | None
    classification: bool


def as_spec(result: Any, model_name: str) -> EstimatorSpec:
    """Returns what `model_fn` gave, a spec or a tuple `(label, loss, pred)`, as a spec.

    Raises:
        ConfigError: It gave something else.
    """
    if isinstance(result, EstimatorSpec):
        return result
    if isinstance(result, tuple | list) and len(result) == 3:
        label, loss, pred = result
        return EstimatorSpec(label=label, pred=pred, loss=loss)
    raise errors.ConfigError(
        f"model_fn of {model_name} must return an EstimatorSpec(label, pred, ...) of "
        f"monolith.training.estimator, or a tuple (label, loss, pred); got {result!r}."
    )


def make_heads(spec: EstimatorSpec, default_names: Sequence[str]) -> list[Head]:
    """Returns the heads of a spec.

    Args:
        spec: What the model computes.
        default_names: Names of heads without one.

    Raises:
        ConfigError: Names, predictions and labels do not belong together, or a label does not have
            one number for each prediction.
    """
    names = _get_names(spec, default_names)
    preds = _spread("pred", spec.pred, names)
    labels = _spread("label", spec.label, names)
    kinds = _spread("classification", spec.classification, names)
    return [
        _make_head(name, pred, label, kind)
        for name, pred, label, kind in zip(names, preds, labels, kinds, strict=True)
    ]


def is_single(spec: EstimatorSpec) -> bool:
    """Whether a spec has one head that was not given as a list or dict."""
    return not isinstance(spec.pred, list | tuple | Mapping)


def _get_names(spec: EstimatorSpec, default_names: Sequence[str]) -> list[str]:
    given = [spec.head_name] if isinstance(spec.head_name, str) else spec.head_name
    names = list(default_names) if given is None else list(given)
    if isinstance(spec.pred, Mapping):
        if given is not None and set(names) != set(spec.pred):
            raise errors.ConfigError(
                f"EstimatorSpec names the heads {_quote(names)}, but gives pred for "
                f"{_quote(spec.pred)}; leave head_name out, or make them agree."
            )
        names = list(spec.pred) if given is None else names
    elif is_single(spec) and given is None:
        names = names[:1]
    count = 1 if is_single(spec) else len(spec.pred)
    if len(names) != count or not names:
        raise errors.ConfigError(
            f"EstimatorSpec gives pred for {count} heads and names {len(names)}: {_quote(names)}; "
            "set head_name to a list with one name for each."
        )
    for name in names:
        if not isinstance(name, str) or not _HEAD_NAME.fullmatch(name):
            raise errors.ConfigError(
                f"A head is named with letters, digits and any of `_.-/`, got {name!r}."
            )
    if len(set(names)) != len(names):
        raise errors.ConfigError(f"Two heads have the same name: {_quote(names)}.")
    return names


def _spread(what: str, value: Any, names: list[str]) -> list[Any]:
    """Returns a value for each head."""
    if isinstance(value, Mapping):
        missing = [name for name in names if name not in value]
        unknown = [name for name in value if name not in names]
        if missing or unknown:
            problem = (
                f"has nothing for head {missing[0]!r}"
                if missing
                else f"names an unknown head {unknown[0]!r}"
            )
            raise errors.ConfigError(
                f"{what} of EstimatorSpec {problem}; the heads are {_quote(names)}."
            )
        return [value[name] for name in names]
    if isinstance(value, list | tuple):
        if len(value) != len(names):
            raise errors.ConfigError(
                f"{what} of EstimatorSpec is a list of {len(value)} for {len(names)} heads, "
                f"{_quote(names)}; give one for each."
            )
        return list(value)
    if value is None or isinstance(value, bool) or len(names) == 1:
        return [value] * len(names)
    raise errors.ConfigError(
        f"{what} of EstimatorSpec is one tensor for {len(names)} heads, {_quote(names)}; give a "
        "list, or a dict by head."
    )


def _make_head(name: str, pred: Any, label: Any, classification: Any) -> Head:
    if isinstance(pred, tf.RaggedTensor | tf.SparseTensor) or not tf.is_tensor(pred):
        raise errors.ConfigError(f"pred of head {name!r} must be a tensor, got {pred!r}.")
    if label is None:
        return Head(name, pred, None, bool(classification))
    if isinstance(label, tf.RaggedTensor | tf.SparseTensor):
        raise errors.ConfigError(
            f"label of head {name!r} must be a dense tensor, got a {type(label).__name__}; give "
            "one number for each example."
        )
    label = tf.convert_to_tensor(label)
    # Classes may come as a distribution over them, which has more numbers than predictions.
    if not pred.dtype.is_integer:
        _check_label_shape(name, label, pred)
    # The identity gives tools that look for labels in the graph a name to find them by.
    label = tf.identity(label, name=f"label_{label.op.name}")
    return Head(name, pred, label, bool(classification))


def _check_label_shape(name: str, label: tf.Tensor, pred: tf.Tensor) -> None:
    label_shape, pred_shape = label.shape, pred.shape
    if label_shape.rank is None or pred_shape.rank is None:
        return
    # [batch] and [batch, 1] hold the same numbers; only what differs otherwise is wrong.
    if _without_ones(label_shape).is_compatible_with(_without_ones(pred_shape)):
        return
    raise errors.ConfigError(
        f"label of head {name!r} has the shape {label_shape} but pred has {pred_shape}; both must "
        "hold one number for each example. Select the column of the label that this head predicts, "
        "or reshape one of them."
    )


def _without_ones(shape: tf.TensorShape) -> tf.TensorShape:
    """Returns the shape without its last dimensions of size 1; the first is the batch."""
    dims = shape.as_list()
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    return tf.TensorShape(dims)


def _quote(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
