"""Readers: files that a model can be trained with, described once and checked at once.

A reader knows its files, what their columns become, and the size and order of the batches. Called,
it gives a `tf.data.Dataset` in whatever graph is current; in a loop, the batches.

Example:
    >>> import pathlib
    >>> from monolith.data.schema import Ids, Label
    >>> _ = pathlib.Path("clicks.csv").write_text("user,click\\n7,1\\n8,0\\n9,1\\n")
    >>> clicks = csv("clicks.csv", [Ids("user"), Label("click")], batch_size=2)
    >>> clicks
    monolith.data.csv(['clicks.csv'], [Ids('user'), Label('click')], batch_size=2)
    >>> for batch in clicks:
    ...     print(batch["user"].to_list(), batch["click"].numpy())
    [[7], [8]] [1. 0.]
    [[9]] [1.]
    >>> clicks().repeat(2).element_spec["click"]
    TensorSpec(shape=(None,), dtype=tf.float32, name=None)
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data import (
    columns,
    csv_files,
    eager,
    examples,
    files,
    parquet_files,
    seekable,
    sources,
)
from monolith.data.schema import Feature

_MAX_SHOWN = 3


def csv(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batch_size: int = 512,
    shuffle: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
    delimiter: str = ",",
    list_separator: str = "|",
    column_names: Sequence[str] | None = None,
) -> "Reader":
    """Reads CSV files, whose first line names the columns.

    Args:
        paths: A path, a glob pattern, or a list of them; names that end in `.gz` are uncompressed.
        schema: Which columns to read, and as what.
        batch_size: Rows of a batch; the last one may have fewer.
        shuffle: This many rows are read and shuffled at a time; None keeps the files' order.
        seed: Makes the order the same in every run; every pass over the data has another one.
        drop_remainder: Whether the last batch is left out when it has fewer rows.
        delimiter: What stands between two fields.
        list_separator: What stands between two values in one field.
        column_names: The columns' names where files have no line that names them.

    Raises:
        errors.DataError: There is no such file, column or row, or the first rows hold something
            else than the schema says.
        errors.ConfigError: The arguments contradict themselves.
    """
    batching = _make_batching(batch_size, shuffle, seed, drop_remainder)
    source = csv_files.open_files(
        paths,
        schema,
        delimiter=delimiter,
        list_separator=list_separator,
        column_names=column_names,
    )
    options = [
        f", delimiter={delimiter!r}" if delimiter != "," else "",
        f", list_separator={list_separator!r}" if list_separator != "|" else "",
        f", column_names={list(column_names)!r}" if column_names is not None else "",
    ]
    return Reader("csv", source, batching, "".join(options))


def parquet(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batch_size: int = 512,
    shuffle: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
) -> "Reader":
    """Reads Parquet files; needs pyarrow.

    Args:
        paths: A path, a glob pattern, or a list of them.
        schema: Which columns to read, and as what.
        batch_size: Rows of a batch; the last one may have fewer.
        shuffle: This many rows are read and shuffled at a time; None keeps the files' order.
        seed: Makes the order the same in every run; every pass over the data has another one.
        drop_remainder: Whether the last batch is left out when it has fewer rows.

    Raises:
        ImportError: pyarrow is not installed.
        errors.DataError: There is no such file, column or row, or the first rows hold something
            else than the schema says.
        errors.ConfigError: The arguments contradict themselves.
    """
    batching = _make_batching(batch_size, shuffle, seed, drop_remainder)
    return Reader("parquet", parquet_files.open_files(paths, schema), batching)


def tfrecord(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batch_size: int = 512,
    shuffle: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
) -> "Reader":
    """Reads TFRecord files of `tf.train.Example`.

    Args:
        paths: A path, a glob pattern, or a list of them; names that end in `.gz` are uncompressed.
        schema: Which features to read, and as what.
        batch_size: Rows of a batch; the last one may have fewer.
        shuffle: This many rows are read and shuffled at a time; None keeps the files' order.
        seed: Makes the order the same in every run; every pass over the data has another one.
        drop_remainder: Whether the last batch is left out when it has fewer rows.

    Raises:
        errors.DataError: There is no such file or record, or the first records hold something else
            than the schema says.
        errors.ConfigError: The arguments contradict themselves.
    """
    batching = _make_batching(batch_size, shuffle, seed, drop_remainder)
    return Reader("tfrecord", examples.open_files(paths, schema), batching)


@dataclasses.dataclass(frozen=True, repr=False)
class Reader:
    """Files as batches; `csv`, `parquet` and `tfrecord` make one.

    Which files that are is decided when it is made, what is in them when they are read. Its
    datasets save their position with a checkpoint.
    """

    _format: str
    _source: sources.FileSource
    _batching: columns.Batching
    _options: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files, in the order in which they are read."""
        return self._source.paths

    @property
    def schema(self) -> tuple[Feature, ...]:
        """Which columns are read, and as what."""
        return self._source.features

    def __call__(self) -> tf.data.Dataset:
        """Returns a dataset of dicts with the names of the schema, in the current graph.

        Ids are ragged int64, `Dense` is float32 `[batch, width]`, `Label` float32 `[batch]`.

        Raises:
            errors.DataError: A file is gone.
        """
        return seekable.make_dataset(self._source, self._batching)

    def __iter__(self) -> Iterator[eager.Batch]:
        """Yields the batches, in eager mode.

        Raises:
            errors.DataError: What is in a file is not what the schema says.
            errors.ConfigError: This is a graph.
        """
        return eager.iterate(self._source, self._batching, "A reader")

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not there.
        if not name.startswith("_") and hasattr(tf.data.Dataset, name):
            raise AttributeError(
                f"A reader has no {name!r}, but the dataset that it returns when it is called has: "
                f"write reader().{name}."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        shown = [repr(path) for path in self.files[:_MAX_SHOWN]]
        if len(self.files) > _MAX_SHOWN:
            shown.append(f"... {len(self.files) - _MAX_SHOWN} more")
        batching = dataclasses.asdict(self._batching)
        batch_size = batching.pop("batch_size")
        batching["shuffle"] = batching.pop("shuffle_rows")
        batching["drop_remainder"] = batching["drop_remainder"] or None
        settings = [f", {name}={value!r}" for name, value in batching.items() if value is not None]
        return (
            f"monolith.data.{self._format}([{', '.join(shown)}], {list(self.schema)}, "
            f"batch_size={batch_size}{''.join(settings)}{self._options})"
        )


def _make_batching(
    batch_size: int, shuffle: int | None, seed: int | None, drop_remainder: bool
) -> columns.Batching:
    if seed is not None and shuffle is None:
        raise errors.ConfigError(
            f"seed={seed!r} decides nothing without shuffle; give both, as in shuffle=100_000, or "
            "none."
        )
    return columns.Batching(
        batch_size=batch_size, shuffle_rows=shuffle, seed=seed, drop_remainder=drop_remainder
    )
