"""What the TensorBoard plugin `monolith` needs to know about a summary.

A summary of an architecture search, or of feature insight, is one matrix: the columns of all
features side by side. Its metadata, JSON inside TensorBoard's own metadata, says which columns
belong to which feature.

Example:
    >>> prepare_head(["f1"], [3], out_type="bytes")[0]
    '{"tag_type": "gating", "segment_names": ["f1"], "segment_sizes": [3], "group_index": [0]}'
"""

import enum
import functools
import json
import numbers
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import summary_pb2

from monolith import errors

PLUGIN_NAME = "monolith"

# Last part of the tag of a summary.
MONOLITH_NAS_DATA = "monolith_nas_weight"
MONOLITH_FI_DATA = "monolith_feature_insight"

# Keys of the plugin's JSON.
KTYPE = "tag_type"
KMETA = "meta"
KDATA = "data"

# Part of the name of the variable that holds the weights of an architecture search.
ARCH_TENSOR_PREFIX = "arch_weights"


class SummaryType(str, enum.Enum):
    """What the data of a summary is.

    Attributes:
        GATING: One weight per feature of an architecture search.
        SELECTING: One weight per size that a feature may have.
        MIXED: Both.
        SIMPLE: Data without features.
        FEATURE_INSIGHT_DIRECT: How much each feature contributes, added up.
        FEATURE_INSIGHT_TRAIN: Data to train a model of feature importance on, with labels.
    """

    GATING = "gating"
    SELECTING = "selecting"
    MIXED = "mixed"
    SIMPLE = "simple"
    FEATURE_INSIGHT_DIRECT = "fi_direct"
    FEATURE_INSIGHT_TRAIN = "fi_train"

    def __str__(self) -> str:
        return self.value


def create_summary_metadata(
    description: str | None = None, meta_content: bytes | str = b""
) -> summary_pb2.SummaryMetadata:
    """Returns metadata that make TensorBoard hand a tensor summary to the plugin.

    Args:
        description: What TensorBoard shows beside the data, Markdown.
        meta_content: What the plugin gets; text becomes UTF-8.
    """
    if isinstance(meta_content, str):
        meta_content = meta_content.encode("utf-8")
    return summary_pb2.SummaryMetadata(
        summary_description=description or "",
        plugin_data=summary_pb2.SummaryMetadata.PluginData(
            plugin_name=PLUGIN_NAME, content=meta_content
        ),
        data_class=summary_pb2.DATA_CLASS_TENSOR,
    )


def prepare_head(
    segment_names: Sequence[str] | None,
    segment_sizes: Sequence[Any] | None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    out_type: str = "tensor",
) -> tuple[Any, str | None]:
    """Describes the segments of a summary.

    Args:
        segment_names: A name per segment.
        segment_sizes: For each segment its number of columns, or the sizes to choose from.
        group_info: Names of segments that belong together; without it each is its own group.
        raw_tag: A `SummaryType`; gating if all sizes are numbers, else selecting.
        out_type: "tensor" for a scalar string tensor, "bytes" for its text, "json" for a dict.

    Returns:
        The description, and `raw_tag` or what was found for it. Without segments the description is
        empty: a tensor of the empty string, or `b""`.

    Raises:
        AssertionError: `out_type` is another one, or a segment is in no group.
        ValueError: There is not one size for each name.
    """
    if out_type not in ("bytes", "tensor", "json"):
        raise AssertionError(f"`out_type` must be 'bytes', 'tensor' or 'json', got {out_type!r}.")
    names = [] if segment_names is None else list(segment_names)
    sizes = [] if segment_sizes is None else [_to_plain(size) for size in segment_sizes]
    if len(names) != len(sizes):
        raise ValueError(
            f"There must be one size for each segment, got {len(names)} names and "
            f"{len(sizes)} sizes."
        )
    if not names:
        return (tf.constant(b"") if out_type == "tensor" else b""), raw_tag
    if raw_tag is None:
        is_gating = all(isinstance(size, int) for size in sizes)
        raw_tag = SummaryType.GATING if is_gating else SummaryType.SELECTING
    head: dict[str, Any] = {KTYPE: str(raw_tag), "segment_names": names, "segment_sizes": sizes}
    if raw_tag in (SummaryType.GATING, SummaryType.FEATURE_INSIGHT_TRAIN):
        head["group_index"] = _name_to_group_id(names, group_info)
    if out_type == "json":
        return head, raw_tag
    text = json.dumps(head)
    return (tf.constant(text) if out_type == "tensor" else text), raw_tag


def get_nas_weight_json(ckpt_dir_or_file: str, prefix: str | None = None) -> list[str]:
    """Reads the weights of an architecture search from a checkpoint.

    Args:
        ckpt_dir_or_file: A checkpoint, or a directory whose latest checkpoint is meant; the result
            is kept per checkpoint, so that a newer one in the directory is seen.
        prefix: Part of the name of the variable; `ARCH_TENSOR_PREFIX` by default.

    Returns:
        The values of the first such variable, flattened, as strings.

    Raises:
        MonolithError: There is no such variable.
    """
    path = os.fspath(ckpt_dir_or_file)
    if tf.io.gfile.isdir(path):
        path = tf.train.latest_checkpoint(path) or path
    return list(_read_weights(path, ARCH_TENSOR_PREFIX if prefix is None else prefix))


@functools.lru_cache(maxsize=16)
def _read_weights(ckpt_file: str, prefix: str) -> tuple[str, ...]:
    reader = tf.train.load_checkpoint(ckpt_file)
    names = sorted(reader.get_variable_to_shape_map())
    for name in names:
        if prefix in name:
            return tuple(str(value) for value in reader.get_tensor(name).flatten())
    raise errors.MonolithError(
        f"not arch_weights in ckpt: no variable of {ckpt_file} has {prefix!r} in its name, "
        f"only {', '.join(names)} are there."
    )


def _name_to_group_id(
    segment_names: Sequence[str], group_info: Sequence[Sequence[str]] | None
) -> list[int]:
    """Returns for each segment the number of its group, counting only groups that are used."""
    if not group_info:
        return list(range(len(segment_names)))
    group_of_name = {name: i for i, group in enumerate(group_info) for name in group}
    missing = [name for name in segment_names if name not in group_of_name]
    if missing:
        raise AssertionError(f"`group_info` must name every segment, but lacks {missing}.")
    group_ids = [group_of_name[name] for name in segment_names]
    dense = {group_id: i for i, group_id in enumerate(sorted(set(group_ids)))}
    return [dense[group_id] for group_id in group_ids]


def _to_plain(size: Any) -> Any:
    """Returns a size, or a list of sizes, as JSON knows them, also if NumPy made them."""
    if isinstance(size, numbers.Integral):
        return int(size)
    return [int(option) for option in size]
