"""Embeddings of a model's features: every id owns a row, made when it is first trained.

Example:
    >>> layer = Embedding(["user", "movie"], dim=32, admit_after=2, expire_after_days=30)
    >>> layer
    Embedding(['user', 'movie'], dim=32)

    In the `call` of a model, see `monolith.model.model`, `layer(batch)` gives `[batch, 64]`.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry, optimizers
from monolith.embedding.features import combiners
from monolith.embedding.features.slots import (
    FeatureColumn,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)
from monolith.embedding.table import Table
from monolith.embedding.table_config import to_compressor, to_initializer
from monolith.model.batch import describe_missing

OUTPUTS = ("concat", "stack", "dict")
COMBINERS: Mapping[str, Callable[[], combiners.Combiner]] = {
    "sum": combiners.ReduceSum,
    "mean": combiners.ReduceMean,
}

_LARGEST_ADMIT_AFTER = 15
# A row that is expired leaves memory within a day.
_EVICT_EVERY_HOURS = 24


class Embedding:
    """Looks up the rows of features, one table for each.

    Two layers may look up the same feature: their numbers lie in one row, and its admission, expiry
    and storage, which belong to the row, are given in one of them or are the same in both.

    Args:
        features: Name of a feature, or names. A dense integer column is one id for each example,
            or `[batch, n]` of them; ragged and sparse ones are used as they are; strings are
            hashed to ids.
        dim: Width of the rows.
        optimizer: How rows are updated, such as `ml.Adagrad(0.1)`; None takes that of the
            Estimator.
        combiner: What becomes of several ids of one example: their "sum", which is also what None
            stands for, or "mean".
        max_length: If given, in place of a combiner, ids are not combined: the first so many are
            kept, with zeros after the last one, `[batch, max_length, dim]`.
        output: "concat" puts features side by side, `[batch, features * dim]`; "stack" gives
            `[batch, features, dim]`; "dict" a tensor for each feature, by name.
        admit_after: How often an id is seen in batches before the one that gives it a row, at most
            15: with 2 and one occurrence in a batch, the third is the first that it learns from.
            All occurrences in a batch count, and none of them makes the row. Until then it is
            all zeros.
        expire_after_days: Days without an update after which a row is dropped; None keeps it.
        table: Name of one table that all of these features share, such as items that were shown
            and items that were clicked; None gives each its own.
        initializer: What a new row starts with: "uniform" draws from -0.05 to 0.05, "zeros",
            "ones", a number for all, or one of `monolith.embedding.entry`.
        compressor: How a row is stored in an exported model: "fp32", "fp16", "fixed_r8",
            "one_bit", or one of `monolith.embedding.entry`.
        storage: How the values of rows are kept in memory while they train: "float32", "float16"
            or "int8". Updates of the last two are rounded at random, right on average.

    Raises:
        ConfigError: A setting is out of its range.
    """

    def __init__(
        self,
        features: str | Sequence[str],
        dim: int,
        optimizer: Any = None,
        *,
        combiner: str | None = None,
        max_length: int | None = None,
        output: str = "concat",
        admit_after: int = 0,
        expire_after_days: int | None = None,
        table: str | None = None,
        initializer: Any = "uniform",
        compressor: Any = "fp32",
        storage: str = "float32",
    ) -> None:
        if isinstance(features, int):
            raise errors.ConfigError(
                f"Embedding has no vocabulary to give, but features to name: Embedding(['user'], "
                f"{dim}) in place of Embedding({features}, {dim})."
            )
        self._features = _check_features(features)
        self._dim = _check_positive("dim", dim)
        if optimizer is not None:
            optimizers.to_row_optimizer(optimizer)  # Here, where the traceback shows who wrote it.
        self._optimizer = optimizer
        self._combiner = _make_combiner(combiner, max_length)
        self._output = _check_choice("output", output, OUTPUTS)
        self._table = _check_table(table)
        self._initializer = to_initializer(initializer)
        self._compressor = to_compressor(compressor)
        self._rows = _RowSettings.of(admit_after, expire_after_days, storage)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return self._features

    @property
    def dim(self) -> int:
        """Width of the rows."""
        return self._dim

    def __repr__(self) -> str:
        return f"Embedding({list(self._features)}, dim={self._dim})"

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Returns the embeddings of a batch, as `output` says.

        Args:
            batch: What `call` of the model was given.

        Raises:
            ConfigError: The batch does not have a feature, or no model is being built.
        """
        build = _current_build.get()
        if build is None:
            raise errors.ConfigError(
                f"{self!r} was called outside of a model: call it in `call` of an ml.Model that "
                "an ml.Estimator trains. ml.Table looks ids up anywhere, and ml.keras.Embedding is "
                "the layer for Keras."
            )
        for name in self._features:
            if name not in batch:
                raise errors.ConfigError(describe_missing(name, batch, "the data"))
        rows = {name: self._look_up(build, name) for name in self._features}
        if self._output == "dict":
            return rows
        tensors = list(rows.values())
        if self._output == "stack":
            return tf.stack(tensors, axis=1)
        return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=-1)

    def _look_up(self, build: "Build", feature: str) -> tf.Tensor:
        slot = build.get_slot(self._table or feature, self._rows)
        column = build.get_column(slot, feature, self._combiner)
        key = (id(self), slot.name)
        if key not in build.slices:
            optimizer = build.default_optimizer if self._optimizer is None else self._optimizer
            build.slices[key] = slot.add_feature_slice(
                self._dim,
                self._initializer,
                optimizers.to_row_optimizer(optimizer),
                self._compressor,
                optimizers.row_learning_rate(optimizer),
            )
        return column.embedding_lookup(build.slices[key])


