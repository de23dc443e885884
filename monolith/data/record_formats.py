"""What the records of a stream become: the features of a schema.

| format | a record is |
| --- | --- |
| `json` | a JSON object, whose fields are the columns: a value, or a list of them |
| `tf_example` | a serialized `tf.train.Example` |
| `example` | a serialized Example of this package |
| `instance` | a serialized Instance; `Ids` read features by name, or slots as `slot_7` |

A stream goes on for ever, so that one record that nobody can read must not stop it: such records
are skipped and counted, or refused if the reader is told so. So are records without content, as
messages are that delete a key, and those that lack the label. Of an Example or Instance that lacks
a `Dense`, its numbers are zeros.

Example:
    >>> codec = Codec("json", (Ids("user"), Label("click")))
    >>> rows = codec.decode([b'{"user": [7, 8], "click": 1}', b"{", b'{"user": 9, "click": 0}'])
    >>> rows["user"].lengths.tolist(), rows["click"].tolist(), codec.num_skipped
    ([2, 1], [1.0, 0.0], 1)
"""

import json
import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging as absl_logging
from google.protobuf import message
from tensorflow.python.eager import context

from monolith import errors
from monolith.core import metrics
from monolith.data import columns, parsers, row_filters
from monolith.data.schema import AnyIds, Dense, Feature, Ids, Label, StringIds
from monolith.proto import example_pb2, proto_parser_pb2

logger = logging.getLogger(__name__)

FORMATS = ("json", "tf_example", "example", "instance")
_PROTOS = ("example", "instance")
_SLOT = re.compile(r"slot_(\d+)")
_MAX_SHOWN = 80
_NUM_IDS = 2**63
_MAX_FLOAT = float(np.finfo(np.float32).max)


class Codec:
    """Decodes records, and counts those that it cannot.

    Args:
        record_format: One of `FORMATS`.
        features: What to read.
        refuse_damaged: Whether a record that cannot be read is an error.

    Attributes:
        num_skipped: How many records were skipped so far.

    Raises:
        errors.ConfigError: There is no such format, or it has no such features.
    """

    def __init__(
        self, record_format: str, features: Sequence[Feature], refuse_damaged: bool = False
    ) -> None:
        if record_format not in FORMATS:
            raise errors.ConfigError(
                f"There is no format {record_format!r}; records are {', '.join(FORMATS)}."
            )
        if record_format in _PROTOS:
            for feature in features:
                if isinstance(feature, StringIds):
                    raise errors.ConfigError(
                        f"StringIds({feature.name!r}) reads strings, but the ids of an "
                        f"{record_format} are fids; use Ids."
                    )
                if isinstance(feature, Dense) and feature.default:
                    raise errors.ConfigError(
                        f"Dense({feature.name!r}) has the default {feature.default}, but what an "
                        f"{record_format} lacks is zeros; leave the default out."
                    )
        self.num_skipped = 0
        self._format = record_format
        self._features = tuple(features)
        self._refuses = refuse_damaged
        self._metrics = metrics.get_cli()

    def decode(self, records: Sequence[bytes]) -> columns.Columns:
        """Returns the rows of the records that can be read.

        Raises:
            errors.DataError: One cannot, and is to be refused.
        """
        content = [record for record in records if record]
        if len(content) < len(records):
            self.skip(len(records) - len(content), "they have no content.")
        if self._format in _PROTOS:
            return self._decode_protos(content)
        read = _read_json if self._format == "json" else _read_example
        rows = []
        for record in content:
            try:
                found = read(record)
                rows.append([_convert(feature, found) for feature in self._features])
            except errors.DataError as e:
                self.skip(1, f"{e}; it is {record[:_MAX_SHOWN]!r}.")
        return {
            feature.name: _join(feature, [row[i] for row in rows])
            for i, feature in enumerate(self._features)
        }

    def _decode_protos(self, records: list[bytes]) -> columns.Columns:
        # A thread of TensorFlow's has no mode of its own.
        with context.eager_mode(), tf.device("/CPU:0"):
            found, num_skipped = self._parse(records)
            if any(isinstance(feature, Label) for feature in self._features):
                labelled = self._find_labelled(records, num_skipped)
                if len(labelled) < len(records):
                    self.skip(len(records) - len(labelled), "their label is missing, or no number.")
                    found, num_skipped = self._parse(labelled)
            if num_skipped:
                self.skip(num_skipped, f"the format {self._format} does not fit them.")
            rows: dict[str, columns.Column] = {}
            for feature in self._features:
                if isinstance(feature, AnyIds):
                    ragged = found[feature.source]
                    rows[feature.name] = columns.Ragged(
                        ragged.values.numpy(), ragged.row_lengths().numpy()
                    )
                else:
                    values = found[_find_source(feature)].numpy()
                    rows[feature.name] = values if isinstance(feature, Dense) else values[:, 0]
        return rows

    def _parse(self, records: list[bytes]) -> tuple[Any, int]:
        """Returns the features of the records that can be read, and how many cannot."""
        ids = [f.source for f in self._features if isinstance(f, AnyIds)]
        numbers = [f for f in self._features if not isinstance(f, AnyIds)]
        names = [_find_source(f) for f in numbers]
        widths = [f.width if isinstance(f, Dense) else 1 for f in numbers]
        serialized = tf.constant(records, tf.string, [len(records)])
        skips = not self._refuses
        try:
            found: Any
            if self._format == "example":
                found = parsers.parse_examples(serialized, ids, names, widths, skip_damaged=skips)
            else:
                slots = [int(s[1]) for name in ids if (s := _SLOT.fullmatch(name))]
                others = [name for name in ids if not _SLOT.fullmatch(name)]
                found = parsers.parse_instances(
                    serialized, slots, others, names, widths, skip_damaged=skips
                )
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as e:
            raise errors.DataError(e.message.splitlines()[0]) from None
        return found, int(found[parsers.NUM_SKIPPED]) if skips else 0

    def _find_labelled(self, records: list[bytes], num_damaged: int) -> list[bytes]:
        """Returns the records that have a label, and those that are damaged."""
        if num_damaged:
            # The op would refuse all of them for one that is damaged.
            return [record for record in records if _has_label(self._format, record)]
        has_label = row_filters.filter_by_label(
            tf.constant(records, tf.string, [len(records)]), [-math.inf], variant_type=self._format
        ).numpy()
        return [record for record, is_there in zip(records, has_label, strict=True) if is_there]

    def skip(self, count: int, why: str) -> None:
        """Counts records that cannot be read, and says why, once a minute.

        Raises:
            errors.DataError: They are to be refused.
        """
        if self._refuses:
            raise errors.DataError(f"A record cannot be read: {why}")
        self.num_skipped += count
        self._metrics.emit_counter("data_records_skipped", count)
        absl_logging.log_every_n_seconds(
            absl_logging.WARNING,
            "%d records of a stream were skipped so far, as they cannot be read: %s",
            60,
            self.num_skipped,
            why,
        )


