"""TFRecord files of `tf.train.Example` as batches of ragged ids, dense floats and labels.

Ids are an int64 list (`RaggedIds`) or a bytes list (`StringIds`), and a missing or empty feature is
a row without ids. `Dense` and `Label` read float lists and int64 lists. Files whose name ends in
`.gz` are uncompressed on the way.

Example:
    >>> import tensorflow as tf
    >>> from monolith.data.schema import Label, RaggedIds
    >>> example = tf.train.Example()
    >>> example.features.feature["user"].int64_list.value.append(7)
    >>> example.features.feature["click"].float_list.value.append(1)
    >>> with tf.io.TFRecordWriter("clicks.tfrecord") as writer:
    ...     writer.write(example.SerializeToString())
    >>> batch = next(iter(dataset("clicks.tfrecord", [RaggedIds("user"), Label("click")])))
    >>> batch["user"].to_list(), batch["click"].numpy()
    ([[7]], array([1.], dtype=float32))
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.python.lib.io import _pywrap_record_io

from monolith import errors
from monolith.data import columns, files, string_ids
from monolith.data.schema import Dense, Feature, Ids, RaggedIds, StringIds, check_schema

# How many records are compared with the schema before the first batch.
_CHECKED_RECORDS = 1000

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
    features = _check_columns(schema)
    batching = batching or columns.Batching()
    paths = files.list_files(paths)
    integers = _check_first_records(paths, features)
    passes = itertools.count()

    def read_batches() -> Iterator[tuple[np.ndarray, list[str], list[int]]]:
        records = _read_records(paths)
        if batching.shuffle_rows is not None:
            seed = None if batching.seed is None else (batching.seed, next(passes))
            records = _shuffle(records, batching.shuffle_rows, np.random.default_rng(seed))
        while batch := list(itertools.islice(records, batching.batch_size)):
            if len(batch) < batching.batch_size and batching.drop_remainder:
                return
            runs = [(path, len(list(run))) for path, run in itertools.groupby(p for p, _ in batch)]
            serialized = np.array([record for _, record in batch], object)
            yield serialized, [path for path, _ in runs], [length for _, length in runs]

    rows = batching.batch_size if batching.drop_remainder else None
    strings = tf.TensorSpec([None], tf.string)
    signature = tf.TensorSpec([rows], tf.string), strings, tf.TensorSpec([None], tf.int32)
    batches = tf.data.Dataset.from_generator(read_batches, output_signature=signature)

    def parse(serialized: tf.Tensor, paths: tf.Tensor, lengths: tf.Tensor) -> dict[str, Any]:
        return _parse(serialized, features, integers, names=tf.repeat(paths, lengths))

    return batches.map(tf.autograph.experimental.do_not_convert(parse)).prefetch(2)


def parse_examples(serialized: tf.Tensor, schema: Iterable[Feature]) -> dict[str, Any]:
    """Parses serialized `tf.train.Example`s from elsewhere: a stream, or a request to a server.

    Args:
        serialized: String tensor `[batch]`.
        schema: Which features to read, and as what. `Dense` and `Label` must be floats.

    Returns:
        A dict like those of `dataset`.
    """
    return _parse(serialized, _check_columns(schema), frozenset(), names=None)


def _check_columns(schema: Iterable[Feature]) -> tuple[Feature, ...]:
    features = check_schema(schema)
    readers: dict[str, Feature] = {}
    for feature in features:
        other = readers.setdefault(feature.source, feature)
        # TensorFlow parses a column once: as integers, strings, or numbers of one width.
        kinds = [
            (f.__class__,) if isinstance(f, Ids) else (_width(f), _default_value(f))
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
    integers: frozenset[str],
    names: tf.Tensor | None,
) -> dict[str, Any]:
    # Ragged features are keyed apart from the columns, since several may read the same one.
    spec: dict[str, Any] = {}
    for feature in features:
        if isinstance(feature, Ids):
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
    if isinstance(feature, RaggedIds):
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


def _read_records(paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        # TensorFlow's dataset of records does not say in which file it met a damaged one.
        with files.describe_errors(path):
            compression = "GZIP" if path.endswith(".gz") else ""
            for record in _pywrap_record_io.RecordIterator(path, compression):
                yield path, record


def _shuffle(
    records: Iterator[tuple[str, bytes]], num_records: int, rng: np.random.Generator
) -> Iterator[tuple[str, bytes]]:
    while block := list(itertools.islice(records, num_records)):
        yield from (block[i] for i in rng.permutation(len(block)))


def _check_first_records(paths: Sequence[str], features: Sequence[Feature]) -> frozenset[str]:
    """Compares the first records with the schema; returns which columns of numbers are int64."""
    kinds: dict[str, str] = {}
    num_records = 0
    for path, record in itertools.islice(_read_records(paths), _CHECKED_RECORDS):
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
        optional = isinstance(feature, Ids) and feature.optional
        if feature.source not in kinds and not optional:
            raise errors.DataError(
                f"None of the first {num_records} records of {files.enumerate_files(paths)} has a "
                f"feature named {feature.source!r}, they have "
                f"{', '.join(map(repr, sorted(kinds))) or 'none'}; correct the schema (`column=`)"
                f"{', or make it optional' if isinstance(feature, Ids) else ''}."
            )
    return frozenset(name for name, kind in kinds.items() if kind == "int64_list")


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
        if isinstance(feature, Ids) or _default_value(feature):
            return  # A row without ids, or with the default.
        raise errors.DataError(
            f"{path!r} holds a record without the feature {feature.source!r}, it has "
            f"{', '.join(map(repr, sorted(found))) or 'none'}; correct the schema (`column=`) or "
            f"the file{', or give a default' if isinstance(feature, Dense) else ''}."
        )
    expected = ["float_list", "int64_list"]
    if isinstance(feature, Ids):
        expected = ["bytes_list" if isinstance(feature, StringIds) else "int64_list"]
    start = f"{path!r} holds a record with"
    if kind not in expected:
        other = {"int64_list": "RaggedIds", "bytes_list": "StringIds", "float_list": "Dense"}[kind]
        raise errors.DataError(
            f"{start} {_KINDS[kind]} in feature {feature.source!r}, but {type(feature).__name__} "
            f"reads {' or '.join(_KINDS[kind] for kind in expected)}; use {other} for "
            f"{_KINDS[kind]}, or correct the file."
        )
    length = len(getattr(found[feature.source], kind).value)
    if not isinstance(feature, Ids) and length != _width(feature):
        raise errors.DataError(
            f"{start} {length} numbers in feature {feature.source!r}, but "
            f"{type(feature).__name__} reads {_width(feature)}; correct its width or the file."
        )
