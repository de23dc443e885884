"""The train op of a model with embeddings: gradients, clipping, updates, and the next step.

Dense variables go to their optimizers, the gradients of embeddings to their tables. Both kinds
count for one global norm, since they belong to one loss.

Example:
    A model function in training ends with

        return apply_gradients_with_var_optimizer(
            ctx, feature_columns, tf.compat.v1.train.AdagradOptimizer(0.05), loss, clip_norm=10.0
        )
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import dense_allreduce
from monolith.embedding.features.clipping import GradClipType, clip_gradients
from monolith.embedding.features.slots import FeatureColumn
from monolith.graph import collectives, export_mode
from monolith.tensor import messages

logger = logging.getLogger(__name__)

# Ops that the updates of dense variables have to wait for; a model function may append some.
control_ops: list[Any] = []

# The updates of dense variables in the graph that was last built.
dense_opt_ops: list[Any] = []

# A tensor or `tf.IndexedSlices`.
_Gradient = Any


class GradientContext(Protocol):
    """What is needed of the context that a training loop gives to a model function."""

    layout_factory: Any

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Builds `target(*args, **kwargs)`, one step late if it is asynchronous."""

    def apply_embedding_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], scale: Any = 1
    ) -> Any:
        """Returns the op that sends gradients of embeddings to their tables."""


def apply_gradients_with_var_optimizer(
    ctx: GradientContext,
    feature_columns: Iterable[FeatureColumn],
    var_opt: tf.compat.v1.train.Optimizer,
    loss: tf.Tensor,
    clip_type: GradClipType = GradClipType.ClipByGlobalNorm,
    clip_norm: float | None = None,
    global_step: tf.Variable | None = None,
    grads_and_vars_summary: bool = False,
    use_allreduce: bool = False,
    ue_gradient_check: bool = False,
    ue_fc_names: Sequence[str] = (),
    ue_euclidean_norm_threshold: float = 0.0,
    dense_weight_decay: float = 0.0,
    features: Mapping[str, Any] | None = None,
    sparse_clip_norm: float | None = None,
    sparse_norm_warmup_steps: int | None = None,
    dense_reduce_mean: bool = False,
    batch_size: int = 1,
    is_fused_layout: bool = False,
) -> tf.Operation:
    """Returns the op of a training step.

    Args:
        ctx: Sends gradients to tables, and delays the dense updates if it is asynchronous.
        feature_columns: Whose embeddings are trained.
        var_opt: Of trainable variables, except those that have an `optimizer` attribute.
        loss: What to minimize.
        clip_type: How to clip; the `clip_norm` of None leaves gradients as they are.
        clip_norm: The limit: of the norm of all gradients (ClipByGlobalNorm), of the dense ones
            (ClipByDenseAndSparse), of each tensor (ClipByNorm), of each element (ClipByValue).
        global_step: Counted up at the end; by default the graph's.
        grads_and_vars_summary: Whether to write histograms of gradients and variables.
        use_allreduce: Whether dense gradients are averaged over the workers, where the job has a
            collective library (see `dense_allreduce`).
        ue_gradient_check: Whether to drop the gradients of user embeddings that are switched off:
            those of variables named after one of `ue_fc_names`, or `uue`, whose feature has a
            norm not above `ue_euclidean_norm_threshold`.
        ue_fc_names: Features to check, keys of `features`.
        ue_euclidean_norm_threshold: See `ue_gradient_check`.
        dense_weight_decay: This times the variable is added to its gradient, after clipping.
        features: The batch; only needed to check gradients.
        sparse_clip_norm: The limit for the gradients of embeddings, by default `clip_norm` with
            ClipByGlobalNorm, none with ClipByDenseAndSparse; other types do not use it.
        sparse_norm_warmup_steps: Steps over which that limit grows from 0 (ClipByGlobalNorm).
        dense_reduce_mean: Whether dense gradients are divided by `batch_size`.
        batch_size: See `dense_reduce_mean`.
        is_fused_layout: Whether embeddings are those of `ctx.layout_factory`.
    """
    graph = tf.compat.v1.get_default_graph()
    if global_step is None:
        global_step = tf.compat.v1.train.get_or_create_global_step()
    variables = tf.compat.v1.trainable_variables()
    if is_fused_layout:
        embeddings = ctx.layout_factory.flattened_layout()
    else:
        feature_columns = list(feature_columns)
        embeddings = _get_embeddings(feature_columns)
    dense, sparse = _compute_gradients(loss, variables, embeddings, is_fused_layout)
    if not dense and not sparse:
        logger.warning("The loss depends on no variable and no embedding: nothing is trained")
        return tf.no_op()
    if not is_fused_layout and not export_mode.is_dry_run_or_exporting():
        _tell_untrained(feature_columns, [embedding for _, embedding in sparse])
    if ue_gradient_check:
        check = _UserEmbeddingCheck(features or {}, ue_fc_names, ue_euclidean_norm_threshold)
        dense, sparse = check.apply(dense), check.apply(sparse)
    if dense_reduce_mean:
        dense = [(_map_values(lambda g: g / batch_size, grad), var) for grad, var in dense]

    dense_grads, dense_vars = _unzip(dense)
    sparse_grads, sparse_vars = _unzip(sparse)
    warmup_ratio = _get_warmup_ratio(global_step, sparse_norm_warmup_steps)
    dense_grads, sparse_grads = clip_gradients(
        dense_grads, sparse_grads, clip_type, clip_norm, sparse_clip_norm, warmup_ratio
    )
    if grads_and_vars_summary:
        _add_summaries([*dense_grads, *sparse_grads], [*dense_vars, *sparse_vars])
    if dense_allreduce.is_wanted(use_allreduce):
        dense_grads = dense_allreduce.average(dense_grads)
    if dense_weight_decay:
        dense_grads = [
            tf.convert_to_tensor(grad) + dense_weight_decay * var
            for grad, var in zip(dense_grads, dense_vars, strict=True)
        ]

    with tf.control_dependencies([op for op in control_ops if op.graph is graph]):
        dense_ops = _apply_dense(ctx, var_opt, dense_grads, dense_vars)
    dense_opt_ops[:] = [op for op in dense_opt_ops if op.graph is graph] + dense_ops
    train_ops = list(dense_ops)
    if sparse_grads:
        # Clipping has scaled the gradients already. What ranks send for one row is added up; to be
        # the average, as of dense gradients, each sends its share.
        sparse_scale = collectives.get_share() if collectives.averages_rows() else 1
        if is_fused_layout and collectives.averages_rows():
            # The context does not hand a scale on to layouts.
            sparse_grads = [_map_values(lambda g: g * sparse_scale, g) for g in sparse_grads]
        grads_and_embeddings = list(zip(sparse_grads, sparse_vars, strict=True))
        train_ops.append(ctx.apply_embedding_gradients(grads_and_embeddings, sparse_scale))
    with tf.control_dependencies(train_ops):
        return tf.compat.v1.assign_add(global_step, 1, name="next_global_step").op


