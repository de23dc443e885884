"""The ids of a batch divided among servers, with offsets that lead from an example to its rows.

One op reads the ids of all features, from ragged tensors or from serialized examples, finds the
distinct ones, and divides them by their remainder. `fused_embedding_to_layout` takes its offsets.

Example:
    >>> configs = example_pb2.FeatureConfigs()
    >>> for name in ("item", "user"):
    ...     configs.feature_configs[name].table = name
    ...     configs.feature_configs[name].slice_dims.append(2)
    >>> ids = {
    ...     "item": tf.ragged.constant([[8, 9], []], dtype=tf.int64),
    ...     "user": tf.ragged.constant([[7], [7]], dtype=tf.int64),
    ... }
    >>> sharded = sharding_sparse_fids(ids, ps_num=2, feature_cfgs=configs, unique=True)
    >>> {name: [part.numpy().tolist() for part in parts] for name, parts in sharded.shards.items()}
    {'item': [[8], [9]], 'user': [[], [7]]}
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from monolith import errors
from monolith.native import ops
from monolith.proto import example_pb2

# What messages a batch may be made of; "ragged" are ids that somebody has parsed.
_RAGGED = "ragged"
_SERIALIZED = ("example", "example_batch", "examplebatch", "instance")


class ShardedFids(NamedTuple):
    """The ids of a batch by table and server, and where the row of each occurrence is.

    Attributes:
        shards: For each table the ids of each server, int64.
        shards_row_split: For each of them where the ids of each feature of the table begin, int64;
            features sorted by name. Of each sub table, if there are some.
        fid_offset: For each id of the batch, feature by feature, its list (upper half) and where
            its row begins in the rows of that list (lower half, in floats); uint64.
        feature_offset: For each example of a feature its first element of `fid_offset`, int32.
        nfl_offset: For each feature its first element of `feature_offset`; with bit 31 one element
            counts for the whole batch. uint32.
        batch_size: int32 [1], as the following sizes.
        nfl_size: Of `nfl_offset`.
        feature_size: Of `feature_offset`.
        fid_size: Of `fid_offset`.
        emb_size: The number of floats in the rows of each list, int32 [tables * servers].
    """

    shards: dict[str, list[tf.Tensor]]
    shards_row_split: dict[str, list[tf.Tensor]]
    fid_offset: tf.Tensor
    feature_offset: tf.Tensor
    nfl_offset: tf.Tensor
    batch_size: tf.Tensor
    nfl_size: tf.Tensor
    feature_size: tf.Tensor
    fid_size: tf.Tensor
    emb_size: tf.Tensor


def sharding_sparse_fids(
    tensor: tf.Tensor | Mapping[str, tf.RaggedTensor],
    ps_num: int,
    feature_cfgs: example_pb2.FeatureConfigs,
    unique: bool = True,
    input_type: str = _RAGGED,
    parallel_flag: int = 0,
    fid_list_ret_list: bool = False,
    version: int = 5,
    sub_tables: Sequence[str] = (),
) -> ShardedFids:
    """Divides the ids of a batch among servers.

    Args:
        tensor: Ragged ids of each feature, int64 [batch, (ids)]; or serialized messages: one
            ExampleBatch, or an Example or Instance for each example.
        ps_num: Number of servers; an id belongs to that of its remainder.
        feature_cfgs: The features, their tables and the width of their rows.
        unique: Whether equal ids of a feature are sent once.
        input_type: What `tensor` is: 'ragged', 'example', 'examplebatch' or 'instance'.
        parallel_flag: Must be 0: features are divided among threads.
        fid_list_ret_list: Must be False: ids are returned by the name of their table.
        version: Of `fused_embedding_to_layout` that will take the offsets: 3, 4 or 5.
        sub_tables: For each feature, sorted by name, the part of its table that has its ids; by
            default each feature has one of its own. Ids of one part are unique together.

    Raises:
        errors.ConfigError: An argument is not one of these, or a feature has no ids.
    """
    _check(ps_num, input_type, parallel_flag, fid_list_ret_list, version)
    tables = sorted({config.table for config in feature_cfgs.feature_configs.values()})
    options = {
        "num_lists": len(tables) * ps_num,
        "ps_num": ps_num,
        "feature_cfgs": feature_cfgs.SerializeToString(deterministic=True),
        "unique": unique,
        "sub_tables": list(sub_tables),
    }
    if input_type == _RAGGED:
        ids = _get_ids(tensor, sorted(feature_cfgs.feature_configs))
        outputs = ops.monolith_shard_ragged_fids(
            [of_feature.values for of_feature in ids],
            [of_feature.row_splits for of_feature in ids],
            **options,
        )
    else:
        outputs = ops.monolith_shard_serialized_fids(tensor, input_type=input_type, **options)
    shards, row_splits, *offsets_and_sizes = outputs
    return ShardedFids(
        _by_table(tables, shards, ps_num), _by_table(tables, row_splits, ps_num), *offsets_and_sizes
    )


def _check(
    ps_num: int, input_type: str, parallel_flag: int, fid_list_ret_list: bool, version: int
) -> None:
    if ps_num < 1:
        raise errors.ConfigError(f"`ps_num` must be at least 1, got {ps_num}.")
    if input_type != _RAGGED and input_type not in _SERIALIZED:
        raise errors.ConfigError(
            f"`input_type` must be '{_RAGGED}', 'example', 'examplebatch' or 'instance', got "
            f"{input_type!r}."
        )
    if parallel_flag != 0:
        raise errors.ConfigError(f"`parallel_flag` must be 0, got {parallel_flag}.")
    if fid_list_ret_list:
        raise errors.ConfigError(
            "`fid_list_ret_list` must be False: the ids are returned by the name of their table."
        )
    if version not in (3, 4, 5):
        raise errors.ConfigError(
            f"`version` must be 3, 4 or 5, whose offsets count floats, got {version}."
        )


def _get_ids(
    features: tf.Tensor | Mapping[str, tf.RaggedTensor], names: Sequence[str]
) -> list[tf.RaggedTensor]:
    if not isinstance(features, Mapping):
        raise errors.ConfigError(
            "Ids must be given as a dict of ragged tensors; say what serialized messages are with "
            "`input_type`."
        )
    for name in names:
        ids = features.get(name)
        if not isinstance(ids, tf.RaggedTensor) or ids.ragged_rank != 1 or ids.dtype != tf.int64:
            raise errors.ConfigError(
                f"Feature '{name}' must be given as ragged int64 ids [batch, (ids)], got {ids!r}."
            )
    # Ids of int32 row splits are rare, and the op takes one type.
    return [features[name].with_row_splits_dtype(tf.int64) for name in names]


def _by_table(
    tables: Sequence[str], lists: Sequence[tf.Tensor], ps_num: int
) -> dict[str, list[tf.Tensor]]:
    return {table: list(lists[i * ps_num : (i + 1) * ps_num]) for i, table in enumerate(tables)}
