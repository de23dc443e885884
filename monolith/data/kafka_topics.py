"""Kafka topics as a stream; needs confluent-kafka (`pip install monolith-recsys[kafka]`).

How far a topic was read is stored with the checkpoint, one offset for each partition: whoever
restores the rows of a model restores the place in the topic with them. Offsets are committed to the
consumer group as a courtesy to those who watch its lag; they are never read back. Messages of all
partitions come in the order of their times.
"""

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging as absl_logging

from monolith import errors
from monolith.data import division, kafka_settings, record_formats, streams
from monolith.data.kafka_order import TimeOrder
from monolith.data.positions import Place
from monolith.data.schema import Feature, check_schema

logger = logging.getLogger(__name__)

# Integers of a position: partitions of all topics.
_MAX_PARTITIONS = 256
_UNKNOWN = -1
_ANSWER_SEC = 10.0
_POLL_SEC = 0.1
_CLOSE_SEC = 2.0
# A partition that neither sends nor tells its end for so long is not waited for by the others.
_SILENT_SEC = 2.0
# A partition with more messages than this ahead of the others is not fetched any further, until it
# has no more than that. Both are large, since what librdkafka has fetched ahead is fetched again.
_MOST_AHEAD = 16384
_FEW_AHEAD = 2048
# And so with their bytes.
_MOST_BYTES_AHEAD = 64 << 20
_FEW_BYTES_AHEAD = 8 << 20


def kafka(
    topics: str | Sequence[str],
    schema: Iterable[Feature],
    *,
    servers: str,
    group_id: str = "monolith",
    format: str = "example",
    start: str | None = None,
    batch_size: int = 512,
    max_wait_sec: float = 1.0,
    idle_timeout_sec: float | None = None,
    stop_file: str | None = None,
    refuse_damaged: bool = False,
    config: Mapping[str, Any] | None = None,
) -> streams.StreamReader:
    """Reads the messages of Kafka topics.

    Args:
        topics: Names of topics.
        schema: What to read, and as what.
        servers: Brokers to ask first, as `host:port`, with commas between.
        group_id: The consumer group that offsets are committed to.
        format: What a message is: `json`, `tf_example`, `example` or `instance`.
        start: Where a training without a checkpoint begins: `earliest` or `latest`; None is what
            `auto.offset.reset` of `config` says, and the earliest without.
        batch_size: Rows of a batch at most.
        max_wait_sec: How long a batch that has rows waits for more.
        idle_timeout_sec: The stream ends when nothing has come for so long; None waits for ever.
        stop_file: The stream ends, when all is read, once this file exists.
        refuse_damaged: Whether a message that cannot be read is an error; otherwise it is skipped
            and counted.
        config: More settings of the consumer, by the names of librdkafka. Those that reading
            depends on are refused where they contradict it.

    Raises:
        ImportError: confluent-kafka is not installed.
        errors.DataError: No broker answers, or there is no such topic.
        errors.ConfigError: The arguments contradict themselves.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or len(set(names)) != len(names):
        raise errors.ConfigError(f"Topics are one name or several that differ, got {topics!r}.")
    features = check_schema(schema)
    pace = streams.Pace(
        batch_size=batch_size,
        max_wait_sec=max_wait_sec,
        idle_timeout_sec=idle_timeout_sec,
        stop_file=stop_file,
    )
    codec = record_formats.Codec(format, features, refuse_damaged)
    broker = Broker(servers, group_id, config or {}, start)
    broker.count_partitions(names)  # So that a wrong name is an error here.
    text = f"kafka({list(names)}, {list(features)}, servers={servers!r}, format={format!r})"
    return streams.StreamReader(Topics(names, broker, features, codec, pace), text)


class Broker:
    """How to reach a cluster.

    Args:
        servers: Brokers to ask first.
        group_id: The consumer group.
        config: More settings of a consumer.
        start: Where reading begins without a checkpoint, as that of `kafka`.

    Attributes:
        servers: Brokers to ask first.
        start: Where reading begins without a checkpoint, `earliest` or `latest`.

    Raises:
        ImportError: confluent-kafka is not installed.
        errors.ConfigError: Settings contradict what reading depends on.
    """

    def __init__(
        self, servers: str, group_id: str, config: Mapping[str, Any], start: str | None = None
    ) -> None:
        self._library = _import_library()
        self.servers = servers
        self.start = kafka_settings.choose_start(start, config)
        self._settings = kafka_settings.make_consumer_settings(servers, group_id, config)

    @property
    def library(self) -> Any:
        """The module `confluent_kafka`."""
        return self._library

    def connect(self) -> Any:
        """Returns a new consumer.

        Raises:
            errors.ConfigError: There is no such setting.
        """
        try:
            return self._library.Consumer(self._settings, logger=logger)
        except self._library.KafkaException as e:
            raise errors.ConfigError(
                f"The settings of the consumer are refused: {e.args[0].str()}."
            ) from None

    def count_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Returns how many partitions each topic has.

        Raises:
            errors.DataError: No broker answers, a topic does not exist, or there are too many.
        """
        consumer = self.connect()
        try:
            # All of them: to ask for one that does not exist would make it.
            found = consumer.list_topics(timeout=_ANSWER_SEC).topics
        except self._library.KafkaException as e:
            raise errors.DataError(
                f"No Kafka broker answers at {self.servers!r} ({e.args[0].str()}); check the "
                "address, and that the broker is up."
            ) from None
        finally:
            consumer.close()
        for topic in topics:
            if topic not in found or not found[topic].partitions:
                known = ", ".join(repr(name) for name in sorted(found)[:10]) or "none"
                raise errors.DataError(
                    f"There is no topic {topic!r} at {self.servers!r}, which has {known}; check "
                    "the name, or create it."
                )
            if len(found[topic].partitions) > _MAX_PARTITIONS // len(topics):
                raise errors.DataError(
                    f"Topic {topic!r} has {len(found[topic].partitions)} partitions, but a reader "
                    f"of {len(topics)} topics reads {_MAX_PARTITIONS // len(topics)} of each; "
                    "read topics apart."
                )
        return {topic: len(found[topic].partitions) for topic in topics}


