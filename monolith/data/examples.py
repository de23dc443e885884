"""TFRecord files of `tf.train.Example` as batches of ragged ids, dense floats and labels.

AnyIds are an int64 list (`Ids`) or a bytes list (`StringIds`), and a missing or empty feature is
a row without ids. `Dense` and `Label` read float lists and int64 lists. Files whose name ends in
`.gz` are uncompressed on the way.

Example:
    >>> import tensorflow as tf
    >>> from monolith.data.schema import Label, Ids
    >>> example = tf.train.Example()
    >>> example.features.feature["user"].int64_list.value.append(7)
    >>> example.features.feature["click"].float_list.value.append(1)
    >>> with tf.io.TFRecordWriter("clicks.tfrecord") as writer:
    ...     writer.write(example.SerializeToString())
    >>> batch = next(iter(dataset("clicks.tfrecord", [Ids("user"), Label("click")])))
    >>> batch["user"].to_list(), batch["click"].numpy()
    ([[7]], array([1.], dtype=float32))
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.python.lib.io import _pywrap_record_io

from monolith import errors
from monolith.data import columns, files, seekable, sources, string_ids
from monolith.data.schema import AnyIds, Dense, Feature, Ids, StringIds, check_schema

# How many records are compared with the schema before the first batch.
_CHECKED_RECORDS = 1000
_CHUNK_ROWS = 1024
# Length and two checksums of a record.
_FRAME_BYTES = 16

_KINDS = {"bytes_list": "strings", "float_list": "floats", "int64_list": "integers"}


def dataset(
    paths: files.Paths,
    schema: Iterable[Feature],
    *,
    batching: columns.Batching | None = None,
) -> tf.data.Dataset:
    """Reads TFRecord files of `tf.train.Example`.

    Args:
        paths: Files and glob patterns.
        schema: Which features to read, and as what.
        batching: Size and order of the batches.

    Returns:
        Dicts with the names of `schema`: ragged int64 ids, float32 `[batch, width]` for `Dense`,
        float32 `[batch]` for `Label`.

    Raises:
        errors.DataError: There is no such file or record, or the first record holds something else
            than the schema says. What is wrong further on is raised while reading, as
            `tf.errors.InvalidArgumentError`, with the names of file and feature.
        errors.ConfigError: The schema contradicts itself.
    """
    return seekable.make_dataset(open_files(paths, schema), batching or columns.Batching())


def open_files(paths: files.Paths, schema: Iterable[Feature]) -> "RecordFiles":
    """Returns the records of files, the first of which it has checked; see `dataset`."""
    features = _check_columns(schema)
    source = RecordFiles(tuple(files.list_files(paths)), features, integers=())
    return dataclasses.replace(source, integers=_check_first_records(source))


@dataclasses.dataclass(frozen=True)
class RecordFiles(sources.FileSource):
    """The records of TFRecord files, as column `record`; offsets are in bytes, uncompressed.

    Attributes:
        integers: Which columns of numbers are int64.
    """

    integers: tuple[str, ...]

    def make_layout(self, rows: int | None) -> columns.Layout:
        return _RecordLayout(self, rows)

    def read_file(
        self, number: int, offset: int, line: int
    ) -> Iterator[tuple[columns.Columns, int, int]]:
        records = _read_records(self.paths[number], offset)
        while chunk := list(itertools.islice(records, _CHUNK_ROWS)):
            if offset == 0:
                # TensorFlow would not say in which file there is something else.
                _parse_record(self.paths[number], chunk[0])
            offset += sum(map(len, chunk)) + _FRAME_BYTES * len(chunk)
            values = np.empty(len(chunk), object)
            values[:] = chunk
            yield {"record": values, "file": np.full(len(chunk), number)}, offset, line


class _RecordLayout:
    """Serialized examples, and the files that they are of."""

    def __init__(self, source: RecordFiles, rows: int | None) -> None:
        self._source = source
        self.signature = (
            tf.TensorSpec([rows], tf.string),
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([rows], tf.int64),
        )

    def pack(self, batch: columns.Columns) -> tuple[np.ndarray, ...]:
        """Returns the records, names of files, and for each record the number of its name."""
        records: Any = batch["record"]
        numbers, places = np.unique(np.asarray(batch["file"]), return_inverse=True)
        names = np.array([self._source.paths[i].encode() for i in numbers], object)
        return records, names, places

    def unpack(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the features."""
        serialized, names, places = tensors
        source = self._source
        # They are in the message if a record cannot be parsed.
        names = tf.gather(names, places)
        return _parse(serialized, source.features, source.integers, names)


