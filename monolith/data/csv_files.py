"""CSV files as batches of ragged ids, dense floats and labels.

The first line names the columns, unless `column_names` does. A cell with several values separates
them by `|`; an empty one has none. Fields may be quoted; files whose name ends in `.gz` are
uncompressed on the way.

Example:
    >>> import pathlib
    >>> from monolith.data.schema import Label, RaggedIds, StringIds
    >>> lines = ["user,genres,click", "7,Horror|Crime,1", "8,,0"]
    >>> _ = pathlib.Path("clicks.csv").write_text("\\n".join(lines))
    >>> schema = [RaggedIds("user"), StringIds("genres"), Label("click")]
    >>> batch = next(iter(dataset("clicks.csv", schema)))
    >>> batch["user"].to_list(), batch["click"].numpy()
    ([[7], [8]], array([1., 0.], dtype=float32))
    >>> batch["genres"].row_lengths().numpy()
    array([2, 0])
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, files
from monolith.data.schema import Dense, Feature, Ids, RaggedIds, StringIds, check_schema

# Rows that are converted at a time: enough for NumPy to pay, few enough to stay in the cache.
_CHUNK_ROWS = 1024


def dataset(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batching: columns.Batching | None = None,
    delimiter: str = ",",
    list_separator: str = "|",
    column_names: Sequence[str] | None = None,
) -> tf.data.Dataset:
    """Reads CSV files.

    Args:
        paths: Files and glob patterns.
        schema: Which columns to read, and as what.
        batching: Size and order of the batches.
        delimiter: What stands between two fields.
        list_separator: What stands between two values in one field.
        column_names: The columns' names where files have no line that names them.

    Returns:
        Dicts with the names of `schema`: ragged int64 ids, float32 `[batch, width]` for `Dense`,
        float32 `[batch]` for `Label`.

    Raises:
        errors.DataError: There is no such file, column or row, or the first rows hold something
            else than the schema says. What is wrong further on is raised while reading, as
            `tf.errors.InvalidArgumentError` with the same sentence.
        errors.ConfigError: The arguments contradict themselves.
    """
    features = check_schema(schema)
    _check_separators(delimiter, list_separator)
    paths = files.list_files(paths)

    def read_chunks() -> Iterator[columns.Columns]:
        for path in paths:
            with files.describe_errors(path):
                yield from _read_file(path, features, delimiter, list_separator, column_names)

    if next(read_chunks(), None) is None:
        raise errors.DataError(
            f"There are no rows in {files.enumerate_files(paths)}; check that they were written."
        )
    return columns.make_dataset(read_chunks, features, batching or columns.Batching())


def _read_file(
    path: str,
    features: Sequence[Feature],
    delimiter: str,
    list_separator: str,
    column_names: Sequence[str] | None,
) -> Iterator[columns.Columns]:
    with files.open_binary(path) as file:
        # utf-8-sig: spreadsheets put a byte order mark in front, which would be part of a name.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            names = next(reader, None) if column_names is None else list(column_names)
            if names is None:
                return
            positions = [_find_column(path, names, feature) for feature in features]
            while chunk := list(itertools.islice(_number_lines(reader), _CHUNK_ROWS)):
                lines, rows = zip(*chunk, strict=True)
                _check_widths(path, lines, rows, len(names))
                cells = list(zip(*rows, strict=True))
                yield {
                    feature.name: columns.Ragged.empty(len(lines))
                    if position is None
                    else _convert(path, lines, feature, cells[position], list_separator)
                    for feature, position in zip(features, positions, strict=True)
                }
        except csv.Error as e:
            raise errors.DataError(
                f"{path!r}, line {reader.line_num}, is not CSV ({e}); check quotes and delimiter."
            ) from e


def _number_lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    return ((reader.line_num, row) for row in reader if row)


def _find_column(path: str, names: Sequence[str], feature: Feature) -> int | None:
    if isinstance(feature, Ids) and feature.optional and feature.source not in names:
        return None
    if names.count(feature.source) != 1:
        problem = "two columns" if feature.source in names else "no column"
        raise errors.DataError(
            f"{path!r} has {problem} named {feature.source!r}, its columns are "
            f"{', '.join(map(repr, names))}; correct the schema (`column=`) or the file's first "
            "line, or give `column_names`."
        )
    return names.index(feature.source)


def _check_widths(
    path: str, lines: Sequence[int], rows: Sequence[Sequence[str]], width: int
) -> None:
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise errors.DataError(
                f"{path!r}, line {line}, has {len(row)} fields where {width} columns are named; "
                "check the line, its quotes, and the delimiter."
            )


def _convert(
    path: str, lines: Sequence[int], feature: Feature, cells: Sequence[str], separator: str
) -> columns.Column:
    convert = _converter(feature, separator)
    try:
        return convert(cells)
    except (ValueError, OverflowError):
        # Once more, cell by cell, for the one to blame.
        for line, cell in zip(lines, cells, strict=True):
            try:
                convert([cell])
            except (ValueError, OverflowError) as e:
                raise errors.DataError(
                    f"{path!r}, line {line}, column {feature.source!r} holds {cell!r}, "
                    f"{_expectation(feature, separator)}"
                ) from e
        raise


def _converter(feature: Feature, separator: str) -> Callable[[Sequence[str]], columns.Column]:
    if isinstance(feature, RaggedIds):
        return lambda cells: _to_ids(cells, separator)
    if isinstance(feature, StringIds):
        return lambda cells: _to_strings(cells, separator)
    if isinstance(feature, Dense):
        return lambda cells: _to_floats(cells, separator, feature.width, feature.default)
    return lambda cells: _to_floats(cells, separator, 1, None)[:, 0]


def _split(cells: Sequence[str], separator: str) -> tuple[list[str], np.ndarray]:
    lengths = np.fromiter(
        (cell.count(separator) + 1 if cell else 0 for cell in cells), np.int64, len(cells)
    )
    joined = separator.join(filter(None, cells))
    return joined.split(separator) if joined else [], lengths


def _to_ids(cells: Sequence[str], separator: str) -> columns.Ragged:
    parts, lengths = _split(cells, separator)
    return columns.Ragged(np.fromiter(map(int, parts), np.int64, len(parts)), lengths)


def _to_strings(cells: Sequence[str], separator: str) -> columns.Ragged:
    parts, lengths = _split(cells, separator)
    values = np.empty(len(parts), object)
    values[:] = [part.encode() for part in parts]
    return columns.Ragged(values, lengths)


def _to_floats(
    cells: Sequence[str], separator: str, width: int, default: float | None
) -> np.ndarray:
    if default is not None:
        missing = separator.join([str(default)] * width)
        cells = [cell or missing for cell in cells]
    parts, lengths = _split(cells, separator)
    if (lengths != width).any():
        raise ValueError
    numbers = np.fromiter(map(float, parts), np.float32, len(parts)).reshape(-1, width)
    if math.isnan(numbers.sum()):
        raise ValueError
    return numbers


def _expectation(feature: Feature, separator: str) -> str:
    if isinstance(feature, RaggedIds):
        return (
            f"but RaggedIds reads integers of 64 bits, separated by {separator!r}; use StringIds "
            "for strings, or correct the file."
        )
    several = f"{feature.width} numbers" if isinstance(feature, Dense) else "one number"
    default = ", or give a default for empty fields" if isinstance(feature, Dense) else ""
    return (
        f"but {type(feature).__name__} reads {several}, separated by {separator!r}; correct the "
        f"schema or the file{default}."
    )


def _check_separators(delimiter: str, list_separator: str) -> None:
    if len(delimiter) != 1 or not list_separator or list_separator == delimiter:
        raise errors.ConfigError(
            "The delimiter must be one character and the list separator another one, but got "
            f"{delimiter!r} and {list_separator!r}."
        )
