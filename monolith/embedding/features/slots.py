"""Slots, slices and columns: how a model says which embeddings it wants.

A *slot* is a kind of id, such as "user", and owns a row of numbers per id. A *slice* is a part of
that row with settings of its own: an optimizer, an initializer, a learning rate, a compressor. A
*column* is a feature of the examples whose ids belong to the slot; two columns on one slot share
their embeddings. What a lookup returns is up to the factory that made the slot.

Example:
    >>> from monolith.embedding.features.dry_run import DummyFeatureFactory
    >>> with tf.Graph().as_default():
    ...     factory = DummyFeatureFactory(batch_size=4)
    ...     slot = factory.create_feature_slot(FeatureSlotConfig(name="user", has_bias=True))
    ...     vector = slot.add_feature_slice(dim_size=8)
    ...     column = FeatureColumn(slot, "user_id")
    ...     (vector.start, vector.end), column.embedding_lookup(vector).shape.as_list()
    ((1, 9), [4, 8])
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.proto import embedding_hash_table_pb2 as proto

DEFAULT_EXPIRE_TIME = 36500  # Days.

# The key of a slice: feature, start, end.
_FEATURE_STRAT_END_KEY = "{}:{}_{}"

_MAX_SLOT_ID = (1 << 15) - 1  # An id has 15 bits for its slot.

# A number, a tensor, or a function that gives one, such as `PolynomialDecay`.
LearningRate: TypeAlias = float | tf.Tensor | Callable[[], Any]


@dataclasses.dataclass
class FeatureSlotConfig:
    """The settings of a slot.

    Attributes:
        name: Of the slot and its table; by default the text of `slot_id`.
        has_bias: Whether the row starts with one number of its own settings, the bias.
        bias_initializer: What the bias of a new row starts with.
        bias_optimizer: How the bias is updated.
        bias_compressor: How the bias is stored for serving.
        bias_learning_rate_fn: Of the bias; None for `default_vec_learning_rate_fn`.
        default_vec_initializer: Of slices that name no other, as all settings called default.
        default_vec_optimizer: How such a slice is updated.
        default_vec_compressor: How it is stored for serving.
        default_vec_learning_rate_fn: None for the optimizer's own learning rate.
        hashtable_config: The kind of table.
        slot_id: The number of the slot in its ids; the next two settings need it.
        occurrence_threshold: How often an id is seen before it gets a row; None is 0.
        expire_time: Days without an update after which a row is forgotten.
        names_table: Whether the slot's table is named after the slot also while only one feature
            uses it; otherwise it is named after that feature, as older checkpoints have it.
    """

    name: str | None = None
    has_bias: bool = False
    bias_initializer: entry.Initializer = dataclasses.field(default_factory=entry.ZerosInitializer)
    bias_optimizer: entry.Optimizer = dataclasses.field(
        default_factory=lambda: entry.FtrlOptimizer(initial_accumulator_value=1e-6, beta=1.0)
    )
    bias_compressor: entry.Compressor = dataclasses.field(default_factory=entry.Fp32Compressor)
    bias_learning_rate_fn: LearningRate | None = None
    default_vec_initializer: entry.Initializer = dataclasses.field(
        default_factory=entry.RandomUniformInitializer
    )
    default_vec_optimizer: entry.Optimizer = dataclasses.field(
        default_factory=lambda: entry.AdagradOptimizer(initial_accumulator_value=1.0)
    )
    default_vec_compressor: entry.Compressor = dataclasses.field(
        default_factory=entry.Fp16Compressor
    )
    default_vec_learning_rate_fn: LearningRate | None = None
    hashtable_config: entry.HashTableConfig = dataclasses.field(
        default_factory=entry.CuckooHashTableConfig
    )
    slot_id: int | None = None
    occurrence_threshold: int | None = 0
    expire_time: int = DEFAULT_EXPIRE_TIME
    names_table: bool = False

    def __post_init__(self) -> None:
        self.name = self.name or str(self.slot_id)
        self.occurrence_threshold = self.occurrence_threshold or 0
        if self.slot_id is not None and not 0 <= self.slot_id <= _MAX_SLOT_ID:
            raise errors.ConfigError(
                f"`slot_id` of slot '{self.name}' must lie in [0, {_MAX_SLOT_ID}], "
                f"got {self.slot_id}."
            )
        for setting in ("occurrence_threshold", "expire_time"):
            if getattr(self, setting) < 0:
                raise errors.ConfigError(
                    f"`{setting}` of slot '{self.name}' must not be negative, "
                    f"got {getattr(self, setting)}."
                )


class FeatureEmbTable(abc.ABC):
    """What a slot asks for embeddings, and tells about its slices and columns."""

    # Tables that exist already need not know of slices and features.

    def add_feature_slice(  # noqa: B027
        self, segment: proto.EntryConfig.Segment, learning_rate_fn: LearningRate | None = None
    ) -> None:
        """Hears that the row goes on with `segment`."""

    def set_feature_metadata(  # noqa: B027
        self, feature_name: str, combiner: combiners.Combiner
    ) -> None:
        """Hears that `feature_name` uses the table."""

    @abc.abstractmethod
    def embedding_lookup(self, feature_name: str, start: int | None, end: int | None) -> Any:
        """Returns the combined embeddings of a slice of a feature, `[batch, end - start]`.

        `start` and `end` None mean the whole rows before they are combined, `[num_ids, dim]`.
        """


class FeatureSlice(NamedTuple):
    """The numbers `[start, end)` of a slot's rows."""

    feature_slot: "FeatureSlot"
    start: int
    end: int


