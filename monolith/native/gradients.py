"""Gradients of the compiled ops; imported by `monolith.native.ops` and by nobody else."""

import tensorflow as tf

tf.no_gradient("MonolithFusedValueRowids")


@tf.RegisterGradient("MonolithStaticReshapeN")
def _static_reshape_n_gradient(
    op: tf.Operation, *output_gradients: tf.Tensor | None
) -> list[tf.Tensor | None]:
    """Reshapes each gradient back to its input; the last one belongs to `sizes`, an integer."""
    return [
        None if gradient is None else tf.reshape(gradient, tf.shape(tensor))
        for tensor, gradient in zip(op.inputs, output_gradients[:-1], strict=True)
    ]
