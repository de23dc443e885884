"""Which tables a model needs, found by building the model once and throwing the graph away.

A table must exist before its embeddings can be looked up, but only the model knows its slots and
slices. So the model is built twice: first in a graph of its own, in which every lookup is a
placeholder and nothing ever runs, then for real over the tables that were found.

What is wrong with the input shows here as well, before any session exists: a feature that the model
wants and the input does not give, or gives as something else than ragged ids.
"""

import copy
import logging
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.dry_run import DummyFeatureFactory, SliceConfig
from monolith.graph import export_mode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig
from monolith.model.batch import (
    InputFeatures,
    MissingFeatureError,
    describe_missing,
    list_names,
    name_source,
)
from monolith.model.task import NativeTask
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.proto import example_pb2
from monolith.tensor import prefetch

logger = logging.getLogger(__name__)


class FeatureConfigs(NamedTuple):
    """What is known of the features that have embeddings, by name of the feature."""

    name_to_config: dict[str, entry.HashTableConfigInstance]
    name_to_unmerged_slice_dims: dict[str, list[int]]
    name_to_combiner: dict[str, combiners.Combiner]


class Collected(NamedTuple):
    """What a dry run found.

    Attributes:
        feature_configs: What the tables are made of.
        feature_to_table: The table of each feature; features of one slot share it.
        slot_to_occurrence_threshold: How often an id is seen before it gets a row.
        slot_to_expire_time: Days without an update after which a row is forgotten.
        named_after_slot: Features whose table has the slot's name, also if it is theirs alone.
        layouts: How the model wants slices laid out, if one op is to make all its tensors.
    """

    feature_configs: FeatureConfigs
    feature_to_table: dict[str, str]
    slot_to_occurrence_threshold: dict[int, int]
    slot_to_expire_time: dict[int, int]
    named_after_slot: frozenset[str] = frozenset()
    layouts: Mapping[str, example_pb2.OutConfig] = types.MappingProxyType({})


def collect_features(task: NativeTask) -> Collected:
    """Builds the model of `task` without tables and returns what it wants.

    Args:
        task: Its context is used, and left without a factory.

    Raises:
        MissingFeatureError: The input does not have a feature that the model wants.
        errors.ConfigError: A feature is not ragged ids, or the slots contradict each other.
    """
    factory = DummyFeatureFactory(task.p.train.per_replica_batch_size)
    graph = tf.Graph()
    graph.dry_run = True
    with graph.as_default():
        tf.compat.v1.train.get_or_create_global_step()
        features = _get_input(task)
        task.ctx.layout_factory = None
        task.ctx.feature_factory = factory
        task.ctx.async_function_mgr = prefetch.AsyncFunctionMgr(is_async=False)
        try:
            task.create_model_fn()(
                features=name_features(features),
                mode=ModeKeys.TRAIN,
                config=GraphRunConfig(),
            )
        finally:
            task.ctx.feature_factory = None
    layouts = copy.deepcopy(dict(getattr(task, "layout_dict", {})))
    collected = _to_collected(factory)._replace(layouts=layouts)
    check_features(features, collected.feature_to_table)
    logger.info(
        "the model has %d features with embeddings in %d tables",
        len(collected.feature_to_table),
        len(set(collected.feature_to_table.values())),
    )
    return collected


def name_features(features: Any) -> Any:
    """Returns features by name in a dict that explains a missing one; anything else as it is."""
    return InputFeatures(features) if isinstance(features, Mapping) else features


def check_features(features: Any, names: Mapping[str, Any]) -> None:
    """Refuses an input that does not have ragged ids for every feature in `names`.

    Raises:
        MissingFeatureError: A feature is missing.
        errors.ConfigError: A feature is of another kind.
    """
    if not names:
        return
    if not isinstance(features, Mapping):
        raise errors.ConfigError(
            f"The model looks up embeddings of {list_names(names)}, so {name_source()} must give "
            f"a dict of features; it gives {_describe(features)}."
        )
    for name in names:
        if name not in features:
            raise MissingFeatureError(describe_missing(name, features))
        _check_ids(name, features[name])


