"""Columns in NumPy on their way to TensorFlow: cut, joined, reordered, and packed as tensors.

Readers of CSV and Parquet, and the synthetic stream, make chunks of rows in whatever sizes come
handy; `monolith.data.positions` makes batches of them, and `monolith.data.seekable` a dataset.

Example:
    >>> chunk = {"user": Ragged.from_rows([[7], [8, 9], []]), "click": np.float32([0, 1, 1])}
    >>> rows = slice_rows(chunk, 1, 3)
    >>> rows["user"].values, rows["user"].lengths, rows["click"]
    (array([8, 9]), array([2, 0]), array([1., 1.], dtype=float32))
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import schema, string_ids

_NUM_SEEDS = 2**63


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: all values one after the other, and how many each row has."""

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Makes one of lists of integers."""
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
        return cls(values, np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def empty(cls, num_rows: int) -> "Ragged":
        """Makes rows without values."""
        return cls(np.empty(0, np.int64), np.zeros(num_rows, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)


Column = np.ndarray | Ragged
Columns = Mapping[str, Column]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How rows become batches.

    Attributes:
        batch_size: Rows of a batch; the last one may have fewer.
        drop_remainder: Whether the last batch is left out when it has fewer.
        shuffle_rows: This many rows are read and shuffled at a time; None keeps the files' order.
        seed: Makes the order the same in every run; every pass over the data has another one.
    """

    batch_size: int = 512
    drop_remainder: bool = False
    shuffle_rows: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_integer(self.batch_size) or self.batch_size < 1:
            raise errors.ConfigError(f"batch_size must be positive, got {self.batch_size!r}.")
        rows = self.shuffle_rows
        if rows is not None and (not _is_integer(rows) or rows < 1):
            raise errors.ConfigError(
                "How many rows are read and shuffled at a time must be positive, as in 100_000, "
                f"got {rows!r}; None does not shuffle."
            )
        seed = self.seed
        if seed is not None and (not _is_integer(seed) or not 0 <= seed < _NUM_SEEDS):
            raise errors.ConfigError(
                f"A seed is an integer from 0 to 2^63 - 1, got {seed!r}; None draws one."
            )


def _is_integer(value: Any) -> bool:
    # True would be 1, of which nobody has thought who writes shuffle=True.
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def num_rows(columns: Columns) -> int:
    """Returns how many rows the columns have."""
    return len(next(iter(columns.values())))


def slice_rows(columns: Columns, start: int, stop: int) -> dict[str, Column]:
    """Returns some of the rows."""
    return next(cut_rows(columns, start, stop, stop - start))


def cut_rows(columns: Columns, start: int, stop: int, size: int) -> Iterator[dict[str, Column]]:
    """Yields the rows from `start` to `stop` in groups of `size`; the last one may have fewer."""
    # Where each row of a ragged column begins, computed once for all groups.
    offsets = {
        name: np.concatenate([[0], np.cumsum(column.lengths)])
        for name, column in columns.items()
        if isinstance(column, Ragged)
    }

    def cut(name: str, column: Column, first: int, last: int) -> Column:
        if isinstance(column, Ragged):
            values = column.values[offsets[name][first] : offsets[name][last]]
            return Ragged(values, column.lengths[first:last])
        return column[first:last]

    for first in range(start, stop, size):
        last = min(first + size, stop)
        yield {name: cut(name, column, first, last) for name, column in columns.items()}


def concat_rows(chunks: Sequence[Columns]) -> dict[str, Column]:
    """Returns the rows of all chunks, of which there is at least one."""
    if len(chunks) == 1:
        return dict(chunks[0])

    def join(parts: Sequence[Any]) -> Column:
        if isinstance(parts[0], Ragged):
            values = np.concatenate([part.values for part in parts])
            return Ragged(values, np.concatenate([part.lengths for part in parts]))
        return np.concatenate(parts)

    return {name: join([chunk[name] for chunk in chunks]) for name in chunks[0]}


def reorder_rows(columns: Columns, order: np.ndarray) -> dict[str, Column]:
    """Returns the rows whose numbers `order` has, in that order."""

    def reorder(column: Column) -> Column:
        if not isinstance(column, Ragged):
            return column[order]
        starts = np.cumsum(column.lengths) - column.lengths
        lengths = column.lengths[order]
        # Where each value comes from: its row's start, plus its place in the row.
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Ragged(column.values[np.repeat(starts[order], lengths) + places], lengths)

    return {name: reorder(column) for name, column in columns.items()}


class Layout(Protocol):
    """How the rows of a batch travel from NumPy to TensorFlow.

    Attributes:
        signature: The tensors of a batch.
    """

    signature: tuple[tf.TensorSpec, ...]

    def pack(self, batch: Columns) -> tuple[np.ndarray, ...]:
        """Returns the arrays of the tensors."""

    def unpack(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns what a model reads."""


class FeatureLayout:
    """All columns of a batch in four arrays: each array costs TensorFlow more than its content.

    Args:
        features: The columns, which have the features' names.
        rows: How many rows each batch has, if it is always the same number.
    """

    def __init__(self, features: Sequence[schema.Feature], rows: int | None) -> None:
        self._integers = [f.name for f in features if isinstance(f, schema.Ids)]
        self._strings = [f.name for f in features if isinstance(f, schema.StringIds)]
        self._floats = [f for f in features if not isinstance(f, schema.AnyIds)]
        self._order = [feature.name for feature in features]
        num_ragged = len(self._integers) + len(self._strings)
        num_floats = sum(f.width if isinstance(f, schema.Dense) else 1 for f in self._floats)
        self.signature = (
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([num_ragged, rows], tf.int64),
            tf.TensorSpec([rows, num_floats], tf.float32),
        )

    def pack(self, batch: Columns) -> tuple[np.ndarray, ...]:
        """Returns integers, strings, lengths `[ragged columns, rows]`, and floats `[rows, n]`."""
        rows = num_rows(batch)
        integers: list[Any] = [batch[name] for name in self._integers]
        strings: list[Any] = [batch[name] for name in self._strings]
        floats: list[Any] = [batch[feature.name] for feature in self._floats]
        lengths = [column.lengths for column in integers + strings]
        return (
            np.concatenate([np.empty(0, np.int64), *(column.values for column in integers)]),
            np.concatenate([np.empty(0, object), *(column.values for column in strings)]),
            np.array(lengths, np.int64).reshape(len(lengths), rows),
            np.column_stack([np.empty((rows, 0), np.float32), *floats]),
        )

    def unpack(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the columns as tensors."""
        integers, strings, lengths, floats = tensors
        found = {}
        num_integers = len(self._integers)
        parts = _split(integers, lengths[:num_integers], num_integers)
        parts += _split(
            string_ids.hash_strings(strings), lengths[num_integers:], len(self._strings)
        )
        for i, name in enumerate(self._integers + self._strings):
            found[name] = tf.RaggedTensor.from_row_lengths(parts[i], lengths[i], validate=False)
        start = 0
        for feature in self._floats:
            if isinstance(feature, schema.Dense):
                found[feature.name] = floats[:, start : start + feature.width]
                start += feature.width
            else:
                found[feature.name] = floats[:, start]
                start += 1
        return {name: found[name] for name in self._order}


def _split(values: tf.Tensor, lengths: tf.Tensor, num_columns: int) -> list[tf.Tensor]:
    if num_columns < 2:
        return [values] * num_columns
    return tf.split(values, tf.reduce_sum(lengths, axis=1), num=num_columns)