def _find_source(feature: Feature) -> str:
    # A label of any name is the label.
    return "label" if isinstance(feature, Label) else feature.source


def _has_label(record_format: str, record: bytes) -> bool:
    """Returns whether a record has a label, or is damaged."""
    kind: Any = example_pb2.Example if record_format == "example" else proto_parser_pb2.Instance
    try:
        return bool(kind.FromString(record).label)
    except message.DecodeError:
        return True


def _read_json(record: bytes) -> dict[str, list[Any]]:
    try:
        found = json.loads(record)
    except (ValueError, RecursionError):
        raise errors.DataError("it is no JSON") from None
    if not isinstance(found, dict):
        raise errors.DataError("it is no JSON object")
    return {
        name: value if isinstance(value, list) else [value]
        for name, value in found.items()
        if value is not None
    }


def _read_example(record: bytes) -> dict[str, list[Any]]:
    try:
        features = tf.train.Example.FromString(record).features.feature
    except message.DecodeError:
        raise errors.DataError("it is no tf.train.Example") from None
    found = {}
    for name, feature in features.items():
        if (kind := feature.WhichOneof("kind")) is not None:
            found[name] = list(getattr(feature, kind).value)
    return found


def _convert(feature: Feature, found: dict[str, list[Any]]) -> list[Any]:
    values = found.get(feature.source)
    if isinstance(feature, AnyIds):
        kind: Any = int if isinstance(feature, Ids) else str | bytes
        for value in values or ():
            if not isinstance(value, kind) or isinstance(value, bool):
                raise _make_misfit(feature, value)
            if kind is int and not -_NUM_IDS <= value < _NUM_IDS:
                raise _make_misfit(feature, value)
        return values or []
    width = feature.width if isinstance(feature, Dense) else 1
    if values is None and isinstance(feature, Dense) and feature.default is not None:
        return [feature.default] * width
    if values is None:
        raise errors.DataError(f"column {feature.source!r} is missing")
    if len(values) != width:
        raise errors.DataError(f"column {feature.source!r} has {len(values)} values, not {width}")
    for value in values:
        # Also refuses what is no number at all: NaN is not smaller than anything.
        if not isinstance(value, int | float) or not abs(value) <= _MAX_FLOAT:
            raise _make_misfit(feature, value)
    return values


def _make_misfit(feature: Feature, value: Any) -> errors.DataError:
    shown = repr(value)[:_MAX_SHOWN]
    return errors.DataError(
        f"column {feature.source!r} holds {shown}, which {type(feature).__name__} does not read"
    )


def _join(feature: Feature, rows: Sequence[list[Any]]) -> columns.Column:
    if isinstance(feature, Ids):
        return columns.Ragged.from_rows(rows)
    if isinstance(feature, StringIds):
        texts = [t.encode() if isinstance(t, str) else t for row in rows for t in row]
        values = np.empty(len(texts), object)
        values[:] = texts
        return columns.Ragged(values, np.array([len(row) for row in rows], np.int64))
    width = feature.width if isinstance(feature, Dense) else 1
    numbers = np.array(rows, np.float32).reshape(len(rows), width)
    return numbers if isinstance(feature, Dense) else numbers[:, 0]
