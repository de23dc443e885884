"""Summaries of architecture search and of feature insight, for the TensorBoard plugin `monolith`.

Both are matrices as tensor summaries of TensorFlow, so they go to the same event files as all
others; `metadata` describes their columns.

Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     weights = tf.constant([0.2, 0.8])
    ...     serialized = session.run(nas_data(weights, ["f1", "f2"], [4, 8]))
    >>> tf.compat.v1.Summary.FromString(serialized).value[0].tag
    'gating/monolith_nas_weight'
"""

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith.native import ops as native_ops
from monolith.summary import metadata


def nas_data(
    weight: tf.Tensor,
    segment_names: Sequence[str] | None = None,
    segment_sizes: Sequence[Any] | None = None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    collections: Sequence[str] | None = None,
    description: str | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Writes the weights of an architecture search.

    Args:
        weight: The weights.
        segment_names: The features that they belong to.
        segment_sizes: For each feature its size, or the sizes to choose from.
        group_info: Names of features that belong together.
        raw_tag: A `SummaryType`; follows from the sizes by default, and is "simple" without
            features.
        collections: Graph collections for the summary; `SUMMARIES` by default.
        description: What TensorBoard shows; the summary's type by default.
        name: Beginning of the tag; nothing by default.

    Returns:
        The serialized summary, a scalar string tensor.
    """
    head, summary_type = metadata.prepare_head(
        segment_names, segment_sizes, group_info, raw_tag, out_type="bytes"
    )
    if summary_type is None:
        summary_type = metadata.SummaryType.SIMPLE
    return _write(
        metadata.MONOLITH_NAS_DATA, weight, head, summary_type, collections, description, name
    )


def feature_insight_data(
    input_tensor: tf.Tensor,
    segment_names: Sequence[str],
    segment_sizes: Sequence[int],
    weight: tf.Tensor | None = None,
    group_info: Sequence[Sequence[str]] | None = None,
    label: tf.Tensor | None = None,
    collections: Sequence[str] | None = None,
    description: str | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Writes what each feature contributes to the first dense layer.

    With a weight the contribution of a feature is its columns times its rows of the weight: without
    label the sum of squares of that, one column per feature; with label the product itself.

    Args:
        input_tensor: The features side by side, `[batch, dim]`.
        segment_names: Their names.
        segment_sizes: How many columns each has.
        weight: The kernel of the first dense layer, `[dim, units]`; without it `input_tensor` is
            written as it is.
        group_info: Names of features that belong together.
        label: The labels, `[batch]` or `[batch, n]`, which become the last columns.
        collections: Graph collections for the summary; `SUMMARIES` by default.
        description: What TensorBoard shows; the summary's type by default.
        name: Beginning of the tag; nothing by default.

    Returns:
        The serialized summary, a scalar string tensor.

    Raises:
        ValueError: There is not one size for each name, or the label has another rank.
    """
    sizes = [] if segment_sizes is None else [int(size) for size in segment_sizes]
    if not sizes or len(segment_names) != len(sizes):
        raise ValueError(
            f"Feature insight needs names and sizes of the same number of segments, got "
            f"{segment_names} and {segment_sizes}."
        )
    if label is None:
        summary_type = metadata.SummaryType.FEATURE_INSIGHT_DIRECT
    else:
        summary_type = metadata.SummaryType.FEATURE_INSIGHT_TRAIN
    summary_data = tf.convert_to_tensor(input_tensor)
    if weight is not None:
        aggregate = label is None
        summary_data = native_ops.monolith_feature_insight(
            summary_data, weight, segment_sizes=sizes, aggregate=aggregate
        )
        sizes = [1 if aggregate else int(weight.shape[-1])] * len(sizes)
    head, _ = metadata.prepare_head(segment_names, sizes, group_info, summary_type, out_type="json")
    head["label_size"] = 0
    if label is not None:
        label = _to_matrix(label)
        head["label_size"] = int(label.shape[1])
        summary_data = tf.concat([tf.cast(summary_data, tf.float32), label], axis=1)
    content = json.dumps(head)
    return _write(
        metadata.MONOLITH_FI_DATA,
        summary_data,
        content,
        summary_type,
        collections,
        description,
        name,
    )


def _to_matrix(label: tf.Tensor) -> tf.Tensor:
    label = tf.cast(label, tf.float32)
    if label.shape.rank == 1:
        label = tf.reshape(label, [-1, 1])
    if label.shape.rank != 2 or label.shape[1] is None:
        raise ValueError(
            f"`label` must have shape [batch] or [batch, n] with a known n, got {label.shape}."
        )
    return label


def _write(
    kind: str,
    data: tf.Tensor,
    content: bytes | str,
    summary_type: str,
    collections: Sequence[str] | None,
    description: str | None,
    name: str | None,
) -> tf.Tensor:
    if description is None:
        description = str(summary_type)
    # TensorFlow puts the scope in front of the tag.
    with tf.name_scope(f"{name}_{summary_type}" if name else str(summary_type)):
        return tf.compat.v1.summary.tensor_summary(
            name=kind,
            tensor=data,
            summary_metadata=metadata.create_summary_metadata(description, content),
            collections=list(collections) if collections is not None else None,
        )
