"""CSV files as batches of ragged ids, dense floats and labels.

The first line names the columns, unless `column_names` does. A cell with several values separates
them by `|`; an empty one has none. Fields may be quoted; files whose name ends in `.gz` are
uncompressed on the way.

Example:
    >>> import pathlib
    >>> from monolith.data.schema import Label, Ids, StringIds
    >>> lines = ["user,genres,click", "7,Horror|Crime,1", "8,,0"]
    >>> _ = pathlib.Path("clicks.csv").write_text("\\n".join(lines))
    >>> schema = [Ids("user"), StringIds("genres"), Label("click")]
    >>> batch = next(iter(dataset("clicks.csv", schema)))
    >>> batch["user"].to_list(), batch["click"].numpy()
    ([[7], [8]], array([1., 0.], dtype=float32))
    >>> batch["genres"].row_lengths().numpy()
    array([2, 0])
"""

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, csv_hints, files, seekable, sources
from monolith.data.schema import AnyIds, Dense, Feature, Ids, StringIds, check_schema

# Rows that are converted at a time: enough for NumPy to pay, few enough to stay in the cache.
_CHUNK_ROWS = 1024
_BLOCK_BYTES = 1 << 17
# Spreadsheets put it in front, where it would be part of a name.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
    source = open_files(
        paths,
        schema,
        delimiter=delimiter,
        list_separator=list_separator,
        column_names=column_names,
    )
    return seekable.make_dataset(source, batching or columns.Batching())


def open_files(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    delimiter: str = ",",
    list_separator: str = "|",
    column_names: Sequence[str] | None = None,
) -> "CsvFiles":
    """Returns the rows of CSV files, the first of which it has checked; see `dataset`."""
    features = check_schema(schema)
    _check_separators(delimiter, list_separator)
    if column_names is not None:
        column_names = _check_names(column_names)
    found = tuple(files.list_files(paths))
    source = CsvFiles(found, features, delimiter, list_separator, column_names)
    source.check_first_rows()
    return source


@dataclasses.dataclass(frozen=True)
class CsvFiles(sources.FileSource):
    """The rows of CSV files; offsets are in bytes of the text, uncompressed.

    Attributes:
        delimiter: What stands between two fields.
        list_separator: What stands between two values in one field.
        column_names: The columns' names where files have no line that names them.
    """

    delimiter: str
    list_separator: str
    column_names: tuple[str, ...] | None

    def make_layout(self, rows: int | None) -> columns.Layout:
        return columns.FeatureLayout(self.features, rows)

    def read_file(
        self, number: int, offset: int, line: int
    ) -> Iterator[tuple[columns.Columns, int, int]]:
        path = self.paths[number]
        with files.open_binary(path) as file:
            lines = _Lines(file, 0, 0)
            reader = self._parse(lines)
            try:
                # An empty line is no row, and names nothing.
                names = self.column_names or next(filter(None, reader), None)
                if names is None:
                    return
                places = [self._find_column(path, names, feature) for feature in self.features]
                if offset:
                    file.seek(offset)
                    lines = _Lines(file, offset, line)
                    reader = self._parse(lines)
                before = lines.tell(reader.line_num)
                while rows := list(itertools.islice(reader, _CHUNK_ROWS)):
                    after = lines.tell(reader.line_num)
                    rows = [row for row in rows if row] if [] in rows else rows
                    if rows:
                        chunk = _Chunk(self, path, before, rows)
                        yield chunk.convert(names, places), *after
                    before = after
            except csv.Error as e:
                _, last = lines.tell(reader.line_num)
                hint = csv_hints.find_in_line(lines.get_last(reader.line_num), self.delimiter)
                raise errors.DataError(
                    f"{path!r}, line {last}, is not CSV ({e}); "
                    f"{hint or 'check quotes and delimiter.'}"
                ) from e

    def number_lines(self, path: str, offset: int, line: int) -> Iterator[int]:
        """Yields in which line each row ends, from an offset on."""
        with files.open_binary(path) as file:
            file.seek(offset)
            lines = _Lines(file, offset, line)
            reader = self._parse(lines)
            yield from (line + reader.line_num for row in reader if row)

    def _parse(self, lines: Iterable[str]) -> Any:
        return csv.reader(lines, delimiter=self.delimiter, strict=True)

    def _find_column(self, path: str, names: Sequence[str], feature: Feature) -> int | None:
        if isinstance(feature, AnyIds) and feature.optional and feature.source not in names:
            return None
        if names.count(feature.source) != 1:
            wanted = [f.source for f in self.features if not getattr(f, "optional", False)]
            raise errors.DataError(
                csv_hints.describe_columns(
                    path, names, feature.source, wanted, self.delimiter, self.column_names
                )
            )
        return names.index(feature.source)


