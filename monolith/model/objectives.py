"""What a model predicts, made from the output of its network: the heads of an `ml.Model`.

The losses are means over the examples of a batch, so that learning rates, clipping and the loss
that is shown do not depend on the batch size. (The historical functions of
`monolith.model.losses` sum.)

Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     head = BinaryHead("click", logits=[[0.0], [0.0]], labels=[1.0, 0.0])
    ...     loss, click = session.run([head.loss, head.prediction])
    >>> round(float(loss), 4), click.tolist()  # log(2)
    (0.6931, [0.5, 0.5])
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.model import losses
from monolith.model.heads import EstimatorSpec

_SHOWN_LABELS = 3


class Head:
    """One thing that a model predicts; see the subclasses.

    Attributes:
        name: Its name, as in metrics and in an exported model.
        prediction: One value for each example, `[batch]`.
        labels: What was to be predicted; None where it is not known.
        loss: What training minimizes, a scalar; None without labels.
        classification: Whether the prediction is a probability, or a class.
    """

    def __init__(
        self,
        name: str,
        prediction: tf.Tensor,
        labels: Any,
        loss: tf.Tensor | None,
        classification: bool,
        loss_weight: float,
    ) -> None:
        if not isinstance(loss_weight, int | float) or not math.isfinite(loss_weight):
            raise errors.ConfigError(
                f"`loss_weight` of head {name!r} must be a number, got {loss_weight!r}."
            )
        self.name = name
        self.prediction = prediction
        self.labels = labels
        self.loss = loss if loss is None or loss_weight == 1 else loss_weight * loss
        self.classification = classification

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class BinaryHead(Head):
    """Whether something happens: a probability, learned by cross entropy, measured by AUC.

    Args:
        name: Of the head.
        logits: One number for each example, `[batch]` or `[batch, 1]`: what the network gives,
            before a sigmoid.
        labels: 0 or 1 for each example; None where they are not known, as in prediction.
        weights: What the loss of each example is multiplied by.
        sample_rate: Share of the negative examples that training sees, above 0 and at most 1, a
            number or one for each example; the prediction is then the probability among all.
        loss_weight: What the loss of the head is multiplied by, beside other heads.

    Raises:
        ConfigError: A setting is out of its range, or logits, labels or weights are not one number
            for each example.
        DataError: The labels are strings.
    """

    def __init__(
        self,
        name: str,
        logits: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        sample_rate: Any = None,
        loss_weight: float = 1.0,
    ) -> None:
        logits = _flatten_prediction(name, "logits", logits)
        checked = None
        if labels is not None:
            checked = _check_binary(name, _flatten_labels(name, labels, logits))
        total, prediction = losses.get_sigmoid_loss_and_pred(
            name,
            logits,
            checked,
            None,
            sample_rate=sample_rate,
            instance_weight=weights,
            mode=ModeKeys.PREDICT if labels is None else ModeKeys.TRAIN,
        )
        loss = None if total is None else _divide(total, prediction)
        super().__init__(name, prediction, checked, loss, True, loss_weight)


class RegressionHead(Head):
    """How much of something there is: a number, learned by squared error and measured by it.

    Args:
        name: Of the head.
        prediction: One number for each example, `[batch]` or `[batch, 1]`.
        labels: The right numbers; None where they are not known, as in prediction.
        weights: What the loss of each example is multiplied by.
        loss_weight: What the loss of the head is multiplied by, beside other heads.

    Raises:
        ConfigError: A setting is out of its range, or prediction, labels or weights are not one
            number for each example.
        DataError: The labels are strings.
    """

    def __init__(
        self,
        name: str,
        prediction: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        loss_weight: float = 1.0,
    ) -> None:
        flat = _flatten_prediction(name, "prediction", prediction)
        loss = None
        if labels is not None:
            size = flat.shape[0]
            labels = tf.cast(_flatten_labels(name, labels, flat), flat.dtype)
            squares = tf.math.squared_difference(flat, labels)
            if weights is not None:
                squares *= losses.flatten(name, "weights", weights, size, dtype=flat.dtype)
            loss = _divide(tf.reduce_sum(squares), flat)
        super().__init__(name, flat, labels, loss, False, loss_weight)


class SoftmaxHead(Head):
    """Which of several classes: learned by cross entropy, measured by the share that is right.

    Args:
        name: Of the head.
        logits: A number for each class, `[batch, classes]`.
        labels: The class of each example, a whole number from 0 on, `[batch]` or `[batch, 1]`, or
            a distribution over the classes, `[batch, classes]`; None where they are not known, as
            in prediction.
        weights: What the loss of each example is multiplied by.
        loss_weight: What the loss of the head is multiplied by, beside other heads.

    Raises:
        ConfigError: A setting is out of its range, or the shapes do not fit.
        DataError: The labels are strings.
    """

    def __init__(
        self,
        name: str,
        logits: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        loss_weight: float = 1.0,
    ) -> None:
        logits = losses.to_class_logits(name, logits)
        checked = None if labels is None else _to_classes(name, labels, logits)
        mode = ModeKeys.PREDICT if labels is None else ModeKeys.TRAIN
        by_example, prediction = losses.get_softmax_loss_and_pred(name, logits, checked, mode)
        loss = None
        if by_example is not None:
            if weights is not None:
                size = logits.shape[0]
                by_example *= losses.flatten(name, "weights", weights, size, dtype=logits.dtype)
            loss = _divide(tf.reduce_sum(by_example), by_example)
        super().__init__(name, prediction, checked, loss, True, loss_weight)


class Output(Head):
    """Something else that a model gives out, such as the vector of an item; nothing is learned.

    Args:
        name: Of the output.
        value: A tensor with an entry for each example, `[batch, ...]`.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, tf.convert_to_tensor(value), None, None, False, 1.0)