def apply_gradients(
    ctx: GradientContext,
    var_opt: tf.compat.v1.train.Optimizer,
    loss: tf.Tensor,
    clip_type: GradClipType = GradClipType.ClipByGlobalNorm,
    clip_norm: float | None = None,
    dense_weight_decay: float = 0.0,
    global_step: tf.Variable | None = None,
    use_allreduce: bool = False,
) -> tf.Operation:
    """Returns the op of a training step of a model whose embeddings are layouts.

    The arguments are those of `apply_gradients_with_var_optimizer`.

    Raises:
        ConfigError: The clip type is none of the two by global norms.
    """
    if clip_type not in (GradClipType.ClipByGlobalNorm, GradClipType.ClipByDenseAndSparse):
        raise errors.ConfigError(f"{clip_type} is not supported yet!")
    return apply_gradients_with_var_optimizer(
        ctx,
        [],
        var_opt,
        loss,
        clip_type=clip_type,
        clip_norm=clip_norm,
        dense_weight_decay=dense_weight_decay,
        global_step=global_step,
        use_allreduce=use_allreduce,
        is_fused_layout=True,
    )


def _get_embeddings(feature_columns: Iterable[FeatureColumn]) -> list[tf.Tensor]:
    # Two columns of one feature have the same rows, whose gradient must count once.
    rows = (column.get_all_embeddings_concat() for column in feature_columns)
    return list({tensor.ref(): tensor for tensor in rows}.values())


def _tell_untrained(columns: Iterable[FeatureColumn], trained: Sequence[tf.Tensor]) -> None:
    """Says which features have embeddings that will never get a row."""
    known = {embedding.ref() for embedding in trained}
    names = sorted(
        {
            column.feature_name
            for column in columns
            if column.get_all_embeddings_concat().ref() not in known
        }
    )
    if names:
        logger.warning(
            "The loss does not depend on the embeddings of %s, so they are not trained: a "
            "tf.stop_gradient, or nothing, uses them",
            ", ".join(map(repr, names)),
        )


