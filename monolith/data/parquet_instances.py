"""Items with their fids from Parquet files, as a file of `Instance` messages.

A directory has a directory for each day, named by eight digits; the newest one counts. Its files
`*.snappy.parquet` have a column `item_id`, of integers or strings, and a column `fids`: a text of
numbers with spaces between them. An item that comes again replaces what it was before; files are
read in the order of their names. Each item becomes a record without a header, see
`monolith.data.framing`: its size as 64 bits, little-endian, and an `Instance` with its fids, whose
`line_id.item_id` is the CityHash64 of the item's id as text, without the highest bit.

Needs pyarrow and cityhash: `pip install "monolith-recsys[parquet]"`.

Example:
    >>> import os, pyarrow, pyarrow.parquet
    >>> os.makedirs("items/20260101")
    >>> table = pyarrow.table({"item_id": ["abc"], "fids": ["7 8"]})
    >>> pyarrow.parquet.write_table(table, "items/20260101/part-0.snappy.parquet")
    >>> convert_parquets_to_instance("items", "items.pb")
    >>> with open("items.pb", "rb") as file:
    ...     [(record, _)] = framing.Framing(has_sort_id=False).read_records(file, "items.pb")
    >>> instance = proto_parser_pb2.Instance.FromString(record)
    >>> instance.line_id.item_id, list(instance.fid)
    (2640714258260161385, [7, 8])
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import files, framing
from monolith.proto import proto_parser_pb2

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pa = None
try:
    import cityhash
except ImportError:
    cityhash = None

_DAY = re.compile(r"[0-9]{8}")
_SUFFIX = ".snappy.parquet"
_ID_COLUMN = "item_id"
_FIDS_COLUMN = "fids"
_CHUNK_ROWS = 4096
_ID_MASK = (1 << 63) - 1
_FRAMING = framing.Framing(has_sort_id=False)


def convert_parquets_to_instance(
    parquets_path: str | os.PathLike[str], instance_path: str | os.PathLike[str]
) -> None:
    """Writes the items of the newest day to a file, which is there as a whole or not at all.

    Items are held in memory, each once; of the files, some thousand rows at a time.

    Args:
        parquets_path: Directory of the directories of days.
        instance_path: The file to write; replaced if it exists.

    Raises:
        ImportError: pyarrow or cityhash is not installed.
        errors.DataError: A `ValueError`: there is no such directory or file, or a file holds
            something else.
    """
    for package, name in ((pa, "pyarrow"), (cityhash, "cityhash")):
        if package is None:
            raise ImportError(
                f"Converting Parquet to instances needs the package {name}, which is not "
                'installed; run `pip install "monolith-recsys[parquet]"`.'
            )
    instance_path = os.fspath(instance_path)
    fids_by_id: dict[int, np.ndarray] = {}
    for path in _list_files(os.fspath(parquets_path)):
        with files.describe_errors(path):
            for item_id, fids in _read_items(path):
                fids_by_id[item_id] = fids
    temporary = f"{instance_path}.tmp{uuid.uuid4().hex}"
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(b"")  # Or there would be no file without items.
            for item_id, fids in fids_by_id.items():
                instance = proto_parser_pb2.Instance(fid=fids)
                instance.line_id.item_id = item_id
                file.write(_FRAMING.make_record(instance.SerializeToString()))
        tf.io.gfile.rename(temporary, instance_path, overwrite=True)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(temporary)
        raise


def _list_files(parquets_path: str) -> list[str]:
    """Returns the files of the newest day; the messages are those that people know."""
    if not tf.io.gfile.isdir(parquets_path):
        raise errors.DataError(
            f"Argument parquet_path is not a directory. It is {parquets_path!r}; name one with a "
            "directory for each day, such as 20260101."
        )
    # Some file systems put a slash behind directories.
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(parquets_path)]
    days = [
        name
        for name in names
        if _DAY.fullmatch(name) and tf.io.gfile.isdir(os.path.join(parquets_path, name))
    ]
    if not days:
        raise errors.DataError(
            f"No vaild subdirectory in parquet_path: {parquets_path!r}; the directory of a day is "
            "named by eight digits."
        )
    newest = os.path.join(parquets_path, max(days))
    found = sorted(name for name in tf.io.gfile.listdir(newest) if name.endswith(_SUFFIX))
    if not found:
        raise errors.DataError(f"None of {_SUFFIX} file found in {newest!r}; check the path.")
    return [os.path.join(newest, name) for name in found]


def _read_items(path: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yields hashed ids and fids of one file, row by row."""
    with files.open_binary(path) as file:
        try:
            table = pq.ParquetFile(file)
            _check_columns(path, table.schema_arrow)
            for batch in table.iter_batches(_CHUNK_ROWS, columns=[_ID_COLUMN, _FIDS_COLUMN]):
                ids = batch.column(_ID_COLUMN).to_pylist()
                texts = batch.column(_FIDS_COLUMN).to_pylist()
                for item_id, text in zip(ids, texts, strict=True):
                    yield _hash_id(path, item_id), _parse_fids(path, item_id, text)
        except pa.ArrowException as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0].rstrip(".")
            raise errors.DataError(
                f"{path!r} cannot be read as Parquet ({reason}); check that it is a Parquet file, "
                "and whole."
            ) from e


def _check_columns(path: str, found: Any) -> None:
    for name in (_ID_COLUMN, _FIDS_COLUMN):
        if found.names.count(name) != 1:
            raise errors.DataError(
                f"{path!r} must have one column {name!r}, but its columns are "
                f"{', '.join(map(repr, found.names))}."
            )
        column_type = found.field(name).type
        element = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
        is_text = (
            pa.types.is_string(element)
            or pa.types.is_large_string(element)
            or pa.types.is_binary(element)
            or pa.types.is_large_binary(element)
        )
        if not is_text and not (name == _ID_COLUMN and pa.types.is_integer(element)):
            wanted = "integers or strings" if name == _ID_COLUMN else "strings"
            raise errors.DataError(
                f"{path!r}, column {name!r} holds {column_type}, but must hold {wanted}."
            )


def _hash_id(path: str, item_id: int | str | bytes | None) -> int:
    if item_id is None:
        raise errors.DataError(
            f"{path!r}, column {_ID_COLUMN!r} holds a null; leave out rows without an item."
        )
    # Bytes are text that the file does not call so.
    text = item_id if isinstance(item_id, bytes) else str(item_id).encode()
    return int(cityhash.CityHash64(text)) & _ID_MASK


def _parse_fids(path: str, item_id: int | str | bytes, text: str | bytes | None) -> np.ndarray:
    try:
        # As 8 bytes each: numbers of Python would take several times as much.
        return np.array([int(fid) for fid in (text or "").split()], np.uint64)
    except (ValueError, OverflowError) as e:
        raise errors.DataError(
            f"{path!r}, column {_FIDS_COLUMN!r} of item {item_id!r} holds {text!r}, which is not a "
            "list of numbers from 0 to 2^64 - 1 with spaces between them."
        ) from e