def get_value(message: Any) -> bytes:
    """Returns what a message says; one without a value deletes its key and is no example."""
    return message.value() or b""


class Topics(streams.Stream):
    """The messages of topics; a place has the next offset of each partition.

    Args:
        topics: Their names.
        broker: How to reach them, and where to begin.
        features: What the messages become.
        codec: Decodes them.
        pace: How long they are waited for.
        make_record: What the codec decodes of a message.
    """

    start = (_UNKNOWN,) * _MAX_PARTITIONS

    def __init__(
        self,
        topics: tuple[str, ...],
        broker: Broker,
        features: tuple[Feature, ...],
        codec: record_formats.Codec,
        pace: streams.Pace,
        make_record: Callable[[Any], bytes] = get_value,
    ) -> None:
        super().__init__(features, codec, pace)
        self._make_record = make_record
        self._topics = topics
        self._broker = broker

    def open(self, place: Place, part: division.Part) -> streams.Records:
        return _Messages(self._topics, self._broker, place, part, self._make_record)

    def describe(self) -> str:
        # The same topics may be reached at another address after a restart.
        return f"Topics {self._topics} {self.features}"


class _Messages(streams.Records):
    def __init__(
        self,
        topics: tuple[str, ...],
        broker: Broker,
        place: Place,
        part: division.Part,
        make_record: Callable[[Any], bytes],
    ) -> None:
        self._make_record = make_record
        self._topics = topics
        self._broker = broker
        self._mine = divide_partitions(broker.count_partitions(topics), part)
        self._numbers = {one: number for number, one in enumerate(self._mine)}
        self._place = list(place)
        self._order = TimeOrder[Any](len(self._mine))
        # The next offset that each partition has to send, and where it has said that it ends.
        self._next = [0] * len(self._mine)
        self._ends = [_UNKNOWN] * len(self._mine)
        # Of each partition; the first word may take as long as any answer.
        self._heard_sec = [time.monotonic() + _ANSWER_SEC - _SILENT_SEC] * len(self._mine)
        self._bytes = [0] * len(self._mine)
        self._paused: set[int] = set()
        self._consumer = broker.connect()
        try:
            self._assign()
        except BaseException:
            self._consumer.close()
            raise

    def poll(self, most: int) -> list[bytes]:
        if not (found := self._take(most)):
            self._fetch(most)
            found = self._take(most)
        return found

    def _take(self, most: int) -> list[bytes]:
        found = []
        for number, message in self._order.take(most, self._is_at_known_end):
            self._place[self._find(*self._mine[number])] = message.offset() + 1
            found.append(self._make_record(message))
            self._bytes[number] -= _count_bytes(message)
            if (
                number in self._paused
                and self._order.count(number) <= _FEW_AHEAD
                and self._bytes[number] <= _FEW_BYTES_AHEAD
            ):
                self._paused.remove(number)
                self._consumer.resume([self._make_partition(*self._mine[number])])
        return found

    def _fetch(self, most: int) -> None:
        for message in self._consumer.consume(most, timeout=_POLL_SEC):
            if message.error() is not None:
                self._hear_error(message)
                continue
            number = self._numbers[message.topic(), message.partition()]
            if message.offset() < self._next[number]:
                continue  # Fetched a second time, after a pause.
            self._next[number] = message.offset() + 1
            self._heard_sec[number] = time.monotonic()
            self._order.add(number, message.timestamp()[1], message)
            self._bytes[number] += _count_bytes(message)
            if number not in self._paused and (
                self._order.count(number) > _MOST_AHEAD or self._bytes[number] > _MOST_BYTES_AHEAD
            ):
                self._paused.add(number)
                self._consumer.pause([self._make_partition(*self._mine[number])])

    def _is_at_known_end(self, number: int) -> bool:
        """Returns whether nothing is to be waited for before others of a later time are taken."""
        if self._ends[number] >= self._next[number]:
            return True
        partition = self._broker.library.TopicPartition(*self._mine[number])
        # What the answer to the last fetch has said; nothing is asked here.
        _, end = self._consumer.get_watermark_offsets(partition, cached=True)
        if 0 <= end <= self._next[number]:
            self._heard_sec[number] = time.monotonic()
            return True
        return time.monotonic() - self._heard_sec[number] > _SILENT_SEC

    def _hear_error(self, message: Any) -> None:
        kafka_error = self._broker.library.KafkaError
        error = message.error()
        if error.code() == kafka_error._PARTITION_EOF:
            self._ends[self._numbers[message.topic(), message.partition()]] = message.offset()
        elif error.code() in (kafka_error._AUTO_OFFSET_RESET, kafka_error.OFFSET_OUT_OF_RANGE):
            raise errors.DataError(
                f"Topic {message.topic()!r}, partition {message.partition()} has no message at "
                "the place where reading is to go on; the broker has deleted it. Keep messages "
                "for longer, or begin without the checkpoint."
            )
        elif error.code() == kafka_error.UNKNOWN_TOPIC_OR_PART:
            raise errors.DataError(
                f"Topic {message.topic()!r} is not there any more; check that nobody has "
                "deleted it."
            )
        else:
            absl_logging.log_every_n_seconds(
                absl_logging.WARNING,
                "a Kafka broker of %s does not answer, it is waited for: %s",
                60,
                self._broker.servers,
                error.str(),
            )

    def get_place(self) -> Place:
        return tuple(self._place)

    def is_at_end(self) -> bool:
        # That a poll has brought nothing says little: messages may be on their way.
        library = self._broker.library
        try:
            for number, one in enumerate(self._mine):
                partition = self._make_partition(*one)
                _, end = self._consumer.get_watermark_offsets(partition, timeout=_ANSWER_SEC)
                # Its last records may be none that are messages; then it has told its end.
                is_told = self._ends[number] >= end and not self._order.count(number)
                if partition.offset < end and not is_told:
                    return False
        except library.KafkaException:
            return False
        return True

    def acknowledge(self) -> None:
        offsets = [self._make_partition(*one) for one in self._mine]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except self._broker.library.KafkaException as e:
            logger.debug("offsets were not committed: %s", e)

    def close(self) -> None:
        # It sends what it has to commit, and a broker that is gone does not answer.
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_SEC)

    def _assign(self) -> None:
        # A partition that was added later is new from its first message on.
        is_restart = any(offset != _UNKNOWN for offset in self._place)
        reads_all = is_restart or self._broker.start == "earliest"
        for topic, number in self._mine:
            at = self._find(topic, number)
            if self._place[at] != _UNKNOWN:
                continue
            # Looked up now, so that the place of every partition is known from the first batch on.
            partition = self._broker.library.TopicPartition(topic, number)
            try:
                low, high = self._consumer.get_watermark_offsets(partition, timeout=_ANSWER_SEC)
            except self._broker.library.KafkaException as e:
                raise errors.DataError(
                    f"The broker does not tell where topic {topic!r} begins ({e.args[0].str()})."
                ) from None
            self._place[at] = low if reads_all else high
        self._next = [self._place[self._find(*one)] for one in self._mine]
        self._consumer.assign([self._make_partition(*one) for one in self._mine])

    def _make_partition(self, topic: str, number: int) -> Any:
        offset = self._place[self._find(topic, number)]
        return self._broker.library.TopicPartition(topic, number, offset)

    def _find(self, topic: str, number: int) -> int:
        # Apart from each other, so that a topic may get more partitions.
        return self._topics.index(topic) * (_MAX_PARTITIONS // len(self._topics)) + number


def divide_partitions(counts: Mapping[str, int], part: division.Part) -> list[tuple[str, int]]:
    """Returns the partitions of one worker: a topic that gets more of them moves none.

    Args:
        counts: By topic, how many there are.
        part: The worker.

    Raises:
        errors.DataError: There are too few for all workers.

    Example:
        >>> divide_partitions({"clicks": 3, "likes": 2}, division.Part(0, of=2))
        [('clicks', 0), ('clicks', 2), ('likes', 1)]
    """
    # Each topic begins with another worker, or the first one would have all that are small.
    step = max(1, part.of // len(counts))
    workers = {
        (topic, number): (index * step + number) % part.of
        for index, (topic, count) in enumerate(counts.items())
        for number in range(count)
    }
    if len(set(workers.values())) < part.of:
        raise errors.DataError(
            f"{len(workers)} partitions cannot be divided among {part.of} workers so that each has "
            "one; give the topics more partitions, or the job fewer workers."
        )
    return [partition for partition, worker in workers.items() if worker == part.index]


def _count_bytes(message: Any) -> int:
    return len(message.value() or b"") + len(message.key() or b"")


def _import_library() -> Any:
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as e:
        raise ImportError(
            "ml.data.kafka needs confluent-kafka: pip install 'monolith-recsys[kafka]'."
        ) from e