class FeatureSlot:
    """A kind of id, and the layout of its rows.

    Args:
        table: Where embeddings come from.
        config: The settings.
    """

    def __init__(self, table: FeatureEmbTable, config: FeatureSlotConfig) -> None:
        self._table = table
        self._config = config
        self._feature_columns: set[FeatureColumn] = set()
        self._slices: list[FeatureSlice] = []
        if config.has_bias:
            self.add_feature_slice(
                1,
                config.bias_initializer,
                config.bias_optimizer,
                config.bias_compressor,
                config.bias_learning_rate_fn,
            )

    def add_feature_slice(
        self,
        dim_size: int,
        initializer: entry.Initializer | None = None,
        optimizer: entry.Optimizer | None = None,
        compressor: entry.Compressor | None = None,
        learning_rate_fn: LearningRate | None = None,
    ) -> FeatureSlice:
        """Appends a slice to the row; None takes the default of the slot's config."""
        config = self._config
        segment = entry.CombineAsSegment(
            dim_size,
            config.default_vec_initializer if initializer is None else initializer,
            config.default_vec_optimizer if optimizer is None else optimizer,
            config.default_vec_compressor if compressor is None else compressor,
        )
        if learning_rate_fn is None:
            learning_rate_fn = config.default_vec_learning_rate_fn
        self._table.add_feature_slice(segment, learning_rate_fn)
        start = self._slices[-1].end if self._slices else 0
        self._slices.append(FeatureSlice(self, start, start + segment.dim_size))
        return self._slices[-1]

    def get_bias_slice(self) -> FeatureSlice:
        """Returns the bias.

        Raises:
            AssertionError: The slot has none.
        """
        if not self._config.has_bias:
            raise AssertionError(
                f"Slot '{self.name}' has no bias; make it with `has_bias=True` in its config."
            )
        return self._slices[0]

    def get_feature_slices(self) -> list[FeatureSlice]:
        """Returns all slices in the order of the row, the bias first."""
        return list(self._slices)

    def get_feature_columns(self) -> set["FeatureColumn"]:
        """Returns the columns that were made for this slot."""
        return self._feature_columns

    @property
    def name(self) -> str:
        assert self._config.name is not None  # The config has seen to it.
        return self._config.name

    @property
    def slot(self) -> int:
        """The name as a number.

        Raises:
            ConfigError: It is none.
        """
        try:
            return int(self.name)
        except ValueError:
            raise errors.ConfigError(
                f"The name of slot '{self.name}' is not a number; name it after its slot, '7' for "
                "slot 7, to ask for `slot`."
            ) from None

    def _add_column(self, column: "FeatureColumn") -> FeatureEmbTable:
        self._table.set_feature_metadata(column.feature_name, column.combiner)
        self._feature_columns.add(column)
        return self._table