@dataclasses.dataclass(frozen=True)
class _RowSettings:
    """When an id gets a row, when it loses it, and how the row is kept."""

    admit_after: int = 0
    expire_after_days: int | None = None
    storage: str = "float32"

    @classmethod
    def of(cls, admit_after: int, expire_after_days: int | None, storage: str) -> "_RowSettings":
        if expire_after_days is not None:
            _check_positive("expire_after_days", expire_after_days)
        settings = cls(admit_after, expire_after_days, storage)
        settings.make_config()  # Refuses what is out of range.
        if admit_after > _LARGEST_ADMIT_AFTER:
            raise errors.ConfigError(
                f"`admit_after` of an Embedding is at most {_LARGEST_ADMIT_AFTER}, for ids without "
                f"a row are not counted any further; got {admit_after}."
            )
        return settings

    def make_config(self) -> entry.CuckooHashTableConfig:
        return entry.CuckooHashTableConfig(
            feature_evict_every_n_hours=_EVICT_EVERY_HOURS if self.expire_after_days else 0,
            admit_after=self.admit_after,
            expire_after_days=self.expire_after_days,
            storage=self.storage,
        )


class Build:
    """What the layers of a model share while it is built in one graph.

    Args:
        create_slot: Makes a slot, as the context of a task does.
        default_optimizer: That of layers without one.

    Attributes:
        columns: The columns that were made, by feature.
        slices: The part of the row that belongs to a layer, by the layer's id and the slot's name.
    """

    def __init__(
        self, create_slot: Callable[[FeatureSlotConfig], FeatureSlot], default_optimizer: Any
    ) -> None:
        self.default_optimizer = default_optimizer
        self.columns: dict[str, FeatureColumn] = {}
        self.slices: dict[tuple[int, str], FeatureSlice] = {}
        self._create_slot = create_slot
        self._slots: dict[str, tuple[FeatureSlot, _RowSettings]] = {}

    def get_slot(self, table: str, settings: _RowSettings) -> FeatureSlot:
        """Returns the slot of a table; the first call makes it."""
        if table not in self._slots:
            config = FeatureSlotConfig(
                name=table, hashtable_config=settings.make_config(), names_table=True
            )
            self._slots[table] = (self._create_slot(config), settings)
        slot, known = self._slots[table]
        if settings not in (known, _RowSettings()):
            raise errors.ConfigError(
                f"Two layers look up table '{table}', with {_describe(known)} and with "
                f"{_describe(settings)}; these belong to its rows, so give them in the first "
                "layer, or the same in both."
            )
        return slot

    def get_column(
        self, slot: FeatureSlot, feature: str, combiner: combiners.Combiner
    ) -> FeatureColumn:
        """Returns the column of a feature; the first call makes it."""
        if feature not in self.columns:
            self.columns[feature] = FeatureColumn(slot, feature, combiner)
        known = self.columns[feature]
        if known.feature_slot is not slot or str(known.combiner) != str(combiner):
            raise errors.ConfigError(
                f"Two layers look up feature '{feature}' with different combiners or tables; put "
                "its ids into the data under a second name to use them in two ways."
            )
        return known


_current_build: contextvars.ContextVar[Build | None] = contextvars.ContextVar("build", default=None)


@contextlib.contextmanager
def building(build: Build) -> Iterator[Build]:
    """Has layers that are called in the block use `build`."""
    token = _current_build.set(build)
    try:
        yield build
    finally:
        _current_build.reset(token)


def _describe(settings: _RowSettings) -> str:
    storage = f", storage {settings.storage!r}" if settings.storage != "float32" else ""
    return (
        f"admit_after {settings.admit_after}, expire_after_days {settings.expire_after_days}"
        f"{storage}"
    )


def _check_features(features: Any) -> tuple[str, ...]:
    names = [features] if isinstance(features, str) else features
    is_list = isinstance(names, list | tuple) and names
    if not is_list or not all(isinstance(name, str) and name for name in names):
        raise errors.ConfigError(
            f"An Embedding is given the name of a feature or a list of names, got {features!r}."
        )
    if len(set(names)) != len(names):
        raise errors.ConfigError(f"An Embedding names a feature twice: {list(names)}.")
    return tuple(names)


def _make_combiner(name: str | None, max_length: int | None) -> combiners.Combiner:
    if name is not None:
        _check_choice("combiner", name, tuple(COMBINERS))
    if max_length is None:
        return COMBINERS[name or "sum"]()
    if name is not None:
        raise errors.ConfigError(
            f"An Embedding with `max_length` does not combine ids, so `combiner` {name!r} would "
            "change nothing; give one of the two."
        )
    return combiners.FirstN(_check_positive("max_length", max_length))


def _check_table(table: Any) -> str | None:
    if table is None or (isinstance(table, str) and table):
        return table
    if isinstance(table, Table):
        raise errors.ConfigError(
            "`table` of an Embedding is the name of a table that an Estimator makes, so it cannot "
            f"be an ml.Table; give its name, {table.name!r}, for a table that starts empty, or use "
            "ml.keras.Embedding, which takes an ml.Table."
        )
    raise errors.ConfigError(
        f"`table` of an Embedding is the name of a table that its features share, got {table!r}."
    )


def _check_positive(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.ConfigError(f"`{what}` of an Embedding must be a positive int, got {value!r}.")
    return value


def _check_choice(what: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise errors.ConfigError(
            f"`{what}` of an Embedding is one of {', '.join(map(repr, choices))}, got {value!r}."
        )
    return str(value)
