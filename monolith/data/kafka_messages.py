"""Kafka messages as they are: serialized messages, or values with their keys.

`monolith.data.kafka_topics` reads them, and stores how far with a checkpoint.
"""

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, conversions, kafka_topics, record_files, record_formats, streams
from monolith.data.framing import Framing
from monolith.data.record_files import RECORD

_KEY_BYTES = struct.Struct("<q")


class PlainMessages(NamedTuple):
    """Some messages of Kafka.

    Attributes:
        message: What they say, `[n]`.
        key: Their keys, `[n]`; empty where there is none.
        continue_fetch: 1: there may be more.
    """

    message: tf.Tensor
    key: tf.Tensor
    continue_fetch: tf.Tensor


def read_pace(stream_timeout: int, message_poll_timeout: int, num_at_once: int) -> streams.Pace:
    """Returns how long messages are waited for.

    Args:
        stream_timeout: Milliseconds without a message that end the stream; -1 for ever.
        message_poll_timeout: Milliseconds that are waited in any case.
        num_at_once: How many messages are taken at once at most.

    Raises:
        errors.ConfigError: A time is negative.
    """
    if stream_timeout < -1 or message_poll_timeout < 0:
        raise errors.ConfigError(
            f"Times are milliseconds, got stream_timeout={stream_timeout} and "
            f"message_poll_timeout={message_poll_timeout}; a stream_timeout of -1 waits for ever."
        )
    idle_sec = None
    if stream_timeout >= 0:
        idle_sec = max(stream_timeout, message_poll_timeout) / 1000
    return streams.Pace(batch_size=num_at_once, max_wait_sec=0, idle_timeout_sec=idle_sec)


def read_records(
    topics: Sequence[str],
    broker: kafka_topics.Broker,
    pace: streams.Pace,
    codec: "RecordCodec",
) -> tf.data.Dataset:
    """Returns the records of messages, one string each."""
    stream = _Strings(topics, broker, codec, pace, (RECORD,))
    return record_files.get_records(streams.StreamReader(stream, "KafkaDataset")().unbatch())


def read_plain(
    topics: Sequence[str], broker: kafka_topics.Broker, pace: streams.Pace
) -> tf.data.Dataset:
    """Returns messages and their keys, as many as have come."""
    stream = _Strings(topics, broker, PlainCodec(), pace, ("message", "key"), pack_key)

    @tf.autograph.experimental.do_not_convert
    def make_element(found: dict[str, tf.Tensor]) -> PlainMessages:
        return PlainMessages(found["message"], found["key"], tf.constant(1, tf.int32))

    return streams.StreamReader(stream, "create_plain_kafka_dataset")().map(make_element)


class RecordCodec(record_formats.Codec):
    """Takes the records out of messages, and counts those that cannot be read.

    A record that stays what it is is parsed here, too: whoever trains on it, would stop at a
    damaged one, and again after each restart.

    Args:
        framing: What stands before each; None says that a message is one record.
        input_type: What a record is.
        output_type: What it becomes.
        filter_empty: Whether records without content are left out.
    """

    def __init__(
        self, framing: Framing | None, input_type: str, output_type: str, filter_empty: bool
    ) -> None:
        # No features: nothing is parsed here.
        super().__init__("example", ())
        self._framing = framing
        self._convert = conversions.make_checked_converter(input_type, output_type)
        self._filter_empty = filter_empty

    def decode(self, records: Sequence[bytes]) -> columns.Columns:
        rows: list[bytes] = []
        for message in records:
            for record in self._take_apart(message):
                try:
                    rows += self._convert(record)
                except errors.DataError as e:
                    self.skip(1, f"{e}.")
        return {RECORD: np.array(rows, object)}

    def _take_apart(self, message: bytes) -> list[bytes]:
        found = [message]
        if self._framing is not None and message:
            try:
                file = io.BytesIO(message)
                found = [record for record, _ in self._framing.read_records(file, "A message")]
            except errors.DataError as e:
                self.skip(1, str(e))
                return []
        elif self._framing is not None and not self._filter_empty:
            self.skip(1, "a message has no content.")
            return []
        if self._filter_empty:
            found = [record for record in found if record]
        return found


class PlainCodec(record_formats.Codec):
    """Takes apart what `pack_key` has made."""

    def __init__(self) -> None:
        super().__init__("example", ())

    def decode(self, records: Sequence[bytes]) -> columns.Columns:
        found: dict[str, list[bytes]] = {"message": [], "key": []}
        for record in records:
            end = _KEY_BYTES.size + _KEY_BYTES.unpack_from(record)[0]
            found["key"].append(record[_KEY_BYTES.size : end])
            found["message"].append(record[end:])
        return {name: np.array(values, object) for name, values in found.items()}


def pack_key(message: Any) -> bytes:
    """Returns key and value of a message in one."""
    key = message.key() or b""
    return _KEY_BYTES.pack(len(key)) + key + kafka_topics.get_value(message)


class _Strings(kafka_topics.Topics):
    """The messages of topics as columns of strings."""

    def __init__(
        self,
        topics: Sequence[str],
        broker: kafka_topics.Broker,
        codec: record_formats.Codec,
        pace: streams.Pace,
        names: tuple[str, ...],
        make_record: Callable[[Any], bytes] = kafka_topics.get_value,
    ) -> None:
        super().__init__(tuple(topics), broker, (), codec, pace, make_record)
        self._names = names

    def make_layout(self, rows: int | None) -> columns.Layout:
        return record_files.StringLayout(*self._names)

    def describe(self) -> str:
        return f"{super().describe()} {self._names}"