class _Lines:
    """The lines of a file, and where those end that were taken.

    Args:
        file: Is at `offset`.
        offset: In bytes.
        number: How many lines come before.
    """

    def __init__(self, file: io.BufferedIOBase, offset: int, number: int) -> None:
        self._file = file
        self._first_number = number
        self._lines: list[bytes] = []
        self._num_before = 0  # Lines taken of earlier blocks.
        self._num_counted = 0  # Lines of this block before `_offset`.
        self._offset = offset
        self._end = offset  # Of this block.

    def __iter__(self) -> Iterator[str]:
        # Nothing is done in Python for a single line, of which there are very many.
        return itertools.chain.from_iterable(map(self._decode, self._read_blocks()))

    def tell(self, num_taken: int) -> tuple[int, int]:
        """Returns offset and number of the line after the first `num_taken`."""
        num_taken -= self._num_before
        self._offset += sum(map(len, self._lines[self._num_counted : num_taken]))
        self._num_counted = num_taken
        return self._offset, self._first_number + self._num_before + num_taken

    def get_last(self, num_taken: int) -> str:
        """Returns the last of the first `num_taken` lines."""
        number = num_taken - self._num_before
        return self._lines[number - 1].decode() if 0 < number <= len(self._lines) else ""

    def _decode(self, block: bytes) -> Iterator[str]:
        self._num_before += len(self._lines)
        self._num_counted = 0
        self._offset = self._end
        self._end += len(block)
        if self._offset == 0 and block.startswith(_BYTE_ORDER_MARK):
            block = block[len(_BYTE_ORDER_MARK) :]
            self._offset = len(_BYTE_ORDER_MARK)
        self._lines = block.splitlines(keepends=True)
        return map(bytes.decode, self._lines)

    def _read_blocks(self) -> Iterator[bytes]:
        """Yields whole lines."""
        rest = b""
        # As much again if that is not enough, so that the time for one long line stays linear.
        while data := self._file.read(max(_BLOCK_BYTES, len(rest))):
            data = rest + data
            # A line may also end in "\r" alone; the last byte could be the half of "\r\n".
            end = 1 + (data.rfind(b"\n") if b"\n" in data else data.rfind(b"\r", 0, -1))
            if end:
                yield data[:end]
            rest = data[end:]
        if rest:
            yield rest


class _Chunk:
    """Rows in text on their way to columns.

    Args:
        files: What they are of.
        path: The file.
        place: Offset and number of the first line.
        rows: The fields of each row.
    """

    def __init__(
        self, files: CsvFiles, path: str, place: tuple[int, int], rows: list[list[str]]
    ) -> None:
        self._files = files
        self._path = path
        self._place = place
        self._rows = rows

    def convert(self, names: Sequence[str], places: Sequence[int | None]) -> columns.Columns:
        """Returns the columns of the features, which are at `places`."""
        if set(map(len, self._rows)) != {len(names)}:
            self._refuse_width(len(names))
        cells = list(zip(*self._rows, strict=True))
        return {
            feature.name: columns.Ragged.empty(len(self._rows))
            if place is None
            else self._convert_column(feature, cells[place])
            for feature, place in zip(self._files.features, places, strict=True)
        }

    def _convert_column(self, feature: Feature, cells: Sequence[str]) -> columns.Column:
        separator = self._files.list_separator
        convert = _converter(feature, separator)
        try:
            return convert(cells)
        except (ValueError, OverflowError):
            # Once more, cell by cell, for the one to blame.
            for i, cell in enumerate(cells):
                try:
                    convert([cell])
                except (ValueError, OverflowError) as e:
                    line = self._find_line(i)
                    hint = csv_hints.find_header(self._rows[i], line, self._files.column_names)
                    raise errors.DataError(
                        f"{self._path!r}, line {line}, column {feature.source!r} holds {cell!r}, "
                        f"{_expectation(feature, separator)}{hint}"
                    ) from e
            raise

    def _refuse_width(self, width: int) -> None:
        for i, row in enumerate(self._rows):
            if len(row) != width:
                hint = csv_hints.find_delimiter(row, width, self._files.delimiter)
                raise errors.DataError(
                    f"{self._path!r}, line {self._find_line(i)}, has {len(row)} fields where "
                    f"{width} columns are named; "
                    f"{hint or 'check the line, its quotes, and the delimiter.'}"
                )

    def _find_line(self, number: int) -> int:
        """Returns in which line a row ends."""
        lines = self._files.number_lines(self._path, *self._place)
        return next(itertools.islice(lines, number, None))


def _converter(feature: Feature, separator: str) -> Callable[[Sequence[str]], columns.Column]:
    if isinstance(feature, Ids):
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
    if isinstance(feature, Ids):
        return (
            f"but Ids reads integers of 64 bits, separated by {separator!r}; use StringIds "
            "for strings, or correct the file."
        )
    if isinstance(feature, Dense):
        return (
            f"but Dense reads {feature.width} numbers, separated by {separator!r}; correct the "
            "schema or the file, or give a default for empty fields."
        )
    return "but Label reads one number, such as 0 or 1; correct the schema or the file."


def _check_separators(delimiter: str, list_separator: str) -> None:
    if isinstance(delimiter, str) and len(delimiter) > 1:
        raise errors.ConfigError(
            f"The delimiter must be one character, got {delimiter!r}; replace it in the files "
            "by a tab first, for example with sed, and give delimiter='\\t'."
        )
    if (
        not isinstance(delimiter, str)
        or not isinstance(list_separator, str)
        or len(delimiter) != 1
        or delimiter in '\r\n"'
        or not list_separator
        or list_separator == delimiter
    ):
        raise errors.ConfigError(
            "The delimiter must be one character, no quote or line break, and the list separator "
            f"another one, but got {delimiter!r} and {list_separator!r}."
        )


def _check_names(column_names: Sequence[str]) -> tuple[str, ...]:
    names = tuple(column_names)
    if isinstance(column_names, str) or not names or not all(isinstance(n, str) for n in names):
        raise errors.ConfigError(
            'column_names are a list of names, as in ["user", "click"], but got '
            f"{column_names!r}; None takes them from the first line."
        )
    return names
