"""Learns which tables a model needs by building it once without any table.

A model function creates slots, slices and columns as it goes. Given a `DummyFeatureFactory` it
meets placeholders of the right shapes; afterwards the factory knows the tables.

Example:
    >>> from monolith.embedding.features.slots import FeatureColumn
    >>> with tf.Graph().as_default():
    ...     factory = DummyFeatureFactory(batch_size=4)
    ...     slot = factory.create_feature_slot(FeatureSlotConfig(name="user"))
    ...     slices = [slot.add_feature_slice(2), slot.add_feature_slice(3)]
    ...     column = FeatureColumn(slot, "user_id")
    >>> config = factory.get_table_name_to_table_config()["user"]
    >>> [s.segment.dim_size for s in config.slice_configs], config.unmerged_slice_dims
    ([5], [2, 3])
"""

import collections
import logging
from typing import Any, NamedTuple

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.factory import FeatureFactory, GradsAndVars
from monolith.embedding.features.slots import (
    DEFAULT_EXPIRE_TIME,
    FeatureEmbTable,
    FeatureSlot,
    FeatureSlotConfig,
    LearningRate,
)
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2 as proto

logger = logging.getLogger(__name__)

# Optimizers that treat a slice as a whole; two slices of them must stay two.
_OPTIMIZERS_BY_SLICE = {"batch_softmax", "group_adagrad", "group_ftrl"}

# A part of a row, and its learning rate.
SliceConfig = collections.namedtuple("SliceConfig", ["segment", "learning_rate_fn"])


class TableConfig(NamedTuple):
    """What a slot's table is made of.

    Attributes:
        slice_configs: The parts of a row; neighbours that differ in nothing but their width are
            one part.
        feature_names: The features whose ids are looked up in the table.
        unmerged_slice_dims: The widths of the slices as the model added them.
        hashtable_config: The kind of table.
        feature_to_combiners: The combiner of each feature.
        is_named_after_slot: Whether the table has the slot's name, also with one feature.
    """

    slice_configs: list[SliceConfig]
    feature_names: list[str]
    unmerged_slice_dims: list[int]
    hashtable_config: entry.HashTableConfig
    feature_to_combiners: dict[str, combiners.Combiner]
    is_named_after_slot: bool = False


class DummyFeatureEmbTable(FeatureEmbTable):
    """Keeps what it hears about slices and features, and returns placeholders.

    A slice is cut out of the whole row and combined as it will be in training, so gradients flow
    through a dry run too.

    Args:
        batch_size: The static batch size of what a lookup returns; None or 0: not known.
        hashtable_config: The kind of table.
        is_named_after_slot: See `TableConfig`.
    """

    def __init__(
        self,
        batch_size: int | None,
        hashtable_config: entry.HashTableConfig,
        is_named_after_slot: bool = False,
    ) -> None:
        self._batch_size = batch_size or None
        self._hashtable_config = hashtable_config
        self._is_named_after_slot = is_named_after_slot
        self._slice_configs: list[SliceConfig] = []
        self._feature_to_combiners: dict[str, combiners.Combiner] = {}
        self._feature_to_ids_and_rows: dict[str, tuple[tf.RaggedTensor, tf.Tensor]] = {}

    def add_feature_slice(
        self, segment: proto.EntryConfig.Segment, learning_rate_fn: LearningRate | None = None
    ) -> None:
        if learning_rate_fn is None:
            learning_rate_fn = _get_learning_rate_of_optimizer(segment.opt_config)
        self._slice_configs.append(SliceConfig(segment, learning_rate_fn))

    def set_feature_metadata(self, feature_name: str, combiner: combiners.Combiner) -> None:
        known = self._feature_to_combiners.setdefault(feature_name, combiner)
        if str(known) != str(combiner):
            raise errors.ConfigError(
                f"Feature '{feature_name}' has two columns with different combiners, {known} and "
                f"{combiner}; give the ids to the model under two names to combine them in two "
                "ways."
            )

    def embedding_lookup(self, feature_name: str, start: int | None, end: int | None) -> tf.Tensor:
        ids, rows = self._get_ids_and_rows(feature_name)
        if start is None or end is None:
            return rows
        part = rows[:, start:end]
        part.set_shape([None, end - start])
        return self._feature_to_combiners[feature_name].combine(ids, part)

    def get_table_config(self) -> TableConfig:
        """Returns what was collected."""
        return TableConfig(
            slice_configs=_merge_slices(self._slice_configs),
            feature_names=list(self._feature_to_combiners),
            unmerged_slice_dims=[s.segment.dim_size for s in self._slice_configs],
            hashtable_config=self._hashtable_config,
            feature_to_combiners=dict(self._feature_to_combiners),
            is_named_after_slot=self._is_named_after_slot,
        )

    def _get_ids_and_rows(self, feature_name: str) -> tuple[tf.RaggedTensor, tf.Tensor]:
        if feature_name not in self._feature_to_combiners:
            raise errors.ConfigError(
                f"Feature '{feature_name}' has no column; create a FeatureColumn for it."
            )
        # Kept, so that the slices and the whole rows belong together.
        if feature_name not in self._feature_to_ids_and_rows:
            num_splits = self._batch_size and self._batch_size + 1
            ids = tf.RaggedTensor.from_row_splits(
                tf.compat.v1.placeholder(tf.int64, [None]),
                tf.compat.v1.placeholder(tf.int64, [num_splits]),
                validate=False,
            )
            # Slices may still be added, so the width is not known yet.
            rows = tf.compat.v1.placeholder(tf.float32, [None, None])
            self._feature_to_ids_and_rows[feature_name] = (ids, rows)
        return self._feature_to_ids_and_rows[feature_name]


