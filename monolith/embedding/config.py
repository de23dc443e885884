"""The config of a whole table: its kind, its rows, the learning rates of their segments.

What a row is made of is in `entry`.

Example:
    >>> table_config = proto.EmbeddingHashTableConfig()
    >>> CuckooHashTableConfig(initial_capacity=1024).mutate_table(table_config)
    >>> config = HashTableConfigInstance(table_config, learning_rate_fns=[0.1])
    >>> config.table_config.initial_capacity, config.learning_rate_fns
    (1024, [0.1])
"""

import abc
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.proto import embedding_hash_table_pb2 as proto

# How the values of rows are kept while they train.
STORAGES: Mapping[str, int] = {
    "float32": proto.EntryConfig.FLOAT32,
    "float16": proto.EntryConfig.FLOAT16,
    "int8": proto.EntryConfig.INT8,
}


class HashTableConfig(abc.ABC):
    """What kind of table holds the rows."""

    @abc.abstractmethod
    def mutate_table(self, table_config: proto.EmbeddingHashTableConfig) -> None:
        """Writes the settings into `table_config`."""


class CuckooHashTableConfig(HashTableConfig):
    """The table that this package has.

    Args:
        initial_capacity: Rows to reserve memory for at the start, at most 2**24 of them; the table
            grows past them.
        feature_evict_every_n_hours: How often expired rows are removed from memory; 0: never.
        admit_after: How often an id of this table is seen before the next time gives it a row,
            whatever its slot says; ids are counted apart from those of other tables. Needs a
            filter: one that counts takes at most 15. None leaves it to the slots.
        expire_after_days: Rows of this table expire after so many days without an update, whatever
            their slots say. None leaves it to the slots.
        storage: How the values of rows are kept in memory: "float32", "float16", or "int8", a
            byte for each and one for their common exponent. Lookups give float32 all the same,
            optimizer states stay as they are, and updates are rounded at random, right on average.

    Raises:
        ConfigError: A setting is out of its range.

    Example:
        >>> table_config = proto.EmbeddingHashTableConfig()
        >>> kind = CuckooHashTableConfig(admit_after=2, expire_after_days=30)
        >>> kind.mutate_table(table_config)
        >>> table_config.occurrence_threshold
        2
        >>> table_config.slot_expire_time_config.default_expire_time
        30
    """

    def __init__(
        self,
        initial_capacity: int = 1,
        feature_evict_every_n_hours: int = 0,
        *,
        admit_after: int | None = None,
        expire_after_days: int | None = None,
        storage: str = "float32",
    ) -> None:
        for name, value in (
            ("initial_capacity", initial_capacity),
            ("feature_evict_every_n_hours", feature_evict_every_n_hours),
        ):
            if value < 0:
                raise errors.ConfigError(
                    f"`{name}` of CuckooHashTableConfig must not be negative, got {value}."
                )
        _check_whole_number("admit_after", admit_after, 0)
        _check_whole_number("expire_after_days", expire_after_days, 1)
        self._initial_capacity = initial_capacity
        self._feature_evict_every_n_hours = feature_evict_every_n_hours
        self._admit_after = admit_after
        self._expire_after_days = expire_after_days
        self._storage = _find_storage(storage)

    def mutate_table(self, table_config: proto.EmbeddingHashTableConfig) -> None:
        table_config.initial_capacity = self._initial_capacity
        table_config.cuckoo.SetInParent()
        if self._feature_evict_every_n_hours > 0:
            table_config.enable_feature_eviction = True
            table_config.feature_evict_every_n_hours = self._feature_evict_every_n_hours
        if self._admit_after is not None:
            table_config.occurrence_threshold = self._admit_after
        if self._expire_after_days is not None:
            expire_times = table_config.slot_expire_time_config
            expire_times.default_expire_time = self._expire_after_days
        if self._storage != proto.EntryConfig.FLOAT32:
            table_config.entry_config.storage = self._storage


class HashTableConfigInstance:
    """A table's config together with the learning rates of its segments.

    Args:
        table_config: What the native table reads.
        learning_rate_fns: One per segment: a number, a tensor, or a function that gives one.
        extra_restore_names: Names under which older checkpoints may hold the table.
    """

    def __init__(
        self,
        table_config: proto.EmbeddingHashTableConfig,
        learning_rate_fns: Sequence[float | tf.Tensor | Callable[[], Any]],
        extra_restore_names: Sequence[str] | None = None,
    ) -> None:
        self._table_config = table_config
        self._learning_rate_fns = learning_rate_fns
        self._learning_rate_tensor: tf.Tensor | None = None
        self.extra_restore_names = list(extra_restore_names or [])

    def __str__(self) -> str:
        # Two slots share a table if and only if these texts are equal.
        fns = ", ".join(str(fn) for fn in self._learning_rate_fns)
        serialized = self._table_config.SerializeToString(deterministic=True)
        return f"TableConfigPB: {serialized!r}, LearningRateFns: [{fns}]"

    @property
    def table_config(self) -> proto.EmbeddingHashTableConfig:
        return self._table_config

    @property
    def learning_rate_fns(self) -> Sequence[float | tf.Tensor | Callable[[], Any]]:
        return self._learning_rate_fns

    @property
    def learning_rate_tensor(self) -> tf.Tensor | None:
        """What `set_learning_rate_tensor` was given; None at first."""
        return self._learning_rate_tensor

    def set_learning_rate_tensor(self, learning_rate_tensor: tf.Tensor) -> None:
        """Keeps a tensor that was computed once, to be sent to several servers."""
        self._learning_rate_tensor = learning_rate_tensor

    def call_learning_rate_fns(self) -> tf.Tensor:
        """Returns the learning rates as one float32 vector, [segments]."""
        with tf.name_scope("learning_rate"):
            return tf.stack([tf.cast(rate, tf.float32) for rate in self._call_all()])

    def call_learning_rate_fns_fewer_ops(self) -> list[Any]:
        """Returns the learning rates as a list, without ops that cast and stack them."""
        with tf.name_scope("learning_rate"):
            return self._call_all()

    def _call_all(self) -> list[Any]:
        if not self._learning_rate_fns:
            raise errors.ConfigError("Learning_rate_fns must be not empty.")
        return [fn() if callable(fn) else fn for fn in self._learning_rate_fns]


def _find_storage(storage: Any) -> Any:
    if not isinstance(storage, str) or storage not in STORAGES:
        raise errors.ConfigError(
            f"`storage` of a table must be one of {', '.join(map(repr, STORAGES))}, got "
            f"{storage!r}."
        )
    return STORAGES[storage]


def _check_whole_number(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not least <= value < 2**32:
        raise errors.ConfigError(
            f"`{name}` of CuckooHashTableConfig must be a whole number from {least} to 2**32 - 1, "
            f"or None to leave it to the slots, got {value!r}."
        )
