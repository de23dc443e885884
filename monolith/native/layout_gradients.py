"""Gradients of the ops of fused layouts; see `monolith.embedding.sharding.fused_layout`.

Imported by `monolith.native.ops` and by nobody else.
"""

import tensorflow as tf

from monolith.native import ops

# These make ids and offsets of ids, or are gradients themselves.
for _op in (
    "MonolithEmbeddingToLayoutGrad",
    "MonolithEmbeddingToLayoutGradV2",
    "MonolithEmbeddingToLayoutGradV3",
    "MonolithEmbeddingToLayoutGradV4",
    "MonolithEmbeddingToLayoutGradV5",
    "MonolithShardRaggedFids",
    "MonolithShardSerializedFids",
):
    tf.no_gradient(_op)


@tf.RegisterGradient("MonolithEmbeddingToLayout")
def _layout_gradient(op: tf.Operation, *tensors_grad: tf.Tensor) -> list[tf.Tensor | None]:
    return _carry_back(op, ops.monolith_embedding_to_layout_grad, tensors_grad, 0)


@tf.RegisterGradient("MonolithEmbeddingToLayoutV2")
def _layout_v2_gradient(op: tf.Operation, *tensors_grad: tf.Tensor) -> list[tf.Tensor | None]:
    gradient = ops.monolith_embedding_to_layout_grad_v2
    return _carry_back(op, gradient, tensors_grad, op.get_attr("M"))


@tf.RegisterGradient("MonolithEmbeddingToLayoutV3")
def _layout_v3_gradient(op: tf.Operation, *tensors_grad: tf.Tensor) -> list[tf.Tensor | None]:
    return _carry_back(op, ops.monolith_embedding_to_layout_grad_v3, tensors_grad, 0)


@tf.RegisterGradient("MonolithEmbeddingToLayoutV4")
def _layout_v4_gradient(op: tf.Operation, *tensors_grad: tf.Tensor) -> list[tf.Tensor | None]:
    return _carry_back(op, ops.monolith_embedding_to_layout_grad_v4, tensors_grad, 1)


@tf.RegisterGradient("MonolithEmbeddingToLayoutV5")
def _layout_v5_gradient(op: tf.Operation, *tensors_grad: tf.Tensor) -> list[tf.Tensor | None]:
    return _carry_back(op, ops.monolith_embedding_to_layout_grad_v5, tensors_grad, 0)


def _carry_back(
    op: tf.Operation, gradient: object, tensors_grad: tuple[tf.Tensor, ...], num_extra: int
) -> list[tf.Tensor | None]:
    """Calls the gradient op with the inputs of `op`, of which `num_extra` describe the lists."""
    num_lists = op.get_attr("M")
    lists, rest = list(op.inputs[:num_lists]), list(op.inputs[num_lists:])
    extra, offsets = rest[:num_extra], rest[num_extra : num_extra + 4]
    names = ["variant_type", "feature_cfgs"]
    if op.type != "MonolithEmbeddingToLayout":
        names += ["ps_num", "parallel_flag"]
    extra_arguments = []
    if extra:
        extra_arguments = [extra if op.type.endswith("V2") else extra[0]]
    by_rows = gradient(  # type: ignore[operator]
        lists,
        *extra_arguments,
        *offsets,
        list(tensors_grad),
        **{name: op.get_attr(name) for name in names},
    )
    return [*by_rows, *([None] * len(rest))]
