"""Gradients through a cut in the graph.

Rows are looked up ahead of the model and updated behind it, so that the gradients of what the model
saw have to be carried back to what was looked up.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import tensorflow as tf


def propagate_back_gradients(
    grads_and_vars: Iterable[tuple[Any, Any]],
    xs: Iterable[Any],
    valid_var_set: AbstractSet[Any] | None = None,
) -> list[Any]:
    """Carries gradients of intermediate tensors back to the tensors they were made from.

    Args:
        grads_and_vars: Gradient and tensor, in pairs.
        xs: Tensors to differentiate by.
        valid_var_set: If given, the only tensors allowed in `grads_and_vars`.

    Returns:
        The gradient for each of `xs`, None where nothing depends on it.

    Raises:
        RuntimeError: A tensor is not in `valid_var_set`.
    """
    combined_grads = []
    combined_vars = []
    for grad, var in grads_and_vars:
        if valid_var_set and var not in valid_var_set:
            raise RuntimeError("Invalid variables in the input", var, valid_var_set)
        combined_grads.append(grad)
        combined_vars.append(var)
    return tf.gradients(combined_vars, list(xs), combined_grads)
