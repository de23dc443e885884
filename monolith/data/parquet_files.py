"""Parquet files as batches of ragged ids, dense floats and labels.

Only the columns of the schema are read. AnyIds are an integer or string column, or lists of them;
`Dense` is a number, or lists of its width. A null, or an empty list, is a row without ids.
Needs pyarrow: `pip install "monolith-recsys[parquet]"`.

Example:
    >>> import pyarrow, pyarrow.parquet
    >>> from monolith.data.schema import Label, Ids
    >>> table = pyarrow.table({"user": [7, 8], "movies": [[1, 2], []], "click": [True, False]})
    >>> pyarrow.parquet.write_table(table, "clicks.parquet")
    >>> schema = [Ids("user"), Ids("movies"), Label("click")]
    >>> batch = next(iter(dataset("clicks.parquet", schema)))
    >>> batch["user"].to_list(), batch["movies"].to_list(), batch["click"].numpy()
    ([[7], [8]], [[1, 2], []], array([1., 0.], dtype=float32))
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, files, seekable, sources
from monolith.data.schema import AnyIds, Dense, Feature, Ids, StringIds, check_schema

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pa = None

_CHUNK_ROWS = 4096


def dataset(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batching: columns.Batching | None = None,
) -> tf.data.Dataset:
    """Reads Parquet files.

    Args:
        paths: Files and glob patterns.
        schema: Which columns to read, and as what.
        batching: Size and order of the batches.

    Returns:
        Dicts with the names of `schema`: ragged int64 ids, float32 `[batch, width]` for `Dense`,
        float32 `[batch]` for `Label`.

    Raises:
        ImportError: pyarrow is not installed.
        errors.DataError: There is no such file, column or row, or the first rows hold something
            else than the schema says. What is wrong further on is raised while reading, as
            `tf.errors.InvalidArgumentError` with the same sentence.
        errors.ConfigError: The schema contradicts itself.
    """
    return seekable.make_dataset(open_files(paths, schema), batching or columns.Batching())


def open_files(paths: files.Paths, schema: Iterable[Feature]) -> "ParquetFiles":
    """Returns the rows of Parquet files, the first of which it has checked; see `dataset`."""
    if pa is None:
        raise ImportError(
            "Reading Parquet needs the package pyarrow, which is not installed; "
            'run `pip install "monolith-recsys[parquet]"`.'
        )
    source = ParquetFiles(tuple(files.list_files(paths)), check_schema(schema))
    source.check_first_rows()
    return source


@dataclasses.dataclass(frozen=True)
class ParquetFiles(sources.FileSource):
    """The rows of Parquet files; offsets are in rows."""

    def make_layout(self, rows: int | None) -> columns.Layout:
        return columns.FeatureLayout(self.features, rows)

    def read_file(
        self, number: int, offset: int, line: int
    ) -> Iterator[tuple[columns.Columns, int, int]]:
        path = self.paths[number]
        with files.open_binary(path) as file:
            try:
                table = pq.ParquetFile(file)
                present = [f for f in self.features if _has_column(path, table.schema_arrow, f)]
                for feature in present:
                    _check_type(path, table.schema_arrow, feature)
                names = sorted({feature.source for feature in present})
                for batch in _read_rows(table, names, offset):
                    offset += len(batch)
                    chunk = {
                        feature.name: _convert(path, feature, batch.column(feature.source))
                        if feature in present
                        else columns.Ragged.empty(len(batch))
                        for feature in self.features
                    }
                    yield chunk, offset, line
            except pa.ArrowException as e:
                raise errors.DataError(
                    f"{path!r} cannot be read as Parquet ({_first_line(e)}); "
                    "check that it is a Parquet file, and whole."
                ) from e


def _read_rows(table: Any, names: list[str], offset: int) -> Iterator[Any]:
    """Yields the rows from an offset on; row groups that lie before it are not read."""
    first_group = num_before = 0
    while first_group < table.num_row_groups:
        rows = table.metadata.row_group(first_group).num_rows
        if num_before + rows > offset:
            break
        num_before += rows
        first_group += 1
    skip = offset - num_before
    groups = range(first_group, table.num_row_groups)
    for batch in table.iter_batches(_CHUNK_ROWS, row_groups=groups, columns=names):
        if skip < len(batch):
            yield batch.slice(skip)
        skip = max(0, skip - len(batch))


def _has_column(path: str, found: Any, feature: Feature) -> bool:
    if isinstance(feature, AnyIds) and feature.optional and feature.source not in found.names:
        return False
    if found.names.count(feature.source) != 1:
        problem = "two columns" if feature.source in found.names else "no column"
        raise errors.DataError(
            f"{path!r} has {problem} named {feature.source!r}, its columns are "
            f"{', '.join(map(repr, found.names))}; correct the schema (`column=`) or the file."
        )
    return True


def _check_type(path: str, found: Any, feature: Feature) -> None:
    column_type = found.field(feature.source).type
    element = _decoded(column_type.value_type) if _is_list(column_type) else _decoded(column_type)
    if isinstance(feature, Ids):
        matches = pa.types.is_integer(element)
    elif isinstance(feature, StringIds):
        matches = _is_string(element)
    else:
        is_number = pa.types.is_integer(element) or pa.types.is_floating(element)
        matches = is_number or pa.types.is_boolean(element) or pa.types.is_decimal(element)
        matches = matches and (isinstance(feature, Dense) or not _is_list(column_type))
    if not matches and not pa.types.is_null(element):
        raise errors.DataError(
            f"{path!r}, column {feature.source!r} holds {column_type}, "
            f"{_expectation(feature, _is_string(element))}"
        )


def _convert(path: str, feature: Feature, column: Any) -> columns.Column:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if isinstance(feature, Ids):
            values, lengths = _flatten(column)
            return columns.Ragged(_cast(values, pa.int64()), lengths)
        if isinstance(feature, StringIds):
            values, lengths = _flatten(column)
            return columns.Ragged(_cast(values, pa.large_binary()), lengths)
        return _to_floats(feature, column)
    except (pa.ArrowInvalid, ValueError) as e:
        raise errors.DataError(
            f"{path!r}, column {feature.source!r} holds a row with {_first_line(e)}, "
            f"{_expectation(feature, False)}"
        ) from e


def _to_floats(feature: Feature, column: Any) -> np.ndarray:
    width = feature.width if isinstance(feature, Dense) else 1
    default = feature.default if isinstance(feature, Dense) else None
    values, lengths = _flatten(column)
    numbers = _cast(values, pa.float32())
    if default is not None and (lengths == 0).any():
        filled = np.full((len(lengths), width), default, np.float32)
        present = lengths != 0
        _check_widths(lengths[present], width)
        filled[present] = numbers.reshape(-1, width)
        return filled
    _check_widths(lengths, width)
    numbers = numbers.reshape(-1, width)
    return numbers if isinstance(feature, Dense) else numbers[:, 0]


def _check_widths(lengths: np.ndarray, width: int) -> None:
    wrong = lengths[lengths != width]
    if wrong.size:
        raise ValueError(f"{wrong[0]} values")


def _flatten(column: Any) -> tuple[Any, np.ndarray]:
    """Returns all values of the rows, none of them null, and how many each row has."""
    if not _is_list(column.type):
        present = np.asarray(column.is_valid())
        return column.drop_null(), present.astype(np.int64)
    values = column.flatten()
    if values.null_count:
        raise ValueError("a null inside a list")
    lengths = column.value_lengths().fill_null(0)
    if pa.types.is_fixed_size_list(column.type):
        # Arrow gives the fixed size for a null row too, whose values flatten() leaves out.
        lengths = pa.array(np.where(column.is_valid(), column.type.list_size, 0))
    return values, np.asarray(lengths).astype(np.int64)


def _cast(values: Any, to: Any) -> np.ndarray:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    safe = not pa.types.is_floating(to)  # Wide floats and large integers may lose digits.
    return values.cast(to, safe=safe).to_numpy(zero_copy_only=False)


def _decoded(arrow_type: Any) -> Any:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def _is_list(arrow_type: Any) -> bool:
    types = pa.types
    return (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


def _is_string(arrow_type: Any) -> bool:
    types = pa.types
    return (
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
    )


def _expectation(feature: Feature, found_strings: bool) -> str:
    if isinstance(feature, Ids):
        hint = "use StringIds for strings" if found_strings else "correct the schema or the file"
        return f"but Ids reads integers below 2^63 or lists of them; {hint}."
    if isinstance(feature, StringIds):
        return "but StringIds reads strings or lists of them; use Ids for integers."
    if isinstance(feature, Dense):
        several = f"lists of {feature.width} numbers" if feature.width > 1 else "one number"
        return (
            f"but Dense reads {several} in each row; correct its width or the file, or give a "
            "default for rows without."
        )
    return "but Label reads one number in each row; correct the schema or the file."


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")