def parse_examples(serialized: tf.Tensor, schema: Iterable[Feature]) -> dict[str, Any]:
    """Parses serialized `tf.train.Example`s from elsewhere: a stream, or a request to a server.

    Args:
        serialized: String tensor `[batch]`.
        schema: Which features to read, and as what. `Dense` and `Label` must be floats.

    Returns:
        A dict like those of `dataset`.
    """
    return _parse(serialized, _check_columns(schema), (), names=None)


def _check_columns(schema: Iterable[Feature]) -> tuple[Feature, ...]:
    features = check_schema(schema)
    readers: dict[str, Feature] = {}
    for feature in features:
        other = readers.setdefault(feature.source, feature)
        # TensorFlow parses a column once: as integers, strings, or numbers of one width.
        kinds = [
            (f.__class__,) if isinstance(f, AnyIds) else (_width(f), _default_value(f))
            for f in (feature, other)
        ]
        if kinds[0] != kinds[1]:
            raise errors.ConfigError(
                f"Features {other.name!r} and {feature.name!r} read column {feature.source!r} in "
                "different ways; read it in one way and derive the other with `dataset.map`."
            )
    return features


def _parse(
    serialized: tf.Tensor,
    features: Sequence[Feature],
    integers: Sequence[str],
    names: tf.Tensor | None,
) -> dict[str, Any]:
    # Ragged features are keyed apart from the columns, since several may read the same one.
    spec: dict[str, Any] = {}
    for feature in features:
        if isinstance(feature, AnyIds):
            dtype = tf.string if isinstance(feature, StringIds) else tf.int64
            spec[_ragged_key(feature)] = tf.io.RaggedFeature(
                dtype, value_key=feature.source, row_splits_dtype=tf.int64
            )
        else:
            dtype = tf.int64 if feature.source in integers else tf.float32
            spec[feature.source] = tf.io.FixedLenFeature(
                _width(feature), dtype, _default_value(feature)
            )
    parsed = tf.io.parse_example(serialized, spec, example_names=names)
    return {feature.name: _to_tensor(feature, parsed) for feature in features}


def _to_tensor(feature: Feature, parsed: Mapping[str, Any]) -> tf.Tensor | tf.RaggedTensor:
    if isinstance(feature, Ids):
        return parsed[_ragged_key(feature)]
    if isinstance(feature, StringIds):
        return string_ids.hash_strings(parsed[_ragged_key(feature)])
    numbers = tf.cast(parsed[feature.source], tf.float32)
    return numbers if isinstance(feature, Dense) else tf.squeeze(numbers, axis=1)


def _ragged_key(feature: Feature) -> str:
    return f"{feature.source}/{type(feature).__name__}"


def _width(feature: Feature) -> int:
    return feature.width if isinstance(feature, Dense) else 1


def _default_value(feature: Feature) -> list[float] | None:
    if isinstance(feature, Dense) and feature.default is not None:
        return [feature.default] * feature.width
    return None


