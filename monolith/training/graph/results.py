"""What comes out of an evaluation and a prediction: metrics with their summary, rows of batches."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.core import directories
from monolith.graph.spec import GraphSpec
from monolith.training.hooks.evaluation import get_evaluation
from monolith.training.hooks.summaries import open_event_file

logger = logging.getLogger(__name__)

# Metrics that every evaluation has.
_LOSS = "loss"
_GLOBAL_STEP = "global_step"


def make_eval_ops(spec: GraphSpec) -> tuple[dict[str, tf.Tensor], tf.Operation]:
    """Returns the values of a model's metrics by name, and the op that adds a batch to them.

    Hooks that show the evaluation find them, too.

    Raises:
        errors.ConfigError: The model has no loss, or a metric takes a name that is always there.
    """
    if spec.loss is None:
        raise errors.ConfigError("To evaluate, the model function must give a loss; got None.")
    metrics = dict(spec.eval_metric_ops)
    for name in (_LOSS, _GLOBAL_STEP):
        if name in metrics:
            raise errors.ConfigError(
                f"A metric may not be called {name!r}: every evaluation has one of that name."
            )
    metrics[_LOSS] = tf.compat.v1.metrics.mean(spec.loss)
    values = {name: value for name, (value, _) in metrics.items()}
    values[_GLOBAL_STEP] = tf.compat.v1.train.get_global_step()
    evaluation = get_evaluation()
    evaluation.values, evaluation.batch_size = values, _find_batch_size(spec.predictions)
    return values, tf.group(*[update for _, update in metrics.values()], name="update_metrics")


def _find_batch_size(predictions: Any) -> tf.Tensor | None:
    """Returns how many examples a batch has; None if the predictions do not tell."""
    preds = tf.nest.flatten(predictions)
    if not preds or not isinstance(preds[0], tf.Tensor) or preds[0].shape.rank in (None, 0):
        return None
    return tf.shape(preds[0])[0]


def write_eval_summary(model_dir: str, name: str | None, metrics: Mapping[str, Any]) -> None:
    """Writes metrics that are single numbers where TensorBoard finds them.

    A model that somebody else has trained can be evaluated, too: where nothing can be written, the
    log says so.
    """
    directory = os.path.join(model_dir, f"eval_{name}" if name else "eval")
    try:
        directories.make_writable("model_dir", directory)
    except errors.ConfigError as error:
        logger.warning("TensorBoard will not have this evaluation. %s", error)
    else:
        _write_scalars(directory, metrics)
    shown = ", ".join(f"{tag} = {value}" for tag, value in sorted(metrics.items()))
    logger.info("evaluated: %s", shown)


def _write_scalars(directory: str, metrics: Mapping[str, Any]) -> None:
    summary = tf.compat.v1.Summary()
    for tag, value in metrics.items():
        if tag != _GLOBAL_STEP and np.size(value) == 1:
            summary.value.add(tag=tag, simple_value=float(np.asarray(value).reshape(())))
    writer = open_event_file(directory)
    writer.add_summary(summary, int(metrics[_GLOBAL_STEP]))
    writer.close()


def select_predictions(predictions: Any, keys: Sequence[str] | str | None) -> Any:
    """Returns the predictions called `keys`, all of them for None.

    Raises:
        errors.ConfigError: One of them is not there, or predictions have no names.
    """
    if keys is None:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise errors.ConfigError(
            f"predict_keys {keys} need predictions by name, but the model function gives "
            f"{predictions!r}."
        )
    if not keys or any(key not in predictions for key in keys):
        raise errors.ConfigError(
            f"predict_keys must be some of {sorted(predictions)}, the model's predictions; got "
            f"{keys}."
        )
    return {key: predictions[key] for key in keys}


def split_batch(batch: Any) -> Iterator[Any]:
    """Yields the examples of a batch: a row, or a row of each array by name.

    Raises:
        errors.ConfigError: The arrays have no rows, or not the same number.
    """
    columns = batch if isinstance(batch, Mapping) else {"": batch}
    sizes = {name: len(column) if np.ndim(column) else -1 for name, column in columns.items()}
    num_examples = next(iter(sizes.values()), 0)
    if num_examples < 0 or len(set(sizes.values())) > 1:
        shapes = {name: np.shape(column) for name, column in columns.items()}
        raise errors.ConfigError(
            f"All predictions must have one row for each example, got the shapes {shapes}; leave "
            "some out with predict_keys, or set yield_single_examples=False."
        )
    for i in range(num_examples):
        row = {name: column[i] for name, column in columns.items()}
        yield row if isinstance(batch, Mapping) else row[""]
