"""Features of a model: slots, slices, columns, and the factories that give them embeddings.

The one module to import; each part is explained where it lives.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     factory = DummyFeatureFactory(batch_size=4)
    ...     slot = factory.create_feature_slot(FeatureSlotConfig(name="item", slot_id=7))
    ...     vector = slot.add_feature_slice(dim_size=16)
    ...     clicked = FeatureColumn(slot, "clicked_items", FeatureColumn.first_n(10))
    ...     shown = FeatureColumn(slot, "shown_item")  # The same embeddings.
    ...     [c.embedding_lookup(vector).shape.as_list() for c in (clicked, shown)]
    [[4, 10, 16], [4, 16]]
"""

from monolith.embedding.features.combiners import require_ragged_ids
from monolith.embedding.features.dry_run import (
    DummyFeatureEmbTable,
    DummyFeatureFactory,
    SliceConfig,
    TableConfig,
)
from monolith.embedding.features.factory import (
    EmbeddingFeatureEmbTable,
    EmbeddingLayoutFactory,
    FeatureFactory,
    FeatureFactoryFromEmbeddings,
)
from monolith.embedding.features.slices import create_embedding_slices
from monolith.embedding.features.slots import (
    _FEATURE_STRAT_END_KEY,
    DEFAULT_EXPIRE_TIME,
    FeatureColumn,
    FeatureColumnV1,
    FeatureEmbTable,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)

__all__ = [
    "DEFAULT_EXPIRE_TIME",
    "_FEATURE_STRAT_END_KEY",
    "DummyFeatureEmbTable",
    "DummyFeatureFactory",
    "EmbeddingFeatureEmbTable",
    "EmbeddingLayoutFactory",
    "FeatureColumn",
    "FeatureColumnV1",
    "FeatureEmbTable",
    "FeatureFactory",
    "FeatureFactoryFromEmbeddings",
    "FeatureSlice",
    "FeatureSlot",
    "FeatureSlotConfig",
    "SliceConfig",
    "TableConfig",
    "create_embedding_slices",
    "require_ragged_ids",
]