def _read_records(path: str, offset: int) -> Iterator[bytes]:
    """Yields the records of a file from an offset on."""
    # TensorFlow's dataset of records does not say in which file it met a damaged one.
    is_compressed = path.endswith(".gz")
    if offset and not is_compressed:
        return _read_from(_pywrap_record_io.RandomRecordReader(path), offset)
    records = _pywrap_record_io.RecordIterator(path, "GZIP" if is_compressed else "")
    while offset > 0 and (record := next(records, None)) is not None:
        offset -= len(record) + _FRAME_BYTES
    return records


def _read_from(reader: Any, offset: int) -> Iterator[bytes]:
    try:
        while True:
            record, offset = reader.read(offset)
            yield record
    except IndexError:  # The end.
        return


def _check_first_records(source: RecordFiles) -> tuple[str, ...]:
    """Compares the first records with the schema; returns which columns of numbers are int64."""
    paths, features = source.paths, source.features
    kinds: dict[str, str] = {}
    num_records = 0
    chunks: Iterator[Any] = (chunk for chunk, _ in source.read(source.start))
    records = (
        (paths[number], record)
        for chunk in chunks
        for record, number in zip(chunk["record"], chunk["file"], strict=True)
    )
    for path, record in itertools.islice(records, _CHECKED_RECORDS):
        num_records += 1
        found = _parse_record(path, record)
        kinds |= {name: kind for name in found if (kind := found[name].WhichOneof("kind"))}
        for feature in features:
            _check_feature(path, feature, found)
    if not num_records:
        raise errors.DataError(
            f"There are no records in {files.enumerate_files(paths)}; check that they were written."
        )
    for feature in features:
        optional = isinstance(feature, AnyIds) and feature.optional
        if feature.source not in kinds and not optional:
            raise errors.DataError(
                f"None of the first {num_records} records of {files.enumerate_files(paths)} has a "
                f"feature named {feature.source!r}, they have "
                f"{', '.join(map(repr, sorted(kinds))) or 'none'}; correct the schema (`column=`)"
                f"{', or make it optional' if isinstance(feature, AnyIds) else ''}."
            )
    return tuple(sorted(name for name, kind in kinds.items() if kind == "int64_list"))


def _parse_record(path: str, record: bytes) -> Mapping[str, tf.train.Feature]:
    try:
        return tf.train.Example.FromString(record).features.feature
    except message.DecodeError as e:
        raise errors.DataError(
            f"{path!r} holds a record that is not a tf.train.Example; read such files with your "
            "own `tf.data.TFRecordDataset`."
        ) from e


def _check_feature(path: str, feature: Feature, found: Mapping[str, tf.train.Feature]) -> None:
    kind = found[feature.source].WhichOneof("kind") if feature.source in found else None
    if kind is None:
        if isinstance(feature, AnyIds) or _default_value(feature):
            return  # A row without ids, or with the default.
        raise errors.DataError(
            f"{path!r} holds a record without the feature {feature.source!r}, it has "
            f"{', '.join(map(repr, sorted(found))) or 'none'}; correct the schema (`column=`) or "
            f"the file{', or give a default' if isinstance(feature, Dense) else ''}."
        )
    expected = ["float_list", "int64_list"]
    if isinstance(feature, AnyIds):
        expected = ["bytes_list" if isinstance(feature, StringIds) else "int64_list"]
    start = f"{path!r} holds a record with"
    if kind not in expected:
        other = {"int64_list": "Ids", "bytes_list": "StringIds", "float_list": "Dense"}[kind]
        raise errors.DataError(
            f"{start} {_KINDS[kind]} in feature {feature.source!r}, but {type(feature).__name__} "
            f"reads {' or '.join(_KINDS[kind] for kind in expected)}; use {other} for "
            f"{_KINDS[kind]}, or correct the file."
        )
    length = len(getattr(found[feature.source], kind).value)
    if not isinstance(feature, AnyIds) and length != _width(feature):
        raise errors.DataError(
            f"{start} {length} numbers in feature {feature.source!r}, but "
            f"{type(feature).__name__} reads {_width(feature)}; correct its width or the file."
        )