def _compute_gradients(
    loss: tf.Tensor,
    variables: Sequence[tf.Variable],
    embeddings: Sequence[tf.Tensor],
    is_fused_layout: bool,
) -> tuple[list[tuple[_Gradient, Any]], list[tuple[tf.Tensor, Any]]]:
    """Returns pairs of gradient and variable, and of gradient and embedding."""
    xs = [*variables, *embeddings]
    if not xs:
        return [], []
    grads = tf.compat.v1.gradients(loss, xs, colocate_gradients_with_ops=True)
    dense_grads, sparse_grads = grads[: len(variables)], grads[len(variables) :]
    if is_fused_layout:
        # One op takes the gradients of all layouts, so none may be left out.
        sparse_grads = [
            tf.zeros_like(embedding) if grad is None else grad
            for grad, embedding in zip(sparse_grads, embeddings, strict=True)
        ]
    dense = [(g, v) for g, v in zip(dense_grads, variables, strict=True) if g is not None]
    sparse = [
        (tf.convert_to_tensor(g), e)
        for g, e in zip(sparse_grads, embeddings, strict=True)
        if g is not None
    ]
    return dense, sparse


class _UserEmbeddingCheck:
    """Drops gradients of user embeddings whose feature is switched off, that is, near zero."""

    def __init__(
        self, features: Mapping[str, Any], names: Sequence[str], norm_threshold: float
    ) -> None:
        missing = sorted(set(names) - set(features))
        if missing:
            raise errors.ConfigError(
                f"`ue_fc_names` names features that are not in `features`: {', '.join(missing)}."
            )
        self._name_to_is_on = {
            name: tf.norm(_flat_values(features[name])) > norm_threshold for name in names
        }

    def apply(self, grads_and_vars: Sequence[tuple[_Gradient, Any]]) -> list[tuple[_Gradient, Any]]:
        return [(self._filter(grad, var.name), var) for grad, var in grads_and_vars]

    def _filter(self, grad: _Gradient, var_name: str) -> _Gradient:
        for name, is_on in self._name_to_is_on.items():
            if name in var_name or "uue" in var_name:
                grad = _map_values(functools.partial(_keep_if, is_on), grad)
        return grad


def _keep_if(is_on: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.where(is_on, tensor, tf.zeros_like(tensor))


def _get_warmup_ratio(global_step: tf.Variable, warmup_steps: int | None) -> tf.Tensor | None:
    if not warmup_steps:
        return None
    return tf.minimum(tf.cast(global_step, tf.float32) / float(warmup_steps), 1.0)


def _add_summaries(grads: Sequence[_Gradient], xs: Sequence[Any]) -> None:
    for grad, x in zip(grads, xs, strict=True):
        name = x.name.replace(":", "_")
        values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
        tf.compat.v1.summary.histogram(f"{name}/gradient", values)
        tf.compat.v1.summary.histogram(name, x)


def _apply_dense(
    ctx: GradientContext,
    var_opt: tf.compat.v1.train.Optimizer,
    grads: Sequence[_Gradient],
    variables: Sequence[tf.Variable],
) -> list[Any]:
    groups: dict[int, tuple[Any, list[tuple[_Gradient, tf.Variable]]]] = {}
    for grad, var in zip(grads, variables, strict=True):
        optimizer = getattr(var, "optimizer", None) or var_opt
        groups.setdefault(id(optimizer), (optimizer, []))[1].append((grad, var))
    ops = []
    for optimizer, grads_and_vars in groups.values():
        group_grads, group_vars = _unzip(grads_and_vars)

        def apply(
            parts: list[Any], optimizer: Any = optimizer, variables: list[Any] = group_vars
        ) -> tf.Operation:
            parts = messages.send_together(parts, [variable.device for variable in variables])
            return optimizer.apply_gradients(zip(map(_join, parts), variables, strict=True))

        ops.append(ctx.add_async_function(apply, ([_take_apart(g) for g in group_grads],)))
    return ops


def _take_apart(grad: _Gradient) -> Any:
    """Returns a gradient as tensors, which a queue can hold."""
    if isinstance(grad, tf.IndexedSlices):
        return (grad.values, grad.indices, grad.dense_shape)
    return grad


def _join(parts: Any) -> _Gradient:
    return tf.IndexedSlices(*parts) if isinstance(parts, tuple) else parts


def _map_values(fn: Callable[[tf.Tensor], tf.Tensor], grad: _Gradient) -> _Gradient:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(fn(grad.values), grad.indices, grad.dense_shape)
    return fn(grad)


def _flat_values(feature: Any) -> tf.Tensor:
    values = feature.flat_values if isinstance(feature, tf.RaggedTensor) else feature
    return tf.cast(values, tf.float32)


def _unzip(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