def as_spec(result: Any, model_name: str, optimizer: Any) -> EstimatorSpec:
    """Returns what `call` of a model gave, a head or a list of heads, as a spec.

    Args:
        result: What it gave.
        model_name: For the error.
        optimizer: That of the dense variables.

    Raises:
        ConfigError: It gave something else, or two heads of one name.
    """
    heads = [result] if isinstance(result, Head) else result
    if not isinstance(heads, Sequence) or not heads or not _all_heads(heads):
        raise errors.ConfigError(
            f"`call` of {model_name} must return a head, such as ml.BinaryHead('click', logits, "
            f"batch.get('click')), or a list of heads; got {result!r}."
        )
    names = [head.name for head in heads]
    for name in names:
        if names.count(name) > 1:
            raise errors.ConfigError(
                f"`call` of {model_name} returns two heads that are named {name!r}; give each its "
                "own name."
            )
    known = [head.loss for head in heads if head.loss is not None]
    return EstimatorSpec(
        label={head.name: head.labels for head in heads},
        pred={head.name: head.prediction for head in heads},
        head_name=names,
        loss=tf.add_n(known) if known else None,
        optimizer=optimizer,
        classification={head.name: head.classification for head in heads},
    )


def _all_heads(heads: Sequence[Any]) -> bool:
    return all(isinstance(head, Head) for head in heads)


def _flatten_prediction(name: str, what: str, value: Any) -> tf.Tensor:
    """Returns what a network gives as a vector; other shapes would look like a fault of labels."""
    flat = losses.flatten(name, what, value, None)
    shape = tf.convert_to_tensor(value).shape
    if not shape.is_compatible_with([None]) and not shape.is_compatible_with([None, 1]):
        raise errors.ConfigError(
            f"The {what} of head {name!r} must be one number for each example, [batch] or "
            f"[batch, 1], got the shape {shape}; end the network with one unit, as ml.MLP([64, 1]) "
            "does, and before it flatten what has several vectors for each example."
        )
    return flat


