"""Many reshapes in one op.

A model with hundreds of features reshapes hundreds of tensors per step, and an op costs more than
a reshape does. Here one op reshapes them all, and shares their memory instead of copying it.

Example:
    >>> import tensorflow as tf
    >>> outputs, sizes = static_reshape([tf.range(6), tf.ones([2, 2])], [[2, None], [None]])
    >>> outputs[0].shape.as_list(), outputs[1].shape.as_list(), sizes.numpy().tolist()
    ([2, 3], [4], [6, 4])
"""

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from monolith.native import ops

# One dimension may be None: it is whatever the number of elements leaves for it.
Shape: TypeAlias = tf.TensorShape | Sequence[int | None]


def static_reshape(
    inputs: Sequence[tf.Tensor], shapes: Sequence[Shape], enable_parallelism: bool = True
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Reshapes each input to its own shape.

    Args:
        inputs: Tensors of any types; an output shares the memory of its input.
        shapes: One shape per input, with at most one dimension `None`.
        enable_parallelism: Whether many inputs may be spread over several threads.

    Returns:
        The reshaped tensors, and the number of elements of each, int32 `[len(inputs)]`.
    """
    outputs, sizes = ops.monolith_static_reshape_n(
        inputs=list(inputs), shapes=list(shapes), enable_parallelism=enable_parallelism
    )
    return list(outputs), sizes


class StaticReshapeNBuilder:
    """Collects reshapes that are wanted at different places, for one op that does them all.

    Example:
        >>> builder = StaticReshapeNBuilder()
        >>> index = builder.add(tf.ones([2, 3]), [None])
        >>> outputs, sizes = builder.build()
        >>> outputs[index].shape.as_list()
        [6]
    """

    def __init__(self) -> None:
        self.inputs: list[tf.Tensor] = []
        self.shapes: list[Shape] = []

    def add(self, input: tf.Tensor, shape: Shape) -> int:
        """Returns the index of the reshaped tensor among the outputs of `build`."""
        self.inputs.append(input)
        self.shapes.append(shape)
        return len(self.inputs) - 1

    def build(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns what `static_reshape` returns for everything added so far."""
        return static_reshape(self.inputs, self.shapes)
