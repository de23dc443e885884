"""Training with fused layouts: the model's tensors come out of one op, and gradients go into one.

The dry run has collected what the model looks up by `lookup_embedding_slice`: the layouts. Each is
a tensor of the network, made of slices of several features.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data.parser_context import ParserCtx
from monolith.embedding import entry
from monolith.embedding.features.factory import EmbeddingLayoutFactory
from monolith.embedding.sharding.partitioned import SHARDING_FEATURE_CONFIGS, PartitionedHashTable
from monolith.model.task import NativeTask
from monolith.tensor import prefetch
from monolith.training.tables.collect import Collected
from monolith.training.tables.push import get_req_time

Configs = Mapping[str, entry.HashTableConfigInstance]

_REQ_TIME = "req_time"
_IDS = "ids"
_OTHERS = "others"


def check_layouts(collected: Collected) -> None:
    """Refuses a model that looks up embeddings in a way that no layout gives.

    Raises:
        errors.ConfigError: A feature is in no layout.
    """
    laid_out = {
        slice_config.feature_name
        for layout in collected.layouts.values()
        for slice_config in layout.slice_configs
    }
    missing = sorted(set(collected.feature_to_table) - laid_out)
    if missing:
        raise errors.ConfigError(
            f"`enable_fused_layout` is True, but feature '{missing[0]}' is looked up without a "
            "layout; look it up with `lookup_embedding_slice` of a MonolithModel, without groups, "
            "or leave the setting at False."
        )


def make_parser_ctx(
    num_ps: int,
    configs: Configs,
    collected: Collected,
    feature_to_table: Mapping[str, str],
    use_native_multi_hash_table: bool,
    transfer_float16: bool,
) -> ParserCtx:
    """Returns the context that tells parsers and tables about the features of a model.

    Args:
        num_ps: Number of servers; 0: none.
        configs: What the table of each feature is made of.
        collected: What the dry run found.
        feature_to_table: The name of each feature's table, if these are native.
        use_native_multi_hash_table: Whether they are.
        transfer_float16: Whether rows and gradients travel as float16.
    """
    check_layouts(collected)
    ctx = ParserCtx(enable_fused_layout=True)
    _, name_to_dims, name_to_combiner = collected.feature_configs
    ctx.set(
        SHARDING_FEATURE_CONFIGS,
        PartitionedHashTable.gen_feature_configs(
            num_ps,
            configs,
            collected.layouts,
            name_to_dims,
            name_to_combiner,
            use_native_multi_hash_table,
            transfer_float16=transfer_float16,
            feature_to_table=feature_to_table,
        ),
    )
    return ctx


def provide_layouts(
    task: NativeTask,
    hash_table: PartitionedHashTable,
    ids: Mapping[str, tf.RaggedTensor],
    others: Mapping[str, Any],
    async_functions: prefetch.AsyncFunctionMgr,
    *,
    prefetch_capacity: int,
    async_push: bool,
) -> tuple[dict[str, tf.RaggedTensor], dict[str, Any]]:
    """Looks up all layouts and makes the task's context.

    Args:
        task: Gets a factory that has the layouts.
        hash_table: Its tables.
        ids: The ids of each feature.
        others: All other features.
        async_functions: Moves the update to the next step, if `async_push`.
        prefetch_capacity: How many batches are looked up ahead.
        async_push: Whether gradients are pushed one step late.

    Returns:
        Ids and other features of the batch that is being trained on.
    """
    bundle: dict[str, Any] = {_IDS: dict(ids), _OTHERS: dict(others)}
    layouts = hash_table.lookup(ids, bundle, embedding_prefetch_capacity=prefetch_capacity)
    batch = bundle[_OTHERS]
    if (req_time := get_req_time(batch)) is not None:
        bundle[_REQ_TIME] = req_time
    task.ctx.feature_factory = None
    task.ctx.async_function_mgr = async_functions
    task.ctx.layout_factory = EmbeddingLayoutFactory(
        hash_table,
        layouts,
        auxiliary_bundle=bundle,
        async_function_mgr=async_functions,
        async_push=async_push,
    )
    return bundle[_IDS], batch