def _flatten_labels(name: str, labels: Any, like: tf.Tensor) -> tf.Tensor:
    """Returns the labels as a vector of the size of `like`; a step with another number fails."""
    flat = losses.flatten(name, "labels", _to_numbers(name, labels), like.shape[0])
    if flat.shape.is_fully_defined() and like.shape.is_fully_defined():
        return flat
    return _fail_unless(
        tf.equal(tf.size(flat), tf.size(like)),
        f"The labels of head {name} must be one number for each example, got ",
        tf.strings.join(
            [tf.as_string(tf.size(flat)), tf.as_string(tf.size(like))], " numbers for "
        ),
        " examples; give several heads when there are several labels.",
        flat,
    )


def _to_numbers(name: str, labels: Any) -> tf.Tensor:
    labels = tf.convert_to_tensor(labels)
    if labels.dtype == tf.string:
        raise errors.DataError(
            f"The labels of head {name!r} are strings; make numbers of them in the data."
        )
    return labels


def _to_classes(name: str, labels: Any, logits: tf.Tensor) -> tf.Tensor:
    """Returns classes as ints `[batch]`, and distributions over them as they are.

    A step with a label that is no class fails.
    """
    labels = _to_numbers(name, labels)
    if labels.shape.rank == 2 and labels.shape[1] != 1:
        return labels
    # In double precision every number that may be a class is exact.
    numbers = tf.cast(_flatten_labels(name, labels, logits[:, 0]), tf.float64)
    num_classes = tf.shape(logits)[1]
    is_class = (numbers >= 0) & (numbers < tf.cast(num_classes, tf.float64))
    others = tf.boolean_mask(numbers, ~(is_class & tf.equal(tf.floor(numbers), numbers)))
    shown = tf.strings.as_string(others[:_SHOWN_LABELS], shortest=True)
    return _fail_unless(
        tf.equal(tf.size(others), 0),
        f"The labels of head {name} must be classes, whole numbers from 0 to ",
        tf.strings.join(
            [tf.as_string(num_classes - 1), tf.strings.reduce_join(shown, separator=", ")],
            ", got ",
        ),
        "; count them from 0 on in the data, and end the network with a unit for each.",
        tf.cast(numbers, tf.int64),
    )


def _check_binary(name: str, labels: tf.Tensor) -> tf.Tensor:
    """Returns the labels; a step with others than 0 and 1 fails."""
    if labels.dtype == tf.bool:
        return tf.cast(labels, tf.float32)
    labels = tf.cast(labels, tf.float32)
    # A number that is 0 or 1 is its own square, and no other is.
    others = tf.boolean_mask(labels, tf.not_equal(labels * labels, labels))
    shown = tf.strings.as_string(others[:_SHOWN_LABELS], shortest=True)
    return _fail_unless(
        tf.equal(tf.size(others), 0),
        f"The labels of head {name} must be 0 or 1, for it predicts whether something happens, "
        "got ",
        tf.strings.reduce_join(shown, separator=", "),
        "; make them so in the data, or use RegressionHead for numbers.",
        labels,
    )


def _fail_unless(
    condition: tf.Tensor, before: str, found: tf.Tensor, after: str, value: tf.Tensor
) -> tf.Tensor:
    """Returns a value; a step where the condition does not hold fails with a sentence."""
    # As readers of data say it, so that the sentence is all that a user sees of it.
    sentence = tf.strings.join([f"DataError: {before}", found, after])
    check = tf.raw_ops.Assert(condition=condition, data=[sentence])
    with tf.control_dependencies([check]):
        return tf.identity(value)


def _divide(total: tf.Tensor, by_example: tf.Tensor) -> tf.Tensor:
    """Returns the mean; 0 of a batch without examples."""
    return tf.math.divide_no_nan(total, tf.cast(tf.size(by_example), total.dtype))