class DummyFeatureFactory(FeatureFactory):
    """Collects the tables of a model.

    Args:
        batch_size: The static batch size of embeddings; None or 0: not known.
    """

    def __init__(self, batch_size: int | None) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._tables: dict[str, DummyFeatureEmbTable] = {}

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """Returns a new slot and keeps its settings.

        Raises:
            NameError: There is a slot of this name already.
        """
        name = config.name
        assert name is not None  # The config has seen to it.
        if name in self._tables:
            raise NameError(f"Duplicate names for the table. Name: {name}")
        self._keep_admission_and_expiry(config)
        self._tables[name] = DummyFeatureEmbTable(
            self._batch_size, config.hashtable_config, config.names_table
        )
        return FeatureSlot(self._tables[name], config)

    def _keep_admission_and_expiry(self, config: FeatureSlotConfig) -> None:
        threshold = config.occurrence_threshold or 0
        if config.slot_id is not None:
            self.slot_to_occurrence_threshold[config.slot_id] = threshold
            self.slot_to_expire_time[config.slot_id] = config.expire_time
        elif threshold > 0 or config.expire_time != DEFAULT_EXPIRE_TIME:
            logger.warning(
                "Slot %s has no `slot_id`: its occurrence threshold %d and expire time %d have no "
                "effect",
                config.name,
                threshold,
                config.expire_time,
            )

    def get_table_name_to_table_config(self) -> dict[str, TableConfig]:
        """Returns the config of each slot's table.

        Raises:
            RuntimeError: A slot has no slice.
        """
        configs = {name: table.get_table_config() for name, table in self._tables.items()}
        for name, config in configs.items():
            if not config.slice_configs:
                raise RuntimeError(f"{name} has no slice, pls. check!")
        return configs

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, req_time: tf.Tensor | None = None, scale: Any = 1
    ) -> tf.Operation:
        """Returns an op that does nothing: there are no tables yet."""
        return tf.no_op()


def _get_learning_rate_of_optimizer(config: proto.OptimizerConfig) -> LearningRate:
    kind = config.WhichOneof("type")
    optimizer = getattr(config, kind)
    if not hasattr(optimizer, "learning_rate"):
        raise errors.ConfigError(
            f"Optimizer '{kind}' has no learning rate; give the slice a `learning_rate_fn`."
        )
    warmup_steps = getattr(optimizer, "warmup_steps", 0)
    if warmup_steps > 0:
        return learning_rate.PolynomialDecay(
            0.0, warmup_steps, end_learning_rate=optimizer.learning_rate
        )
    return optimizer.learning_rate


def _merge_slices(slices: list[SliceConfig]) -> list[SliceConfig]:
    """Makes one of neighbours that differ in nothing but their width: fewer, longer loops.

    Not where the optimizer zeroes a slice as a whole, or takes only dim 1: there the width counts.
    """
    merged: list[SliceConfig] = []
    for config in slices:
        by_slice = config.segment.opt_config.WhichOneof("type") in _OPTIMIZERS_BY_SLICE
        if merged and not by_slice and _settings_of(merged[-1]) == _settings_of(config):
            merged[-1].segment.dim_size += config.segment.dim_size
        else:
            segment = proto.EntryConfig.Segment()
            segment.CopyFrom(config.segment)
            merged.append(SliceConfig(segment, config.learning_rate_fn))
    return merged


def _settings_of(config: SliceConfig) -> tuple[bytes, str]:
    segment = proto.EntryConfig.Segment()
    segment.CopyFrom(config.segment)
    segment.ClearField("dim_size")
    return segment.SerializeToString(deterministic=True), str(config.learning_rate_fn)