def _make_serving_feature_configs_from_training_configs(
    feature_configs: FeatureConfigs, skip_zero_embedding: bool
) -> FeatureConfigs:
    """Returns the configs of the same tables for serving: without optimizer state, compressed."""
    configs = copy.deepcopy(feature_configs)
    for config in configs.name_to_config.values():
        config.table_config.entry_config.entry_type = proto.EntryConfig.SERVING
        config.table_config.skip_zero_embedding = skip_zero_embedding
        config.table_config.cuckoo.SetInParent()
    return configs


def _combine_slices_as_table(
    slices: list[SliceConfig], hashtable_config: entry.HashTableConfig
) -> entry.HashTableConfigInstance:
    """Returns the config of a table whose rows consist of `slices`."""
    table_config = proto.EmbeddingHashTableConfig()
    if export_mode.is_exporting():
        table_config.entry_config.entry_type = proto.EntryConfig.SERVING
    for slice_config in slices:
        table_config.entry_config.segments.append(slice_config.segment)
    hashtable_config.mutate_table(table_config)
    return entry.HashTableConfigInstance(table_config, [s.learning_rate_fn for s in slices])


def _get_input(task: NativeTask) -> Any:
    features = task.create_input_fn(ModeKeys.TRAIN)()
    if isinstance(features, tf.data.Dataset):
        # Never run: the model needs tensors of the right kind, not data.
        features = features.get_single_element()
    return features


def _to_collected(factory: DummyFeatureFactory) -> Collected:
    configs = FeatureConfigs({}, {}, {})
    feature_to_table: dict[str, str] = {}
    named_after_slot: set[str] = set()
    for table, config in factory.get_table_name_to_table_config().items():
        for name in config.feature_names:
            if name in feature_to_table:
                raise AssertionError(
                    f"Feature must only belongs to one table. Feature '{name}' belongs to "
                    f"'{feature_to_table[name]}' and to '{table}'."
                )
            feature_to_table[name] = table
            if config.is_named_after_slot:
                named_after_slot.add(name)
            instance = _combine_slices_as_table(config.slice_configs, config.hashtable_config)
            _check_learning_rates(table, instance)
            configs.name_to_config[name] = instance
            configs.name_to_unmerged_slice_dims[name] = list(config.unmerged_slice_dims)
            configs.name_to_combiner[name] = config.feature_to_combiners[name]
    return Collected(
        configs,
        feature_to_table,
        {slot: value or 0 for slot, value in factory.slot_to_occurrence_threshold.items()},
        dict(factory.slot_to_expire_time),
        frozenset(named_after_slot),
    )


def _check_learning_rates(table: str, config: entry.HashTableConfigInstance) -> None:
    if any(tf.is_tensor(rate) for rate in config.learning_rate_fns):
        raise errors.ConfigError(
            f"The learning rate of slot '{table}' is a tensor, which lives in one graph, but the "
            "model is built in several; give a number, or a function such as PolynomialDecay."
        )


def _check_ids(name: str, value: Any) -> None:
    if isinstance(value, tf.RaggedTensor):
        if value.ragged_rank != 1 or value.flat_values.shape.rank not in (1, None):
            problem = (
                "it has more dimensions than [batch, ids]; flatten the inner ones with "
                "tf.RaggedTensor.merge_dims(1, -1)"
            )
        elif value.dtype != tf.int64:
            problem = f"its ids are {value.dtype.name}; cast them with tf.cast(x, tf.int64)"
        else:
            return
    elif isinstance(value, tf.SparseTensor):
        problem = "convert it with tf.RaggedTensor.from_sparse, or parse it as tf.io.RaggedFeature"
    else:
        problem = (
            "convert it with tf.RaggedTensor.from_tensor (give it [batch, ids]: tf.expand_dims(x, "
            "1) for one id per example), or parse it as tf.io.RaggedFeature"
        )
    raise errors.ConfigError(
        f"Feature '{name}' has embeddings, so {name_source()} must give its ids as a ragged int64 "
        f"tensor [batch, ids]; it gives {_describe(value)}: {problem}."
    )


def _describe(value: Any) -> str:
    if isinstance(value, tf.RaggedTensor):
        return f"a ragged {value.dtype.name} tensor of shape {value.shape}"
    if isinstance(value, tf.SparseTensor):
        return f"a sparse {value.dtype.name} tensor"
    if tf.is_tensor(value):
        return f"a dense {value.dtype.name} tensor of shape {value.shape}"
    return f"a {type(value).__name__}"
