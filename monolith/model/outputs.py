"""What becomes of the predictions of a model: metrics, and lines in files.

Metrics are running values over all batches that a session has seen: the AUC of a head that
classifies, the share of right classes where there are several, and the mean squared error of any
other head.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core.hyperparams import Params
from monolith.graph import task_context
from monolith.model.heads import Head
from monolith.native import file_ops

logger = logging.getLogger(__name__)

# Pairs of value and update op, by name.
Metrics = dict[str, tuple[tf.Tensor, tf.Tensor]]

# The AUC is a sum over steps in the threshold; more of them cost more and err less.
_NUM_THRESHOLDS_IN_TRAINING = 200
_NUM_THRESHOLDS_IN_EVALUATION = 1000

_MAX_NAMES_IN_ERROR = 20


def make_metrics(heads: Sequence[Head], is_training: bool) -> Metrics:
    """Returns the metric of each head that has a label, and a summary of it.

    A label and its predictions must hold the same number of elements; where that is not known
    before, it is checked at each step.

    Args:
        heads: The heads.
        is_training: Whether the metrics are computed along with training steps, and so are
            to be cheap.
    """
    thresholds = _NUM_THRESHOLDS_IN_TRAINING if is_training else _NUM_THRESHOLDS_IN_EVALUATION
    metrics: Metrics = {}
    for head in heads:
        if head.label is None:
            logger.info("Head %s has no label, so it has no metric.", head.name)
            continue
        name, metric = _make_metric(head, thresholds)
        metrics[name] = metric
        tf.compat.v1.summary.scalar(name, metric[0])
    return metrics


def _make_metric(head: Head, num_thresholds: int) -> tuple[str, tuple[tf.Tensor, tf.Tensor]]:
    assert head.label is not None
    label, pred = head.label, tf.reshape(head.pred, [-1])
    if pred.dtype.is_integer:
        name = f"{head.name}_accuracy"
        if label.shape.rank == 2 and label.shape[1] != 1:
            label = tf.argmax(label, axis=1)
        label = tf.cast(_match(head.name, label, pred), pred.dtype)
        return name, tf.compat.v1.metrics.accuracy(label, pred, name=name)
    label = tf.cast(_match(head.name, label, pred), tf.float32)
    pred = tf.cast(pred, tf.float32)
    if not head.classification:
        name = f"{head.name}_mse"
        return name, tf.compat.v1.metrics.mean_squared_error(label, pred, name=name)
    name = f"{head.name}_auc"
    is_probability = tf.debugging.Assert(
        tf.reduce_all((pred >= 0) & (pred <= 1)),
        [
            f"Head `{head.name}` classifies, so its pred must be probabilities from 0 to 1; give "
            "tf.sigmoid(logits), or set classification=False. Got:",
            pred,
        ],
    )
    with tf.control_dependencies([is_probability]):
        pred = tf.identity(pred)
    return name, tf.compat.v1.metrics.auc(label, pred, num_thresholds=num_thresholds, name=name)


def _match(name: str, label: tf.Tensor, pred: tf.Tensor) -> tf.Tensor:
    """Returns the label as a vector that has as many elements as `pred`."""
    label = tf.reshape(label, [-1])
    same_size = tf.debugging.assert_equal(
        tf.size(label),
        tf.size(pred),
        message=f"The label of head `{name}` must have one number for each prediction.",
    )
    # With static shapes the check is done already, and there is no op.
    with tf.control_dependencies([] if same_size is None else [same_size]):
        return tf.identity(label)


class MetricsHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes the metrics of training to the standard error, every so many steps and at the end.

    Args:
        metrics: The metrics, by name.
        every_n_steps: How many steps lie between two lines.
    """

    def __init__(self, metrics: Metrics, every_n_steps: int) -> None:
        self._values = {name: value for name, (value, _) in metrics.items()}
        self._every_n_steps = every_n_steps
        self._num_steps = 0

    def begin(self) -> None:
        self._fetches = {"global_step": tf.compat.v1.train.get_global_step(), **self._values}

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._num_steps += 1
        if self._num_steps % self._every_n_steps == 0:
            self._write(run_context.session)

    def end(self, session: tf.compat.v1.Session) -> None:
        if self._num_steps % self._every_n_steps:
            self._write(session)

    def _write(self, session: tf.compat.v1.Session) -> None:
        print_metrics("training", session.run(self._fetches))


def print_metrics(what: str, values: Mapping[str, Any]) -> None:
    """Writes a line of metrics to the standard error."""
    values = dict(values)
    step = values.pop("global_step", None)
    shown = ", ".join(f"{name} = {value:.6g}" for name, value in sorted(values.items()))
    print(f"{what}, step {step}: {shown}", file=sys.stderr, flush=True)


class PredictionFile:
    """Writes a line for each example: some of its fields, then its predictions.

    Each worker writes `part-<worker>` of the directory, from its beginning.

    Args:
        params: `output_path` is the directory, `output_fields` the names of features separated by
            commas, `delimiter` what stands between two values, and `file_name`, if it is not empty,
            what the name of the file starts with instead of `part`.
    """

    def __init__(self, params: Params) -> None:
        stem = params.file_name or "part"
        index = task_context.get().worker_index
        path = os.path.join(params.output_path, f"{stem}-{index:05d}")
        self._file = file_ops.WritableFile(path)
        self._fields = [f.strip() for f in (params.output_fields or "").split(",") if f.strip()]
        self._delimiter = params.delimiter

    def write(self, features: Mapping[str, Any], heads: Sequence[Head]) -> tf.Operation:
        """Returns the op that writes a batch.

        Raises:
            ConfigError: A field is not a dense feature of the batch.
        """
        columns = [_as_text(_get_field(features, name)) for name in self._fields]
        columns += [_as_text(head.pred) for head in heads]
        lines = tf.strings.join(columns, separator=self._delimiter)
        return self._file.append(tf.strings.reduce_join(tf.strings.join([lines, "\n"])))

    def close_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that closes the file at the end of the session."""
        return file_ops.FileCloseHook([self._file])


def _get_field(features: Mapping[str, Any], name: str) -> tf.Tensor:
    value = features.get(name)
    if isinstance(value, tf.Tensor):
        return value
    dense = sorted(key for key, other in features.items() if isinstance(other, tf.Tensor))
    raise errors.ConfigError(
        f"output_fields names {name!r}, which is not a dense feature of the input; these are: "
        f"{', '.join(dense[:_MAX_NAMES_IN_ERROR])}."
    )


def _as_text(values: tf.Tensor) -> tf.Tensor:
    """Returns a vector of texts, several numbers of one example separated by commas."""
    texts = values if values.dtype == tf.string else tf.strings.as_string(values)
    if texts.shape.rank is not None and texts.shape.rank < 2:
        return tf.reshape(texts, [-1])
    flat = tf.reshape(texts, [tf.shape(texts)[0], -1])
    return tf.strings.reduce_join(flat, axis=1, separator=",")