class FeatureColumn:
    """A feature of the examples whose ids belong to a slot.

    Args:
        feature_slot: The slot.
        feature_name: The key of the ids in a batch.
        combiner: What to make of several ids of one example; by default their sum.
    """

    def __init__(
        self,
        feature_slot: FeatureSlot,
        feature_name: str,
        combiner: combiners.Combiner | None = None,
    ) -> None:
        self._feature_slot = feature_slot
        self._feature_name = feature_name
        self._combiner = self.reduce_sum() if combiner is None else combiner
        self._size_tensor: tf.Tensor | None = None
        self._table = feature_slot._add_column(self)

    @classmethod
    def reduce_sum(cls) -> combiners.Combiner:
        """Sums the rows of an example."""
        return combiners.ReduceSum()

    @classmethod
    def reduce_mean(cls) -> combiners.Combiner:
        """Takes the mean of the rows of an example."""
        return combiners.ReduceMean()

    @classmethod
    def first_n(cls, seq_length: int) -> combiners.Combiner:
        """Keeps the rows of the first ids of an example."""
        return combiners.FirstN(seq_length)

    def embedding_lookup(self, s: FeatureSlice) -> tf.Tensor:
        """Returns the combined embeddings of a slice, `[batch, dim]`, or with FirstN one more dim.

        Raises:
            AssertionError: The slice belongs to another slot.
            ConfigError: The factory knows no such feature or slice.
        """
        if s.feature_slot is not self._feature_slot:
            raise AssertionError(
                "Slice must come from the dedicated feature slot. Feature "
                f"'{self._feature_name}' belongs to slot '{self._feature_slot.name}', the slice to "
                f"slot '{s.feature_slot.name}'."
            )
        return self._table.embedding_lookup(self._feature_name, s.start, s.end)

    def get_all_embeddings_concat(self) -> tf.Tensor:
        """Returns the whole rows before they are combined, `[num_ids, dim]`.

        This is the tensor to differentiate a loss by: its gradient has a row for each occurrence
        of an id, and `apply_gradients` of the factory takes the pair.
        """
        return self._table.embedding_lookup(self._feature_name, None, None)

    def get_all_embedding_slices(self) -> list[tf.Tensor]:
        """Returns the combined embeddings of every slice."""
        return [self.embedding_lookup(s) for s in self._feature_slot.get_feature_slices()]

    def get_bias(self) -> tf.Tensor:
        """Returns the combined biases, `[batch, 1]`; the slot must have them."""
        return self.embedding_lookup(self._feature_slot.get_bias_slice())

    def set_size_tensor(self, row_lengths: tf.Tensor) -> None:
        """Keeps a mask, int32 `[batch, max_seq_length]`: 1 for an id, 0 for a pad.

        Args:
            row_lengths: The number of ids of each example, `[batch]`.

        Raises:
            AssertionError: The combiner is not FirstN.
        """
        if self._combiner.max_seq_length <= 0:
            raise AssertionError(
                "This function is only supported in a sequence feature. Feature "
                f"'{self._feature_name}' has the combiner {self._combiner}, not FirstN."
            )
        mask = tf.sequence_mask(row_lengths, self._combiner.max_seq_length)
        self._size_tensor = tf.cast(mask, tf.int32, name="size_tensor")

    def get_size_tensor(self) -> tf.Tensor | None:
        """Returns the mask of `set_size_tensor`, None before it was called."""
        return self._size_tensor

    @property
    def feature_name(self) -> str:
        return self._feature_name

    @property
    def feature_slot(self) -> FeatureSlot:
        return self._feature_slot

    @property
    def combiner(self) -> combiners.Combiner:
        return self._combiner


FeatureColumnV1 = FeatureColumn


def slice_key(feature_name: str, start: int, end: int) -> str:
    """Returns the key of a slice of a feature among all slices."""
    return _FEATURE_STRAT_END_KEY.format(feature_name, start, end)
