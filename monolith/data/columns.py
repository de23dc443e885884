"""Columns in NumPy on their way to TensorFlow: cut into batches, shuffled, made ragged.

Readers of CSV and Parquet, and the synthetic stream, yield chunks of rows in whatever sizes come
handy; `make_dataset` makes of them what a model reads.

Example:
    >>> chunk = {"user": Ragged.from_rows([[7], [8, 9], []]), "click": np.float32([0, 1, 1])}
    >>> schema_ = [schema.RaggedIds("user"), schema.Label("click")]
    >>> batches = make_dataset(lambda: iter([chunk]), schema_, Batching(batch_size=2))
    >>> next(iter(batches))["user"].to_list()
    [[7], [8, 9]]
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import schema, string_ids


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
        if self.batch_size < 1:
            raise errors.ConfigError(f"batch_size must be positive, got {self.batch_size}.")
        if self.shuffle_rows is not None and self.shuffle_rows < 1:
            raise errors.ConfigError(
                f"shuffle_rows must be positive, got {self.shuffle_rows}; None does not shuffle."
            )


def make_dataset(
    make_chunks: Callable[[], Iterator[Columns]],
    features: Sequence[schema.Feature],
    batching: Batching,
) -> tf.data.Dataset:
    """Makes batches of the chunks that `make_chunks` yields, from the start on each pass."""
    passes = itertools.count()

    def make_batches() -> Iterator[tuple[np.ndarray, ...]]:
        chunks = make_chunks()
        if batching.shuffle_rows is not None:
            rng = np.random.default_rng(
                None if batching.seed is None else (batching.seed, next(passes))
            )
            chunks = (
                _take(block, rng.permutation(num_rows(block)))
                for block in rebatch(chunks, batching.shuffle_rows)
            )
        for batch in rebatch(chunks, batching.batch_size, batching.drop_remainder):
            yield layout.pack(batch)

    layout = _Layout(features, batching.batch_size if batching.drop_remainder else None)
    dataset = tf.data.Dataset.from_generator(make_batches, output_signature=layout.signature)
    return dataset.map(tf.autograph.experimental.do_not_convert(layout.unpack)).prefetch(2)


def rebatch(
    chunks: Iterator[Columns], batch_size: int, drop_remainder: bool = False
) -> Iterator[Columns]:
    """Yields the rows of all chunks in batches of one size."""
    waiting: list[Columns] = []
    num_waiting = 0
    for chunk in chunks:
        waiting.append(chunk)
        num_waiting += num_rows(chunk)
        if num_waiting < batch_size:
            continue
        rows = _concat(waiting)
        starts = range(0, num_waiting - batch_size + 1, batch_size)
        offsets = {
            name: np.concatenate([[0], np.cumsum(column.lengths)])
            for name, column in rows.items()
            if isinstance(column, Ragged)
        }
        for start in starts:
            yield _slice(rows, offsets, start, start + batch_size)
        end = starts[-1] + batch_size
        waiting = [_slice(rows, offsets, end, num_waiting)] if end < num_waiting else []
        num_waiting -= end
    if num_waiting and not drop_remainder:
        yield _concat(waiting)


def num_rows(columns: Columns) -> int:
    """Returns how many rows the columns have."""
    return len(next(iter(columns.values())))


def _slice(
    columns: Columns, offsets: Mapping[str, np.ndarray], start: int, stop: int
) -> dict[str, Column]:
    # `offsets` is where each row of a ragged column begins; computed once for many slices.
    def cut(name: str, column: Column) -> Column:
        if isinstance(column, Ragged):
            values = column.values[offsets[name][start] : offsets[name][stop]]
            return Ragged(values, column.lengths[start:stop])
        return column[start:stop]

    return {name: cut(name, column) for name, column in columns.items()}


def _concat(chunks: Sequence[Columns]) -> dict[str, Column]:
    if len(chunks) == 1:
        return dict(chunks[0])

    def join(parts: Sequence[Any]) -> Column:
        if isinstance(parts[0], Ragged):
            values = np.concatenate([part.values for part in parts])
            return Ragged(values, np.concatenate([part.lengths for part in parts]))
        return np.concatenate(parts)

    return {name: join([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _take(columns: Columns, order: np.ndarray) -> dict[str, Column]:
    def reorder(column: Column) -> Column:
        if not isinstance(column, Ragged):
            return column[order]
        starts = np.cumsum(column.lengths) - column.lengths
        lengths = column.lengths[order]
        # Where each value comes from: its row's start, plus its place in the row.
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Ragged(column.values[np.repeat(starts[order], lengths) + places], lengths)

    return {name: reorder(column) for name, column in columns.items()}


class _Layout:
    """All columns of a batch in four arrays: each array costs TensorFlow more than its content."""

    def __init__(self, features: Sequence[schema.Feature], rows: int | None) -> None:
        self._integers = [f.name for f in features if isinstance(f, schema.RaggedIds)]
        self._strings = [f.name for f in features if isinstance(f, schema.StringIds)]
        self._floats = [f for f in features if not isinstance(f, schema.Ids)]
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
        return (
            np.concatenate([np.empty(0, np.int64), *(column.values for column in integers)]),
            np.concatenate([np.empty(0, object), *(column.values for column in strings)]),
            np.array([column.lengths for column in integers + strings], np.int64).reshape(-1, rows),
            np.column_stack([np.empty((rows, 0), np.float32), *floats]),
        )

    def unpack(
        self, integers: tf.Tensor, strings: tf.Tensor, lengths: tf.Tensor, floats: tf.Tensor
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the columns as tensors."""
        tensors = {}
        num_integers = len(self._integers)
        parts = _split(integers, lengths[:num_integers], num_integers)
        parts += _split(
            string_ids.hash_strings(strings), lengths[num_integers:], len(self._strings)
        )
        for i, name in enumerate(self._integers + self._strings):
            tensors[name] = tf.RaggedTensor.from_row_lengths(parts[i], lengths[i], validate=False)
        start = 0
        for feature in self._floats:
            if isinstance(feature, schema.Dense):
                tensors[feature.name] = floats[:, start : start + feature.width]
                start += feature.width
            else:
                tensors[feature.name] = floats[:, start]
                start += 1
        return {name: tensors[name] for name in self._order}


def _split(values: tf.Tensor, lengths: tf.Tensor, num_columns: int) -> list[tf.Tensor]:
    if num_columns < 2:
        return [values] * num_columns
    return tf.split(values, tf.reduce_sum(lengths, axis=1), num=num_columns)
