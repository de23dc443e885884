"""Rows of all features to all tensors of the dense network, in one op.

The ops take offsets that `monolith.data.sparse_fids` makes. `FeatureConfigs` says what is made of
the rows: a layout puts slices of features side by side (CONCAT), above each other (STACK), adds
them up (ADDN) or gives each of them a tensor (NONE).

Example:
    >>> from monolith.data.sparse_fids import sharding_sparse_fids
    >>> configs = example_pb2.FeatureConfigs()
    >>> configs.feature_configs["user"].table = "user"
    >>> configs.feature_configs["user"].slice_dims.append(2)
    >>> bias = configs.out_configs["bias"]
    >>> _ = bias.slice_configs.add(feature_name="user", start=0, end=1)
    >>> _ = bias.shape.add(dims=[-1, 1])
    >>> ids = {"user": tf.ragged.constant([[7, 8], [8]], dtype=tf.int64)}
    >>> s = sharding_sparse_fids(ids, ps_num=1, feature_cfgs=configs)
    >>> rows = [tf.constant([1.0, 10.0, 2.0, 20.0])]  # Of 7 and 8.
    >>> offsets = (s.fid_offset, s.feature_offset, s.nfl_offset, s.batch_size)
    >>> fused_embedding_to_layout(rows, None, *offsets, "example", configs, 1)[0].numpy().tolist()
    [[3.0], [2.0]]
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids, to_sizes
from monolith.native import ops
from monolith.proto import example_pb2

_FORWARD: dict[int, Callable[..., Any]] = {
    1: ops.monolith_embedding_to_layout,
    2: ops.monolith_embedding_to_layout_v2,
    3: ops.monolith_embedding_to_layout_v3,
    4: ops.monolith_embedding_to_layout_v4,
    5: ops.monolith_embedding_to_layout_v5,
}
_BACKWARD: dict[int, Callable[..., Any]] = {
    1: ops.monolith_embedding_to_layout_grad,
    2: ops.monolith_embedding_to_layout_grad_v2,
    3: ops.monolith_embedding_to_layout_grad_v3,
    4: ops.monolith_embedding_to_layout_grad_v4,
    # The sizes that the fifth version adds say nothing that the tensors do not say.
    5: ops.monolith_embedding_to_layout_grad_v3,
}


def fused_embedding_to_layout(
    embeddings_list: Sequence[TensorLike],
    fid_list_row_split: Sequence[TensorLike] | None,
    fid_offset: TensorLike,
    feature_offset: TensorLike,
    nfl_offset: TensorLike,
    batch_size: TensorLike,
    variant_type: str,
    feature_cfgs: example_pb2.FeatureConfigs,
    ps_num: int,
    fid_list_emb_row_lenth: TensorLike | None = None,
    nfl_size: TensorLike | None = None,
    feature_size: TensorLike | None = None,
    fid_size: TensorLike | None = None,
    emb_size: TensorLike | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[tf.Tensor]:
    """Combines rows by example and lays slices of them out; differentiable.

    Args:
        embeddings_list: Rows, float32: table by table, and for each table server by server.
            Version 4 takes one vector of all rows, server by server.
        fid_list_row_split: Where the rows of each feature begin in each list (version 2).
        fid_offset: For each id its list (upper half) and its row there (lower half): by number in
            versions 1 and 2, by floats before it in the others; uint64. In version 2 each feature
            of a table has a number of its own in place of the list's.
        feature_offset: For each example of a feature its first element of `fid_offset`, int32.
        nfl_offset: For each feature, sorted by name, its first element of `feature_offset`; with
            bit 31 one element counts for the whole batch. uint32.
        batch_size: Number of examples, int32.
        variant_type: Where the ids came from: 'example', 'example_batch' or 'instance'.
        feature_cfgs: Features and layouts.
        ps_num: Number of servers.
        fid_list_emb_row_lenth: How many floats each table of each server has (version 4), int32.
        nfl_size: Size of `nfl_offset` (version 5).
        feature_size: Size of `feature_offset` (version 5).
        fid_size: Size of `fid_offset` (version 5).
        emb_size: Sizes of the lists, in floats (version 5).
        parallel_flag: 0 for all threads, 1 for one.
        version: Which of the five ways to name a row is used.

    Returns:
        The tensors of all layouts, which are sorted by name.
    """
    inputs = _inputs(version, fid_list_row_split, fid_list_emb_row_lenth)
    if version == 5:
        for name, size in (
            ("nfl_size", nfl_size),
            ("feature_size", feature_size),
            ("fid_size", fid_size),
            ("emb_size", emb_size),
        ):
            inputs[name] = to_sizes(_require(name, size, version))
    return _FORWARD[version](
        embeddings_list=[to_floats(rows) for rows in embeddings_list],
        fid_offset=tf.convert_to_tensor(fid_offset, tf.uint64),
        feature_offset=to_sizes(feature_offset),
        nfl_offset=tf.convert_to_tensor(nfl_offset, tf.uint32),
        batch_size=to_sizes(batch_size),
        # At least one, so that it is the op which says that there are no layouts.
        num_out=max(1, sum(len(out.shape) for out in feature_cfgs.out_configs.values())),
        **inputs,
        **_attributes(version, variant_type, feature_cfgs, ps_num, parallel_flag),
    )


def fused_embedding_to_layout_grad(
    nfl_offset: TensorLike,
    feature_offset: TensorLike,
    fid_offset: TensorLike,
    batch_size: TensorLike,
    embeddings_list: Sequence[TensorLike],
    fid_list_row_split: Sequence[TensorLike] | None,
    layout_tensors_grad: Sequence[TensorLike],
    variant_type: str,
    feature_cfgs: example_pb2.FeatureConfigs,
    ps_num: int,
    fid_list_emb_row_lenth: TensorLike | None = None,
    layout_tensors_grad_scale: TensorLike | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[tf.Tensor]:
    """Carries gradients of layouts back to rows; rows of several ids get the sum.

    Args:
        nfl_offset: As in `fused_embedding_to_layout`, as the others that are not explained here.
        feature_offset: As there.
        fid_offset: As there.
        batch_size: As there.
        embeddings_list: As there; only the shapes count.
        fid_list_row_split: As there.
        layout_tensors_grad: Gradients of the tensors that it returned.
        variant_type: As there.
        feature_cfgs: As there.
        ps_num: As there.
        fid_list_emb_row_lenth: As there.
        layout_tensors_grad_scale: What the gradients are multiplied with.
        parallel_flag: As there.
        version: As there.

    Returns:
        Gradients shaped as `embeddings_list`.
    """
    grads = [to_floats(grad) for grad in layout_tensors_grad]
    if layout_tensors_grad_scale is not None:
        scale = tf.cast(layout_tensors_grad_scale, tf.float32)
        grads = [grad * scale for grad in grads]
    return _BACKWARD[version](
        embeddings_list=[to_floats(rows) for rows in embeddings_list],
        fid_offset=tf.convert_to_tensor(fid_offset, tf.uint64),
        feature_offset=to_sizes(feature_offset),
        nfl_offset=tf.convert_to_tensor(nfl_offset, tf.uint32),
        batch_size=to_sizes(batch_size),
        tensors_grad=grads,
        **_inputs(version, fid_list_row_split, fid_list_emb_row_lenth),
        **_attributes(version, variant_type, feature_cfgs, ps_num, parallel_flag),
    )


def _inputs(
    version: int,
    fid_list_row_split: Sequence[TensorLike] | None,
    fid_list_emb_row_lenth: TensorLike | None,
) -> dict[str, Any]:
    """Returns what only some versions take."""
    if version not in _FORWARD:
        raise errors.ConfigError(f"`version` must be 1, 2, 3, 4 or 5, got {version!r}.")
    if version == 2:
        row_splits = _require("fid_list_row_split", fid_list_row_split, version)
        return {"fid_list_row_split": [to_ids(splits) for splits in row_splits]}
    if version == 4:
        lengths = _require("fid_list_emb_row_lenth", fid_list_emb_row_lenth, version)
        return {"fid_list_emb_row_lenth": to_sizes(lengths)}
    return {}


def _require(name: str, value: Any, version: int) -> Any:
    if value is None:
        raise errors.ConfigError(f"Version {version} of the fused layout needs `{name}`.")
    return value


def _attributes(
    version: int,
    variant_type: str,
    feature_cfgs: example_pb2.FeatureConfigs,
    ps_num: int,
    parallel_flag: int,
) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "variant_type": variant_type.replace("examplebatch", "example_batch"),
        "feature_cfgs": feature_cfgs.SerializeToString(deterministic=True),
    }
    if version > 1:
        attributes.update(ps_num=ps_num, parallel_flag=parallel_flag)
    return attributes
