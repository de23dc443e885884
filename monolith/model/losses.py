"""The loss and the prediction of a head, made from its logits.

Negative examples are often sampled: only a share of them reaches training. `sample_rate` tells
which share, and the loss is computed on logits that are moved accordingly, so that the prediction
stays the probability among all examples.

Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     loss, pred = get_sigmoid_loss_and_pred(
    ...         "ctr", logits=[[0.0], [0.0]], label=[1.0, 0.0], batch_size=2
    ...     )
    ...     total, probabilities = session.run([loss, pred])
    >>> round(float(total), 4), probabilities.tolist()  # 2 * log(2)
    (1.3863, [0.5, 0.5])
"""

import math
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.native import ops


def get_sigmoid_loss_and_pred(
    name: str,
    logits: Any,
    label: Any,
    batch_size: int | tf.Tensor | None,
    sample_rate: Any = 1.0,
    sample_bias: bool = False,
    mode: str = ModeKeys.TRAIN,
    instance_weight: Any = None,
    mask: Any = None,
    logit_clip_threshold: float | None = None,
    predict_before_correction: bool = True,
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Returns the summed cross entropy of a binary head, and the probabilities.

    Args:
        name: Of the head; the ops are `<name>_sigmoid_loss` and `<name>_sigmoid_pred`.
        logits: One number for each example, `[batch]` or `[batch, 1]`.
        label: 0 or 1 for each example, in either shape; not used in mode PREDICT.
        batch_size: How many examples there are; logits that hold another number are refused. None
            if it is not known.
        sample_rate: Share of the negative examples that training sees, a number or one for each
            example; None is 1.
        sample_bias: Whether the negative examples were sampled from all examples instead of from
            the negative ones.
        mode: In mode PREDICT there is no loss.
        instance_weight: What the loss of each example is multiplied by.
        mask: Booleans, one for each example: those that count for the loss.
        logit_clip_threshold: If given, the loss sees no probability below it, nor above one minus
            it.
        predict_before_correction: Whether the probabilities are those among all examples, instead
            of those among the sampled ones.

    Returns:
        The loss, a scalar, None in mode PREDICT; and the probabilities, `[batch]`.

    Raises:
        ConfigError: A setting is out of its range, or logits, label, weight or mask are not one
            number for each example.
    """
    pred_name = f"{name}_sigmoid_pred"
    logits = flatten(name, "logits", logits, batch_size)
    if mode == ModeKeys.PREDICT:
        return None, tf.sigmoid(logits, name=pred_name)
    corrected = _correct_logits(name, logits, sample_rate, sample_bias)
    pred = tf.sigmoid(logits if predict_before_correction else corrected, name=pred_name)
    if logit_clip_threshold is not None:
        corrected = _clip_logits(corrected, logit_clip_threshold)
    size = logits.shape[0]
    label = flatten(name, "label", label, size, dtype=logits.dtype)
    weight = None
    if instance_weight is not None:
        weight = flatten(name, "instance_weight", instance_weight, size, dtype=logits.dtype)
    if mask is not None:
        # What is masked out may be NaN, which a product with zero, or its gradient, would keep.
        mask = flatten(name, "mask", mask, size, dtype=tf.bool)
        corrected, label = tf.boolean_mask(corrected, mask), tf.boolean_mask(label, mask)
        weight = None if weight is None else tf.boolean_mask(weight, mask)
    losses = ops.monolith_sigmoid_cross_entropy(corrected, label)
    if weight is not None:
        losses *= weight
    return tf.reduce_sum(losses, name=f"{name}_sigmoid_loss"), pred


def get_softmax_loss_and_pred(
    name: str, logits: Any, label: Any, mode: str = ModeKeys.TRAIN
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Returns the cross entropy of each example of a head with several classes, and the class.

    Args:
        name: Of the head; the ops are `<name>_softmax_loss` and `<name>_softmax_pred`.
        logits: A number for each class, `[batch, classes]`.
        label: The class of each example, ints `[batch]`, or its distribution, `[batch, classes]`;
            not used in mode PREDICT.
        mode: In mode PREDICT there is no loss.

    Returns:
        The losses, `[batch]`, to be reduced to a scalar, None in mode PREDICT; and the most
        probable class, `[batch]`.

    Raises:
        ConfigError: The shapes do not fit.
    """
    logits = to_class_logits(name, logits)
    pred = tf.argmax(logits, axis=1, name=f"{name}_softmax_pred")
    if mode == ModeKeys.PREDICT:
        return None, pred
    label = tf.convert_to_tensor(label)
    loss_name = f"{name}_softmax_loss"
    if label.dtype.is_integer and label.shape.rank == 1:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=label, logits=logits, name=loss_name
        )
    elif label.shape.rank == 2 and label.shape.is_compatible_with(logits.shape):
        loss = tf.nn.softmax_cross_entropy_with_logits(
            labels=tf.cast(label, logits.dtype), logits=logits, name=loss_name
        )
    else:
        raise errors.ConfigError(
            f"The label of head {name!r} must be classes, ints of shape [batch], or a distribution "
            f"over them of the shape of the logits, {logits.shape}; got {label.dtype.name} of "
            f"shape {label.shape}."
        )
    return loss, pred


def to_class_logits(name: str, logits: Any) -> tf.Tensor:
    """Returns the logits of a head with several classes, `[batch, classes]`; refuses others."""
    logits = tf.convert_to_tensor(logits)
    if logits.shape.rank != 2:
        raise errors.ConfigError(
            f"The logits of head {name!r} must have the shape [batch, classes], got {logits.shape}."
        )
    return logits


def _correct_logits(name: str, logits: tf.Tensor, sample_rate: Any, sample_bias: bool) -> tf.Tensor:
    """Returns the logits of the probability among sampled examples.

    Of odds `p / (1 - p)` sampling with rate `r` makes `p / ((1 - p) * r)`. If all examples are
    sampled as negative ones, positive ones too, it makes `p / r`.
    """
    corrected = tf.math.log_sigmoid(logits) if sample_bias else logits
    if sample_rate is None:
        return corrected
    if isinstance(sample_rate, int | float):
        if not 0 < sample_rate <= 1:
            raise errors.ConfigError(
                f"The sample_rate of head {name!r} must be above 0 and at most 1, got "
                f"{sample_rate}."
            )
        return corrected - math.log(sample_rate)
    rates = flatten(name, "sample_rate", sample_rate, logits.shape[0], dtype=logits.dtype)
    return corrected - tf.math.log(rates)


def _clip_logits(logits: tf.Tensor, threshold: float) -> tf.Tensor:
    if not 0 < threshold < 1:
        raise errors.ConfigError(
            f"The logit_clip_threshold must be a probability between 0 and 1, got {threshold}."
        )
    limit = abs(math.log((1 - threshold) / threshold))
    return tf.clip_by_value(logits, -limit, limit)


def flatten(
    name: str, what: str, value: Any, size: Any, dtype: tf.DType | None = None
) -> tf.Tensor:
    """Returns `value` as a vector with one number for each example."""
    if value is None:
        raise errors.ConfigError(f"Head {name!r} has no {what}; give one number for each example.")
    tensor = tf.convert_to_tensor(value)
    if dtype is not None and tensor.dtype != dtype:
        tensor = tf.cast(tensor, dtype)
    flat = tf.reshape(tensor, [-1])
    # A static size only: a tensor has its value later.
    if isinstance(size, int) and not flat.shape.is_compatible_with([size]):
        raise errors.ConfigError(
            f"The {what} of head {name!r} must hold one number for each of the {size} examples, "
            f"got shape {tensor.shape}."
        )
    return flat
