"""Dropout: while a model trains, some of its numbers are left out at random, so it relies on none.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     x = tf.ones([1, 1000])
    ...     dropout = Dropout(0.5)
    ...     trained, served = session.run([dropout(x, training=True), dropout(x, training=False)])
    >>> sorted(set(trained[0].tolist())), set(served[0].tolist())
    ([0.0, 2.0], {1.0})
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.layers import base


class Dropout(base.Layer):
    """Makes a share of the numbers zero in training, and scales the others up by `1 / (1 - rate)`.

    The sum stays the same on average, so nothing is scaled in prediction. There are no weights. In
    `call` of a model: `self.dropout(inputs, training=batch.training)`.

    Args:
        rate: The share, at least 0 and below 1.
        name: See `base.Layer`.

    Raises:
        ConfigError: The rate is out of its range.
    """

    def __init__(self, rate: float, *, name: str | None = None) -> None:
        super().__init__(name)
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not is_number or not 0 <= rate < 1:
            raise errors.ConfigError(
                f"The rate of a Dropout layer is the share of numbers that it makes zero, at least "
                f"0 and below 1, got {rate!r}."
            )
        self._rate = rate

    @property
    def rate(self) -> float:
        """The share of numbers that becomes zero."""
        return self._rate

    def __call__(  # type: ignore[override]  # Nothing but the batch knows whether it is training.
        self, inputs: Any, *, training: bool
    ) -> tf.Tensor:
        """Applies the layer.

        Args:
            inputs: Floats, `[batch, ..., dim]`.
            training: Whether the model trains: `batch.training` in `call` of a model. If not, the
                inputs are returned as they are.
        """
        if not isinstance(training, bool):
            raise errors.ConfigError(
                f"`training` of layer {self.name!r} must be True or False, got {training!r}; give "
                "`batch.training`."
            )
        return super().__call__(inputs) if training else self.check_inputs(inputs)

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        return tf.nn.dropout(inputs, self._rate)
